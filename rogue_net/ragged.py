"""Frames of entities as tensors: flat rows on the device, lengths on the host.

All index arithmetic starts from the lengths, which stay numpy arrays, so that it never waits for
the device.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from entity_env.actions.chains import link, places_among
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
    """Rows that belong to frames.

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
        """The number of rows of each frame, if it is the same for all of them."""
        first = int(self.lengths[0]) if len(self.lengths) else 0
        return first if (self.lengths == first).all() else None

    @staticmethod
    def of(ragged: Ragged, device: torch.device) -> "RaggedTensor":
        """Return a copy of the rows on a device: environments may reuse their arrays."""
        return RaggedTensor(
            torch.from_numpy(ragged.values).to(device, copy=True), ragged.lengths.copy()
        )

    def on_host(self) -> Ragged:
        """Return a copy of the rows as arrays."""
        return Ragged(self.values.cpu().numpy().copy(), self.lengths.copy())

    @staticmethod
    def cat(pieces: Sequence["RaggedTensor"]) -> "RaggedTensor":
        """Concatenate the frames of several pieces."""
        return RaggedTensor(
            torch.cat([piece.values for piece in pieces]),
            np.concatenate([piece.lengths for piece in pieces]),
        )

    @property
    def place(self) -> torch.device:
        """Device of the rows."""
        return self.values.device

    def index_of(self, rows: IntArray) -> Tensor:
        """Return the index of rows where these are."""
        return to_device(rows, self.values.device)

    def take(self, frames: IntArray) -> "RaggedTensor":
        """Return the given frames, in the given order."""
        return self.select(Selection(frames))

    def select(self, selection: Selection) -> "RaggedTensor":
        """Return the selected frames."""
        if n := self.rows_of_each:  # whole frames are copied, instead of row by row
            frames = selection.frames
            of_frames = self.values.reshape(len(self.lengths), n, *self.values.shape[1:])
            values = of_frames.index_select(0, self.index_of(frames)).flatten(0, 1)
            return RaggedTensor(values, self.lengths[frames])
        lengths, rows = selection.rows(self)
        return RaggedTensor(self.values.index_select(0, rows), lengths)

    def slice(self, frames: slice) -> "RaggedTensor":
        """Return consecutive frames, whose rows are a view."""
        lengths = self.lengths[frames]
        start = int(self.starts[frames.start]) if len(lengths) else 0
        return RaggedTensor(self.values[start : start + int(lengths.sum())], lengths)

    def keep(self, kept: BoolArray) -> "RaggedTensor":
        """Return the rows where `kept`, (rows,) bool, is True."""
        index = to_device(np.flatnonzero(kept), self.values.device)
        lengths = np.bincount(self.frame_of_row()[kept], minlength=len(self.lengths))
        return RaggedTensor(self.values.index_select(0, index), lengths)

    def frame_of_row(self) -> IntArray:
        """Return the frame of each row, (rows,) int64."""
        return np.repeat(np.arange(len(self.lengths)), self.lengths)


@dataclass(frozen=True)
class AfterBatch(FrameData):
    """The action that actors take before a dependent one, see `entity_env`'s `After`.

    Attributes:
        action: its name.
        rows: int64 (actors,) per frame, the number of each actor among the actors of that action in
            its frame.
        when: the labels of that action with which the dependent one is taken, by their number; any
            choice if empty.
    """

    action: str = field(metadata=SAME)
    rows: RaggedTensor
    when: tuple[int, ...] = field(metadata=SAME)

    @property
    def labels(self) -> int:
        """The number of labels that masks tell apart."""
        return max(1, len(self.when))


@dataclass(frozen=True)
class ActionBatch(FrameData):
    """The actors of an action in each frame, and the choices that are allowed.

    Attributes:
        actors: int64 (actors,) per frame, positions in the frame.
        mask: bool, True where allowed, None when everything is: (actors, choices) per frame for
            categorical and global actions, (actors * actees,) per frame for select-entity.
        actees: int64 (actees,) per frame, positions in the frame; for select-entity only.
        num_draws: random numbers that the choice of an actor takes.
        bounds: float32 (actors, 2, components) per frame, the smallest and largest numbers that
            each actor may choose; None for kinds of actions without numbers.
        after: the action that the actors take before this one, if it depends on one; `mask` then
            has rows for each label of `after.when`, as in `VecActionMask`.
    """

    actors: RaggedTensor
    mask: RaggedTensor | None = None
    actees: RaggedTensor | None = None
    num_draws: int = field(default=1, metadata=SAME)
    bounds: RaggedTensor | None = None
    after: AfterBatch | None = None

    @staticmethod
    def of(mask: VecActionMask, device: torch.device) -> "ActionBatch":
        """Return a copy of a mask on a device."""

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
        """Return a copy as a mask of some kind; the inverse of `of`."""
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
        """Return the mask if it is not given: everything is allowed."""
        if path == ("mask",):
            return self._full_mask(like.values)
        return super().missing(path, like)

    def _full_mask(self, like: Tensor) -> RaggedTensor:
        """Return a mask that allows everything, with the columns of another one."""
        lengths = self.actors.lengths * (1 if self.after is None else self.after.labels)
        if self.actees is not None:
            lengths = lengths * self.actees.lengths
        shape = (int(lengths.sum()), *like.shape[1:])
        return RaggedTensor(torch.ones(shape, dtype=torch.bool, device=like.device), lengths)


