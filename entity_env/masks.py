"""From the action masks of many observations to who can do what in the batch."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.actions import (
    ActionMask,
    CategoricalActionMask,
    GlobalCategoricalActionMask,
    SelectEntityActionMask,
)
from entity_env.errors import invalid_in
from entity_env.features import all_none, as_flags
from entity_env.frames import Frames
from entity_env.ragged import Ragged
from entity_env.spaces import (
    ActionName,
    ActionSpace,
    CategoricalActionSpace,
    GlobalCategoricalActionSpace,
    SelectEntityActionSpace,
)
from entity_env.vec_env import (
    VecActionMask,
    VecCategoricalActionMask,
    VecSelectEntityActionMask,
)

Indices = npt.NDArray[np.int64]
MASK_OF_SPACE: dict[type, type] = {
    CategoricalActionSpace: CategoricalActionMask,
    GlobalCategoricalActionSpace: GlobalCategoricalActionMask,
    SelectEntityActionSpace: SelectEntityActionMask,
}


# What a frame that does not offer an action stands for.
NOBODY_CHOOSES = CategoricalActionMask(actor_ids=())
NOBODY_SELECTS = SelectEntityActionMask(actor_ids=(), actee_ids=())


def batch_mask(frames: Frames, name: ActionName, space: ActionSpace) -> VecActionMask:
    """Who takes an action in each frame and what is allowed, without those who cannot do anything.

    Args:
        frames: B frames.
        name: the action.
        space: its space.

    Raises:
        InvalidObservation: a mask contradicts the space, or names what its frame does not show.
    """
    return _BATCH_MASKS[type(space)](frames, name, space)


def _batch_categorical(
    frames: Frames, name: ActionName, space: CategoricalActionSpace
) -> VecCategoricalActionMask:
    masks = _masks_of(frames, name, space, NOBODY_CHOOSES)
    where = f"actions[{name!r}] actors"
    actors = frames.locate([m.actor_ids for m in masks], [m.actor_types for m in masks], where)
    frames.refuse_invisible(actors, where)
    return _with_legal_actors(actors, [m.mask for m in masks], len(space), name)


def _batch_global(
    frames: Frames, name: ActionName, space: GlobalCategoricalActionSpace
) -> VecCategoricalActionMask:
    masks = _masks_of(frames, name, space, None)
    offered = np.array([m is not None for m in masks], dtype=np.bool_)
    actors = Ragged(frames.totals[offered], offered.astype(np.int64))
    given = [None if m is None else m.mask for m in masks]
    if not all_none(given):
        where = f"actions[{name!r}].mask"
        given = [
            None if mask is None else np.atleast_2d(as_flags(mask, where, i))
            for i, mask in enumerate(given)
        ]
    return _with_legal_actors(actors, given, len(space), name)


def _batch_select_entity(
    frames: Frames, name: ActionName, space: SelectEntityActionSpace
) -> VecSelectEntityActionMask:
    masks = _masks_of(frames, name, space, NOBODY_SELECTS)
    where = f"actions[{name!r}]"
    actors = frames.locate(
        [m.actor_ids for m in masks], [m.actor_types for m in masks], f"{where} actors"
    )
    actee_ids, actee_types = [m.actee_ids for m in masks], [m.actee_types for m in masks]
    for i in np.flatnonzero(actors.lengths == 0).tolist():  # nobody selects, so nobody is selected
        actee_ids[i], actee_types[i] = (), None
    actees = frames.locate(actee_ids, actee_types, f"{where} actees")
    frames.refuse_invisible(actors, f"{where} actors")
    frames.refuse_invisible(actees, f"{where} actees")
    allowed = _cat_masks([m.mask for m in masks], actors.lengths, actees.lengths, name)
    frame_of_actor = np.repeat(np.arange(len(actors)), actors.lengths)
    row_lengths = actees.lengths[frame_of_actor]
    if allowed is None:
        return VecSelectEntityActionMask(_keep_rows(actors, row_lengths > 0), actees)
    row_of_pair = np.repeat(np.arange(len(row_lengths)), row_lengths)
    legal = np.bincount(row_of_pair, weights=allowed, minlength=len(row_lengths)) > 0
    kept = _keep_rows(actors, legal)
    pairs = Ragged(allowed[legal[row_of_pair]], kept.lengths * actees.lengths)
    return VecSelectEntityActionMask(kept, actees, pairs)


def _masks_of(
    frames: Frames, name: ActionName, space: ActionSpace, absent: ActionMask | None
) -> list[Any]:
    """The mask each frame gives for an action, `absent` where the action is not offered."""
    masks = [o.actions.get(name) for o in frames.obs]
    expected = MASK_OF_SPACE[type(space)]
    if set(map(type, masks)) == {expected}:
        return masks
    for i, mask in enumerate(masks):
        if mask is not None and not isinstance(mask, expected):
            raise invalid_in(
                i,
                f"actions[{name!r}]: expected a {expected.__name__}, got {type(mask).__name__}",
            )
    return [absent if mask is None else mask for mask in masks]


def _with_legal_actors(
    actors: Ragged, given: Sequence[Any], num_choices: int, name: ActionName
) -> VecCategoricalActionMask:
    if all_none(given):
        return VecCategoricalActionMask(actors, None)
    flat = _cat_masks(given, actors.lengths, np.full(len(actors), num_choices), name)
    assert flat is not None
    mask = flat.reshape(-1, num_choices)
    legal = mask.any(axis=1)
    kept = _keep_rows(actors, legal)
    return VecCategoricalActionMask(
        kept, Ragged(mask if legal.all() else mask[legal], kept.lengths)
    )


def _cat_masks(
    given: Sequence[Any], rows: Indices, columns: Indices, name: ActionName
) -> npt.NDArray[np.bool_] | None:
    """The masks of all frames, flat and row by row; None if no frame gives one."""
    if all_none(given):
        return None
    blocks = []
    for i, (mask, m, n) in enumerate(zip(given, rows, columns, strict=True)):
        what = f"actions[{name!r}].mask"
        block = np.ones((m, n), np.bool_) if mask is None else as_flags(mask, what, i)
        if block.shape != (m, n) and not block.size == m * n == 0:
            raise invalid_in(i, f"{what}: expected shape ({m}, {n}), got {block.shape}")
        blocks.append(block.reshape(-1))
    flat: npt.NDArray[np.bool_] = np.concatenate(blocks)
    return flat


def _keep_rows(rows: Ragged, keep: npt.NDArray[np.bool_]) -> Ragged:
    if keep.all():
        return rows
    frame = np.repeat(np.arange(len(rows)), rows.lengths)
    return Ragged(rows.values[keep], np.bincount(frame[keep], minlength=len(rows)))


_BATCH_MASKS: dict[type, Callable[[Frames, ActionName, Any], VecActionMask]] = {
    CategoricalActionSpace: _batch_categorical,
    GlobalCategoricalActionSpace: _batch_global,
    SelectEntityActionSpace: _batch_select_entity,
}
