"""Regression test of training speed: `make bench`, in about two minutes.

    python benchmarks/bench.py [--update] [--seconds 90]

Some examples train in turns, in slices of about a second, and a fixed product of matrices is timed
before and after every slice. The unit is frames per product, which up to noise does not depend on
other programs or on the clock rate; a case has the median of its slices. It is compared with the
value committed in results/bench.json for the same kind of machine (processor, instructions, cores,
version of torch). The exit status is 1 if a case is more than 25% slower. `--update` writes the
measured values there.
"""

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from measured_on import processor

from enn_trainer import StateManager, Trainer
from enn_trainer.base.tables import aligned
from entity_env.examples import ENV_REGISTRY

RESULTS = Path(__file__).parent / "results" / "bench.json"
MAX_SLOWDOWN = 0.25
CASES = {
    "Xor": ["rollout.num_envs=512", "rollout.steps=4", "optim.bs=2048", "net.d_model=16"],
    "MoveToOrigin": ["rollout.num_envs=64", "rollout.steps=32", "optim.bs=2048", "net.d_model=16"],
    "Minefield": [
        *("rollout.num_envs=256", "rollout.steps=8", "optim.bs=1024", "net.d_model=32"),
        "rollout.processes=2",
        'net.translation.reference_entity="Vehicle"',
        'net.translation.position_features=["x_pos","y_pos"]',
        'net.translation.rotation_angle_feature="direction"',
    ],
    "CherryPick": ["rollout.num_envs=64", "rollout.steps=8", "optim.bs=512", "net.d_model=64"],
}
ROUNDS = 9
PRODUCT_S = 0.15
"""Duration of each measurement of the product."""


class Speed(NamedTuple):
    """Speed of a case.

    Attributes:
        frames_per_product: the median of all slices, then the smallest and largest.
        frames_per_s: the median of all slices, which depends on the load of the machine.
    """

    frames_per_product: float
    smallest: float
    largest: float
    frames_per_s: float


def machine() -> str:
    """Return the kind of this machine; speeds are compared between machines of one kind only."""
    return f"{processor()}, {os.cpu_count()} cores, torch {torch.__version__}"


def products_per_s(seconds: float) -> float:
    """Measure the number of 256 x 256 matrix products per second of one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    a, done, start = torch.ones(256, 256), 0, time.perf_counter()
    while (took := time.perf_counter() - start) < seconds:
        torch.mm(a, a)
        done += 1
    torch.set_num_threads(threads)
    return done / took


def frames_per_s(trainer: Trainer, seconds: float) -> float:
    """Measure the frames per second of a run over whole updates that take at least `seconds`."""
    before, start = trainer.state.step, time.perf_counter()
    while (took := time.perf_counter() - start) < seconds:
        trainer.step()
    return (trainer.state.step - before) / took


def measure(cases: Mapping[str, Sequence[str]], seconds: float, rounds: int) -> dict[str, Speed]:
    """Measure the speed of cases in alternating time slices.

    Args:
        cases: settings of each, by the name of its environment.
        seconds: the duration of all slices together.
        rounds: slices of each.
    """
    slice_s = seconds / len(cases) / rounds - PRODUCT_S
    slices: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    with ExitStack() as stack:
        folder = stack.enter_context(TemporaryDirectory())
        trainers = {}
        for name, overrides in cases.items():
            fixed = [f"env.id={name}", f"data_dir={folder}", "total_timesteps=1000000000"]
            processes = [] if any("processes" in o for o in overrides) else ["rollout.processes=1"]
            manager = StateManager(overrides=[*fixed, *processes, *overrides])
            trainers[name] = stack.enter_context(Trainer(manager, ENV_REGISTRY[name]))
            for _ in range(2):  # the first updates are slower
                trainers[name].step()
        products = products_per_s(PRODUCT_S)
        for _ in range(rounds):
            for name, trainer in trainers.items():
                frames = frames_per_s(trainer, slice_s)
                before, products = products, products_per_s(PRODUCT_S)
                slices[name].append((2 * frames / (before + products), frames))
    return {name: _speed(of) for name, of in slices.items()}


def _speed(slices: Sequence[tuple[float, float]]) -> Speed:
    ratios = [ratio for ratio, _ in slices]
    frames = statistics.median(frames for _, frames in slices)
    return Speed(statistics.median(ratios), min(ratios), max(ratios), frames)


def compared(
    speeds: Mapping[str, Speed], committed: Mapping[str, float]
) -> tuple[list[list[str]], list[str]]:
    """Return the rows of the table, and the cases that are slower than allowed.

    Args:
        speeds: the measured speeds, by case.
        committed: the committed frames per product, by case.
    """
    rows, slower = [], []
    for name, speed in speeds.items():
        before, change = committed.get(name), ""
        if before is not None:
            share = speed.frames_per_product / before - 1
            change = f"{share:+.1%}"
            if share < -MAX_SLOWDOWN:
                slower.append(name)
        rows.append(
            [
                name,
                f"{speed.frames_per_s:,.0f}",
                f"{speed.frames_per_product:.3f}",
                f"{speed.smallest:.3f}-{speed.largest:.3f}",
                "" if before is None else f"{before:.3f}",
                change,
            ]
        )
    return rows, slower


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--update", action="store_true", help="store the measured values")
    parser.add_argument("--seconds", type=float, default=90.0, help="for all slices")
    parser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    kind = machine()
    results = json.loads(options.results.read_text()) if options.results.exists() else {}
    speeds = measure(CASES, options.seconds, ROUNDS)
    rows, slower = compared(speeds, results.get(kind, {}))
    columns = ["world", "frames/s", "frames/product", "of slices", "committed", "change"]
    print(kind, *aligned([columns, *rows]), sep="\n")
    if options.update:
        results[kind] = {name: round(speed.frames_per_product, 4) for name, speed in speeds.items()}
        options.results.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        print(f"wrote {options.results}")
        return 0
    if kind not in results:
        print(
            "no committed values for this kind of machine; type --update to store the measured ones"
        )
    for name in slower:
        print(f"{name} is more than {MAX_SLOWDOWN:.0%} slower", file=sys.stderr)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
