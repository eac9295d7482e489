"""An environment with categorical features and flags, and the same one with one-hot floats."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from entity_env import (
    Action,
    ActionSpace,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    Flag,
    Kind,
    Observation,
    ObsSpace,
    PlainState,
)

COLORS = ["red", "green", "blue"]
SEASONS = ["dry", "wet"]
SPACE = ObsSpace(
    global_features=["time", Kind("season", SEASONS)],
    entities={
        "Ball": Entity(["x", Kind("color", COLORS), Flag("open")]),
        "Sign": Entity([Kind("color", COLORS)]),
        "Wall": Entity([]),
    },
)


class Sorter(PlainState, Environment):
    """Take the open balls of the colour on the sign; in the wet season the closed ones.

    Args:
        as_arrays: give indices in arrays in place of labels in lists.
    """

    def __init__(self, as_arrays: bool = False) -> None:
        self.as_arrays = as_arrays

    def obs_space(self) -> ObsSpace:
        return SPACE

    def action_space(self) -> dict[str, ActionSpace]:
        return {"do": CategoricalActionSpace(["leave", "take"])}

    def reset(self) -> Observation:
        self.time, self.cut = 0, self.rng.random() < 0.5
        self.season = self.rng.choice(SEASONS)
        self.sign = self.rng.choice(COLORS)
        self._drop()
        return self._observe(0.0)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        taken = actions.get("do")
        right = 0
        if isinstance(taken, CategoricalAction):
            right = sum(
                (label == "take") == self._wanted(ball)
                for label, ball in zip(taken.labels, self.balls, strict=True)
            )
        self.time += 1
        reward = right / max(1, len(self.balls))
        self._drop()
        return self._observe(reward)

    def _wanted(self, ball: list[Any]) -> bool:
        return bool(ball[1] == self.sign and ball[2] == (self.season == "dry"))

    def _drop(self) -> None:
        self.balls = [
            [self.rng.random(), self.rng.choice(COLORS), self.rng.random() < 0.5]
            for _ in range(self.rng.randint(0, 4))
        ]

    def _observe(self, reward: float) -> Observation:
        balls: Any = self.balls
        sign: Any = [[self.sign]]
        if self.as_arrays:
            rows = [[x, COLORS.index(color), is_open] for x, color, is_open in self.balls]
            balls = np.array(rows, dtype=np.float32).reshape(-1, 3)
            sign = np.array([[COLORS.index(self.sign)]])
        over = self.time == 5
        return Observation(
            entities={
                "Ball": [list(b) for b in balls] if not self.as_arrays else balls,
                "Sign": sign,
                "Wall": [[]] * self.rng.randint(0, 2),
            },
            global_features=[self.time / 5, self.season],
            actions={"do": CategoricalActionMask(actor_types=["Ball"])},
            reward=reward,
            truncated=over and self.cut,
            terminated=over and not self.cut,
        )
