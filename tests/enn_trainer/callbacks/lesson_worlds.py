"""Worlds of lessons, without imports of torch, which each process of workers would repeat."""

from typing import Any

from entity_env import Environment, Observation
from entity_env.examples import Locks
from tests.enn_trainer.chains_match import Skirmish


class Slow(Locks):
    """Locks of which each takes several tries, so that episodes are longer than a rollout."""

    def __init__(self, length: int = 12, keys: int = 3, slow: int = 1) -> None:
        super().__init__(length, keys)
        self.slow = slow

    def reset(self) -> Observation:
        self.tries = 0
        return super().reset()

    def set_parameters(  # type: ignore[override]
        self, length: int | None = None, keys: int | None = None, slow: int | None = None
    ) -> None:
        super().set_parameters(length, keys)
        self.slow = slow or getattr(self, "slow", 1)

    def act(self, actions: Any) -> Observation:
        self.tries += 1
        if self.tries % (self.slow * 3):
            return self._observe(fits=True)
        return super().act(actions)


class Forgetful(Slow):
    """The same without a state that can be saved."""

    get_state = None  # type: ignore[assignment]


class Stateless(Environment):
    """Locks, made anew for each episode, without a state that can be saved."""

    def __init__(self, length: int = 12, keys: int = 3, slow: int = 1) -> None:
        self._locks = Slow(length, keys, slow)
        self.obs_space, self.action_space = self._locks.obs_space, self._locks.action_space
        self.act, self.seed = self._locks.act, self._locks.seed  # type: ignore[method-assign]

    def reset(self) -> Observation:
        return self._locks.reset()

    def obs_space(self) -> Any: ...
    def action_space(self) -> Any: ...
    def act(self, actions: Any) -> Any: ...


class Crowded(Skirmish):
    """A match with numbers and chains of actions, whose number of units is an argument."""

    def __init__(self, units: int = 3, turns: int = 4) -> None:
        self.units, self.turns = units, turns

    def reset(self) -> list[Observation]:
        super().reset()
        self.hp = [[self.rng.random() for _ in range(self.units)] for _ in range(2)]
        return self._observe()
