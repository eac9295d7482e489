"""Batches of frames as ragged tensors: flat rows on the device, lengths on the host.

Indices are computed from the lengths, which stay numpy arrays, to avoid synchronising with the
device.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from entity_env.actions.chains import link_to_parents, positions_among
from entity_env.arrays import BoolArray, IntArray
from entity_env.errors import short_repr
from entity_env.frame_data import COUNT, SAME, FrameData, Path, cat_leaves, slice_leaf, take_leaf
from entity_env.ragged import Ragged, Selection, exclusive_cumsum, row_indices
from entity_env.spaces import GLOBAL, ActionName, ActionSpace
from entity_env.vec.vec_env import VecActionMask, VecObs
from entity_env.vec.vec_obs import After
from rogue_net.past import Past

# Tensors are leaves with an entry for each frame.
take_leaf.register(
    Tensor, lambda leaf, selection: leaf.index_select(0, to_device(selection.frames, leaf.device))
)
slice_leaf.register(Tensor, lambda leaf, frames: leaf[frames])
cat_leaves.register(Tensor, lambda first, leaves: torch.cat(leaves))


@dataclass(frozen=True)
class RaggedTensor:
    """A batch of frames with different numbers of rows.

    Attributes:
        values: (rows, ...), the rows of all frames, frame after frame.
        lengths: (frames,) int64 on the host, the number of rows of each frame.
    """

    values: Tensor
    lengths: IntArray

    @cached_property
    def starts(self) -> IntArray:
        """(frames,) int64, the first row of each frame."""
        return exclusive_cumsum(self.lengths)

    @cached_property
    def rows_of_each(self) -> int | None:
        """The number of rows of each frame if all are equal, else None."""
        first = int(self.lengths[0]) if len(self.lengths) else 0
        return first if (self.lengths == first).all() else None

    @staticmethod
    def of(ragged: Ragged, device: torch.device) -> "RaggedTensor":
        """Copy rows to a device; environments may reuse their arrays."""
        return RaggedTensor(
            torch.from_numpy(ragged.values).to(device, copy=True), ragged.lengths.copy()
        )

    def on_host(self) -> Ragged:
        """Copy the rows to the host."""
        return Ragged(self.values.cpu().numpy().copy(), self.lengths.copy())

    @staticmethod
    def cat(pieces: Sequence["RaggedTensor"]) -> "RaggedTensor":
        """Concatenate along the frames."""
        return RaggedTensor(
            torch.cat([piece.values for piece in pieces]),
            np.concatenate([piece.lengths for piece in pieces]),
        )

    @property
    def place(self) -> torch.device:
        """Device of the rows."""
        return self.values.device

    def index_of(self, rows: IntArray) -> Tensor:
        """Return row indices as a tensor on the device of the rows."""
        return to_device(rows, self.values.device)

    def take(self, frames: IntArray) -> "RaggedTensor":
        """Select frames by index, (n,) int64."""
        return self.select(Selection(frames))

    def select(self, selection: Selection) -> "RaggedTensor":
        """Select frames."""
        frames = selection.frames
        if self.rows_of_each == 1:
            rows = self.values.index_select(0, selection.index(self))
            return RaggedTensor(rows, self.lengths[frames])
        if n := self.rows_of_each:  # equal lengths: index whole frames, (frames, n, ...)
            by_frame = self.values.reshape(len(self.lengths), n, *self.values.shape[1:])
            values = by_frame.index_select(0, selection.index(self)).flatten(0, 1)
            return RaggedTensor(values, self.lengths[frames])
        lengths, rows = selection.rows(self)
        return RaggedTensor(self.values.index_select(0, rows), lengths)

    def slice(self, frames: slice) -> "RaggedTensor":
        """Return consecutive frames as a view."""
        lengths = self.lengths[frames]
        start = int(self.starts[frames.start]) if len(lengths) else 0
        return RaggedTensor(self.values[start : start + int(lengths.sum())], lengths)

    def keep(self, mask: BoolArray) -> "RaggedTensor":
        """Select the rows where `mask`, (rows,) bool, is True."""
        index = to_device(np.flatnonzero(mask), self.values.device)
        lengths = np.bincount(self.frame_of_row()[mask], minlength=len(self.lengths))
        return RaggedTensor(self.values.index_select(0, index), lengths)

    def frame_of_row(self) -> IntArray:
        """Return the frame of each row, (rows,) int64."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


