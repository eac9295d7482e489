"""Twins of environments, bots and vectorised environments that overwrite all that they are given.

They also return the same objects each time. Everything that a run keeps has to be as with the
well-behaved twin. Workers import this module.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from entity_env import (
    Action,
    ActionMask,
    ActionSpace,
    Bot,
    Entity,
    Environment,
    Match,
    Observation,
    ObsSpace,
)
from entity_env.environment import filter_observation
from entity_env.ragged import Ragged
from entity_env.vec.vec_env import VecEnv, VecEnvWrapper, VecObs


def overwrite(value: Any, clears: bool = True) -> None:
    """Overwrite the arrays, lists and dictionaries in a value, and in the attributes of objects.

    Args:
        value: what to overwrite.
        clears: also clear lists and dictionaries.
    """
    if isinstance(value, np.ndarray):
        if value.flags.writeable and value.dtype.kind in "biuf":
            value[...] = 1
    elif isinstance(value, dict | list | tuple):
        for item in [*(value.values() if isinstance(value, dict) else value)]:
            overwrite(item, clears)
        if clears and not isinstance(value, tuple):
            value.clear()
    elif isinstance(value, Action | ActionMask | Observation | ObsSpace | Entity | Ragged | VecObs):
        for item in vars(value).values():
            overwrite(item, clears)


def poured(old: Any, new: Any) -> Any:
    """Return the content of a new object, in the old one if that is of its kind."""
    if isinstance(new, np.ndarray) and isinstance(old, np.ndarray):
        if (old.shape, old.dtype) == (new.shape, new.dtype):
            old[...] = new
            return old
    elif isinstance(new, dict) and isinstance(old, dict):
        merged = {key: poured(old.get(key), item) for key, item in new.items()}
        old.clear()
        old.update(merged)
        return old
    elif isinstance(new, list) and isinstance(old, list):
        old[:] = copy.deepcopy(new)
        return old
    elif type(old) is type(new) and isinstance(new, ActionMask | Observation | VecObs | Ragged):
        for name, item in vars(new).items():
            setattr(old, name, poured(getattr(old, name), item))
        return old
    return copy.deepcopy(new)


class _Hostile:
    """What the twins of environments and matches have in common."""

    world: Any

    def obs_space(self) -> ObsSpace:
        space: ObsSpace = self.world.obs_space()
        return space

    def action_space(self) -> dict[str, ActionSpace]:
        space: dict[str, ActionSpace] = self.world.action_space()
        return space

    def seed(self, seed: int) -> None:
        self.world.seed(seed)

    def _acted(self, actions: Any) -> Any:
        own = copy.deepcopy(actions)
        overwrite(actions)
        return self.world.act(own)

    def get_state(self) -> dict[str, Any]:
        state = self.world.get_state()
        self.state = poured(getattr(self, "state", None), state)
        return self.state

    def set_state(self, state: dict[str, Any]) -> None:
        self.world.set_state(copy.deepcopy(state))
        overwrite(state)

    def _shown(self, old: Observation, new: Observation) -> Observation:
        overwrite(old, clears=False)
        old.reward, old.terminated, old.truncated = -1e6, False, False
        poured(old, new)
        return old


class HostileEnv(_Hostile, Environment):
    """Twin of an environment.

    Args:
        cls: its class.
        levels: a list that is overwritten as well.
        kwargs: its arguments.
    """

    def __init__(self, cls: type[Environment], levels: Sequence[Any] = (), **kwargs: Any) -> None:
        self.world, self.seen = cls(**kwargs), Observation()
        overwrite(levels)

    def reset(self) -> Observation:
        return self._shown(self.seen, self.world.reset())

    def act(self, actions: Mapping[str, Action]) -> Observation:
        return self._shown(self.seen, self._acted(actions))

    def reset_filter(self, obs_filter: ObsSpace) -> Observation:
        return self._filtered(self.reset(), obs_filter)

    def act_filter(self, actions: Mapping[str, Action], obs_filter: ObsSpace) -> Observation:
        return self._filtered(self.act(actions), obs_filter)

    def _filtered(self, obs: Observation, obs_filter: ObsSpace) -> Observation:
        shown = filter_observation(obs, self.obs_space(), copy.deepcopy(obs_filter))
        overwrite(obs_filter)
        return shown


class HostileMatch(_Hostile, Match):
    """A match with the faults and arguments of `HostileEnv`."""

    def __init__(self, cls: type[Match], **kwargs: Any) -> None:
        self.world = cls(**kwargs)
        self.num_sides = self.world.num_sides
        self.seen = [Observation() for _ in range(self.num_sides)]

    def reset(self) -> list[Observation]:
        return [*map(self._shown, self.seen, self.world.reset())]

    def act(self, actions: Sequence[Mapping[str, Action]]) -> list[Observation]:
        return [*map(self._shown, self.seen, self._acted(actions))]


class HostileVecEnv(VecEnvWrapper):
    """Twin of a vectorised environment, which returns one `VecObs` again and again."""

    def __init__(self, env: VecEnv) -> None:
        super().__init__(env)
        self.seen: Any = None

    def reset(self, obs_config: ObsSpace) -> VecObs:
        return self._shown(self.env.reset(copy.deepcopy(obs_config)), obs_config)

    def act(self, actions: Mapping[str, Ragged], obs_filter: ObsSpace) -> VecObs:
        own = {name: Ragged(c.values.copy(), c.lengths.copy()) for name, c in actions.items()}
        shown = self.env.act(own, copy.deepcopy(obs_filter))
        overwrite(actions)
        return self._shown(shown, obs_filter)

    def _shown(self, new: VecObs, obs_filter: ObsSpace) -> VecObs:
        overwrite(obs_filter)
        overwrite(self.seen, clears=False)
        self.seen = poured(self.seen, new)
        seen: VecObs = self.seen
        return seen


def hostile_bot(cls: type[Bot]) -> type[Bot]:
    """Return the twin of a bot."""

    class HostileBot(cls):  # type: ignore[valid-type, misc]
        answer: Any = None

        def act(self, observation: Observation) -> Mapping[str, Action]:
            chosen = super().act(copy.deepcopy(observation))
            overwrite(observation)
            self.answer = poured(self.answer, dict(chosen))
            answer: Mapping[str, Action] = self.answer
            return answer

    return HostileBot


def hostile(cls: Any) -> Callable[..., Any]:
    """Return a function that makes the twin of an environment or match."""
    if issubclass(cls, Match):

        def make_match(**kwargs: Any) -> Match:
            return HostileMatch(cls, **kwargs)

        return make_match

    def make(**kwargs: Any) -> Environment:
        return HostileEnv(cls, **kwargs)

    return make
