"""Return of a uniformly random policy, as a baseline."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np

from enn_trainer.evaluation.eval_metrics import EpisodeStatistics, quotas
from enn_trainer.experience.episodes import Measured
from entity_env.environment import Environment
from entity_env.match import Match
from entity_env.seeding import preserve_global_rng
from entity_env.testing.random_play import random_choices
from entity_env.vec.serial import EnvList
from entity_env.vec.vec_env import VecEnv

NUM_ENVS = 8
"""Number of environments played at once; more take longer to finish their last episodes."""


def random_return(
    create_world: Callable[[], Environment | Match | VecEnv],
    episodes: int,
    seconds: float,
    seed: int = 0,
) -> Measured | None:
    """Estimate the return of uniformly random legal actions over complete episodes.

    The environments are separate instances in this process and are closed afterwards; the state of
    the global random number generators is restored.

    Args:
        create_world: factory of environments.
        episodes: minimal number of episodes, the same number in each environment; each side of a
            match counts.
        seconds: time limit in s, checked between steps.
        seed: seed of episodes and choices; the result is a function of it.

    Returns:
        None if the episodes did not end in time, because finished ones would be biased to short
        ones.
    """
    end_s = time.monotonic() + seconds

    def create() -> Any:
        if time.monotonic() > end_s:
            raise TimeoutError
        return create_world()

    try:
        with preserve_global_rng():
            # A vectorised environment plays alone; of matches, use a multiple of their sides.
            envs: Environment | Match | VecEnv = create()
            if not isinstance(envs, VecEnv):
                sides = envs.num_sides if isinstance(envs, Match) else 1
                envs.close()
                envs = EnvList(create, max(NUM_ENVS // sides, 1) * sides)

            # Play complete episodes.
            episodes_per_env, rng = -(-episodes // len(envs)), np.random.default_rng(seed)
            counted = np.ones(len(envs), dtype=np.bool_)
            quota = quotas(episodes_per_env * len(envs), counted)
            with closing(EpisodeStatistics(envs, quota)) as wrapped:
                obs_space, action_space = envs.obs_space(), envs.action_space()
                wrapped.seed(seed)
                obs = wrapped.reset(obs_space)
                while not wrapped.counts.is_done():
                    if time.monotonic() > end_s:
                        return None
                    obs = wrapped.act(random_choices(obs, action_space, rng), obs_space)
                return wrapped.counts.measured()["episodic_reward"]
    except TimeoutError:
        return None