@dataclass(frozen=True)
class AfterBatch(FrameData):
    """Parent action of a dependent action, see `entity_env.vec.vec_obs.After`.

    Attributes:
        action: name of the parent action.
        rows: int64 (actors,) per frame, the index of each actor among the actors of the parent
            action in its frame.
        when: indices of the parent labels with which actors are active; any choice if empty.
    """

    action: str = field(metadata=SAME)
    rows: RaggedTensor
    when: tuple[int, ...] = field(metadata=SAME)

    @property
    def labels(self) -> int:
        """The number of parent labels with a mask of their own."""
        return max(1, len(self.when))


@dataclass(frozen=True)
class ActionBatch(FrameData):
    """The actors of an action in each frame, and the choices that are allowed.

    Attributes:
        actors: int64 (actors,) per frame, positions in the frame.
        mask: bool, True where allowed, None if everything is: (actors, choices) per frame for
            categorical and global actions, (actors * actees,) per frame for select-entity.
        actees: int64 (actees,) per frame, positions in the frame; for select-entity only.
        num_draws: random numbers per choice.
        bounds: float32 (actors, 2, components) per frame, lower and upper bounds; None for actions
            that are not continuous.
        after: the parent action, or None; `mask` then has rows for each label of `after.when`, as
            in `VecActionMask`.
    """

    actors: RaggedTensor
    mask: RaggedTensor | None = None
    actees: RaggedTensor | None = None
    num_draws: int = field(default=1, metadata=SAME)
    bounds: RaggedTensor | None = None
    after: AfterBatch | None = None

    @staticmethod
    def of(mask: VecActionMask, device: torch.device) -> "ActionBatch":
        """Copy a mask to a device."""

        def on_device(rows: Ragged | None) -> RaggedTensor | None:
            return None if rows is None else RaggedTensor.of(rows, device)

        after = None
        if mask.after is not None:
            rows = RaggedTensor.of(mask.after.rows, device)
            after = AfterBatch(mask.after.action, rows, tuple(mask.after.when))
        return ActionBatch(
            RaggedTensor.of(mask.actors, device),
            on_device(mask.mask),
            on_device(mask.actees),
            mask.num_draws,
            on_device(mask.bounds),
            after,
        )

    def on_host(self, kind: type[VecActionMask]) -> VecActionMask:
        """Copy to the host as a mask of class `kind`; the inverse of `of`."""
        fields: dict[str, Any] = {"actors": self.actors.on_host()}
        if self.actees is not None:
            fields["actees"] = self.actees.on_host()
        if self.bounds is None:
            fields["mask"] = None if self.mask is None else self.mask.on_host()
        else:
            bounds = self.bounds.on_host()
            for name, rows in zip(("low", "high"), bounds.values.swapaxes(0, 1), strict=True):
                fields[name] = Ragged(np.ascontiguousarray(rows), bounds.lengths)
        if (after := self.after) is not None:
            fields["after"] = After(after.action, after.rows.on_host(), [*after.when])
        return kind(**fields)

    def missing(self, path: Path, like: Any) -> Any:
        """Return the value of a missing leaf: a missing mask allows everything."""
        if path == ("mask",):
            return self._full_mask(like.values)
        return super().missing(path, like)

    def _full_mask(self, like: Tensor) -> RaggedTensor:
        """Return a mask that allows everything, with the columns of the mask `like`."""
        lengths = self.actors.lengths * (1 if self.after is None else self.after.labels)
        if self.actees is not None:
            lengths = lengths * self.actees.lengths
        shape = (int(lengths.sum()), *like.shape[1:])
        return RaggedTensor(torch.ones(shape, dtype=torch.bool, device=like.device), lengths)


