"""Checks of saved frames and counters, so that a damaged state is an error at once."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.errors import InvalidObservation
from entity_env.ragged import Ragged, exclusive_cumsum
from entity_env.spaces import (
    GLOBAL,
    ActionName,
    ActionSpace,
    ObsSpace,
    has_global_entity,
)
from entity_env.vec.validate import check_finite_batch
from entity_env.vec.vec_env import VecActionMask, VecObs


def check_saved_counters(state: Mapping[str, Any], num_envs: int, num_matches: int) -> None:
    """Raise if saved counters do not match the number of environments.

    Raises:
        InvalidObservation: with the field and what was expected.
    """
    _expect(type(state["seed"]) in (int, type(None)), "seed: expected a number or none")
    for name in ("episodes", "steps"):
        _check_array(state[name], name, np.int64, (num_envs,))
        _expect((state[name] >= 0).all(), f"{name}: expected counts")
    _check_rows(state["matches"], "matches", np.uint8, (), num_matches)


def check_saved_frames(
    frames: VecObs,
    num_envs: int,
    obs_space: ObsSpace,
    action_space: Mapping[ActionName, ActionSpace],
) -> None:
    """Raise if saved frames do not match the spaces of the environments.

    Args:
        frames: the last frames of the environments.
        num_envs: the number of environments.
        obs_space: the features that were shown.
        action_space: their actions.

    Raises:
        InvalidObservation: with the field and what was expected.
    """
    _expect(len(frames) == num_envs, f"frames: expected {num_envs}, got {len(frames)}")
    # Features and visibility.
    columns = {name: len(entity.features) for name, entity in obs_space.entities.items()}
    if has_global_entity(obs_space, action_space):
        columns[GLOBAL] = len(obs_space.global_features)
    _expect(set(frames.features) == set(columns), f"features: expected {list(columns)}")
    for name, rows in frames.features.items():
        what = f"features[{name!r}]"
        _check_rows(rows, what, np.float32, (columns[name],), num_envs)
        _expect(name != GLOBAL or (rows.lengths == 1).all(), f"{what}: expected one row each")
    check_finite_batch(frames, obs_space)
    for name, seen in frames.visible.items():
        _check_rows(seen, f"visible[{name!r}]", np.bool_, (), num_envs)
        _check_lengths(seen, frames.features[name].lengths, f"visible[{name!r}]")
    # Action masks; the positions in them count entities of all types.
    _expect(set(frames.action_masks) == set(action_space), f"actions: expected {[*action_space]}")
    entities = [rows.lengths for name, rows in frames.features.items() if name != GLOBAL]
    num_entities = np.sum([np.zeros(num_envs, np.int64), *entities], axis=0)
    for name, space in action_space.items():
        _check_mask(frames.action_masks[name], space, num_entities, f"actions[{name!r}]")


def first_choices(
    masks: Mapping[ActionName, VecActionMask], action_space: Mapping[ActionName, ActionSpace]
) -> dict[ActionName, Ragged]:
    """Return the first legal choice of each actor, int64 (actors,) per frame, of valid masks."""
    return {
        name: Ragged(_first_allowed(mask, action_space[name]), mask.actors.lengths)
        for name, mask in masks.items()
    }


def _first_allowed(mask: VecActionMask, space: ActionSpace) -> npt.NDArray[np.int64]:
    if mask.mask is None or not len(mask.actors.values):
        return np.zeros(len(mask.actors.values), dtype=np.int64)
    firsts = exclusive_cumsum(space.num_choices(mask))
    allowed = np.flatnonzero(mask.mask.values.reshape(-1))
    return allowed[np.searchsorted(allowed, firsts)] - firsts


def _check_mask(
    mask: VecActionMask, space: ActionSpace, num_entities: npt.NDArray[np.int64], what: str
) -> None:
    _expect(type(mask) is space.batch_mask_type, f"{what}: kind")
    _check_positions(mask.actors, num_entities, f"{what}.actors", space.is_global)
    if mask.actees is not None:
        _check_positions(mask.actees, num_entities, f"{what}.actees", False)
    if mask.mask is not None:
        num_envs = len(num_entities)
        _check_rows(mask.mask, f"{what}.mask", np.bool_, space.mask_columns, num_envs)
        _check_lengths(mask.mask, mask.mask_lengths(), f"{what}.mask")
    num_choices = space.num_choices(mask)
    _expect((num_choices > 0).all(), f"{what}: expected something to choose")
    if mask.mask is not None and len(num_choices):
        allowed = mask.mask.values.reshape(-1)
        legal = np.logical_or.reduceat(allowed, exclusive_cumsum(num_choices))
        _expect(legal.all(), f"{what}: expected a choice each")


def _check_positions(
    positions: Ragged, num_entities: npt.NDArray[np.int64], what: str, is_global: bool
) -> None:
    """Raise unless positions are in their frame; the global actor is behind all entities."""
    _check_rows(positions, what, np.int64, (), len(num_entities))
    first = np.repeat(num_entities, positions.lengths) if is_global else 0
    end = np.repeat(num_entities + is_global, positions.lengths)
    inside = (positions.values >= first) & (positions.values < end)
    _expect(inside.all(), f"{what}: expected positions in the frame")


def _check_rows(
    rows: Ragged, what: str, dtype: type, columns: tuple[int, ...], frames: int
) -> None:
    _expect(type(rows) is Ragged, f"{what}: expected rows")
    _check_array(rows.lengths, f"{what}: lengths", np.int64, (frames,))
    _expect((rows.lengths >= 0).all(), f"{what}: lengths: expected counts")
    _check_array(rows.values, what, dtype, (int(rows.lengths.sum()), *columns))


def _check_lengths(rows: Ragged, lengths: npt.NDArray[np.int64], what: str) -> None:
    _expect(np.array_equal(rows.lengths, lengths), f"{what}: expected {lengths.tolist()} rows")


def _check_array(value: Any, what: str, dtype: type, shape: tuple[int, ...]) -> None:
    _expect(type(value) is np.ndarray, f"{what}: expected an array")
    fits = value.dtype == dtype and value.shape == shape
    _expect(fits, f"{what}: expected {np.dtype(dtype)} {shape}, got {value.dtype} {value.shape}")


def _expect(holds: bool | np.bool_, what: str) -> None:
    if not holds:
        raise InvalidObservation(f"set_state: {what}")
