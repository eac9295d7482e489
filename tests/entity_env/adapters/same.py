"""Comparison of frames in this process and in workers."""

import numpy as np

from entity_env import EnvList, ParallelEnvList
from entity_env.testing.random_play import fields_of, random_choices


def assert_workers_show_the_same(apart: ParallelEnvList, here: EnvList, steps: int) -> None:
    """Assert that workers show the same as one process in a seeded run; close both."""
    try:
        space, rng = here.obs_space(), np.random.default_rng(0)
        apart.seed(1)
        here.seed(1)
        expected, shown = here.reset(space), apart.reset(space)
        for _ in range(steps):
            assert fields_of(shown) == fields_of(expected)
            choices = random_choices(expected, here.action_space(), rng)
            expected, shown = here.act(choices, space), apart.act(choices, space)
    finally:
        apart.close()
        here.close()
