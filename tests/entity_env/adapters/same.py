"""Comparison of frames of a single process and of worker processes."""

import numpy as np

from entity_env import EnvList, ParallelEnvList
from entity_env.testing.random_play import fields_of, random_choices


def assert_workers_match(workers: ParallelEnvList, single: EnvList, steps: int) -> None:
    """Assert that worker processes and a single process return equal batches; close both."""
    try:
        space, rng = single.obs_space(), np.random.default_rng(0)
        workers.seed(1)
        single.seed(1)
        expected, obs = single.reset(space), workers.reset(space)
        for _ in range(steps):
            assert fields_of(obs) == fields_of(expected)
            choices = random_choices(expected, single.action_space(), rng)
            expected, obs = single.act(choices, space), workers.act(choices, space)
    finally:
        workers.close()
        single.close()
