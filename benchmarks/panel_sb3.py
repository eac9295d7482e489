"""Stable-Baselines3's side of `panel.py`: PPO with its MLP and its default settings.

Environments of a changing number of entities have no vector of one size, and are left out.
"""

import time
from typing import Any

import numpy as np
from panel_rows import Row
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.evaluation import evaluate_policy
from strangers_sb3 import make_envs
from strangers_worlds import World

_GYMNASIUM = "gymnasium:"


class _UntilSeconds(BaseCallback):
    """Ends training after a number of processor seconds.

    Args:
        limit_s: the number.
    """

    def __init__(self, limit_s: float) -> None:
        super().__init__()
        self._limit_s = limit_s

    def _on_training_start(self) -> None:
        self._start_s = time.process_time()

    def _on_step(self) -> bool:
        return time.process_time() - self._start_s < self._limit_s


def world_of_vectors(row: Row) -> World | None:
    """Return the environment of vectors of a row, if there is one."""
    if row.env_id.startswith(_GYMNASIUM):
        kwargs = {"id": row.env_id.removeprefix(_GYMNASIUM), "disable_env_checker": True}
        return _world(row, "gymnasium:make", kwargs)
    flat = {
        "grid_views": "grid_views:flat",
        "foragers": "flat_foraging:FlatForaging",
        "spread": "spread:flat",
    }
    for module, name in flat.items():
        if f"/{module}.py:" in row.env_id:
            return _world(row, name, row.kwargs)
    return None


def _world(row: Row, flat: str, kwargs: dict[str, Any]) -> World:
    return World(row.name, row.env_id, flat, row.modules, row.frames, (), (), {}, kwargs)


def train_and_measure(
    row: Row, world: World, seed: int, episodes: int, num_envs: int, limit_s: float | None
) -> dict[str, Any]:
    """Train an agent in this process and return its results.

    Args:
        row: the environment.
        world: its vectors.
        seed: of the run.
        episodes: of each evaluation.
        num_envs: of an evaluation.
        limit_s: processor seconds to train for, with any number of frames; None for the frames of
            the row.

    Returns:
        "frames", "seconds" and "processor_seconds" of training, and the mean return of "sampled"
        and "greedy" play.
    """
    envs = make_envs(world, row.sides, 1000 * seed, world.kwargs)
    model = PPO("MlpPolicy", envs, seed=seed, device="cpu")
    start, start_cpu = time.perf_counter(), time.process_time()
    if limit_s is None:
        model.learn(row.frames)
    else:
        model.learn(10**9, callback=_UntilSeconds(limit_s))
    done: dict[str, Any] = {
        "frames": model.num_timesteps,
        "seconds": round(time.perf_counter() - start, 1),
        "processor_seconds": round(time.process_time() - start_cpu, 1),
    }
    envs.close()
    played = make_envs(world, num_envs, 10_000 + seed, world.kwargs)
    for how in ("sampled", "greedy"):
        returns, _ = evaluate_policy(
            model, played, episodes, how == "greedy", return_episode_rewards=True
        )
        done[how] = row.scale * float(np.mean(returns))
    played.close()
    return done