@dataclass(frozen=True)
class EntityBatch(FrameData):
    """B frames, the input of the network.

    Attributes:
        features: float32 (n, num_features) per frame, for every entity type; and under
            "__global__" one row per frame, where there is anything global.
        visible: bool (n,) per frame, for the types of which something may be hidden.
        actions: for every action, its actors and the allowed choices.
        num_frames: B.
        keys: int64 (B,) on the host, of which the dropout of each frame is a function, so that it
            does not depend on how frames are batched; None to draw it from torch's generator.
        kinds: uint8 or int16 (n, num_kinds) per frame, the indices of labels, for the types that
            have kinds, and under "__global__" for kinds that belong to no entity.
        identity: numbers of entities on the host, as in `VecObs`.
        past: what a network with memory remembers of earlier frames; None for nothing.
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
        """Return a copy of the frames of a vectorised environment on a device."""
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
        """Return a leaf that is not given: all is seen; keys are there for all frames or none."""
        if path[0] == "visible":
            return self.visibility(path[1])
        return None if path == ("keys",) else super().missing(path, like)

    def visibility(self, name: str) -> RaggedTensor:
        """Return the visibility of the entities of a type to the policy, bool (n,) per frame."""
        if name in self.visible:
            return self.visible[name]
        rows = self.features[name]
        return RaggedTensor(
            torch.ones(len(rows.values), dtype=torch.bool, device=rows.values.device), rows.lengths
        )

    def num_entities(self) -> int:
        """Return the number of entities of all frames together, without the global one."""
        return sum(len(rows.values) for name, rows in self.features.items() if name != GLOBAL)

    def entities_of_frames(self) -> IntArray:
        """Return (B,) int64, the entities of each frame; the global features are not one."""
        lengths = [rows.lengths for name, rows in self.features.items() if name != GLOBAL]
        return sum(lengths, start=np.zeros(self.num_frames, dtype=np.int64))


def to_device(index: npt.NDArray[Any], device: torch.device) -> Tensor:
    """Return an index array as a tensor on a device."""
    return torch.from_numpy(index).to(device, non_blocking=True)


def of_action(tensors: Mapping[str, Tensor] | None, name: str) -> Tensor | None:
    """Return the tensor of an action; None if there are none for any action."""
    return None if tensors is None else tensors[name]


@dataclass(frozen=True)
class ActionSubset:
    """An action of B frames, restricted to some of its actors and actees.

    Attributes:
        action: the restricted action.
        whole: the action with all actors and actees.
        actors: (actors of `whole`,) bool, True for those of `action`.
        actees: (actees of `whole`,) bool, True for those of `action`; None if nothing is selected.
    """

    action: ActionBatch
    whole: ActionBatch
    actors: BoolArray
    actees: BoolArray | None

    @property
    def pairs(self) -> BoolArray:
        """(pairs of `whole`,) bool, True for pairs of an actor and an actee of `action`."""
        assert self.actees is not None
        actor, actee = actor_pairs(self.whole)
        pairs: BoolArray = self.actors[actor] & self.actees[actee]
        return pairs


def restrict_action(
    action: ActionBatch, actors: BoolArray, actees: BoolArray | None
) -> ActionSubset:
    """Return an action restricted to some of its actors and actees.

    Args:
        action: of B frames.
        actors: (actors,) bool, the actors to keep; of a select-entity action only those stay that
            can select one of `actees`.
        actees: (actees,) bool, the actees to keep; None if nothing is selected.
    """
    of_mask, of_actees = actors, None
    if actees is not None and action.actees is not None:
        # Actors that can select nothing more are left out too.
        actor, actee = actor_pairs(action)
        possible = actees[actee]
        if action.mask is not None:
            possible &= action.mask.values.cpu().numpy()
        actors = actors & (np.bincount(actor, possible, minlength=len(actors)) > 0)
        of_mask, of_actees = actors[actor] & actees[actee], action.actees.keep(actees)
    mask = None if action.mask is None else action.mask.keep(of_mask)
    bounds = None if action.bounds is None else action.bounds.keep(actors)
    kept = ActionBatch(action.actors.keep(actors), mask, of_actees, action.num_draws, bounds)
    return ActionSubset(kept, action, actors, actees)


def restrict_actions(
    actions: Mapping[ActionName, ActionBatch],
    kept: Callable[[RaggedTensor], BoolArray],
    action_space: Mapping[ActionName, ActionSpace] | None,
) -> dict[ActionName, ActionSubset]:
    """Return actions restricted to some entities.

    Args:
        actions: of B frames.
        kept: returns which positions of entities are kept, flat.
        action_space: the actions; needed where some depend on others.
    """
    parts = {}
    of_actees = {n: None if a.actees is None else kept(a.actees) for n, a in actions.items()}
    if all(action.after is None for action in actions.values()):
        for name, action in actions.items():
            parts[name] = restrict_action(action, kept(action.actors), of_actees[name])
        return parts
    assert action_space is not None

    # On the host, where chains are linked.
    masks = {}
    for name, action in actions.items():
        mask = action.on_host(action_space[name].batch_mask_type).keep(kept(action.actors))
        actees = of_actees[name]
        masks[name] = mask if actees is None else mask.keep_actees(actees)
    for name, mask in link(masks, action_space).items():
        whole = actions[name]
        actors = places_among(whole.actors.on_host(), mask.actors) >= 0
        left = ActionBatch.of(mask, whole.actors.values.device)
        parts[name] = ActionSubset(left, whole, actors, of_actees[name])
    return parts


def actor_pairs(action: ActionBatch) -> tuple[IntArray, IntArray]:
    """Return actor and actee of every pair in a frame, in the order of masks, (pairs,) int64."""
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
    """Return copies of frames, each without one of its entities.

    Actors that have no legal choice without the entity are left out; a choice that nothing can
    follow without it becomes illegal.

    Args:
        batch: B frames.
        frames: (E,) int64, the frame of each copy, or the index of that of all.
        entities: (E,) int64, positions in these frames.
        action_space: the actions; needed where some depend on others.

    Returns:
        E frames; and their actions as parts of those of E copies of the whole frames.

    Raises:
        ValueError: there is no entity at a position.
    """
    copies = batch.take(np.full(len(entities), frames))
    limits = copies.entities_of_frames()
    if (is_unknown := (entities < 0) | (entities >= limits)).any():
        expected = f"positions from 0 to {limits[is_unknown][0] - 1}"
        got = short_repr(entities[is_unknown].tolist())
        raise ValueError(f"entities: expected {expected}, got {got}")

    # Rows of each type.
    kept: dict[str, BoolArray] = {}
    start = np.zeros(len(entities), np.int64)
    for name, rows in copies.features.items():
        is_other = row_indices(start, rows.lengths) != np.repeat(entities, rows.lengths)
        kept[name] = is_other | (name == GLOBAL)
        start += 0 if name == GLOBAL else rows.lengths

    # Actions, with the positions that actors and actees have then.
    def others(positions: RaggedTensor) -> BoolArray:
        is_other: BoolArray = positions.values.cpu().numpy() != np.repeat(
            entities, positions.lengths
        )
        return is_other

    def moved(positions: RaggedTensor) -> RaggedTensor:
        removed = np.repeat(entities, positions.lengths)
        behind = positions.values > to_device(removed, positions.values.device)
        return replace(positions, values=positions.values - behind.long())

    actions = {}
    parts = restrict_actions(copies.actions, others, action_space)
    for name, part in parts.items():
        left = part.action
        moved_actees = None if left.actees is None else moved(left.actees)
        actions[name] = replace(left, actors=moved(left.actors), actees=moved_actees)

    def rest(named: Mapping[str, RaggedTensor]) -> dict[str, RaggedTensor]:
        return {name: rows.keep(kept[name]) for name, rows in named.items()}

    def known(name: str, numbers: Ragged) -> Ragged:
        has_ids = np.repeat(numbers.lengths > 0, copies.features[name].lengths)
        is_kept = kept[name][has_ids]
        of_frame = np.repeat(np.arange(len(numbers)), numbers.lengths)[is_kept]
        return Ragged(numbers.values[is_kept], np.bincount(of_frame, minlength=len(numbers)))

    features, visible, kinds = map(rest, (copies.features, copies.visible, copies.kinds))
    identity = {name: known(name, numbers) for name, numbers in copies.identity.items()}
    left_out = replace(copies, features=features, visible=visible, kinds=kinds, actions=actions)
    return replace(left_out, identity=identity), parts
