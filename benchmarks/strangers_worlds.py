"""Environments and settings of `strangers.py`."""

import functools
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from overrides import relpos

ROOT = Path(__file__).parent.parent
SB3_NEEDS = ("stable_baselines3", "sb3_contrib", "pettingzoo")
sys.path.insert(0, str(Path(__file__).parent / "strangers"))


class Play(NamedTuple):
    """Arguments of an evaluation environment.

    Attributes:
        name: name of a row of the table.
        kwargs: arguments that differ from training.
        scale: factor of an agent's mean return, such as the number of agents.
        best_of: number of episodes of which the best one is reported as well; None for many
            episodes and their mean.
    """

    name: str
    kwargs: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    scale: float = 1.0
    best_of: int | None = None


class World(NamedTuple):
    """An environment, and the training settings of each side.

    Attributes:
        name: unique name.
        entities: "module:name" of the environment with entities.
        flat: "module:name" of the vector environment: a function that returns an environment of
            Gymnasium, of PettingZoo or, given `num_envs`, a `VectorEnv`; or a class such as
            `FlatForaging`.
        needs: required third-party modules.
        frames: number of training frames of both sides.
        plays: evaluations; the first is as in training.
        ours: overrides of the configuration.
        sb3: arguments of Stable-Baselines3's PPO, and "n_envs".
        kwargs: arguments of the environment.
        is_masked: True if Stable-Baselines3 uses masks, with MaskablePPO.
        config: file in `configs/`, without ".ron".
        episodes: minimal number of evaluation episodes, equally many in each environment.
        num_envs: number of evaluation environments; a multiple of all numbers of agents.
    """

    name: str
    entities: str
    flat: str
    needs: tuple[str, ...]
    frames: int
    plays: tuple[Play, ...]
    ours: tuple[str, ...]
    sb3: dict[str, Any]
    kwargs: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    is_masked: bool = False
    config: str | None = None
    episodes: int = 600
    num_envs: int = 60

    def missing(self, sides: Sequence[str]) -> list[str]:
        """Return the missing modules that these sides need."""
        needs = [*self.needs, *SB3_NEEDS * ("sb3" in sides)]
        return not_installed(needs)


def not_installed(modules: Sequence[str]) -> list[str]:
    """Return the modules that cannot be imported."""
    return [name for name in modules if importlib.util.find_spec(name) is None]


def load(name: str) -> Any:
    """Load "module:name" from `strangers/`."""
    module, _, attribute = name.partition(":")
    return functools.reduce(getattr, attribute.split("."), importlib.import_module(module))


# Both sides use the same number of environments, steps, minibatches and epochs, and the same
# discount. Rates, coefficients and networks differ. Everything else is the default of each library.

# Settings of rl-zoo for MiniGrid, with 8 environments.
GRID = {"n_envs": 8, "n_steps": 256, "batch_size": 64, "n_epochs": 10, "learning_rate": 2.5e-4}
OUR_GRID = (
    "rollout.num_envs=8",
    "rollout.steps=256",
    "optim.bs=64",
    "optim.update_epochs=10",
    "optim.lr=0.0003",
    "optim.max_grad_norm=0.5",
    "ppo.ent_coef=0.02",
    "net.n_layer=1",
    *relpos(6, "row", "column"),
)
# Many environments and large minibatches, for fast environments.
MANY = {"n_envs": 64, "n_steps": 64, "batch_size": 512, "n_epochs": 4, "learning_rate": 1e-3}
OUR_MANY = (
    "rollout.num_envs=64",
    "rollout.steps=64",
    "optim.bs=512",
    "optim.update_epochs=4",
    "optim.lr=0.001",
    "ppo.ent_coef=0.01",
    "net.n_layer=1",
)
# The settings of `configs/foraging_8x8.ron`, where ours has a separate value network like
# Stable-Baselines3; and of `configs/foraging_10x10.ron`, except for the rate: the best of .001,
# .002 and .003 for each side.
FORAGING = {
    "n_steps": 32,
    "n_epochs": 4,
    "learning_rate": 1e-3,
    "gamma": 0.97,
    "ent_coef": 0.02,
    "max_grad_norm": 2.0,
}
FORAGING_8, FORAGING_10 = "Foraging-8x8-2p-2f-coop-v3", "Foraging-10x10-3p-3f-v3"

