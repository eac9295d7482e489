"""Worlds and observations with one mistake each, and right ones."""

from collections.abc import Callable, Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from entity_env import (
    Action,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    Environment,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
)

A = {"A": [[1.0, 2.0], [3.0, 4.0]]}


def frame(**fields: Any) -> Observation:
    return Observation(**{"global_features": [0.0], "features": A, **fields})


def move(**fields: Any) -> Observation:
    ids = {"A": ["a", "b"]}
    return frame(ids=ids, actions={"move": CategoricalActionMask(**fields)})


def pick(**fields: Any) -> Observation:
    ids = {"A": ["a", "b"]}
    return frame(ids=ids, actions={"pick": SelectEntityActionMask(**fields)})


RIGHT = {
    "nothing": frame(features={}),
    "no rows of no type": frame(features={"A": [], "B": []}),
    "integers": frame(features={"A": [[1, 2]]}, reward=True, metrics={"win": 1}),
    "masks of zeros and ones": move(mask=[[0, 1], [1.0, 0.0]]),
    "booleans": frame(features={"A": np.array([[True, False]])}, reward=np.True_),
    "doubles": frame(features={"A": np.array([[1.0, 2.0]])}, reward=np.float64(1)),
    "halves": frame(features={"A": np.ones((1, 2), np.float16)}, reward=np.float16(1)),
    "unsigned integers": frame(features={"A": np.ones((1, 2), np.uint8)}, reward=np.uint8(1)),
    "rows that are arrays": frame(features={"A": [np.ones(2), np.ones(2, np.int64)]}),
    "an array of objects": frame(features={"A": np.array([[1, Fraction(1, 2)]], object)}),
    "decimals": frame(
        features={"A": [[Decimal("1.5"), Fraction(1, 3)]]},
        reward=Decimal("0.5"),
        metrics={"win": Fraction(1, 2)},
    ),
    "large integers": frame(features={"A": [[2**63, 10**30]]}, reward=10**30),
    "an array of one number": frame(reward=np.array(2.0)),
    "ids of all kinds": frame(features={**A, "B": [[0.0]]}, ids={"A": [1, "1"], "B": [(1,)]}),
    "ids in an array": frame(ids={"A": np.array([7, 8])}),
    "nobody acts": move(actor_ids=[], mask=[]),
    "nothing legal": pick(mask=[[False, False], [False, False]]),
    "hidden but not named": frame(visible={"A": [True, False]}),
}


class Returns(Environment):
    """Returns a valid first frame, then the configured return value."""

    def __init__(self, answer: Any) -> None:
        self.answer = answer

    def obs_space(self) -> ObsSpace:
        return ObsSpace(["t"], {"A": Entity(["x", "y"]), "B": Entity(["z"])})

    def action_space(self) -> dict[str, Any]:
        return {
            "move": CategoricalActionSpace(["l", "r"]),
            "plan": GlobalCategoricalActionSpace(["u", "v", "w"]),
            "pick": SelectEntityActionSpace(),
        }

    def reset(self) -> Observation:
        return frame()

    def act(self, actions: Any) -> Any:
        return self.answer


class Good(Environment):
    """Three steps of one entity with a random feature. What follows breaks it."""

    def obs_space(self) -> Any:
        return ObsSpace(entities={"A": Entity(["x"])})

    def action_space(self) -> Any:
        return {"move": CategoricalActionSpace(["l", "r"])}

    def reset(self) -> Any:
        self.t = 0
        return self.observe()

    def act(self, actions: Mapping[str, Action]) -> Any:
        self.t += 1
        return self.observe()

    def observe(self, **fields: Any) -> Observation:
        return Observation(
            **{
                "features": {"A": [[self.draw()]]},
                "actions": {"move": CategoricalActionMask()},
                "done": self.t == 3,
                **fields,
            }
        )

    def draw(self) -> float:
        return self.rng.random()


class SpaceReorders(Good):
    made = 0

    def __init__(self) -> None:
        type(self).made += 1
        self.names = ["A", "B"] if self.made % 2 else ["B", "A"]

    def obs_space(self) -> ObsSpace:
        return ObsSpace(entities={name: Entity(["x"]) for name in self.names})


def action_space_is(space: Any) -> Callable[[], Environment]:
    return type("Odd", (Good,), {"action_space": lambda self: space})


def obs_space_is(space: Any) -> Callable[[], Environment]:
    return type("Odd", (Good,), {"obs_space": lambda self: space})


def renamed(space: Any, field: str, value: Any) -> Any:
    """A space that was changed after it was made."""
    setattr(space, field, value)
    return space
