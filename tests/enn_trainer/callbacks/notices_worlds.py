"""Probe worlds for notices: each with a fault that keeps an agent from learning, or without it."""

from collections.abc import Mapping
from typing import Any

from entity_env import (
    Action,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    PlainState,
)
from entity_env.testing import Identity


class Gate(PlainState, Environment):
    """Forward pays 1 where the gate is open, one time in ten, and costs 1 where it is not.

    Without the gate in sight the best is to turn left or right, whatever is seen.
    """

    def __init__(self, shown: bool = True) -> None:
        self.shown = shown

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Me": Entity(["open", "noise"])})

    def action_space(self) -> dict[str, Any]:
        return {"do": CategoricalActionSpace(["left", "right", "forward"])}

    def reset(self) -> Observation:
        self.open = self.rng.random() < 0.1
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        do: Any = actions["do"]
        return self.observe((1.0 if self.open else -1.0) if do.labels == ["forward"] else 0.0, True)

    def observe(self, reward: float = 0.0, done: bool = False) -> Observation:
        seen = float(self.open if self.shown else self.rng.random() < 0.1)
        return Observation(
            features={"Me": [[seen, self.rng.random()]]},
            actions={"do": CategoricalActionMask()},
            reward=reward,
            done=done,
        )


class Luck(PlainState, Environment):
    """A coin that lands at the end of four steps, whatever is done; its side is shown or not."""

    def __init__(self, shown: bool = True) -> None:
        self.shown = shown

    def obs_space(self) -> ObsSpace:
        return ObsSpace(global_features=["side", "noise"])

    def action_space(self) -> dict[str, Any]:
        return {"say": GlobalCategoricalActionSpace(["a", "b"])}

    def reset(self) -> Observation:
        self.side, self.left = self.rng.choice([-1.0, 1.0]), 4
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.left -= 1
        return self.observe(self.side if self.left == 0 else 0.0, self.left == 0)

    def observe(self, reward: float = 0.0, done: bool = False) -> Observation:
        return Observation(
            global_features=[self.side if self.shown else self.rng.random(), self.rng.random()],
            actions={"say": GlobalCategoricalActionMask()},
            reward=reward,
            done=done,
        )


class Marked(Identity):
    """`Identity` with a mark that never changes, beside the one to name or instead of it."""

    def __init__(self, shown: bool = True) -> None:
        self.shown = shown

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Mark": Entity(["kind", "always"]), "Noise": Entity(["x"])})

    def action_space(self) -> dict[str, Any]:
        return {**super().action_space(), "never": CategoricalActionSpace(["a", "b"])}

    def _observe(self, reward: float = 0.0, done: bool = False) -> Observation:
        kind = 2.0 * self.mark - 1 if self.shown else 7.0
        return Observation(
            features={"Mark": [[kind, 3.0]], "Noise": [[self.rng.random()]]},
            actions={"say": CategoricalActionMask(actor_types=["Mark"])},
            reward=reward,
            done=done,
        )


class Steps(PlainState, Environment):
    """Random rewards of `scale`, in episodes of some steps or without an end.

    Args:
        length: steps of an episode; 0 for no end.
        scale: the largest reward.
        every: only one frame of this many has actors.
        cost: subtracted from all rewards.
    """

    def __init__(
        self, length: int = 5, scale: float = 1.0, every: int = 1, cost: float = 0.0
    ) -> None:
        self.length, self.scale, self.every, self.cost = length, scale, every, cost

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Me": Entity(["x"])})

    def action_space(self) -> dict[str, Any]:
        return {"go": CategoricalActionSpace(["a", "b"])}

    def reset(self) -> Observation:
        self.steps = 0
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.steps += 1
        reward = self.scale * self.rng.random() - self.cost
        return self.observe(reward, self.steps == self.length)

    def observe(self, reward: float = 0.0, done: bool = False) -> Observation:
        actors = ["Me"] if self.steps % self.every == 0 else []
        return Observation(
            features={"Me": [[self.rng.random()]]},
            actions={"go": CategoricalActionMask(actor_types=actors)},
            reward=reward,
            done=done,
        )
