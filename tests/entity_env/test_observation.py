"""What one observation says of itself."""

import random

import numpy as np
import pytest

from entity_env import (
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
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
def test_the_ways_to_end_an_episode(
    given: dict[str, bool], terminated: bool, truncated: bool
) -> None:
    obs = Observation(**given)  # type: ignore[arg-type]
    assert (obs.terminated, obs.truncated) == (terminated, truncated)
    assert obs.done == (terminated or truncated)


@pytest.mark.parametrize("flag", ["terminated", "truncated"])
@pytest.mark.parametrize("done", [False, np.False_])
def test_not_done_contradicts_an_end(flag: str, done: bool) -> None:
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


def test_entities_are_given_alone_or_with_ids() -> None:
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
def test_actors_are_named_in_one_way(mask: type) -> None:
    with pytest.raises(InvalidObservation, match="actor_ids or actor_types, got both"):
        mask(actor_ids=[1], actor_types=["A"])


def test_actees_are_named_in_one_way() -> None:
    with pytest.raises(InvalidObservation, match="actee_ids or actee_types, got both"):
        SelectEntityActionMask(actee_ids=[1], actee_types=["A"])


def test_names_in_a_space_are_given_once() -> None:
    with pytest.raises(InvalidSpace, match=r"Entity.features.*'x'"):
        Entity(["x", "y", "x"])
    with pytest.raises(InvalidSpace, match=r"ObsSpace.global_features"):
        ObsSpace(global_features=["x", "x"])
    with pytest.raises(InvalidSpace, match="index_to_label"):
        CategoricalActionSpace(["a", "a"])
    with pytest.raises(InvalidSpace, match="__global__"):
        ObsSpace(entities={"__global__": Entity([])})


def test_seed_makes_rng_reproducible_and_leaves_a_generator_of_ones_own() -> None:
    env = Walk()
    env.seed(3)
    first = env.rng.random()
    env.seed(3)
    assert env.rng.random() == first == random.Random(3).random()
    own = np.random.default_rng(0)
    env.rng = own  # type: ignore[assignment]
    env.seed(3)
    assert env.rng is own
