"""`Environment`: the interface of a single environment."""

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
    """Base class with a seeded random number generator, `self.rng`.

    Environments that draw from `self.rng` have reproducible episodes. Override `seed` to use other
    generators.
    """

    def seed(self, seed: int) -> None:
        """Seed the generator, so that episodes from the next reset on are a function of `seed`."""
        if "rng" not in vars(self) and type(self).rng is SeededRandom.rng:
            vars(self)[_SEED] = seed  # lazily: seeding takes longer than short episodes
        elif isinstance(self.rng, random.Random):
            self.rng.seed(seed)

    @cached_property
    def rng(self) -> random.Random:
        """The random number generator, seeded by `seed`."""
        return random.Random(vars(self).pop(_SEED, None))


class World(SeededRandom, ABC):
    """Base class of environments and matches."""

    @abstractmethod
    def obs_space(self) -> ObsSpace:
        """Return the observation space; the sides of a match share it."""

    @abstractmethod
    def action_space(self) -> Mapping[ActionName, ActionSpace]:
        """Return the action spaces by name; the sides of a match share them."""

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8] | str:
        """Render the environment: (height, width, 3) uint8 for `mode="rgb_array"`, or text."""
        raise NotImplementedError(f"{type(self).__name__} does not render")

    def view(self) -> View | None:
        """Return how replay pages draw the environment; None infers it from the feature names.

        The view depends only on the constructor arguments, and has no effect on episodes.
        """
        return None

    def close(self) -> None:
        """Release all resources."""
        return


class Environment(World):
    """Interface of one environment.

    Override `obs_space`, `action_space`, `reset` and `act`; other methods have defaults.
    """

    @abstractmethod
    def reset(self) -> Observation:
        """Start an episode and return its first observation."""

    @abstractmethod
    def act(self, actions: Mapping[ActionName, Action]) -> Observation:
        """Take a step with the actions by name, one for each action of the last observation."""

    def reset_filter(self, obs_filter: ObsSpace) -> Observation:
        """Reset, and return only the entity types and features of `obs_filter`."""
        return self._filter_obs(self.reset(), obs_filter)

    def act_filter(self, actions: Mapping[ActionName, Action], obs_filter: ObsSpace) -> Observation:
        """Take a step, and return only the entity types and features of `obs_filter`."""
        return self._filter_obs(self.act(actions), obs_filter)

    def _filter_obs(self, obs: Observation, obs_filter: ObsSpace) -> Observation:
        return filter_observation(obs, self.obs_space(), obs_filter)
