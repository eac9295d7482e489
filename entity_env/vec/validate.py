"""Checks of observations against their spaces."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.actions import Action
from entity_env.environment import Environment, Observation
from entity_env.errors import InvalidObservation
from entity_env.ragged import Ragged
from entity_env.spaces import GLOBAL, ActionName, ActionSpace, ObsSpace
from entity_env.vec.batch import LAST, batch_obs
from entity_env.vec.vec_env import VecObs


def check_finite_batch(batch: VecObs, obs_space: ObsSpace) -> None:
    """Raise if a feature, reward or metric of a batch is not a finite number.

    Raises:
        InvalidObservation: names the environment, field, feature and value.
    """
    for name, rows in batch.features.items():
        names = obs_space.global_features if name == GLOBAL else obs_space.entities[name].features
        _check_finite(rows, f"features of {name!r}", names)
    if batch.final is not None:
        cut_off = np.flatnonzero(batch.truncated)
        try:
            check_finite_batch(batch.final, obs_space)
        except InvalidObservation as error:
            error.env_index = int(cut_off[error.env_index or 0])
            error.args = (f"{LAST}: {error.args[0]}",)
            raise
    one_each = np.ones(len(batch), dtype=np.int64)
    _check_finite(Ragged(batch.reward[:, None], one_each), "reward", ["reward"])
    for name, values in batch.env_metrics.items():
        _check_finite(Ragged(values.as_array(), values.lengths), f"metrics[{name!r}]", [name])


def _check_finite(rows: Ragged, what: str, names: list[str]) -> None:
    if np.isfinite(rows.values).all():
        return
    row, column = np.argwhere(~np.isfinite(rows.values))[0]
    frame = int(np.searchsorted(np.cumsum(rows.lengths), row, side="right"))
    entity = int(row - rows.starts[frame])
    error = InvalidObservation(
        f"{what}: expected finite numbers, got {names[column]}={rows.values[row, column]} "
        f"in row {entity}"
    )
    error.env_index = frame
    raise error


def validate_observation(
    obs: Observation, obs_space: ObsSpace, action_space: Mapping[ActionName, ActionSpace]
) -> None:
    """Raise if an observation is not one of these spaces, in any respect.

    Raises:
        InvalidObservation: names the field, and what was expected and came.
    """
    if not isinstance(obs, Observation):
        raise InvalidObservation(f"expected an Observation, got {type(obs).__name__}")
    batch = batch_obs([obs], obs_space, action_space)
    check_finite_batch(batch, obs_space)


class ValidatingEnv(Environment):
    """Wrapper that checks everything an environment returns.

    Args:
        env: the environment to check.

    Raises:
        InvalidObservation: from `reset` and `act`, with the environment, episode, step and field,
            what was expected and what came.
    """

    def __init__(self, env: Environment) -> None:
        self.env = env
        self._obs_space = env.obs_space()
        self._action_space = env.action_space()
        self._episode = -1
        self._step = 0

    def obs_space(self) -> ObsSpace:
        """Return the space of the environment."""
        return self._obs_space

    def action_space(self) -> dict[ActionName, ActionSpace]:
        """Return the spaces of the environment."""
        return self._action_space

    def reset(self) -> Observation:
        """Begin an episode and return its first observation, after checking it."""
        self._episode += 1
        self._step = 0
        return self._checked(self.env.reset())

    def act(self, actions: Mapping[ActionName, Action]) -> Observation:
        """Take a step and return the observation, after checking it."""
        self._step += 1
        return self._checked(self.env.act(actions))

    def seed(self, seed: int) -> None:
        """Seed the environment, if `seed` is not a setting of its own."""
        if callable(self.env.seed):
            self.env.seed(seed)

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8] | str:
        """Return the picture of the environment."""
        return self.env.render(**kwargs)

    def close(self) -> None:
        """Close the environment."""
        self.env.close()

    def _checked(self, obs: Observation) -> Observation:
        try:
            validate_observation(obs, self._obs_space, self._action_space)
            if obs.done and self._step == 0:
                raise InvalidObservation(
                    "done: expected an episode that begins, got one that is over"
                )
        except InvalidObservation as error:
            error.env_index, error.env_name = None, type(self.env).__name__
            error.episode, error.step = self._episode, self._step
            raise
        return obs
