"""Whether frames that were saved can be shown again, so that what is damaged is refused at once."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.errors import InvalidObservation
from entity_env.ragged import Ragged
from entity_env.spaces import (
    GLOBAL,
    ActionName,
    ActionSpace,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
    has_global_entity,
)
from entity_env.validate import refuse_invalid_batch
from entity_env.vec_env import VecActionMask, VecCategoricalActionMask, VecObs
from entity_env.vec_env import VecSelectEntityActionMask as VecSelect


def refuse_invalid_counts(state: Mapping[str, Any], num_envs: int, num_matches: int) -> None:
    """Refuse a state of environments that counts otherwise.

    Raises:
        InvalidObservation: it does.
    """
    _expect(type(state["seed"]) in (int, type(None)), "seed: expected a number or none")
    for name in ("episodes", "steps"):
        _refuse_other_array(state[name], name, np.int64, (num_envs,))
        _expect((state[name] >= 0).all(), f"{name}: expected counts")
    _refuse_other_rows(state["matches"], "matches", np.uint8, (), num_matches)


def refuse_invalid_frames(
    frames: VecObs,
    num_envs: int,
    obs_space: ObsSpace,
    action_space: Mapping[ActionName, ActionSpace],
) -> None:
    """Refuse frames that no environments of these spaces would show.

    Args:
        frames: what was shown last.
        num_envs: how many environments there are.
        obs_space: the features that were shown.
        action_space: their actions.

    Raises:
        InvalidObservation: says what was expected.
    """
    _expect(len(frames) == num_envs, f"frames: expected {num_envs}, got {len(frames)}")
    columns = {name: len(entity.features) for name, entity in obs_space.entities.items()}
    if has_global_entity(obs_space, action_space):
        columns[GLOBAL] = len(obs_space.global_features)
    _expect(set(frames.features) == set(columns), f"features: expected {list(columns)}")
    for name, rows in frames.features.items():
        what = f"features[{name!r}]"
        _refuse_other_rows(rows, what, np.float32, (columns[name],), num_envs)
        _expect(name != GLOBAL or (rows.lengths == 1).all(), f"{what}: expected one row each")
    refuse_invalid_batch(frames, obs_space)
    for name, seen in frames.visible.items():
        _refuse_other_rows(seen, f"visible[{name!r}]", np.bool_, (), num_envs)
        _refuse_other_lengths(seen, frames.features[name].lengths, f"visible[{name!r}]")
    _expect(set(frames.action_masks) == set(action_space), f"actions: expected {[*action_space]}")
    entities = [rows.lengths for name, rows in frames.features.items() if name != GLOBAL]
    num_entities = np.sum([np.zeros(num_envs, np.int64), *entities], axis=0)
    for name, space in action_space.items():
        _refuse_invalid_mask(frames.action_masks[name], space, num_entities, f"actions[{name!r}]")


def first_choices(masks: Mapping[ActionName, VecActionMask]) -> dict[ActionName, Ragged]:
    """The first choice of each actor that is allowed, int64 (actors,) per frame, of valid masks."""
    return {name: Ragged(_first_allowed(mask), mask.actors.lengths) for name, mask in masks.items()}


def _first_allowed(mask: VecActionMask) -> npt.NDArray[np.int64]:
    if mask.mask is None or not len(mask.actors.values):
        return np.zeros(len(mask.actors.values), dtype=np.int64)
    if isinstance(mask, VecCategoricalActionMask):
        first: npt.NDArray[np.int64] = mask.mask.values.argmax(axis=1)
        return first
    counts = np.repeat(mask.actees.lengths, mask.actors.lengths)
    firsts = np.cumsum(counts) - counts
    allowed = np.flatnonzero(mask.mask.values)
    return allowed[np.searchsorted(allowed, firsts)] - firsts


def _refuse_invalid_mask(
    mask: VecActionMask, space: ActionSpace, num_entities: npt.NDArray[np.int64], what: str
) -> None:
    num_envs, selects = len(num_entities), isinstance(space, SelectEntityActionSpace)
    is_global = isinstance(space, GlobalCategoricalActionSpace)
    _expect(type(mask) is (VecSelect if selects else VecCategoricalActionMask), f"{what}: kind")
    _refuse_other_positions(mask.actors, num_entities, f"{what}.actors", is_global)
    if isinstance(mask, VecSelect):
        _refuse_other_positions(mask.actees, num_entities, f"{what}.actees", False)
        pairs = mask.actors.lengths * mask.actees.lengths
        if mask.mask is not None:
            _refuse_other_rows(mask.mask, f"{what}.mask", np.bool_, (), num_envs)
            _refuse_other_lengths(mask.mask, pairs, f"{what}.mask")
        per_actor = np.repeat(mask.actees.lengths, mask.actors.lengths)
    else:
        assert not isinstance(space, SelectEntityActionSpace)
        per_actor = np.full(len(mask.actors.values), len(space))
        if mask.mask is not None:
            _refuse_other_rows(mask.mask, f"{what}.mask", np.bool_, (len(space),), num_envs)
            _refuse_other_lengths(mask.mask, mask.actors.lengths, f"{what}.mask")
    if mask.mask is not None and len(per_actor):
        _expect((per_actor > 0).all(), f"{what}: expected something to choose")
        allowed = mask.mask.values.reshape(-1)
        firsts = np.cumsum(per_actor) - per_actor
        _expect(np.logical_or.reduceat(allowed, firsts).all(), f"{what}: expected a choice each")
    _expect((per_actor > 0).all(), f"{what}: expected something to choose")


def _refuse_other_positions(
    positions: Ragged, num_entities: npt.NDArray[np.int64], what: str, is_global: bool
) -> None:
    """The global actor stands behind all entities."""
    _refuse_other_rows(positions, what, np.int64, (), len(num_entities))
    first = np.repeat(num_entities, positions.lengths) if is_global else 0
    end = np.repeat(num_entities + is_global, positions.lengths)
    inside = (positions.values >= first) & (positions.values < end)
    _expect(inside.all(), f"{what}: expected positions in the frame")


def _refuse_other_rows(
    rows: Ragged, what: str, dtype: type, columns: tuple[int, ...], frames: int
) -> None:
    _expect(type(rows) is Ragged, f"{what}: expected rows")
    _refuse_other_array(rows.lengths, f"{what}: lengths", np.int64, (frames,))
    _expect((rows.lengths >= 0).all(), f"{what}: lengths: expected counts")
    _refuse_other_array(rows.values, what, dtype, (int(rows.lengths.sum()), *columns))


def _refuse_other_lengths(rows: Ragged, lengths: npt.NDArray[np.int64], what: str) -> None:
    _expect(np.array_equal(rows.lengths, lengths), f"{what}: expected {lengths.tolist()} rows")


def _refuse_other_array(value: Any, what: str, dtype: type, shape: tuple[int, ...]) -> None:
    _expect(type(value) is np.ndarray, f"{what}: expected an array")
    fits = value.dtype == dtype and value.shape == shape
    _expect(fits, f"{what}: expected {np.dtype(dtype)} {shape}, got {value.dtype} {value.shape}")


def _expect(holds: bool | np.bool_, what: str) -> None:
    if not holds:
        raise InvalidObservation(f"set_state: {what}")
