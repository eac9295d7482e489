"""Return of random play, with which that of an agent can be compared."""

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import numpy as np

from enn_trainer.evaluation.eval_metrics import EpisodeStatistics, quotas
from enn_trainer.experience.episodes import Measured
from entity_env.environment import Environment
from entity_env.match import Match
from entity_env.seeding import global_randomness_kept
from entity_env.testing.random_play import random_choices
from entity_env.vec.serial import EnvList
from entity_env.vec.vec_env import VecEnv

NUM_ENVS = 8
"""Environments that are played at once; more of them take longer to finish their last episodes."""


def random_return(
    create_world: Callable[[], Environment | Match | VecEnv],
    episodes: int,
    seconds: float,
    seed: int = 0,
) -> Measured | None:
    """Return the return of uniformly random legal choices over whole episodes.

    The environments are separate instances in this process, which are closed afterwards; the
    global random number generators are left as they were.

    Args:
        create_world: makes an environment.
        episodes: minimal number of episodes, equally many of each environment; of a match each
            side counts.
        seconds: time limit, checked between steps.
        seed: seed of episodes and choices; the result is a function of it.

    Returns:
        None if the episodes did not end in time, as those that did would be the short ones.
    """
    end_s = time.monotonic() + seconds

    def create() -> Any:
        if time.monotonic() > end_s:
            raise TimeoutError
        return create_world()

    try:
        with global_randomness_kept():
            # As many environments as matches need; a vectorised one plays alone.
            envs: Environment | Match | VecEnv = create()
            if not isinstance(envs, VecEnv):
                sides = envs.num_sides if isinstance(envs, Match) else 1
                envs.close()
                envs = EnvList(create, max(NUM_ENVS // sides, 1) * sides)

            # Whole episodes of each.
            each, rng = -(-episodes // len(envs)), np.random.default_rng(seed)
            counted = np.ones(len(envs), dtype=np.bool_)
            with closing(EpisodeStatistics(envs, quotas(each * len(envs), counted))) as played:
                obs_space, action_space = envs.obs_space(), envs.action_space()
                played.seed(seed)
                obs = played.reset(obs_space)
                while not played.counts.is_done():
                    if time.monotonic() > end_s:
                        return None
                    obs = played.act(random_choices(obs, action_space, rng), obs_space)
                return played.counts.measured()["episodic_reward"]
    except TimeoutError:
        return None
