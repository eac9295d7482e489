"""Worlds of lessons, without imports of torch, which each process of workers would repeat."""

from typing import Any

from entity_env import (
    Environment,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Match,
    Observation,
    ObsSpace,
    PlainState,
)
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


class Uneven(PlainState, Environment):
    """Every second episode wins at once, on average; the others lose after many steps."""

    def __init__(self, level: int = 0, steps: int = 40) -> None:
        self.level, self.steps = level, steps

    def obs_space(self) -> ObsSpace:
        return ObsSpace(["t"])

    def action_space(self) -> dict[str, Any]:
        return {"say": GlobalCategoricalActionSpace(["a", "b"])}

    def reset(self) -> Observation:
        self.t, self.wins = 0, self.rng.random() < 0.5
        return self._observe()

    def act(self, actions: Any) -> Observation:
        self.t += 1
        return self._observe()

    def _observe(self) -> Observation:
        done = self.t > 0 and (self.wins or self.t == self.steps)
        return Observation(
            global_features=[float(self.t)],
            actions={"say": GlobalCategoricalActionMask()},
            reward=float(done and self.wins),
            done=done,
            metrics={"win": float(self.wins)} if done else {},
        )


class UnevenMatch(PlainState, Match):
    """A match in which the first side wins at once or the second one after many steps."""

    num_sides = 2

    def obs_space(self) -> ObsSpace:
        return ObsSpace(["t"])

    def action_space(self) -> dict[str, Any]:
        return {"say": GlobalCategoricalActionSpace(["a", "b"])}

    def reset(self) -> list[Observation]:
        self.t, self.winner = 0, int(self.rng.random() < 0.5)
        return self._observe()

    def act(self, actions: Any) -> list[Observation]:
        self.t += 1
        return self._observe()

    def _observe(self) -> list[Observation]:
        done = self.t > 0 and (self.winner == 0 or self.t == 40)
        return [
            Observation(
                global_features=[float(self.t)],
                actions={"say": GlobalCategoricalActionMask()},
                reward=(1.0 if side == self.winner else -1.0) if done else 0.0,
                done=done,
            )
            for side in (0, 1)
        ]


class Endless(Environment):
    """Episodes of two steps, but for the first environment that is made, whose never end."""

    num_made = 0

    def __init__(self) -> None:
        self.ends = Endless.num_made > 0
        Endless.num_made += 1

    def obs_space(self) -> ObsSpace:
        return ObsSpace(["t"])

    def action_space(self) -> dict[str, Any]:
        return {"say": GlobalCategoricalActionSpace(["a", "b"])}

    def reset(self) -> Observation:
        self.t = 0
        return self._observe()

    def act(self, actions: Any) -> Observation:
        self.t += 1
        return self._observe()

    def _observe(self) -> Observation:
        return Observation(
            global_features=[float(self.t)],
            actions={"say": GlobalCategoricalActionMask()},
            reward=1.0,
            done=self.ends and self.t == 2,
        )
