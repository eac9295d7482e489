"""`Match`: the interface of a multi-agent environment with several sides."""

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
"""The actions by name, one mapping per side."""


class Match(World):
    """Multi-agent environment with `num_sides` sides, which share spaces and end together.

    Each side has its own observations and actions. In vectorised environments the sides of a match
    have consecutive indices.
    """

    num_sides: int = 2
    filters_itself: bool = False
    """True to call `reset_filter` and `act_filter` even if the filter keeps everything."""

    @abstractmethod
    def reset(self) -> list[Observation]:
        """Start an episode and return one observation per side."""

    @abstractmethod
    def act(self, actions: SideActions) -> list[Observation]:
        """Take a step with the actions of each side and return one observation per side."""

    def reset_filter(self, obs_filter: ObsSpace) -> list[Observation]:
        """Reset, and return only the entity types and features of `obs_filter`."""
        return [filter_observation(o, self.obs_space(), obs_filter) for o in self.reset()]

    def act_filter(self, actions: SideActions, obs_filter: ObsSpace) -> list[Observation]:
        """Take a step, and return only the entity types and features of `obs_filter`."""
        return [filter_observation(o, self.obs_space(), obs_filter) for o in self.act(actions)]


class Solo(Match):
    """Wrapper of an `Environment` as a match with one side."""

    num_sides = 1

    def __init__(self, env: Environment) -> None:
        self.env = env
        filters = type(env).reset_filter, type(env).act_filter
        self.filters_itself = filters != (Environment.reset_filter, Environment.act_filter)

    def obs_space(self) -> ObsSpace:
        """Return the space of the environment."""
        return self.env.obs_space()

    def action_space(self) -> Mapping[ActionName, ActionSpace]:
        """Return the spaces of the environment."""
        return self.env.action_space()

    def reset(self) -> list[Observation]:
        """Return the observation of the environment, in a list."""
        return [self.env.reset()]

    def act(self, actions: SideActions) -> list[Observation]:
        """Return the observation of the environment, in a list."""
        return [self.env.act(actions[0])]

    def reset_filter(self, obs_filter: ObsSpace) -> list[Observation]:
        """Return the filtered observation of the environment, in a list."""
        return [self.env.reset_filter(obs_filter)]

    def act_filter(self, actions: SideActions, obs_filter: ObsSpace) -> list[Observation]:
        """Return the filtered observation of the environment, in a list."""
        return [self.env.act_filter(actions[0], obs_filter)]

    def seed(self, seed: int) -> None:
        """Seed the environment, unless it has another attribute named `seed`."""
        if callable(self.env.seed):
            self.env.seed(seed)

    def render(self, **kwargs: Any) -> npt.NDArray[np.uint8] | str:
        """Render the environment."""
        return self.env.render(**kwargs)

    def view(self) -> View | None:
        """Return the view of the environment, unless it has another attribute named `view`."""
        return self.env.view() if callable(self.env.view) else None

    def close(self) -> None:
        """Close the environment."""
        self.env.close()


CreateEnv: TypeAlias = Callable[[], Environment | Match]
"""Factory of an environment or match: a class or function."""


def match_of(world: Environment | Match) -> Match:
    """Wrap an environment in a `Solo`; return a match unchanged."""
    return world if isinstance(world, Match) else Solo(world)


def world_of(match: Match) -> Environment | Match:
    """Unwrap the environment of a `Solo`; return other matches unchanged."""
    return match.env if isinstance(match, Solo) else match


def copy_containers(value: Any) -> Any:
    """Copy nested lists and dictionaries; other objects are shared."""
    if type(value) is list:
        return [copy_containers(item) for item in value]
    if type(value) is dict:
        return {key: copy_containers(item) for key, item in value.items()}
    return value


class FreshPartial(functools.partial[Any]):
    """A `functools.partial` that copies lists and dictionaries in keyword arguments per call.

    Args:
        func: the function; arguments of other partials are not copied.
        args: positional arguments, not copied.
        keywords: keyword arguments, copied.
    """

    fresh: frozenset[str]

    def __new__(cls, func: Callable[..., Any], /, *args: Any, **keywords: Any) -> Self:
        """Create the partial; a nested `FreshPartial` is flattened."""
        fresh = frozenset(keywords)
        if isinstance(func, FreshPartial):
            fresh, args, keywords = fresh | func.fresh, func.args + args, func.keywords | keywords
            func = func.func
        self = super().__new__(cls, func, *args, **keywords)
        self.fresh = fresh
        return self

    def __call__(self, /, *args: Any, **keywords: Any) -> Any:
        """Call the function."""
        kwargs = {n: copy_containers(v) if n in self.fresh else v for n, v in self.keywords.items()}
        return self.func(*self.args, *args, **{**kwargs, **keywords})
