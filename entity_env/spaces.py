"""Action spaces, which batch the masks of frames and decode choices to actions.

A choice is an index from 0 among the choices of an actor. A batched mask has one flag per choice,
actor by actor.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np

from entity_env.actions import (
    Action,
    ActionMask,
    ActionName,
    CategoricalAction,
    CategoricalActionMask,
    EntityID,
    EntityName,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    SelectEntityAction,
    SelectEntityActionMask,
)
from entity_env.actions.action_space import ActionSpace, Actors, IDs, Probabilities
from entity_env.actions.continuous import ContinuousActionSpace, GlobalContinuousActionSpace
from entity_env.arrays import BoolArray, IntArray, all_none, as_flags
from entity_env.errors import unexpected
from entity_env.kinds import Flag, Kind, check_unique
from entity_env.observation import GLOBAL, Entity, Observation, ObsSpace
from entity_env.ragged import Ragged, row_indices
from entity_env.vec.frames import Frames, ids_of_actees, ids_of_actors
from entity_env.vec.vec_obs import (
    VecActionMask,
    VecCategoricalActionMask,
    VecSelectEntityActionMask,
)

__all__ = [
    "ACTION_SPACES",
    "GLOBAL",
    "ActionName",
    "ActionSpace",
    "ActionSpaces",
    "Actors",
    "CategoricalActionSpace",
    "ContinuousActionSpace",
    "Entity",
    "EntityID",
    "EntityName",
    "Flag",
    "GlobalCategoricalActionSpace",
    "GlobalContinuousActionSpace",
    "Kind",
    "ObsSpace",
    "Probabilities",
    "SelectEntityActionSpace",
    "Spaces",
    "batch_mask_type",
    "has_global_entity",
    "num_columns",
]


@dataclass
class _LabelledActionSpace(ActionSpace):
    """Base class of action spaces with labelled choices."""

    index_to_label: list[str]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_unique(f"{type(self).__name__}.index_to_label", self.index_to_label)

    def __len__(self) -> int:
        return len(self.index_to_label)

    @property
    def labels(self) -> list[str]:
        """The labels of the choices."""
        return self.index_to_label

    @property
    def mask_columns(self) -> tuple[int, ...]:
        """One column per choice."""
        return (len(self.index_to_label),)

    def num_choices(self, action: Actors) -> IntArray:
        """Return the number of labels, for each actor."""
        return np.full(int(np.add.reduce(action.actors.lengths)), len(self.index_to_label))

    def renamed(self, labels: Mapping[str, str]) -> Self:
        """Return the space with other names for its labels."""
        return replace(self, index_to_label=[labels[label] for label in self.index_to_label])


# Masks of frames in which an action is not available.
_NO_ACTORS = CategoricalActionMask(actor_ids=())
_NO_SELECTION = SelectEntityActionMask(actor_ids=(), actee_ids=())


@dataclass
class CategoricalActionSpace(_LabelledActionSpace):
    """Each actor chooses one of several labels."""

    kind = "categorical"
    mask_type = CategoricalActionMask
    action_type = CategoricalAction
    batch_mask_type = VecCategoricalActionMask

    def batch_mask(self, frames: Frames, name: ActionName) -> VecCategoricalActionMask:
        """Batch the masks of B frames."""
        masks = self._masks_of(frames, name, _NO_ACTORS)
        actors = frames.actors_of(masks, f"actions[{name!r}] actors")
        return _with_legal_actors(self, actors, [m.mask for m in masks], name)

    def decode(
        self,
        name: ActionName,
        choices: Ragged,
        mask: VecActionMask,
        obs: Sequence[Observation],
        obs_space: ObsSpace,
        probs: Probabilities,
    ) -> Iterator[Action | None]:
        """Yield the action of each environment."""
        masks: list[Any] = [o.actions.get(name, _NO_ACTORS) for o in obs]
        ids = ids_of_actors(obs, obs_space, masks, mask.actors)
        frame_indices = _split_frames(choices)
        for frame_mask, actors, indices, p in zip(masks, ids, frame_indices, probs, strict=True):
            offered, labels = frame_mask is not _NO_ACTORS, [*self.index_to_label]
            yield CategoricalAction(actors, indices, labels, p) if offered else None

    def random_mask(self, actors: IDs, actees: IDs, rng: np.random.Generator) -> ActionMask:
        """Return a mask that allows each choice with probability .7."""
        return self._mask(actors, actees, rng.random(self._mask_shape(actors, len(self))) < 0.7)

    def _mask(self, actors: IDs, actees: IDs, allowed: BoolArray) -> ActionMask:
        return CategoricalActionMask(actor_ids=actors, mask=allowed)

    def _actors_and_choices(
        self, name: ActionName, mask: VecActionMask, obs: Sequence[Observation], obs_space: ObsSpace
    ) -> Iterable[tuple[Sequence[EntityID], Sequence[EntityID]]]:
        masks: list[Any] = [o.actions.get(name, _NO_ACTORS) for o in obs]
        ids = ids_of_actors(obs, obs_space, masks, mask.actors)
        return zip(ids, repeat(self.index_to_label))


@dataclass
class GlobalCategoricalActionSpace(_LabelledActionSpace):
    """One choice of a label per frame, without an acting entity."""

    kind = "global"
    mask_type = GlobalCategoricalActionMask
    action_type = GlobalCategoricalAction
    batch_mask_type = VecCategoricalActionMask
    is_global = True

    def batch_mask(self, frames: Frames, name: ActionName) -> VecCategoricalActionMask:
        """Batch the masks of B frames; the actor is the global entity, the last of a frame."""
        masks = self._masks_of(frames, name, None)
        actors = frames.global_actors(masks)
        where, blocks = f"actions[{name!r}].mask", [None if m is None else m.mask for m in masks]
        for i, mask in enumerate(blocks):
            if mask is not None:
                flags = as_flags(mask, where, i)
                blocks[i] = np.atleast_2d(flags) if self.labels_of_mask == 1 else flags[None]
        return _with_legal_actors(self, actors, blocks, name)

    def decode(
        self,
        name: ActionName,
        choices: Ragged,
        mask: VecActionMask,
        obs: Sequence[Observation],
        obs_space: ObsSpace,
        probs: Probabilities,
    ) -> Iterator[Action | None]:
        """Yield the action of each environment, None also if no choice is legal."""
        remaining = iter(choices.values.tolist())
        for can_act, p in zip(mask.actors.lengths.tolist(), probs, strict=True):
            if not can_act:
                yield None
                continue
            index = next(remaining)
            p = None if p is None else p.reshape(-1)
            yield GlobalCategoricalAction(index, self.index_to_label[index], p)

    def random_mask(self, actors: IDs, actees: IDs, rng: np.random.Generator) -> ActionMask:
        """Return a mask that allows each choice with probability .7."""
        shape = self._mask_shape([GLOBAL], len(self))
        return GlobalCategoricalActionMask(mask=rng.random(shape)[0] < 0.7)

    def _mask(self, actors: IDs, actees: IDs, allowed: BoolArray) -> ActionMask:
        return GlobalCategoricalActionMask(mask=allowed[0])


@dataclass
class SelectEntityActionSpace(ActionSpace):
    """Each actor selects one entity."""

    kind = "select-entity"
    mask_type = SelectEntityActionMask
    action_type = SelectEntityAction
    batch_mask_type = VecSelectEntityActionMask

    @property
    def mask_columns(self) -> tuple[int, ...]:
        """Empty, as a batched mask has one row per pair of actor and actee."""
        return ()

    def num_choices(self, action: Actors) -> IntArray:
        """Return the number of actees of each actor's frame."""
        assert action.actees is not None
        return np.repeat(action.actees.lengths, action.actors.lengths)

    def batch_mask(self, frames: Frames, name: ActionName) -> VecSelectEntityActionMask:
        """Batch the masks of B frames."""
        masks = self._masks_of(frames, name, _NO_SELECTION)
        where = f"actions[{name!r}]"
        actors = frames.locate(
            [m.actor_ids for m in masks], [m.actor_types for m in masks], f"{where} actors"
        )
        # Drop the actees of frames without actors.
        actee_ids, actee_types = [m.actee_ids for m in masks], [m.actee_types for m in masks]
        for i in np.flatnonzero(actors.lengths == 0).tolist():
            actee_ids[i], actee_types[i] = (), None
        actees = frames.locate(actee_ids, actee_types, f"{where} actees")
        frames.check_visible(actors, f"{where} actors")
        labels, frame_masks = self.labels_of_mask, [m.mask for m in masks]
        allowed = _cat_masks(frame_masks, actors.lengths, actees.lengths, name, labels)
        # Drop hidden actees; it is an error to name them by id.
        visible = frames.are_visible(actees)
        if not visible.all():
            is_named = np.repeat([ids is not None for ids in actee_ids], actees.lengths)
            keep = visible | is_named
            if allowed is not None:
                blocks = actors.lengths * labels
                starts, sizes = np.repeat(actees.starts, blocks), np.repeat(actees.lengths, blocks)
                allowed = allowed[keep[row_indices(starts, sizes)]]
            actees = _keep_rows(actees, keep)
            frames.check_visible(actees, f"{where} actees")
        # Drop actors without legal choices.
        row_lengths = np.repeat(actees.lengths, actors.lengths)
        if allowed is None:
            return VecSelectEntityActionMask(_keep_rows(actors, row_lengths > 0), actees)
        row_of_pair = np.repeat(np.arange(len(row_lengths)), row_lengths * labels)
        legal = np.bincount(row_of_pair, weights=allowed, minlength=len(row_lengths)) > 0
        acting = _keep_rows(actors, legal)
        pairs = Ragged(allowed[legal[row_of_pair]], acting.lengths * actees.lengths * labels)
        return VecSelectEntityActionMask(acting, actees, pairs)

    def decode(
        self,
        name: ActionName,
        choices: Ragged,
        mask: VecActionMask,
        obs: Sequence[Observation],
        obs_space: ObsSpace,
        probs: Probabilities,
    ) -> Iterator[Action | None]:
        """Yield the action of each environment."""
        masks: list[Any] = [o.actions.get(name, _NO_SELECTION) for o in obs]
        actors = ids_of_actors(obs, obs_space, masks, mask.actors)
        assert mask.actees is not None
        actees = ids_of_actees(obs, obs_space, masks, mask.actees)
        chosen, ends = choices.values.tolist(), np.cumsum(choices.lengths).tolist()
        for frame_mask, actor_ids, actee_ids, start, end, p in zip(
            masks, actors, actees, [0, *ends], ends, probs, strict=False
        ):
            selected = list(map(actee_ids.__getitem__, chosen[start:end]))
            offered = frame_mask is not _NO_SELECTION
            yield SelectEntityAction(actor_ids, selected, p) if offered else None

    def random_mask(self, actors: IDs, actees: IDs, rng: np.random.Generator) -> ActionMask:
        """Return a mask that allows each pair with probability .7."""
        shape = self._mask_shape(actors, len(actees))
        return self._mask(actors, actees, rng.random(shape) < 0.7)

    def _mask(self, actors: IDs, actees: IDs, allowed: BoolArray) -> ActionMask:
        return SelectEntityActionMask(actor_ids=actors, actee_ids=actees, mask=allowed)

    def _actors_and_choices(
        self, name: ActionName, mask: VecActionMask, obs: Sequence[Observation], obs_space: ObsSpace
    ) -> Iterable[tuple[Sequence[EntityID], Sequence[EntityID]]]:
        masks: list[Any] = [o.actions.get(name, _NO_SELECTION) for o in obs]
        assert mask.actees is not None
        actors = ids_of_actors(obs, obs_space, masks, mask.actors)
        return zip(actors, ids_of_actees(obs, obs_space, masks, mask.actees), strict=True)


