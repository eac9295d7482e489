"""Rows of `memory.py` for SB3-contrib's recurrent PPO, in environments of popgym."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import gymnasium
from sb3_contrib import RecurrentPPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv

_NOT_PPO = ("env_id", "frames", "n_envs")
"""Settings that are not arguments of `RecurrentPPO`."""


def train(settings: Mapping[str, Any], seed: int) -> RecurrentPPO:
    """Train in this process."""
    envs = _make_envs(settings["env_id"], settings["n_envs"], 1000 * seed)
    arguments = {name: value for name, value in settings.items() if name not in _NOT_PPO}
    model = RecurrentPPO("MlpLstmPolicy", envs, seed=seed, device="cpu", **arguments)
    model.learn(settings["frames"])
    envs.close()
    return model


def mean_return(model: RecurrentPPO, settings: Mapping[str, Any], episodes: int) -> float:
    """Return the mean return of episodes with sampled actions."""
    envs = _make_envs(settings["env_id"], min(200, episodes), 10_000_000)
    mean, _ = evaluate_policy(model, envs, episodes, deterministic=False)
    envs.close()
    return float(mean)


def _make_envs(env_id: str, num_envs: int, seed: int) -> VecEnv:
    """Create environments without Gymnasium's checker, for a fair comparison."""
    make = partial(gymnasium.make, env_id, disable_env_checker=True)
    return make_vec_env(make, num_envs, seed=seed)
