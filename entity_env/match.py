"""`Match`: the interface of a game whose sides see and act for themselves."""

import functools
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.actions import Action
from entity_env.environment import Environment, Observation, World, filter_observation
from entity_env.spaces import ActionName, ActionSpace, ObsSpace
from entity_env.view import View

SideActions: TypeAlias = Sequence[Mapping[ActionName, Action]]
"""The actions of each side, by name."""


class Match(World):
    """One game with `num_sides` sides that share the spaces and end together.

    In a vectorised environment the sides of a match stand at neighbouring indices.
    """

    num_sides: int = 2
    filters_itself: bool = False
    """True to have `reset_filter` and `act_filter` called even if nothing is left out."""

    @abstractmethod
    def reset(self) -> list[Observation]:
        """Begin a game and return one observation for each side."""

    @abstractmethod
    def act(self, actions: SideActions) -> list[Observation]:
        """Take a step with the actions of each side and return one observation for each."""

    def reset_filter(self, obs_filter: ObsSpace) -> list[Observation]:
        """Reset, with only the entity types and features that `obs_filter` names."""
        return [filter_observation(o, self.obs_space(), obs_filter) for o in self.reset()]

    def act_filter(self, actions: SideActions, obs_filter: ObsSpace) -> list[Observation]:
        """Take a step, with only the entity types and features that `obs_filter` names."""
        return [filter_observation(o, self.obs_space(), obs_filter) for o in self.act(actions)]


class Solo(Match):
    """Match with one side, which is an `Environment`."""

    num_sides = 1

    def __init__(self, env: Environment) -> None:
        self.env = env
        own_filters = type(env).reset_filter, type(env).act_filter
        self.filters_itself = own_filters != (Environment.reset_filter, Environment.act_filter)

    def obs_space(self) -> ObsSpace:
        """Return the space of the environment."""
        return self.env.obs_space()

    def action_space(self) -> dict[ActionName, ActionSpace]:
        """Return the spaces of the environment."""
        return self.env.action_space()

    def reset(self) -> list[Observation]:
        """Return the observation of the environment, in a list."""
        return [self.env.reset()]

    def act(self, actions: SideActions) -> list[Observation]:
        """Return the observation of the environment, in a list."""
        return [self.env.act(actions[0])]

    def reset_filter(self, obs_filter: ObsSpace) -> list[Observation]:
        """Return the observation of the environment, which may filter it by itself."""
        return [self.env.reset_filter(obs_filter)]

    def act_filter(self, actions: SideActions, obs_filter: ObsSpace) -> list[Observation]:
        """Return the observation of the environment, which may filter it by itself."""
        return [self.env.act_filter(actions[0], obs_filter)]

    def seed(self, seed: int) -> None:
        """Seed the environment, if `seed` is not a setting of its own."""
        if callable(self.env.seed):
            self.env.seed(seed)

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8] | str:
        """Return the picture of the environment."""
        return self.env.render(**kwargs)

    def view(self) -> View | None:
        """Return the view of the environment, if `view` is not a setting of its own."""
        return self.env.view() if callable(self.env.view) else None

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


CreateEnv: TypeAlias = Callable[[], Environment | Match]
"""Factory of an environment or match: its class, or a function."""


def match_of(world: Environment | Match) -> Match:
    """Return a match as it is, and an environment as a `Solo`."""
    return world if isinstance(world, Match) else Solo(world)


def world_of(match: Match) -> Environment | Match:
    """Return the environment of a `Solo`, and any other match as it is."""
    return match.env if isinstance(match, Solo) else match


def copied(value: Any) -> Any:
    """Return a copy of nested lists and dictionaries; all else is shared."""
    if type(value) is list:
        return [copied(item) for item in value]
    if type(value) is dict:
        return {key: copied(item) for key, item in value.items()}
    return value


class FreshPartial(functools.partial[Any]):
    """Partial whose keyword arguments are copied for each call, so that no two results share any.

    Args:
        func: the function; the arguments of another partial are not copied.
        args: positional arguments, which are not copied.
        keywords: lists and dictionaries in them are copied.
    """

    fresh: frozenset[str]

    def __new__(cls, func: Callable[..., Any], /, *args: Any, **keywords: Any) -> Self:
        """Make the partial; of another one, with the function of that one."""
        fresh = frozenset(keywords)
        if isinstance(func, FreshPartial):
            fresh, args, keywords = fresh | func.fresh, func.args + args, func.keywords | keywords
            func = func.func
        self = super().__new__(cls, func, *args, **keywords)
        self.fresh = fresh
        return self

    def __call__(self, /, *args: Any, **keywords: Any) -> Any:
        """Call the function."""
        own = {n: copied(v) if n in self.fresh else v for n, v in self.keywords.items()}
        return self.func(*self.args, *args, **{**own, **keywords})
