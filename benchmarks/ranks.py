"""Speed of sharded and distributed training relative to a single process, on `ceiling.py`'s cases.

    python benchmarks/ranks.py [CASE ...] [--rounds 3] [--seconds 4] [--ranks]

The first table compares `scale.shards=2` with one shard in one process, both with two threads and
two workers: two forward passes of half the size each. Both trainers alternate in one process. With
`--ranks` a second table compares 2 ranks of `torchrun`, of one thread and one worker each, with one
process of two threads and two workers; these processes alternate.

A ratio is the median over the rounds of one run. The tables are written to `results/ranks.md`.
"""

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from ceiling import CASES
from measured_on import processor, short_revision

from enn_trainer import StateManager, Trainer
from entity_env.examples import ENV_REGISTRY

RESULTS = Path(__file__).parent / "results/ranks.md"
CORES = 2
TITLES = {
    "shards": "One process, two shards against one",
    "ranks": "2 ranks of one thread against 1 of two threads with two workers",
}
TARGETS = {"shards": (0.85, 0.7), "ranks": (0.9, 0.75)}
"""The least geometric mean of the ratios, and the least ratio."""

Pairs = list[tuple[float, float]]
"""Updates per second of the single and of the divided run, by round."""


def updates_per_s(trainer: Trainer, seconds: float, updates: int | None) -> float:
    """Measure updates per second, over a number of updates, or if it is None, over some seconds."""
    start_s, count = time.perf_counter(), 0
    while count < (updates or 1) or (not updates and time.perf_counter() - start_s < seconds):
        trainer.step()
        count += 1
    return count / (time.perf_counter() - start_s)


def measure_trainers(divisions: Sequence[Sequence[str]], options: Mapping[str, Any]) -> list[Any]:
    """Return updates per second of alternating trainers, by round.

    Args:
        divisions: settings of each trainer.
        options: shared settings, folder (the same in all ranks), number of rounds, threads, and
            seconds or updates per turn.
    """
    torch.set_num_threads(options["threads"])  # overrides OMP_NUM_THREADS
    with ExitStack() as stack:
        trainers = []
        for division in divisions:
            settings = [*options["settings"], f"data_dir={options['folder']}", *division]
            manager = StateManager(overrides=settings)
            world = ENV_REGISTRY[manager.config.env.id]
            trainers.append(stack.enter_context(Trainer(manager, world)))
        for trainer in trainers:
            trainer.step()
        turn = options["seconds"], options.get("updates")
        return [
            [updates_per_s(trainer, *turn) for trainer in trainers]
            for _ in range(options["rounds"])
        ]


def shards(case: str, rounds: int, seconds: float) -> Pairs:
    """Measure a case in one process with one and with two shards."""
    settings = [*CASES[case], f"rollout.processes={CORES}"]
    options = {"settings": settings, "threads": CORES, "rounds": rounds, "seconds": seconds}
    divisions = [[], ["scale.shards=2"]]
    return [
        (whole, divided) for whole, divided in run_measurement([sys.executable], divisions, options)
    ]


def ranks(case: str, rounds: int, seconds: float) -> Pairs:
    """Measure a case in one process, and in two ranks."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", f"{CORES}"]
    shared = {"rounds": 1, "seconds": seconds}
    pairs = []
    for _ in range(rounds):
        alone = {"settings": [*CASES[case], f"rollout.processes={CORES}"], "threads": CORES}
        ((whole,),) = run_measurement([sys.executable], [[]], {**shared, **alone})
        # Fix the number of updates, because ranks wait for each other.
        parts = {"settings": [*CASES[case], "rollout.processes=1"], "threads": 1}
        parts["updates"] = max(1, round(whole * seconds))
        ((divided,),) = run_measurement(torchrun, [[]], {**shared, **parts})
        pairs.append((whole, divided))
    return pairs


def run_measurement(
    program: Sequence[str], divisions: Sequence[Sequence[str]], options: Mapping[str, Any]
) -> list[Any]:
    """Call `measure_trainers` in a separate process, or in several ranks."""
    with TemporaryDirectory() as folder:
        job = json.dumps([divisions, {**options, "folder": folder}])
        command = [*program, __file__, "--job", job]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    answer: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def table(kind: str, pairs_by_case: Mapping[str, Pairs]) -> str:
    """Format a table with its title."""
    mean, least = TARGETS[kind]
    lines = [
        f"## {TITLES[kind]}\n",
        "| case | updates/s | divided | ratio |",
        "| --- | --- | --- | --- |",
    ]
    ratios = []
    for case, pairs in pairs_by_case.items():
        whole, divided = (statistics.median(column) for column in zip(*pairs, strict=True))
        ratios.append(statistics.median(b / a for a, b in pairs))
        lines.append(f"| {case} | {whole:.2f} | {divided:.2f} | {ratios[-1]:.2f} |")
    geometric = math.exp(statistics.mean(map(math.log, ratios)))
    lines.append(f"| geometric mean (to reach: {mean}) | | | {geometric:.2f} |")
    lines.append(f"| least (to reach: {least}) | | | {min(ratios):.2f} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure the cases and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=", ".join(CASES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=4.0, help="of a turn, at least an update")
    parser.add_argument("--ranks", action="store_true", help="measure 2 ranks of torchrun as well")
    parser.add_argument("--job", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        answer = measure_trainers(*options.job)
        if os.environ.get("RANK", "0") == "0":
            print(json.dumps(answer))
        return
    if unknown := {*options.cases} - {*CASES}:
        parser.error(f"expected some of {', '.join(CASES)}, got {', '.join(sorted(unknown))}")
    kinds = {"shards": shards, **({"ranks": ranks} if options.ranks else {})}
    tables = []
    for kind, measure in kinds.items():
        pairs_by_case: dict[str, Pairs] = {}
        for case in options.cases or CASES:
            pairs_by_case[case] = measure(case, options.rounds, options.seconds)
            print(kind, case, *(f"{b / a:.2f}" for a, b in pairs_by_case[case]), flush=True)
        tables.append(table(kind, pairs_by_case))
    RESULTS.write_text(
        f"# Sharded and distributed training\n\nMedians of {options.rounds} rounds of "
        f"{options.seconds:g} s in turns, on {processor()}, commit {short_revision()}. Measured by "
        "`benchmarks/ranks.py`.\n\n" + "\n".join(tables)
    )


if __name__ == "__main__":
    main()
