"""Small runs, and what is read of them."""

import os
from pathlib import Path
from typing import Any

import torch

from enn_trainer import (
    StateManager,
    train,
)
from entity_env import (
    Observation,
)
from entity_env.examples import Duel
from tests.enn_trainer.worlds import Meadow

SMALL = [
    "rollout.num_envs=6",
    "rollout.steps=4",
    "rollout.processes=1",
    "optim.bs=16",
    "optim.update_epochs=2",
    "net.d_model=8",
    "net.n_layer=1",
    "total_timesteps=72",
]
STEPS = (24, 48, 72)
"""After each of the updates of `SMALL`."""
MINES = {"nmines": 2, "nrobots": 1, "width": 4, "height": 4}
"""Arguments of `MineSweeper` for short episodes."""


def run_small(tmp_path: Path, *overrides: str, env: Any = Meadow, **kwargs: Any) -> StateManager:
    manager = StateManager(
        overrides=[*SMALL, f"data_dir={tmp_path}", *overrides],
        checkpoint_dir=kwargs.pop("checkpoint_dir", None),
        init_path=kwargs.pop("init_path", None),
    )
    train(manager, env, **kwargs)
    return manager


POOL = [
    "rollout.num_envs=16",
    "rollout.steps=12",
    "rollout.processes=1",
    "optim.bs=36",
    "optim.update_epochs=1",
    "net.d_model=8",
    "net.n_layer=1",
    "cuda=false",
    "selfplay.share=0.5",
    "selfplay.snapshot_every=200",
    "selfplay.in_play=2",
]
"""Of matches of two sides: 12 of 16 frames of a step are the agent's."""


def run_pool(folder: Path, *overrides: str, env: Any = Duel, **kwargs: Any) -> StateManager:
    """Train against a pool of snapshots, with a save after every update."""
    manager = StateManager(overrides=[*POOL, *overrides], checkpoint_dir=folder)
    manager.save_interval_s = 0.0
    train(manager, env, **kwargs)
    return manager


def logs_of(folder: Path, manager: StateManager) -> Path:
    """The folder with the metrics of a run whose `data_dir` is `folder`."""
    return manager.checkpoint_dir or folder / "runs" / manager.state.run_name


def make_read_only(folder: Path, monkeypatch: Any) -> None:
    """Let a folder seem read-only, also to root, who may write everywhere else."""
    access = os.access

    def may(path: Any, mode: int) -> bool:
        return access(path, mode) and not (mode & os.W_OK and Path(path) == folder)

    monkeypatch.setattr(os, "access", may)


def weights(manager: StateManager) -> torch.Tensor:
    return torch.cat([p.detach().flatten() for p in manager.state.agent.parameters()])


class Exploding(Meadow):
    """Rewards that float32 can carry, but not their squares, from the third update on."""

    frames = 0

    def _observe(self, reward: float) -> Observation:
        type(self).frames += 1
        return super()._observe(1e30 if self.frames > 60 else reward)


def manager_of(tmp_path: Path, *overrides: str, checkpoint_dir: Path | None = None) -> StateManager:
    return StateManager(
        overrides=[*SMALL, f"data_dir={tmp_path}", *overrides], checkpoint_dir=checkpoint_dir
    )


SCRIPT = (
    "-c",
    "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')",
)
"""The arguments of Python that run a script, before its path and its own arguments."""
OURS = """
    from enn_trainer import StateManager, command, train
    from entity_env.examples import TreasureHunt

    @command()
    def main(state_manager: StateManager) -> None:
        train(state_manager=state_manager, env=TreasureHunt)

    if __name__ == "__main__":
        main()
"""