_KINDS = (
    CategoricalActionSpace,
    GlobalCategoricalActionSpace,
    SelectEntityActionSpace,
    ContinuousActionSpace,
    GlobalContinuousActionSpace,
)
ACTION_SPACES: dict[str, type[ActionSpace]] = {cls.__name__: cls for cls in _KINDS}
"""Action space classes by name, as in messages, recordings and checkpoints."""


def batch_mask_type(name: str) -> type[VecActionMask] | None:
    """Return the class of batched masks with this name, None if no action space uses it."""
    types = (space.batch_mask_type for space in ACTION_SPACES.values())
    return next((cls for cls in types if cls.__name__ == name), None)


ActionSpaces: TypeAlias = Mapping[ActionName, ActionSpace]
"""Action spaces by name of the action."""


class Spaces(NamedTuple):
    """Observation space and action space of an environment."""

    obs_space: ObsSpace
    action_space: ActionSpaces

    @classmethod
    def of(cls, env: Any) -> Self:
        """Return the spaces of an environment, match or vectorised environment."""
        return cls(env.obs_space(), dict(env.action_space()))


def has_global_entity(obs_space: ObsSpace, action_space: ActionSpaces) -> bool:
    """Return whether frames of these spaces have a global entity, the row of global features."""
    has_features = bool(obs_space.global_features or obs_space.global_kinds)
    return has_features or any(s.is_global for s in action_space.values())


