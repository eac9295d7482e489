"""Environments of the panel, on which default settings are judged: see `panel.py`."""

from typing import Any, NamedTuple

from overrides import relpos
from strangers_worlds import ROOT, not_installed

from entity_env.named_world import find_world

STRANGERS = "benchmarks/strangers"


class Row(NamedTuple):
    """An environment, and what an agent is to reach in it.

    Attributes:
        name: a unique name.
        env_id: of the environment; files from the root of the checkout.
        frames: of training.
        random: the result of legal choices drawn uniformly, with a score of 0; over 2,000 episodes.
        bar: the result with a score of 1; of spread and the job shop the median of three seeds with
            the settings of `strangers_worlds.py`, at the same frames.
        needs: settings that the environment's page names: relative positions or memory.
        modules: of other projects.
        kwargs: of the environment.
        sides: number of agents in one environment, each of which counts as one.
        scale: factor of the mean return of an agent.
        metric: of the end of an episode.
        opponent: of the agent when it is measured.
    """

    name: str
    env_id: str
    frames: int
    random: float
    bar: float
    needs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    kwargs: dict[str, Any] = {}  # noqa: RUF012 (never changed)
    sides: int = 1
    scale: float = 1.0
    metric: str = "episodic_reward"
    opponent: str | None = None

    @property
    def missing(self) -> list[str]:
        """The modules that are not installed."""
        return not_installed(self.modules)

    def world(self) -> Any:
        """Return the environment, as `train` takes it."""
        return find_world(self.env_id, ROOT)

    def score(self, result: float) -> float:
        """Return the share of the way from random play to the bar, at most 1."""
        return min(1.0, (result - self.random) / (self.bar - self.random))


_MEMORY = ("net.memory=()",)
_GRID = relpos(6, "row", "column")


def _grid(name: str, kind: str, env_id: str, frames: int, random: float, bar: float) -> Row:
    path, kwargs = f"{STRANGERS}/grid_views.py:{kind}", {"env_id": f"MiniGrid-{env_id}-v0"}
    return Row(name, path, frames, random, bar, _GRID, ("minigrid",), kwargs)


ROWS = [
    Row("Acrobot", "gymnasium:Acrobot-v1", 100_000, -499.2, -90),
    Row("CartPole", "gymnasium:CartPole-v1", 50_000, 21.9, 475),
    Row("LunarLander", "gymnasium:LunarLander-v3", 150_000, -181.9, 200, modules=("Box2D",)),
    Row("Reacher", "gymnasium:Reacher-v5", 100_000, -42.9, -5, modules=("mujoco",)),
    Row("Pendulum", "gymnasium:Pendulum-v1", 200_000, -1232, -250),
    _grid("LavaGapS5", "LavaGap", "LavaGapS5", 50_000, 0.037, 0.94),
    _grid("Dynamic-Obstacles 6x6", "Obstacles", "Dynamic-Obstacles-6x6", 100_000, -0.995, 0.9),
    _grid("Fetch 5x5", "Fetch", "Fetch-5x5-N2", 100_000, 0.321, 0.95),
    Row("Shells", "Shells", 60_000, 0.251, 0.98, _MEMORY),
    Row(
        "RepeatPreviousEasy",
        "gymnasium:popgym:popgym-RepeatPreviousEasy-v0",
        200_000,
        -0.499,
        0.9,
        _MEMORY,
        ("popgym",),
    ),
    Row(
        "foraging 8x8",
        f"{STRANGERS}/foragers.py:foraging",
        200_000,
        0.008,
        0.95,
        relpos(7, "row", "column"),
        ("lbforaging",),
        {"env_id": "Foraging-8x8-2p-2f-coop-v3"},
        sides=2,
        scale=2.0,
    ),
    Row("TreasureHunt", "TreasureHunt", 100_000, 0.864, 3.4),
    Row("MoveToOrigin", "MoveToOrigin", 200_000, -0.264, 0.98),
    Row("Xor", "Xor", 200_000, 0.498, 1.0),
    Row(
        "Corridor",
        "benchmarks/symptom_worlds.py:Corridor",
        41_000,
        -1.0,
        0.9,
        kwargs={"cells": 8},
    ),
    Row("Duel", "Duel", 100_000, 0.483, 0.95, sides=2, metric="win", opponent="random"),
    Row(
        "spread",
        f"{STRANGERS}/spread.py:spread",
        150_000,
        -26.33,
        -18.3,
        modules=("mpe2",),
        sides=3,
    ),
    Row(
        "job shop",
        f"{STRANGERS}/job_shop.py:JobShop",
        50_000,
        -9.0,
        -6.43,
        relpos(1, "job", "machine"),
    ),
]
HELD_OUT = [
    Row(
        "InvertedPendulum", "gymnasium:InvertedPendulum-v5", 100_000, 5.2, 950, modules=("mujoco",)
    ),
    Row("Taxi", "gymnasium:Taxi-v4", 200_000, -770, 7.5),
    Row("FrozenLake", "gymnasium:FrozenLake-v1", 100_000, 0.015, 0.7),
    _grid("DoorKey 5x5", "DoorKey", "DoorKey-5x5", 150_000, 0.034, 0.95),
    Row(
        "HigherLowerEasy",
        "gymnasium:popgym:popgym-HigherLowerEasy-v0",
        200_000,
        0.0,
        0.5,
        _MEMORY,
        ("popgym",),
    ),
]
"""Environments that no setting was chosen by, each with its bar from before the first run."""
BY_NAME = {row.name: row for row in (*ROWS, *HELD_OUT)}
