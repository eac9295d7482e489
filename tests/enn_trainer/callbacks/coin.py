"""A match of luck, without imports of torch, which each process of workers would repeat."""

from typing import Any

from entity_env import (
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Match,
    Observation,
    ObsSpace,
    PlainState,
)


class Coin(PlainState, Match):
    """A coin decides after two steps which of two sides wins; its feature never varies."""

    def obs_space(self) -> ObsSpace:
        return ObsSpace(["x"])

    def action_space(self) -> dict[str, Any]:
        return {"say": GlobalCategoricalActionSpace(["a", "b"])}

    def reset(self) -> list[Observation]:
        self.steps = 0
        return self.observe(0.0)

    def act(self, actions: Any) -> list[Observation]:
        self.steps += 1
        return self.observe(self.rng.choice([-1.0, 1.0]) if self.steps == 2 else 0.0)

    def observe(self, reward: float) -> list[Observation]:
        offered = {"say": GlobalCategoricalActionMask()}
        return [
            Observation(global_features=[3.0], actions=offered, reward=x, done=self.steps == 2)
            for x in (reward, -reward)
        ]
