"""A world whose actors choose numbers, with and without bounds, beside labels and entities."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from entity_env import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousActionMask,
    ContinuousActionSpace,
    Entity,
    Environment,
    GlobalContinuousActionMask,
    GlobalContinuousActionSpace,
    Observation,
    ObsSpace,
    PlainState,
)

STEPS = 10


class Targets(PlainState, Environment):
    """Archers aim at places that they see; the closer all of them are, the better.

    Of two archers the first reaches half as far, of three the second has no choice.
    """

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Archer": Entity(["place"])})

    def action_space(self) -> dict[str, ActionSpace]:
        return {
            "aim": ContinuousActionSpace({"x": (-1.0, 1.0), "free": (-np.inf, np.inf)}),
            "call": CategoricalActionSpace(["left", "right"]),
            "mean": GlobalContinuousActionSpace({"m": (0.0, 10.0)}),
        }

    def reset(self) -> Observation:
        self.step, self.numbers = 0, list[Any]()
        return self.observe(0.0)

    def act(self, actions: Mapping[str, Any]) -> Observation:
        self.step += 1
        aim, places = actions["aim"], np.array(self.places)
        within = (aim.of("x") >= self.low) & (aim.of("x") <= self.high)
        assert within.all(), (aim, self.low, self.high)
        assert aim.names == ["x", "free"]
        miss = np.abs(aim.of("x") - places).mean() + np.abs(aim.of("free") - places).mean()
        miss += abs(actions["mean"].of("m") / 5 - 1 - places.mean())
        self.numbers = aim.values.tolist()
        return self.observe(float(2 - miss))

    def observe(self, reward: float) -> Observation:
        n = self.rng.randint(1, 3)
        self.places = [2 * self.rng.random() - 1 for _ in range(n)]
        self.low, self.high = [-1.0] * n, [1.0] * n
        if n > 1:
            self.low[0], self.high[0] = -0.5, 0.5
        if n > 2:
            self.low[1] = self.high[1] = 0.25
        return Observation(
            features={"Archer": [[x] for x in self.places]},
            ids={"Archer": [*range(n)]},
            actions={
                "aim": ContinuousActionMask(
                    actor_types=["Archer"],
                    low=[[x, -np.inf] for x in self.low],
                    high=[[x, np.inf] for x in self.high],
                ),
                "call": CategoricalActionMask(actor_types=["Archer"]),
                "mean": GlobalContinuousActionMask(),
            },
            reward=reward,
            done=self.step == STEPS,
        )
