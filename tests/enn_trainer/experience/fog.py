"""A world in which entities come, go, return, are hidden and are chosen: memory has to be kept."""

import shutil
from pathlib import Path
from typing import Any

from enn_trainer import StateManager, train
from enn_trainer.checkpoints.format import save_name
from enn_trainer.checkpoints.run_dir import RunDir
from tests.enn_trainer.experience.fog_world import Fog

MEMORY = 'net.memory=(of: "both", inputs: ["action", "reward"], keep_absent: 2, d_memory: 12)'
SETTINGS = [
    *("rollout.num_envs=8", "rollout.steps=4", "rollout.processes=1", "cuda=false"),
    *("net.d_model=8", "net.n_layer=1", "optim.bs=8", "optim.update_epochs=2"),
    *("optim.anneal_lr=false", "ppo.anneal_entropy=false", "checkpoint.every_seconds=0"),
    *("checkpoint.keep=20", "ppo.seq_len=2"),
]
FRAMES = 32
"""Of an update."""


def run(folder: Any, updates: int, *settings: str, **options: Any) -> StateManager:
    """Train for so many updates of the agent's frames in all."""
    frames = options.pop("frames", FRAMES)
    overrides = [*SETTINGS, f"total_timesteps={updates * frames}", *settings]
    manager = StateManager(overrides=overrides, checkpoint_dir=folder, **options)
    train(manager, Fog)
    return manager


def copy_until(folder: Path, step: int, copy: Path) -> None:
    """Copy a run as it was when it was saved at a step."""
    shutil.copytree(folder, copy)
    for path in RunDir(copy).saved_paths():
        if path.name > save_name(step):
            shutil.rmtree(path)
