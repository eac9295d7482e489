"""`Environment`: the interface of one world."""

import random
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.actions import Action
from entity_env.observation import Features, Observation, filter_observation
from entity_env.spaces import ActionName, ActionSpace, ObsSpace
from entity_env.view import View

__all__ = ["Environment", "Features", "Observation", "SeededRandom", "World", "filter_observation"]

_SEED = "_seed_of_rng"  # the first seed of `SeededRandom.rng`


class SeededRandom:
    """Base class with a random number generator of its own.

    Environments that draw from `self.rng` have reproducible episodes. Those that draw from
    elsewhere, or replace it by a generator of another library, override `seed`.
    """

    def seed(self, seed: int) -> None:
        """Make the episodes from the next reset on a function of `seed`."""
        if "rng" not in vars(self) and type(self).rng is SeededRandom.rng:
            vars(self)[_SEED] = seed  # for the first draw: seeding takes longer than short episodes
        elif isinstance(self.rng, random.Random):
            self.rng.seed(seed)

    @cached_property
    def rng(self) -> random.Random:
        """The source of randomness, set by `seed`."""
        return random.Random(vars(self).pop(_SEED, None))


class World(SeededRandom, ABC):
    """Base class of environments and matches."""

    @abstractmethod
    def obs_space(self) -> ObsSpace:
        """Return the entity types and features that can be observed, by each side of a match."""

    @abstractmethod
    def action_space(self) -> dict[ActionName, ActionSpace]:
        """Return the action spaces by name, those of each side of a match."""

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8] | str:
        """Return a picture: (height, width, 3) uint8 for `mode="rgb_array"`, or text."""
        raise NotImplementedError(f"{type(self).__name__} does not render")

    def view(self) -> View | None:
        """Return the appearance of the world on pages; None leaves it to the names of features.

        It depends on the arguments of the constructor alone, and has no effect on episodes.
        """
        return None

    def close(self) -> None:
        """Release what the world holds."""
        return


class Environment(World):
    """Interface of one environment.

    Override `obs_space`, `action_space`, `reset` and `act`; the rest has defaults.
    """

    @abstractmethod
    def reset(self) -> Observation:
        """Begin an episode and return its first observation."""

    @abstractmethod
    def act(self, actions: Mapping[ActionName, Action]) -> Observation:
        """Take a step with the chosen actions, by name, of all that the last frame offered."""

    def reset_filter(self, obs_filter: ObsSpace) -> Observation:
        """Reset, with only the entity types and features that `obs_filter` names."""
        return self._filter_obs(self.reset(), obs_filter)

    def act_filter(self, actions: Mapping[ActionName, Action], obs_filter: ObsSpace) -> Observation:
        """Take a step, with only the entity types and features that `obs_filter` names."""
        return self._filter_obs(self.act(actions), obs_filter)

    def _filter_obs(self, obs: Observation, obs_filter: ObsSpace) -> Observation:
        return filter_observation(obs, self.obs_space(), obs_filter)
