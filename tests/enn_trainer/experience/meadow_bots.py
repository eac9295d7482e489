"""Bots for `Meadow` and its variants."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from entity_env import (
    Action,
    Bot,
    CategoricalAction,
    GlobalCategoricalAction,
    Observation,
    PlainState,
    SelectEntityAction,
)

WALKS = ["left", "stay", "right"]
CALLS = ["quiet", "bleat"]


class Grazes(Bot):
    """Choose at random among what every kind of action allows."""

    def act(self, observation: Observation) -> Mapping[str, Action]:
        actions: dict[str, Action] = {}
        masks: Any = observation.actions
        if "walk" in masks:
            rows = [self.rng.choice(np.flatnonzero(row)) for row in masks["walk"].mask]
            actions["walk"] = CategoricalAction(masks["walk"].actor_ids, np.array(rows), WALKS)
        if "watch" in masks:
            mask = masks["watch"]
            seen = [mask.actee_ids[self.rng.choice(np.flatnonzero(row))] for row in mask.mask]
            actions["watch"] = SelectEntityAction(mask.actor_ids, seen)
        if "call" in masks:
            actions["call"] = GlobalCategoricalAction(0, self.rng.choice(CALLS))
        return actions


class Remembers(PlainState, Grazes):
    """Keep the number of calls in a game, and of games."""

    def __init__(self) -> None:
        self.games = self.calls = 0

    def seed(self, seed: int) -> None:
        super().seed(seed)
        self.games, self.calls = self.games + 1, 0

    def act(self, observation: Observation) -> Mapping[str, Action]:
        self.calls += 1
        if self.calls % 2:
            self.rng.random(self.games)
        return super().act(observation)
