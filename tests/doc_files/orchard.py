"""The environment that pages of the documentation name: pick the ripest fruits."""

from typing import Any

from entity_env import (
    Entity,
    Environment,
    Observation,
    ObsSpace,
    PlainState,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)


class Orchard(PlainState, Environment):
    """Someone picks three fruits, one after the other, and wants the ripest."""

    def __init__(self, trees: int = 5) -> None:
        self.trees = trees

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={"Picker": Entity([]), "Fruit": Entity(["ripeness"])})

    def action_space(self) -> dict[str, Any]:
        return {"pick": SelectEntityActionSpace()}

    def reset(self) -> Observation:
        self.fruits = {i: self.rng.random() for i in range(self.trees)}
        self.picked = 0
        return self.observe(reward=0.0)

    def act(self, actions: Any) -> Observation:
        self.picked += 1
        return self.observe(reward=self.fruits.pop(actions["pick"].actees[0]))

    def observe(self, reward: float) -> Observation:
        fruits = [[ripeness] for ripeness in self.fruits.values()]
        pick = SelectEntityActionMask(actor_types=["Picker"], actee_types=["Fruit"])
        return Observation(
            entities={"Picker": ([[]], ["me"]), "Fruit": (fruits, list(self.fruits))},
            actions={"pick": pick},
            reward=reward,
            done=self.picked == 3,
        )
