"""What one observation says of itself."""

import random
from typing import Any

import numpy as np
import pytest

from entity_env import (
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionMask,
    InvalidObservation,
    InvalidSpace,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
)
from tests.entity_env.worlds import Walk


@pytest.mark.parametrize(
    ("given", "terminated", "truncated"),
    [
        ({}, False, False),
        ({"done": False}, False, False),
        ({"done": True}, True, False),
        ({"done": np.True_}, True, False),
        ({"terminated": True}, True, False),
        ({"truncated": True}, False, True),
        ({"done": True, "truncated": True}, False, True),
        ({"done": True, "terminated": True}, True, False),
        ({"terminated": True, "truncated": True}, True, False),  # no future: nothing to cut off
    ],
)
def test_termination_and_truncation_flags(
    given: dict[str, bool], terminated: bool, truncated: bool
) -> None:
    obs = Observation(**given)  # type: ignore[arg-type]
    assert (obs.terminated, obs.truncated) == (terminated, truncated)
    assert obs.done == (terminated or truncated)


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
@pytest.mark.parametrize("done", [False, np.False_])
def test_done_false_with_terminated_or_truncated_raises(flag: str, done: bool) -> None:
    with pytest.raises(InvalidObservation, match="done=False contradicts"):
        Observation(done=done, **{flag: True})  # type: ignore[arg-type]


def test_done_can_be_set() -> None:
    obs = Observation(truncated=True)
    obs.done = True
    assert obs.truncated
    obs.done = False
    assert not obs.truncated
    obs.done = True
    assert obs.terminated


def test_entities_with_or_without_ids() -> None:
    obs = Observation(entities={"A": [[1.0]], "B": ([[2.0], [3.0]], ["x", "y"]), "C": None})
    assert obs.features == {"A": [[1.0]], "B": [[2.0], [3.0]]}
    assert obs.ids == {"B": ["x", "y"]}
    space = ObsSpace(entities={name: Entity(["x"]) for name in "CBA"})
    assert obs.index_to_id(space) == ["x", "y", ("A", 0)]
    assert obs.id_to_index(space) == {"x": 0, "y": 1, ("A", 0): 2}
    assert obs.num_entities("C") == 0
    with pytest.raises(InvalidObservation, match="got both"):
        Observation(entities={}, features={})


@pytest.mark.parametrize("mask", [CategoricalActionMask, SelectEntityActionMask])
def test_actor_ids_and_actor_types_are_exclusive(mask: type) -> None:
    with pytest.raises(InvalidObservation, match="actor_ids or actor_types, got both"):
        mask(actor_ids=[1], actor_types=["A"])


def test_actee_ids_and_actee_types_are_exclusive() -> None:
    with pytest.raises(InvalidObservation, match="actee_ids or actee_types, got both"):
        SelectEntityActionMask(actee_ids=[1], actee_types=["A"])


def test_duplicate_names_in_a_space_raise() -> None:
    with pytest.raises(InvalidSpace, match=r"Entity.features.*'x'"):
        Entity(["x", "y", "x"])
    with pytest.raises(InvalidSpace, match=r"ObsSpace.global_features"):
        ObsSpace(global_features=["x", "x"])
    with pytest.raises(InvalidSpace, match="index_to_label"):
        CategoricalActionSpace(["a", "a"])
    with pytest.raises(InvalidSpace, match="__global__"):
        ObsSpace(entities={"__global__": Entity([])})


def test_seed_makes_rng_reproducible_and_ignores_other_generators() -> None:
    env = Walk()
    env.seed(3)
    first = env.rng.random()
    env.seed(3)
    assert env.rng.random() == first == random.Random(3).random()
    own = np.random.default_rng(0)
    env.rng = own  # type: ignore[assignment]
    env.seed(3)
    assert env.rng is own


def test_str_describes_the_observation() -> None:
    obs = Observation(
        entities={
            "Trap": np.array([[1, 2], [3, 4], [5, 6], [7, 1 / 3]], dtype=np.float32),
            "Player": ([[]], ["me"]),
            "Wall": [],
        },
        global_features=[0.5],
        visible={"Trap": [True, False, True, True]},
        actions={
            "move": CategoricalActionMask(actor_types=["Player"], mask=[[True, False, True]]),
            "pick": SelectEntityActionMask(actor_ids=["me"], actee_types=["Trap"]),
            "wait": GlobalCategoricalActionMask(),
        },
        reward=1.5,
        truncated=True,
        metrics={"found": 2.0},
    )
    assert str(obs).splitlines() == [
        "Observation: reward 1.5, truncated",
        "  global features: [0.5]",
        "  'Trap': 4, features [1, 2] [3, 4] [5, 6] ..., visible [True, False, True, True]",
        "  'Player': 1, features [], ids ['me']",
        "  'Wall': 0",
        "  action 'move': actor_types ['Player'], 2 of 3 choices allowed",
        "  action 'pick': actor_ids ['me'], actee_types ['Trap']",
        "  action 'wait': everything allowed",
        "  metrics: {'found': 2.0}",
    ]
    assert repr(obs) == (
        "Observation(entities={'Trap': 4, 'Player': 1, 'Wall': 0}, "
        "actions=['move', 'pick', 'wait'], reward=1.5, truncated)"
    )


def test_str_is_bounded_for_large_observations() -> None:
    many = Observation(
        features={"Ant": np.zeros((10_000, 500)), **{f"type {i}": [[1.0]] for i in range(1000)}},
        ids={"Ant": [f"ant {i}" for i in range(10_000)]},
        actions={"walk": CategoricalActionMask(mask=np.ones((10_000, 4), dtype=np.bool_))},
        done=True,
    )
    shown = str(many)
    assert "'Ant': 10000, features [0, 0, 0, 0, 0, 0, 0, 0, ...] [" in shown
    assert shown.endswith("more")
    assert len(shown) < 3000
    assert "\n" not in repr(many)
    assert len(repr(many)) < 300


@pytest.mark.parametrize(
    "wrong",
    [
        {"features": {"A": 3}},
        {"features": {"A": [[1.0], [2.0, 3.0]]}},
        {"features": {"A": [["text"]]}},
        {"features": {"A": [1.0, 2.0]}},
        {"features": {"A": [[1.0]]}, "visible": 5},
        {"actions": 5},
        {"actions": {"a": CategoricalActionMask(actor_ids=5)}},  # type: ignore[arg-type]
        {"actions": {"a": CategoricalActionMask(mask=[[True], [True, False]])}},
        {"actions": {"a": None}},
        {"global_features": 3.0, "reward": "much", "metrics": [1]},
    ],
)
def test_invalid_observation_can_be_printed(wrong: dict[str, Any]) -> None:
    obs = Observation(**wrong)
    assert str(obs).startswith("Observation: reward ")
    assert repr(obs).startswith("Observation(entities={")
