"""Small runs of a match that are evaluated."""

from pathlib import Path
from typing import Any

from enn_trainer import (
    StateManager,
    TrainConfig,
    train,
)
from enn_trainer.config.load import load_config
from entity_env.examples import Duel

DUEL = [
    "rollout.num_envs=8",
    "rollout.steps=8",
    "rollout.processes=1",
    "optim.bs=32",
    "net.d_model=8",
    "net.n_layer=1",
    "total_timesteps=128",
]


def run_duel(tmp_path: Path, *overrides: str, env: Any = Duel, **kwargs: Any) -> tuple[Any, Any]:
    manager = StateManager(
        overrides=[*DUEL, f"data_dir={tmp_path}", *overrides],
        checkpoint_dir=kwargs.get("checkpoint_dir"),
    )
    return manager, train(manager, env)


EPISODES = ["eval.episodes=10", "eval.interval=64", "eval.num_envs=4"]


def config_of(*overrides: str, text: str = "(version: 5)") -> TrainConfig:
    return load_config(TrainConfig, None, overrides, text=text)
