"""Wrapper for vectorised environments written by others, such as those for entity-gym."""

import copy
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.checks.check_spaces import check_spaces
from entity_env.errors import InvalidObservation
from entity_env.ragged import Ragged, from_ragged_buffer, is_ragged_buffer, to_ragged_buffer
from entity_env.real_numbers import real_array
from entity_env.spaces import (
    ACTION_SPACES,
    ActionName,
    ActionSpace,
    Entity,
    ObsSpace,
)
from entity_env.vec.features import as_flags
from entity_env.vec.validate import check_finite_batch
from entity_env.vec.vec_env import (
    VecActionMask,
    VecCategoricalActionMask,
    VecEnv,
    VecObs,
    VecSelectEntityActionMask,
)
from entity_env.vec.world_errors import exits_as_errors


class AnyVecEnv(VecEnv):
    """A vectorised environment that may use ragged buffers and the spaces of entity-gym.

    Batches are checked and converted to the dtypes of `VecObs`. An environment that returns ragged
    buffers is also given them.

    Args:
        env: with the methods of `VecEnv`; those that have defaults may be missing.
        validate: raise for numbers that are not finite, with the environment and field.

    Raises:
        InvalidSpace: a space does not pass the checks of `check_env`.
    """

    @exits_as_errors()
    def __init__(self, env: Any, validate: bool = False) -> None:
        self.env = env
        self.validate = validate
        self._takes_buffers = False
        self._steps: npt.NDArray[np.int64] | None = None  # unknown after a state was set
        spaces = _own_obs_space(env.obs_space()), _own_action_spaces(env.action_space())
        check_spaces(*spaces)
        self._obs_space: ObsSpace = copy.deepcopy(spaces[0])  # the environment may change its own
        self._action_space: dict[ActionName, ActionSpace] = copy.deepcopy(spaces[1])

    def obs_space(self) -> ObsSpace:
        """Return the observation space."""
        return self._obs_space

    def action_space(self) -> dict[ActionName, ActionSpace]:
        """Return the action spaces."""
        return self._action_space

    def __len__(self) -> int:
        return len(self.env)

    @exits_as_errors()
    def seed(self, seed: int) -> None:
        """Seed the environments, if they have a `seed` method."""
        if hasattr(self.env, "seed"):
            self.env.seed(seed)

    @exits_as_errors()
    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Begin an episode everywhere."""
        return self._accept(self.env.reset(obs_config), is_reset=True)

    @exits_as_errors()
    def act(self, actions: Mapping[ActionName, Ragged], obs_filter: ObsSpace) -> VecObs:
        """Take a step everywhere."""
        handed = (
            {name: to_ragged_buffer(chosen) for name, chosen in actions.items()}
            if self._takes_buffers
            else actions
        )
        return self._accept(self.env.act(handed, obs_filter))

    @exits_as_errors()
    def get_state(self) -> dict[str, Any] | None:
        """Return the state of the environments, None if they have no `get_state`."""
        return self.env.get_state() if hasattr(self.env, "get_state") else None

    @exits_as_errors()
    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs | None:
        """Restore a state; return None if the environments have no `set_state`."""
        if not hasattr(self.env, "set_state"):
            return None
        obs = self.env.set_state(state, obs_config)
        self._steps = None
        return None if obs is None else self._accept(obs)

    def world_code(self) -> dict[str, str]:
        """Return the digests of the environments, none if they have no `world_code`."""
        code: dict[str, str] = self.env.world_code() if hasattr(self.env, "world_code") else {}
        return code

    @exits_as_errors()
    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8]:
        """Return pictures of the environments."""
        pictures: npt.NDArray[np.uint8] = self.env.render(**kwargs)
        return pictures

    @exits_as_errors()
    def close(self) -> None:
        """Close the environments."""
        if hasattr(self.env, "close"):
            self.env.close()

    def _accept(self, obs: Any, is_reset: bool = False) -> VecObs:
        """Return a checked batch with the dtypes of `VecObs`, and count the steps of episodes."""
        if is_reset:
            self._steps = np.zeros(len(self), dtype=np.int64)
        elif self._steps is not None:
            self._steps += 1
        try:
            if isinstance(obs, VecObs) and not any(map(is_ragged_buffer, obs.features.values())):
                accepted = _with_own_dtypes(obs)
            else:
                self._takes_buffers = True
                accepted = _with_own_dtypes(self._from_buffers(obs))
            if self.validate:
                check_finite_batch(accepted, self._obs_space)
        except InvalidObservation as error:
            error.env_name = type(self.env).__name__
            if error.env_index is not None and self._steps is not None:
                error.step = int(self._steps[error.env_index])
            raise
        if self._steps is not None:
            self._steps[accepted.done] = 0
        return accepted

    def _from_buffers(self, obs: Any) -> VecObs:
        features = {name: from_ragged_buffer(rows) for name, rows in obs.features.items()}
        frames = len(obs.reward)
        return VecObs(
            features={name: _or_empty(rows, frames) for name, rows in features.items()},
            visible={name: _flat(from_ragged_buffer(v)) for name, v in obs.visible.items()},
            action_masks={
                name: _accept_mask(obs.action_masks[name], frames) for name in self.action_space()
            },
            reward=_float32(obs.reward, "reward").reshape(-1),
            done=_bools(obs.done, "done").reshape(-1),
            metrics=dict(obs.metrics),
        )


def _with_own_dtypes(obs: VecObs) -> VecObs:
    """Return a batch with the dtypes that `VecObs` documents: float32 numbers and bool flags.

    Raises:
        InvalidObservation: an array has other values than real numbers, a mask has others than
            booleans, zeros and ones, or one of them is a masked array.
    """
    return dataclasses.replace(
        obs,
        features={
            name: _converted(rows, _float32, f"features of {name!r}")
            for name, rows in obs.features.items()
        },
        visible={
            name: _converted(rows, _bools, f"visible[{name!r}]")
            for name, rows in obs.visible.items()
        },
        action_masks={name: _with_flags(mask, name) for name, mask in obs.action_masks.items()},
        reward=_float32(obs.reward, "reward"),
        done=_bools(obs.done, "done"),
        truncated=_bools(obs.truncated, "truncated"),
        final=None if obs.final is None else _with_own_dtypes(obs.final),
    )


def _converted(rows: Ragged, convert: Callable[[Any, str], Any], field: str) -> Ragged:
    values = convert(rows.values, field)
    return rows if values is rows.values else Ragged(values, rows.lengths)


def _float32(values: Any, field: str) -> npt.NDArray[np.float32]:
    if type(values) is np.ndarray and values.dtype == np.float32:
        return values
    try:
        return np.asarray(real_array(values), dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidObservation(f"{field}: expected numbers, got {error}") from None


def _bools(values: Any, field: str) -> npt.NDArray[np.bool_]:
    if type(values) is np.ndarray and values.dtype == np.bool_:
        return values
    return as_flags(values, field)


def _with_flags(mask: VecActionMask, name: ActionName) -> VecActionMask:
    if mask.mask is None:
        return mask
    flags = _converted(mask.mask, _bools, f"actions[{name!r}].mask")
    return dataclasses.replace(mask, mask=flags)  # type: ignore[type-var]


def _own_obs_space(space: Any) -> Any:
    """Convert an observation space of entity-gym; anything else is returned unchanged."""
    if isinstance(space, ObsSpace) or not hasattr(space, "entities"):
        return space
    entities = {name: Entity(entity.features) for name, entity in space.entities.items()}
    return ObsSpace(space.global_features, entities)


def _own_action_spaces(spaces: Any) -> Any:
    """Convert the action spaces of entity-gym; anything else is returned unchanged."""
    if not isinstance(spaces, Mapping):
        return spaces
    return {name: _own_action_space(space) for name, space in spaces.items()}


def _own_action_space(space: Any) -> Any:
    cls = ACTION_SPACES.get(type(space).__name__)
    if cls is None or isinstance(space, cls):
        return space
    return cls(**{field.name: getattr(space, field.name) for field in dataclasses.fields(cls)})


def _accept_mask(mask: Any, frames: int) -> VecActionMask:
    actors = _or_empty(_flat(from_ragged_buffer(mask.actors)), frames)
    if getattr(mask, "actees", None) is not None:  # entity-gym's other masks have no such attribute
        actees = _or_empty(_flat(from_ragged_buffer(mask.actees)), frames)
        return VecSelectEntityActionMask(actors, actees)
    # entity-gym leaves a mask without rows where no environment gave one
    given = mask.mask is not None and mask.mask.size0() > 0
    return VecCategoricalActionMask(actors, from_ragged_buffer(mask.mask) if given else None)


def _flat(rows: Ragged) -> Ragged:
    return Ragged(rows.values.reshape(-1), rows.lengths)


def _or_empty(rows: Ragged, frames: int) -> Ragged:
    """Return the rows; a buffer that was never filled has no frames, and gets empty ones."""
    return rows if len(rows) == frames else Ragged.empty(rows.values, frames)
