"""Bots for `Duel`, good and bad ones; also named on command lines, as a file and as a module."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from entity_env import Action, Bot, Observation, PlainState, SelectEntityAction


class Greedy(Bot):
    """Shoot at the enemy with the fewest hit points."""

    def act(self, observation: Observation) -> Mapping[str, Action]:
        attack: Any = observation.actions["attack"]
        weakest = int(np.argmin(np.asarray(observation.features["Enemy"])[:, 0]))
        shots = [("Enemy", weakest)] * len(attack.actor_ids)
        return {"attack": SelectEntityAction(attack.actor_ids, shots)}


class Shoots(Bot):
    """Shoot at random."""

    def act(self, observation: Observation) -> Mapping[str, Action]:
        attack: Any = observation.actions["attack"]
        drawn = self.rng.integers(len(attack.actee_ids), size=len(attack.actor_ids))
        return {
            "attack": SelectEntityAction(attack.actor_ids, [attack.actee_ids[i] for i in drawn])
        }


class Waits(PlainState, Shoots):
    """Draw more in every second step, and keep the count."""

    def __init__(self) -> None:
        self.count = 0

    def seed(self, seed: int) -> None:
        super().seed(seed)
        self.count = 0

    def act(self, observation: Observation) -> Mapping[str, Action]:
        self.count += 1
        if self.count % 2:
            self.rng.random(self.count)
        return super().act(observation)


class Unseeded(Shoots):
    def seed(self, seed: int) -> None:
        self.rng = np.random.default_rng()


class Forgets(Shoots):
    """Draw more in every second step, and keep no count of them."""

    count = 0

    def seed(self, seed: int) -> None:
        super().seed(seed)
        self.count = 0

    def act(self, observation: Observation) -> Mapping[str, Action]:
        self.count += 1
        if self.count % 2:
            self.rng.random()
        return super().act(observation)


class Impure(Shoots):
    def get_state(self) -> object:
        return {"rng": self.rng}

    def set_state(self, state: Any) -> None:
        self.rng = state["rng"]


class ShootsItself(Shoots):
    def act(self, observation: Observation) -> Mapping[str, Action]:
        attack: Any = observation.actions["attack"]
        return {"attack": SelectEntityAction(attack.actor_ids, attack.actor_ids)}


class Raises(Shoots):
    def act(self, observation: Observation) -> Mapping[str, Action]:
        raise ZeroDivisionError("nobody there")


class Sized(Shoots):
    def __init__(self, size: int) -> None:
        self.size = size
