"""A match in two pastures, without imports of torch, which each worker would repeat."""

from collections.abc import Mapping, Sequence
from typing import Any

from entity_env import Action, Match, Observation, ObsSpace
from tests.enn_trainer.worlds import Pasture


class Pastures(Match):
    """Two sides with the same pasture and every kind of action; who gets more wins."""

    num_sides = 2

    def __init__(self) -> None:
        self.pastures = [Pasture(), Pasture()]

    def obs_space(self) -> ObsSpace:
        return self.pastures[0].obs_space()

    def action_space(self) -> dict[str, Any]:
        return self.pastures[0].action_space()

    def seed(self, seed: int) -> None:
        for pasture in self.pastures:
            pasture.seed(seed)

    def reset(self) -> list[Observation]:
        return [pasture.reset() for pasture in self.pastures]

    def get_state(self) -> list[Any]:
        return [pasture.get_state() for pasture in self.pastures]

    def set_state(self, state: list[Any]) -> list[Observation]:
        return [p.set_state(own) for p, own in zip(self.pastures, state, strict=True)]

    def act(self, actions: Sequence[Mapping[str, Action]]) -> list[Observation]:
        return [pasture.act(own) for pasture, own in zip(self.pastures, actions, strict=True)]