WORLDS = [
    World(
        "obstacles",
        "grid_views:Obstacles",
        "grid_views:flat",
        ("minigrid",),
        200_000,
        (Play("6x6"),),
        OUR_GRID,
        GRID,
        kwargs={"env_id": "MiniGrid-Dynamic-Obstacles-6x6-v0"},
        episodes=240,
    ),
    World(
        "fetch",
        "grid_views:Fetch",
        "grid_views:flat",
        ("minigrid",),
        400_000,
        (Play("5x5"),),
        (*OUR_GRID, "optim.anneal_lr=false"),
        GRID,
        kwargs={"env_id": "MiniGrid-Fetch-5x5-N2-v0"},
        episodes=240,
    ),
    World(
        "job shop",
        "job_shop:JobShop",
        "padded:job_shop",
        (),
        500_000,
        (
            Play("6x6, makespan", scale=-10.0),
            Play("ft06, makespan", {"ft06": True}, -10.0, best_of=32),
            Play("10x6, makespan", {"jobs": 10}, -10.0),
        ),
        (*OUR_MANY, "ppo.anneal_entropy=false", "ppo.gamma=1.0", *relpos(1, "job", "machine")),
        {**MANY, "gamma": 1.0, "ent_coef": 0.01},
        is_masked=True,
    ),
    World(
        "spread",
        "spread:spread",
        "spread:flat",
        ("mpe2",),
        1_000_000,
        tuple(Play(f"{n} agents", {"agents": n}) for n in (3, 2, 4, 5)),
        (
            *OUR_MANY,
            "rollout.num_envs=96",
            "optim.bs=768",
            "ppo.gamma=0.95",
            "vf_net.n_layer=1",  # a separate value network, like Stable-Baselines3
        ),
        {**MANY, "n_envs": 96, "batch_size": 768, "gamma": 0.95, "ent_coef": 0.01},
    ),
    World(
        "knapsack",
        "knapsack:knapsack",
        "knapsack:flat",
        ("jumanji", "jax"),
        1_000_000,
        tuple(Play(f"{n} items", {"size": n}) for n in (50, 20, 100)),
        (*OUR_MANY, "ppo.gamma=1.0"),
        {**MANY, "gamma": 1.0, "ent_coef": 0.01},
        kwargs={"size": 50},
        is_masked=True,
    ),
    World(
        "tour",
        "tour:tour",
        "tour:flat",
        ("jumanji", "jax"),
        1_000_000,
        tuple(Play(f"{n} cities", {"size": n}) for n in (20, 10, 50)),
        (*OUR_MANY, "ppo.gamma=1.0"),
        {**MANY, "gamma": 1.0, "ent_coef": 0.01},
        kwargs={"size": 20},
        is_masked=True,
    ),
    World(
        "foraging 8x8",
        "foragers:foraging",
        "foragers:MaskedForaging",
        ("lbforaging",),
        300_000,
        (
            Play("8x8, 2 players", scale=2.0),
            Play("10x10, 3 players", {"env_id": FORAGING_10}, 3.0),
        ),
        (
            *relpos(7, "row", "column", net="vf_net"),
            "vf_net.relpos_encoding.per_entity_values=true",
        ),
        {**FORAGING, "n_envs": 128, "batch_size": 512},
        kwargs={"env_id": FORAGING_8},
        is_masked=True,
        config="foraging_8x8",
    ),
    World(
        "foraging 10x10",
        "foragers:foraging",
        "foragers:MaskedForaging",
        ("lbforaging",),
        300_000,
        (
            Play("10x10, 3 players", scale=3.0),
            Play("8x8, 2 players", {"env_id": FORAGING_8}, 2.0),
        ),
        (),
        {**FORAGING, "n_envs": 126, "batch_size": 504},
        kwargs={"env_id": FORAGING_10},
        is_masked=True,
        config="foraging_10x10",
    ),
    World(
        "intersection",
        "intersection:Intersection",
        "intersection:flat",
        ("highway_env",),
        20_000,
        (Play("13 s"),),
        ("rollout.num_envs=4", "rollout.steps=64", "optim.bs=64", "optim.update_epochs=10"),
        {"n_envs": 4, "n_steps": 64, "batch_size": 64, "n_epochs": 10, "learning_rate": 1e-3},
        episodes=100,
        num_envs=4,
    ),
]
