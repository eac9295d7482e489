"""Returns of agents trained with the configurations in `configs/`.

    python benchmarks/learning.py [ROW ...] [--init published] [--seeds 3] [--jobs 2]
        [--results FILE.md]

Every row is trained with each seed, by default two runs at a time with one thread each. The result
is the mean return of the trained agent with sampled actions over the first complete episodes of
every environment, at least 1,000 in total. Finished runs are stored as JSON lines next to the
table, with their learning curves, and are not repeated. With `--check` the command fails if a row
misses its target. `--init published` trains with other initial weights, to compare the frames
until the target is almost reached; with `--to-almost` a run ends there, without a result.
"""

import argparse
import itertools
import json
import math
import os
import platform
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from kept_runs import read_kept, run_all
from learning_curves import POINTS, Line, draw, read_curve
from learning_measure import measure
from measured_on import short_revision
from overrides import relpos

from enn_trainer import StateManager, TrainConfig, load_agent, train
from enn_trainer.callbacks import Callback
from enn_trainer.callbacks.callback import RunningTrainer
from enn_trainer.evaluation.opponents import RandomAgent
from enn_trainer.experience.envs import EnvFactory, env_factory
from entity_env.examples import ENV_REGISTRY, Duel
from rogue_net.config import Init

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "configs"
TOLERANCE = 0.005
"""Allowed difference from a target: sampled actions narrowly miss the maximum of 1.0."""
INITS = get_args(Init)
ALMOST = 0.95
"""Share of the target for which frames to reach it are reported."""


class Row(NamedTuple):
    """A configuration with overrides, and the return to reach.

    Attributes:
        name: unique name.
        config: file in `configs/`, without ".ron".
        bar: mean return to reach.
        overrides: overrides of the configuration.
        published: further overrides for published initial weights, which need other learning rates.
        control: True for an ablation that should stay below the target.
        metric: "return", "match" (return of all sides together), or a metric of the environment at
            the end of an episode.
        against: opponent: "random", or "itself" after a tenth of the frames.
        episodes: minimal number of episodes; more where returns have a high variance.
    """

    name: str
    config: str
    bar: float
    overrides: tuple[str, ...] = ()
    published: tuple[str, ...] = ()
    control: bool = False
    metric: str = "return"
    against: str | None = None
    episodes: int = 1000


ROWS = [
    Row("multi_armed_bandit", "multi_armed_bandit", 1.0),
    Row("not_hotdog", "not_hotdog", 1.0),
    Row("count", "count", 1.0),
    Row("xor", "xor", 1.0),
    Row("move_to_origin", "move_to_origin", 0.98),
    Row("floor_is_lava", "floor_is_lava", 0.99),
    Row(
        "floor_is_lava without relative positions",
        "floor_is_lava",
        0.3,
        ("net.relpos_encoding=None",),
        control=True,
    ),
    Row(
        "rock_paper_scissors",
        "rock_paper_scissors",
        0.95,
        published=("optim.lr=0.03",),
        episodes=16_000,
    ),
    Row(
        "rock_paper_scissors with cheat",
        "rock_paper_scissors",
        1.9,
        ('env.kwargs={"cheat": true}',),
        published=("optim.lr=0.03",),
    ),
    Row("treasure_hunt", "treasure_hunt", 3.0),
    Row(
        "treasure_hunt with relative positions",
        "treasure_hunt",
        4.5,
        (
            *relpos(10, "x_pos", "y_pos"),
            "net.relpos_encoding.per_entity_values=true",
            "optim.lr=0.006",
        ),
    ),
    Row("cherry_pick", "cherry_pick", 0.99),
    Row("minefield", "minefield", 0.99),
    Row("minefield-relattn1", "minefield-relattn1", 0.99),
    Row("minefield-relattn2", "minefield-relattn2", 0.99),
    Row("pick_matching_balls", "pick_matching_balls", 0.995),
    Row("multisnake_1snakes11len", "multisnake_1snakes11len", 0.99),
    Row("duel against random", "duel", 0.8, metric="win", against="random"),
    Row("duel against itself", "duel", 0.5, metric="win", against="itself"),
    Row("foraging_8x8", "foraging_8x8", 0.95, metric="match"),
    Row("foraging_10x10", "foraging_10x10", 0.31, metric="match"),
]


def init_of(row: Row) -> Init:
    """Return the initialisation of a row's configuration."""
    config: TrainConfig = StateManager(init_path=CONFIGS / f"{row.config}.ron").config
    return config.net.init


def world(env_id: str) -> tuple[EnvFactory, int]:
    """Return the factory of an environment, and its number of sides."""
    if env_id in ENV_REGISTRY:
        env = ENV_REGISTRY[env_id]
    else:
        from foraging import foraging

        env = foraging(env_id)
    return env_factory(env), getattr(env, "num_sides", 1)


