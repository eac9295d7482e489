"""A world with several actions, for enn_trainer 0.1.16 and for us: it uses what both understand."""

import random
from collections.abc import Mapping
from typing import Any

from entity_env import (
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)


class Harbour(Environment):
    """Ships sail and choose a crane; somebody switches the lights. No whale is ever seen.

    Some frames have no ship, so that nobody takes the actions of ships.
    """

    def obs_space(self) -> ObsSpace:
        entities = {
            "Whale": Entity(["x", "y", "age"]),
            "Ship": Entity(["x", "y", "load"]),
            "Buoy": Entity([]),
            "Crane": Entity(["x", "y"]),
        }
        return ObsSpace(global_features=["tide"], entities=entities)

    def action_space(self) -> dict[str, Any]:
        return {
            "sail": CategoricalActionSpace(["north", "stay", "south"]),
            "unload at": SelectEntityActionSpace(),
            "lights": GlobalCategoricalActionSpace(["off", "on"]),
        }

    def reset(self) -> Observation:
        self.hour = 0
        return self.observe(reward=0.0)

    def act(self, actions: Mapping[str, Any]) -> Observation:
        self.hour += 1
        reward = 0.5 if actions["lights"].index == self.hour % 2 else 0.0
        if "sail" in actions:
            reward += sum(label == "north" for label in actions["sail"].labels) / 4
        if "unload at" in actions:
            reward += sum(actee == "crane 0" for actee in actions["unload at"].actees) / 4
        return self.observe(reward)

    def observe(self, reward: float) -> Observation:
        ships, cranes = random.randint(0, 3), random.randint(1, 3)
        may_sail = [[random.random() < 0.6, True, random.random() < 0.6] for _ in range(ships)]
        return Observation(
            global_features=[self.hour % 5 - 2],
            entities={
                "Ship": (_rows(ships, 3), [f"ship {i}" for i in range(ships)]),
                "Buoy": ([[]], ["buoy"]),
                "Crane": (_rows(cranes, 2), [f"crane {i}" for i in range(cranes)]),
            },
            actions={
                "sail": CategoricalActionMask(actor_types=["Ship"], mask=may_sail or None),
                "unload at": SelectEntityActionMask(actor_types=["Ship"], actee_types=["Crane"]),
                "lights": GlobalCategoricalActionMask(),
            },
            reward=reward,
            done=self.hour == 6,
        )


def _rows(count: int, features: int) -> list[list[float]]:
    return [[round(random.uniform(-3, 3), 2) for _ in range(features)] for _ in range(count)]