def num_columns(obs_space: ObsSpace, action_space: ActionSpaces) -> dict[EntityName, int]:
    """Return the number of numeric features by entity type, with GLOBAL if frames have it."""
    columns = {name: len(entity.features) for name, entity in obs_space.entities.items()}
    if has_global_entity(obs_space, action_space):
        columns[GLOBAL] = len(obs_space.global_features)
    return columns


def _with_legal_actors(
    space: _LabelledActionSpace, actors: Ragged, frame_masks: Sequence[Any], name: ActionName
) -> VecCategoricalActionMask:
    """Batch the masks of actors, and drop actors without a legal choice."""
    count, labels = len(space), space.labels_of_mask
    flat = _cat_masks(frame_masks, actors.lengths, np.full(len(actors), count), name, labels)
    if flat is None:
        return VecCategoricalActionMask(actors, None)
    mask = flat.reshape(-1, labels * count)
    legal = mask.any(axis=1)
    actors = _keep_rows(actors, legal)
    rows = mask if len(actors.values) == len(mask) else mask[legal]
    rows = rows.reshape(-1, count)
    return VecCategoricalActionMask(actors, Ragged(rows, actors.lengths * labels))


def _cat_masks(
    frame_masks: Sequence[Any], rows: IntArray, columns: IntArray, name: ActionName, labels: int
) -> BoolArray | None:
    """Concatenate the masks of all frames, flattened; None if no frame has a mask.

    Args:
        frame_masks: (actors, choices) per frame; or (actors, labels, choices) if `labels` is not 1.
        rows: (B,) number of actors of each frame.
        columns: (B,) number of choices of each frame.
        name: of the action.
        labels: number of labels of the parent action that masks distinguish.
    """
    if all_none(frame_masks):
        return None
    blocks = []
    for i, (mask, m, n) in enumerate(zip(frame_masks, rows, columns, strict=True)):
        what = f"actions[{name!r}].mask"
        block = np.ones((m, n), np.bool_) if mask is None else as_flags(mask, what, i)
        by_label = labels > 1 and block.shape == (m, labels, n)
        if block.shape != (m, n) and not by_label and not block.size == m * n == 0:
            expected = f"shape ({m}, {n})" + f" or ({m}, {labels}, {n})" * (labels > 1)
            raise unexpected(i, what, expected, block.shape)
        if labels > 1 and not by_label:
            block = np.repeat(block.reshape(m, 1, n), labels, axis=1)
        blocks.append(block.reshape(-1))
    flat: BoolArray = np.concatenate(blocks)
    return flat


def _keep_rows(rows: Ragged, keep: BoolArray) -> Ragged:
    if keep.all():
        return rows
    frame = np.repeat(np.arange(len(rows)), rows.lengths)
    return Ragged(rows.values[keep], np.bincount(frame[keep], minlength=len(rows)))


def _split_frames(rows: Ragged) -> Sequence[IntArray]:
    """Return the values of each frame, as views."""
    n = rows.lengths[0]
    if (rows.lengths == n).all():
        return list(rows.values.reshape(-1, n)) if n else list(repeat(rows.values, len(rows)))
    return rows.of_frames()
