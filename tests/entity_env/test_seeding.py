"""Seeds of episodes: the same for one as for many, and the same whenever they are first used."""

import copy
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_env import EnvList, Observation
from entity_env.seeding import derive_seed, derive_seeds
from tests.entity_env.worlds import SPACE, Walk

keys = st.integers(0, 2**62)


@given(st.integers(0, 2**70), st.lists(st.tuples(keys, keys), min_size=1, max_size=5))
def test_derive_seeds_equals_derive_seed(seed: int, episodes: list[tuple[int, int]]) -> None:
    numbers, counts = np.array(episodes).T
    assert derive_seeds(seed, "episode", numbers, counts) == [
        derive_seed(seed, "episode", *episode) for episode in episodes
    ]


class Quiet(Walk):
    """Draws nothing by itself."""

    def reset(self) -> Observation:
        return Observation(global_features=[0.0])


def test_rng_uses_the_last_seed_before_first_use() -> None:
    """Only what draws is seeded: that takes longer than a short episode."""
    for seeds, draws in [([3], 1), ([1, 3], 1), ([1, 3], 4), ([2, 9, 3], 2)]:
        world = Walk()
        for seed in seeds:
            world.seed(seed)
        expected = random.Random(3)
        assert [world.rng.random() for _ in range(draws)] == [
            expected.random() for _ in range(draws)
        ]
        world.seed(4)  # in use now
        assert world.rng.random() == random.Random(4).random()


def test_copy_before_the_first_draw_has_the_same_seed() -> None:
    world = Walk()
    world.seed(3)
    other = copy.deepcopy(world)
    assert other.rng.random() == world.rng.random() == random.Random(3).random()


def test_custom_generator_is_seeded_if_it_is_random_random() -> None:
    class Other(Walk):
        rng: Any = np.random.default_rng(0)

    class Shared(Walk):
        rng = random.Random(0)

    Other().seed(5)
    assert Other.rng.random() == np.random.default_rng(0).random()
    Shared().seed(5)
    assert Shared.rng.random() == random.Random(5).random()


@pytest.mark.parametrize("draws", [0, 1, 3])
def test_draws_do_not_depend_on_earlier_episodes(draws: int) -> None:
    world = Quiet()
    envs = EnvList(lambda: world, 1, first_env_index=7)
    envs.seed(5)
    envs.reset(SPACE)
    for _ in range(draws):
        world.rng.random()
    envs.reset(SPACE)
    assert world.rng.random() == random.Random(derive_seed(5, "episode", 7, 1)).random()