class EndAtAlmost(Callback):
    """Callback that ends a run once the mean of a sixtieth of it almost reaches the target.

    Args:
        size: number of updates of a sixtieth.
        least: mean return to reach.
    """

    def __init__(self, size: int, least: float) -> None:
        self.size, self.least = size, least
        self.means: list[float] = []

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Request the end after a sixtieth with enough return."""
        if (mean := metrics.get("episodic_reward.mean")) is not None:
            self.means.append(mean)
            is_whole = len(self.means) % self.size == 0
            if is_whole and np.mean(self.means[-self.size :]) >= self.least:
                trainer.request_stop("the return is almost that of the bar")


def run(row: Row, seed: int, init: str, to_almost: bool = False) -> dict[str, Any]:
    """Train one row with one seed in this process and evaluate it.

    Args:
        row: the row.
        seed: seed of the run.
        init: initialisation.
        to_almost: True to end the run when it almost reaches the target, without a result.
    """
    path = CONFIGS / f"{row.config}.ron"
    config_of_file = StateManager(init_path=path).config
    rollout, total = config_of_file.rollout, config_of_file.total_timesteps
    size = math.ceil(math.ceil(total / (rollout.num_envs * rollout.steps)) / POINTS)
    with tempfile.TemporaryDirectory() as folder:

        def trained(frames: int) -> StateManager:
            run_settings = [f"seed={seed}", f"data_dir={folder}", "rollout.processes=1"]
            init_settings = [f"net.init={init}", *(row.published if init == "published" else ())]
            manager = StateManager(
                init_path=path,
                checkpoint_dir=Path(folder) / "run",
                overrides=[
                    *run_settings,
                    f"total_timesteps={frames}",
                    *row.overrides,
                    *init_settings,
                ],
            )
            manager.config.eval = None
            make, sides = world(manager.config.env.id)
            together = sides if row.metric == "match" else 1
            end = EndAtAlmost(size, ALMOST * row.bar / together)
            train(manager, make, callbacks=[end] * to_almost)
            return manager

        opponent = None
        start = time.perf_counter()
        if row.against == "random":
            opponent = RandomAgent(Duel().action_space())
        elif row.against == "itself":
            trained(total // 10)
            opponent = load_agent(Path(folder) / "run").agent
        manager = trained(total)  # continues where there is a checkpoint
        seconds = time.perf_counter() - start
        config = manager.config
        make, sides = world(config.env.id)
        together = sides if row.metric == "match" else 1
        measured = None
        if not to_almost:
            measured = measure(
                make(config.env, 256 // sides * sides, 1, 0),
                manager.state.agent,
                opponent,
                seed=10_000 + seed,
                episodes=row.episodes * together,
                metric=row.metric if row.metric not in ("return", "match") else None,
            )
        return {
            "row": row.name,
            "seed": seed,
            "init": init,
            "frames": manager.state.step,
            "planned": total,
            "sides": sides,
            "result": None if measured is None else together * float(np.mean(measured)),
            "episodes": 0 if measured is None else len(measured) // together,
            "seconds": round(seconds, 1),
            "curve": read_curve(Path(folder), together, size if to_almost else None),
            "notices": notices_of(Path(folder)),
            "commit": short_revision(),
        }


def notices_of(folder: Path) -> list[str]:
    """Return the texts of learning diagnostics of the single run in a folder."""
    (metrics,) = folder.rglob("metrics.jsonl")
    rows = map(json.loads, metrics.read_text().splitlines())
    return [row["text"] for row in rows if row["kind"] == "notice"]


def frames_to_almost(result: dict[str, Any], bar: float) -> str:
    """Format the frames until the mean return during training almost reached the target."""
    if "curve" not in result:
        return "?"
    reached = next((frames for frames, mean in result["curve"] if mean >= ALMOST * bar), None)
    return "never" if reached is None else f"{reached:,}"


def result_of(result: dict[str, Any]) -> str:
    """Format the result of a run."""
    return "ended" if result["result"] is None else f"{result['result']:.4f}"


def table(results: list[dict[str, Any]]) -> str:
    """Return the document with the results."""
    lines = [
        "# Learning results",
        "",
        f"`python benchmarks/learning.py` on {os.cpu_count()} cores "
        f"({platform.processor() or platform.machine()}), Python {platform.python_version()}, "
        f"torch {torch.__version__}. Each run has one thread; up to two run at a time, on a "
        "machine that does other things as well: the seconds are a rough measure. The "
        "configurations are those in `configs/`; the overrides of a row are in "
        "`benchmarks/learning.py`.",
        "",
        "A result is the mean over episodes of the trained agent with sampled actions: the first "
        "complete episodes of each of 256 environments, equally many of each, so that short "
        "episodes do not count more than long ones. In duels it is the share of matches won; in "
        "foraging the return of all players together, with a mask of effective actions; a frame "
        "is the observation of one player, so a step of the environment has one frame per "
        "player. Rows with * were measured earlier, by all episodes that ended within 320 steps. "
        "A commit that is dirty had these configurations, which were committed later; before a "
        "commit were measured those that it added.",
        "",
        f"*Most* are the frames after which the mean return while training first reaches "
        f"{ALMOST:.0%} of the bar, seed by seed, to a sixtieth of the run; *weights* are the "
        "initial ones, `net.init`, in bold those of the configuration; ? is for runs without a "
        "stored curve; *ended* runs stopped there (`--to-almost`). An episode of an "
        "agent that waits for ever counts with its return until it is cut off.",
        "",
        "| row | weights | frames | to reach | seeds: result | most | seconds | commit |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row, init in itertools.product(ROWS, INITS):
        mine = [r for r in results if (r["row"], r["init"]) == (row.name, init)]
        if mine:
            weights = f"**{init}**" if init == init_of(row) else init
            values = ", ".join(f"{r['seed']}: {result_of(r)}" for r in mine)
            seconds = ", ".join(f"{r['seconds']:.0f}" for r in mine)
            star = "" if all("curve" in r for r in mine) else "*"
            bar = f"below {row.bar}" if row.control else str(row.bar)
            commits = ", ".join(dict.fromkeys(r["commit"] for r in mine))
            # Self-play is zero-sum: the return does not measure progress.
            is_silent = row.control or row.metric == "win"
            almost = "" if is_silent else "; ".join(frames_to_almost(r, row.bar) for r in mine)
            frames = max(r["frames"] for r in mine)
            lines.append(
                f"| {row.name}{star} | {weights} | {frames:,} | {bar} | {values} | {almost} | "
                f"{seconds} | {commits} |"
            )
    lines += ["", "The mean return while training, against frames; the bars are dashed.", ""]
    return "\n".join([*lines, "![learning curves](learning.svg)", ""])


def picture(results: list[dict[str, Any]]) -> str:
    """Return a figure of the learning curves, with a panel for each configuration."""
    panels: dict[str, list[Line]] = {}
    for row, init in itertools.product(ROWS, INITS):
        mine = [r for r in results if (r["row"], r["init"]) == (row.name, init)]
        curves = [r["curve"] for r in mine if r.get("curve")]
        if curves and row.metric in ("return", "match"):  # in self-play it is always 0
            name = row.name if init == "scaled" else f"{row.name} ({init})"
            panels.setdefault(row.config, []).append(Line(name, curves, row.bar))
    return draw(panels)


def misses(row: Row, result: float | None) -> bool:
    """Return True if a result is on the wrong side of the target."""
    if result is None:
        return False
    return result >= row.bar if row.control else result < row.bar - TOLERANCE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(r.name for r in ROWS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/learning.md")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--init", choices=INITS, help="weights (default: of the configuration)")
    parser.add_argument("--to-almost", action="store_true", help="end runs at 95%% of the bar")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    by_name = {row.name: row for row in ROWS}
    if options.one:
        name, seed, init = options.one
        print(json.dumps(run(by_name[name], int(seed), init, options.to_almost)))
        return
    if unknown := [name for name in options.rows if name not in by_name]:
        parser.error(f"ROW: expected some of {', '.join(by_name)}; got {', '.join(unknown)}")
    runs_file = options.results.with_suffix(".jsonl")
    done = {(r["row"], r["init"], r["seed"]) for r in read_kept(runs_file)}
    todo = [
        (row.name, str(seed), init)
        for row in ROWS
        if not options.rows or row.name in options.rows
        for init in [options.init or init_of(row)]
        for seed in range(1, options.seeds + 1)
        if (row.name, init, seed) not in done
    ]
    todo = [(*one, *["--to-almost"] * options.to_almost) for one in todo]
    run_all(__file__, todo, runs_file, options.jobs)
    results = read_kept(runs_file)
    results.sort(key=lambda r: r["seed"])
    options.results.write_text(table(results))
    options.results.with_suffix(".svg").write_text(picture(results))
    print(options.results.read_text())
    missed = [
        f"{r['row']}, {r['init']}: {r['result']}"
        for r in results
        if misses(by_name[r["row"]], r["result"])
    ]
    if options.check and missed:
        sys.exit(f"beyond their bar: {missed}")


if __name__ == "__main__":
    main()