@dataclass(frozen=True)
class EntityBatch(FrameData):
    """B frames, the input of a network.

    Attributes:
        features: float32 (n, num_features) per frame, for each entity type; and under
            "__global__" one row per frame, if there are global features.
        visible: bool (n,) per frame, for the types with entities that may be invisible.
        actions: for each action, its actors and the allowed choices.
        num_frames: B.
        keys: int64 (B,) on the host, seeds of the dropout of each frame, so that dropout does not
            depend on how frames are batched; None to use torch's generator.
        kinds: uint8 or int16 (n, num_kinds) per frame, label indices of categorical features, for
            the types that have any, and under "__global__" for global ones.
        identity: numbers of entities on the host, as in `VecObs`.
        past: links to recurrent states, for networks with memory; None without earlier frames.
    """

    features: Mapping[str, RaggedTensor]
    visible: Mapping[str, RaggedTensor]
    actions: Mapping[str, ActionBatch]
    num_frames: int = field(metadata=COUNT)
    keys: IntArray | None = None
    kinds: Mapping[str, RaggedTensor] = field(default_factory=dict)
    identity: Mapping[str, Ragged] = field(default_factory=dict)
    past: Past | None = None

    @staticmethod
    def of(obs: VecObs, device: torch.device | str = "cpu") -> "EntityBatch":
        """Copy the observations of a vectorised environment to a device."""
        device = torch.device(device)
        return EntityBatch(
            {name: RaggedTensor.of(rows, device) for name, rows in obs.features.items()},
            {name: RaggedTensor.of(rows, device) for name, rows in obs.visible.items()},
            {name: ActionBatch.of(mask, device) for name, mask in obs.action_masks.items()},
            len(obs),
            kinds={name: RaggedTensor.of(rows, device) for name, rows in obs.kinds.items()},
            identity={
                name: Ragged(rows.values.copy(), rows.lengths.copy())
                for name, rows in obs.identity.items()
            },
        )

    def missing(self, path: Path, like: Any) -> Any:
        """Return the value of a missing leaf: entities are visible; keys must not be missing."""
        if path[0] == "visible":
            return self.visibility(path[1])
        return None if path == ("keys",) else super().missing(path, like)

    def visibility(self, name: str) -> RaggedTensor:
        """Return which entities of a type are visible to the policy, bool (n,) per frame."""
        if name in self.visible:
            return self.visible[name]
        rows = self.features[name]
        return RaggedTensor(
            torch.ones(len(rows.values), dtype=torch.bool, device=rows.values.device), rows.lengths
        )

    def num_entities(self) -> int:
        """Return the number of entities in the batch, without the global entity."""
        return sum(len(rows.values) for name, rows in self.features.items() if name != GLOBAL)

    def entities_of_frames(self) -> IntArray:
        """Return the number of entities of each frame, (B,) int64, without the global entity."""
        lengths = [rows.lengths for name, rows in self.features.items() if name != GLOBAL]
        return sum(lengths, start=np.zeros(self.num_frames, dtype=np.int64))


