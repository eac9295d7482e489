"""Environments and settings of `other_trainers.py`."""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import torch
from flat_foraging import FlatForaging
from flat_worlds import FlatGymnasium, FlatParallel, SpaceshipVector
from mlp_ppo import Settings
from panel_rows import BY_NAME, Row
from strangers_worlds import FORAGING, FORAGING_8, ROOT, load

from enn_trainer import StateManager, Trainer


class Case(NamedTuple):
    """An environment, and the settings of all trainers.

    Attributes:
        row: environment with entities, results of random play and the bar.
        worlds: (agents, seed) -> vector environments.
        ours: overrides of the configuration, or of the defaults.
        others: settings of the other trainers.
        config: configuration file; None for the defaults.
    """

    row: Row
    worlds: Callable[[int, int], Any]
    ours: tuple[str, ...]
    others: Settings
    config: Path | None = None

    @property
    def goal(self) -> float:
        """The mean return of .9 of the way from random play to the bar."""
        return self.row.random + 0.9 * (self.row.bar - self.row.random)

    @property
    def interval(self) -> int:
        """Number of frames between evaluations."""
        return self.row.frames // 25

    def manager(self, seed: int, folder: str, processes: int = 1) -> StateManager:
        """Create the state manager of a run."""
        of_row = [f"env.id={self.row.env_id}", f"env.kwargs={json.dumps(self.row.kwargs)}"]
        of_run = [f"seed={seed}", f"data_dir={folder}", f"rollout.processes={processes}"]
        return StateManager(init_path=self.config, overrides=[*of_row, *self.ours, *of_run])

    def width(self, folder: str) -> int:
        """Return the width of MLPs with the number of parameters nearest to ours."""
        with Trainer(self.manager(0, folder), self.row.world()) as trainer:
            num_parameters = count(trainer.state.agent)
        worlds = self.worlds(self.row.sides, 0)
        features, actions = worlds.obs.shape[1], worlds.num_actions

        def parameters(h: int) -> int:
            return 2 * ((features + 1) * h + (h + 1) * h) + (h + 1) * (actions + 1)

        return min(range(4, 512), key=lambda h: abs(parameters(h) - num_parameters))


def count(module: torch.nn.Module) -> int:
    """Return the number of trained parameters."""
    return sum(p.numel() for p in module.parameters() if p.requires_grad)


def _panel(name: str) -> tuple[str, ...]:
    """Return the settings of the panel, with a network of one layer and larger minibatches."""
    row = BY_NAME[name]
    num_envs = 64 // row.sides * row.sides
    rollout = (f"rollout.num_envs={num_envs}", "rollout.steps=32", "optim.bs=256", "optim.lr=0.002")
    return (*row.needs, f"total_timesteps={row.frames}", "net.n_layer=1", *rollout)


def _spread(num_players: int, seed: int) -> FlatParallel:
    return FlatParallel(load("spread:flat"), num_players, seed)


_CART_POLE = partial(gymnasium.make, "CartPole-v1", disable_env_checker=True)
_FASTER = (
    "rollout.num_envs=512",
    "rollout.steps=8",
    "optim.bs=1024",
    "optim.lr=0.0015",
    "optim.anneal_lr=false",
    "ppo.anneal_entropy=false",
    "total_timesteps=1000000000",
)
"""Changes of the configuration of foraging: more environments, for speed."""
CASES = {
    case.row.name: case
    for case in (
        Case(
            BY_NAME["foraging 8x8"],
            partial(FlatForaging, FORAGING_8),
            _FASTER,
            Settings(**FORAGING, n_envs=128, batch_size=512),
            ROOT / "configs/foraging_8x8.ron",
        ),
        # The settings of rl-zoo, but the better of the rates .001 and .002.
        Case(
            BY_NAME["CartPole"],
            partial(FlatGymnasium, _CART_POLE),
            _panel("CartPole"),
            Settings(8, 32, 256, 20, 0.002, gamma=0.98, gae_lambda=0.8),
        ),
        # The best of nine settings.
        Case(
            BY_NAME["MoveToOrigin"],
            partial(FlatGymnasium, SpaceshipVector),
            _panel("MoveToOrigin"),
            Settings(64, 32, 512, 4, 0.002),
        ),
        # The discount of `strangers_worlds.py`, and the best of its rollouts and shorter ones.
        Case(
            BY_NAME["spread"],
            _spread,
            (*_panel("spread"), "ppo.gamma=0.95"),
            Settings(96, 32, 384, 4, 0.002, gamma=0.95, ent_coef=0.01),
        ),
    )
}
