"""Stable-Baselines3's side of `strangers.py`: PPO with its MLP, on vectors of fixed size."""

import inspect
import time
from functools import partial
from typing import Any

import gymnasium
import numpy as np
from flat_foraging import Outcome
from flat_worlds import FlatParallel
from learning_curves import Points, thinned
from pettingzoo import ParallelEnv
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked
from sb3_foraging import Players
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecMonitor
from strangers_worlds import Play, World, load


class FlatVector:
    """Wrapper of a `VectorEnv` with dictionary observations and an action mask, for `Players`."""

    def __init__(self, envs: gymnasium.vector.VectorEnv[Any, Any, Any], seed: int) -> None:
        self._envs = envs
        self.num_actions = int(envs.single_action_space.n)  # type: ignore[attr-defined]
        self._show(envs.reset(seed=seed)[0])

    def _show(self, fields: dict[str, Any]) -> None:
        self.action_masks = np.asarray(fields["action_mask"], dtype=np.bool_)
        rows = [np.asarray(x, np.float32).reshape(len(x), -1) for x in fields.values()]
        self.obs = np.concatenate(rows, axis=1)

    def step(self, actions: Any) -> Outcome:
        """Step all environments; episodes are never truncated."""
        fields, rewards, terminated, truncated, _ = self._envs.step(actions)
        assert not truncated.any()
        self._show(fields)
        return Outcome(rewards, terminated, truncated, self.obs)


class Curve(BaseCallback):
    """Mean return of the episodes that ended in each rollout: [frames, mean return]."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[list[float]] = []
        self._returns: list[float] = []

    def _on_step(self) -> bool:
        infos = self.locals["infos"]
        self._returns += [info["episode"]["r"] for info in infos if "episode" in info]
        return True

    def _on_rollout_end(self) -> None:
        if self._returns:
            self.points.append([self.num_timesteps, float(np.mean(self._returns))])
        self._returns = []


def make_envs(world: World, num_envs: int, seed: int, kwargs: dict[str, Any]) -> VecEnv:
    """Create vector environments."""
    flat = load(world.flat)
    if inspect.isclass(flat):
        return VecMonitor(Players(flat(num_players=num_envs, seed=seed, **kwargs)))
    first = flat(**kwargs)
    if isinstance(first, gymnasium.vector.VectorEnv):
        return VecMonitor(Players(FlatVector(flat(num_envs=num_envs, **kwargs), seed)))
    if isinstance(first, ParallelEnv):
        return VecMonitor(Players(FlatParallel(partial(flat, **kwargs), num_envs, seed)))
    return make_vec_env(flat, num_envs, seed=seed, env_kwargs=kwargs)


def played(world: World, model: Any, seed: int, play: Play) -> dict[str, float] | None:
    """Return the mean return of sampled and of greedy play; None if the vectors do not fit."""
    num_envs = play.best_of or world.num_envs
    envs = make_envs(world, num_envs, 10_000 + seed, {**world.kwargs, **play.kwargs})
    result: dict[str, float] | None = {}
    spaces = (envs.observation_space.shape, envs.action_space)
    if spaces != (model.observation_space.shape, model.action_space):
        result = None
    else:
        evaluate = evaluate_masked if world.is_masked else evaluate_policy
        episodes = play.best_of or world.episodes
        for name, greedy in (("sampled", False), ("greedy", True)):
            returns, _ = evaluate(model, envs, episodes, greedy, return_episode_rewards=True)
            result[name] = play.scale * float(np.mean(returns))
            if play.best_of and not greedy:
                result["best"] = play.scale * float(np.max(returns))
    envs.close()
    return result


def train(world: World, seed: int, frames: int) -> tuple[Any, float, Points]:
    """Train in this process; return the model, the seconds and the learning curve."""
    settings = dict(world.sb3)
    envs = make_envs(world, settings.pop("n_envs"), 1000 * seed, world.kwargs)
    ppo = MaskablePPO if world.is_masked else PPO
    model = ppo("MlpPolicy", envs, seed=seed, device="cpu", **settings)
    curve, start = Curve(), time.perf_counter()
    model.learn(frames, callback=curve)
    seconds = time.perf_counter() - start
    envs.close()
    return model, seconds, thinned(curve.points, world.plays[0].scale)