def to_device(index: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Copy an array to a device as a tensor."""
    return torch.from_numpy(index).to(device, non_blocking=True)


def lookup(by_action: Mapping[str, Tensor] | None, name: str) -> Tensor | None:
    """Return the tensor of an action; None without a mapping."""
    return None if by_action is None else by_action[name]


@dataclass(frozen=True)
class ActionSubset:
    """An action of B frames, restricted to some of its actors and actees.

    Attributes:
        action: the restricted action.
        whole: the action with all actors and actees.
        actors: (actors of `whole`,) bool, True for actors of `action`.
        actees: (actees of `whole`,) bool, True for actees of `action`; None unless select-entity.
    """

    action: ActionBatch
    whole: ActionBatch
    actors: BoolArray
    actees: BoolArray | None

    @property
    def pairs(self) -> BoolArray:
        """(pairs of `whole`,) bool, True for the actor-actee pairs of `action`."""
        assert self.actees is not None
        actor, actee = actor_pairs(self.whole)
        pairs: BoolArray = self.actors[actor] & self.actees[actee]
        return pairs


def restrict_action(
    action: ActionBatch, actors: BoolArray, actees: BoolArray | None
) -> ActionSubset:
    """Restrict an action to some of its actors and actees.

    Args:
        action: of B frames.
        actors: (actors,) bool, the actors to retain; actors that cannot select any of `actees` are
            removed too.
        actees: (actees,) bool, the actees to retain; None unless select-entity.
    """
    mask_rows, retained = actors, None
    if actees is not None and action.actees is not None:
        # Remove actors without a legal actee.
        actor, actee = actor_pairs(action)
        possible = actees[actee]
        if action.mask is not None:
            possible &= action.mask.values.cpu().numpy()
        actors = actors & (np.bincount(actor, possible, minlength=len(actors)) > 0)
        mask_rows, retained = actors[actor] & actees[actee], action.actees.keep(actees)
    mask = None if action.mask is None else action.mask.keep(mask_rows)
    bounds = None if action.bounds is None else action.bounds.keep(actors)
    part = ActionBatch(action.actors.keep(actors), mask, retained, action.num_draws, bounds)
    return ActionSubset(part, action, actors, actees)


def restrict_actions(
    actions: Mapping[ActionName, ActionBatch],
    select: Callable[[RaggedTensor], BoolArray],
    action_space: Mapping[ActionName, ActionSpace] | None,
) -> dict[ActionName, ActionSubset]:
    """Restrict actions to some entities.

    Args:
        actions: of B frames.
        select: returns which entities to retain, (rows,) bool, from their positions.
        action_space: the actions; required for dependent actions.
    """
    parts = {}
    actee_masks = {n: None if a.actees is None else select(a.actees) for n, a in actions.items()}
    if all(action.after is None for action in actions.values()):
        for name, action in actions.items():
            parts[name] = restrict_action(action, select(action.actors), actee_masks[name])
        return parts
    assert action_space is not None

    # Dependent actions: link the restricted masks to their parents, on the host.
    masks = {}
    for name, action in actions.items():
        mask = action.on_host(action_space[name].batch_mask_type).keep(select(action.actors))
        actees = actee_masks[name]
        masks[name] = mask if actees is None else mask.keep_actees(actees)
    for name, mask in link_to_parents(masks, action_space).items():
        whole = actions[name]
        actors = positions_among(whole.actors.on_host(), mask.actors) >= 0
        part = ActionBatch.of(mask, whole.actors.values.device)
        parts[name] = ActionSubset(part, whole, actors, actee_masks[name])
    return parts


def actor_pairs(action: ActionBatch) -> tuple[IntArray, IntArray]:
    """Return the actor and the actee of each pair, (pairs,) int64, in the order of masks."""
    assert action.actees is not None
    frame_of_actor = action.actors.frame_of_row()
    num_actees = action.actees.lengths[frame_of_actor]
    actor = np.repeat(np.arange(len(num_actees)), num_actees)
    return actor, row_indices(action.actees.starts[frame_of_actor], num_actees)


def without(
    batch: EntityBatch,
    frames: IntArray | int,
    entities: IntArray,
    action_space: Mapping[ActionName, ActionSpace] | None = None,
) -> tuple[EntityBatch, dict[ActionName, ActionSubset]]:
    """Return copies of frames with one entity removed from each.

    Actors without legal choices are removed too; a choice that leaves no legal choice in a
    dependent action becomes illegal.

    Args:
        batch: B frames.
        frames: (E,) int64, the frame of each copy, or a single index for all copies.
        entities: (E,) int64, positions of the entities to remove.
        action_space: the actions; required for dependent actions.

    Returns:
        E frames; and their actions as subsets of the actions of E copies of whole frames.

    Raises:
        ValueError: a position is out of range.
    """
    copies = batch.take(np.full(len(entities), frames))
    limits = copies.entities_of_frames()
    if (is_unknown := (entities < 0) | (entities >= limits)).any():
        expected = f"positions from 0 to {limits[is_unknown][0] - 1}"
        got = short_repr(entities[is_unknown].tolist())
        raise ValueError(f"entities: expected {expected}, got {got}")

    # Rows of each type.
    retained: dict[str, BoolArray] = {}
    start = np.zeros(len(entities), np.int64)
    for name, rows in copies.features.items():
        is_other = row_indices(start, rows.lengths) != np.repeat(entities, rows.lengths)
        retained[name] = is_other | (name == GLOBAL)
        start += 0 if name == GLOBAL else rows.lengths

    # Actions, with the new positions of actors and actees.
    def is_retained(positions: RaggedTensor) -> BoolArray:
        is_other: BoolArray = positions.values.cpu().numpy() != np.repeat(
            entities, positions.lengths
        )
        return is_other

    def shifted(positions: RaggedTensor) -> RaggedTensor:
        removed = np.repeat(entities, positions.lengths)
        behind = positions.values > to_device(removed, positions.values.device)
        return replace(positions, values=positions.values - behind.long())

    actions = {}
    parts = restrict_actions(copies.actions, is_retained, action_space)
    for name, part in parts.items():
        restricted = part.action
        actees = None if restricted.actees is None else shifted(restricted.actees)
        actions[name] = replace(restricted, actors=shifted(restricted.actors), actees=actees)

    def reduce(by_type: Mapping[str, RaggedTensor]) -> dict[str, RaggedTensor]:
        return {name: rows.keep(retained[name]) for name, rows in by_type.items()}

    def reduce_ids(name: str, numbers: Ragged) -> Ragged:
        has_ids = np.repeat(numbers.lengths > 0, copies.features[name].lengths)
        keep = retained[name][has_ids]
        frame = np.repeat(np.arange(len(numbers)), numbers.lengths)[keep]
        return Ragged(numbers.values[keep], np.bincount(frame, minlength=len(numbers)))

    features, visible, kinds = map(reduce, (copies.features, copies.visible, copies.kinds))
    identity = {name: reduce_ids(name, numbers) for name, numbers in copies.identity.items()}
    reduced = replace(copies, features=features, visible=visible, kinds=kinds, actions=actions)
    return replace(reduced, identity=identity), parts
