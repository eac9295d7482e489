"""What agents learn with the configurations in `configs/`, in how many frames.

    python benchmarks/learning.py [ROW ...] [--seeds 3] [--results FILE.md]

Every row is trained with each seed, two runs at a time with one thread each. The trained agent
then plays at least 1,000 episodes with sampled actions; their mean return is the result. Runs that
are done are kept as JSON lines beside the table and are not repeated, so that the table can be made
row by row. With `--check` the command fails if a row misses its bar.
"""

import argparse
import concurrent.futures
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).parent.parent
CONFIGS = ROOT / "configs"


class Row(NamedTuple):
    """A configuration, the return to reach, and what it is measured by."""

    name: str
    bar: float
    metric: str = "episodic_reward"
    against: str | None = None


ROWS = [
    Row("multi_armed_bandit", 1.0),
    Row("not_hotdog", 1.0),
    Row("count", 1.0),
    Row("xor", 1.0),
    Row("move_to_origin", 0.98),
    Row("treasure_hunt", 3.0),
    Row("duel", 0.8, "win", "random"),
    Row("duel", 0.5, "win", "itself after a tenth of the frames"),
]


def run(row: Row, seed: int) -> dict[str, Any]:
    """Train one row with one seed in this process and measure the result."""
    import numpy as np
    import torch

    from enn_trainer import StateManager, load_agent, train
    from enn_trainer.envs import env_factory
    from enn_trainer.evaluate import Seats, play
    from enn_trainer.opponents import RandomAgent
    from entity_env import AddMetricsWrapper
    from entity_env.examples import ENV_REGISTRY

    total = StateManager(init_path=CONFIGS / f"{row.name}.ron").config.total_timesteps
    with tempfile.TemporaryDirectory() as folder:
        overrides = [f"seed={seed}", f"data_dir={folder}", "rollout.processes=1"]

        def trained(*more: str) -> StateManager:
            manager = StateManager(
                init_path=CONFIGS / f"{row.name}.ron",
                checkpoint_dir=Path(folder) / "run",
                overrides=[*overrides, *more],
            )
            manager.config.eval = None
            train(manager, ENV_REGISTRY[manager.config.env.id])
            return manager

        opponent = None
        start = time.perf_counter()
        if row.against == "random":
            opponent = RandomAgent(ENV_REGISTRY["Duel"]().action_space())
        elif row.against is not None:
            trained(f"total_timesteps={total // 10}")
            opponent = load_agent(Path(folder) / "run").agent
        manager = trained(f"total_timesteps={total}")  # continues where there is a checkpoint
        seconds = time.perf_counter() - start
        config, agent = manager.config, manager.state.agent
        num_envs = 256
        envs = env_factory(ENV_REGISTRY[config.env.id])(config.env, num_envs, 1, 0)
        everywhere = np.arange(num_envs)
        counted = everywhere % 2 == 0 if opponent is not None else None
        seats = [Seats(agent, everywhere)]
        if opponent is not None:
            seats = [Seats(agent, everywhere[::2]), Seats(opponent, everywhere[1::2])]
        measured = play(
            AddMetricsWrapper(envs, counted), seats, 320, 10_000 + seed, torch.device("cpu")
        )
        episodes = measured["episodic_reward"]
        result = measured[row.metric].mean
        return {
            "row": row.name,
            "against": row.against,
            "seed": seed,
            "frames": manager.state.step,
            "result": result,
            "episodes": episodes.count,
            "seconds": round(seconds, 1),
        }


def run_apart(row: Row, seed: int) -> dict[str, Any]:
    """Train in a process of its own with one thread."""
    index = ROWS.index(row)
    done = subprocess.run(
        [sys.executable, __file__, "--one", str(index), str(seed)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result


def table(results: list[dict[str, Any]], command: str) -> str:
    """The results as a document."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    import torch

    lines = [
        "# What agents learn",
        "",
        f"`{command}` on {os.cpu_count()} cores ({platform.processor() or platform.machine()}), "
        f"Python {platform.python_version()}, torch {torch.__version__}, commit {commit}. Each run "
        "has one thread, two run at a time. The result is the mean over the episodes that the "
        "trained agent then plays with sampled actions, for each seed; the configurations are "
        "those in `configs/`.",
        "",
        "| configuration | frames | to reach | seeds: result | seconds |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in ROWS:
        mine = [r for r in results if (r["row"], r["against"]) == (row.name, row.against)]
        if not mine:
            continue
        name = (
            row.name
            if row.against is None
            else f"{row.name}, {row.metric} rate against {row.against}"
        )
        values = ", ".join(f"{r['seed']}: {r['result']:.4f}" for r in mine)
        seconds = ", ".join(f"{r['seconds']:.0f}" for r in mine)
        lines.append(f"| {name} | {mine[0]['frames']:,} | {row.bar} | {values} | {seconds} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", metavar="ROW", help=", ".join(r.name for r in ROWS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--results", type=Path, default=ROOT / "benchmarks/results/learning.md")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--one", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(run(ROWS[options.one[0]], options.one[1])))
        return
    kept = options.results.with_suffix(".jsonl")
    results = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    done = {(r["row"], r["against"], r["seed"]) for r in results}
    todo = [
        (row, seed)
        for row in ROWS
        if not options.rows or row.name in options.rows
        for seed in range(1, options.seeds + 1)
        if (row.name, row.against, seed) not in done
    ]
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for future in concurrent.futures.as_completed(pool.submit(run_apart, *t) for t in todo):
            results.append(future.result())
            with kept.open("a") as file:
                file.write(json.dumps(results[-1]) + "\n")
            print(results[-1], flush=True)
    results.sort(key=lambda r: r["seed"])
    options.results.write_text(table(results, "python benchmarks/learning.py"))
    print(options.results.read_text())
    missed = [r for r in results if r["result"] < _bar(r) - 5e-3]
    if options.check and missed:
        sys.exit(f"below their bar: {missed}")


def _bar(result: dict[str, Any]) -> float:
    return next(r.bar for r in ROWS if (r.name, r.against) == (result["row"], result["against"]))


if __name__ == "__main__":
    main()
