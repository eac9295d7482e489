"""Runs in processes of their own, whose results are kept as JSON lines and not repeated."""

import argparse
import concurrent.futures
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

Result = dict[str, Any]
ONE_THREAD = {
    "OMP_NUM_THREADS": "1",
    "XLA_FLAGS": "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1",
}
"""Environment variables for torch and for JAX."""


def run_apart(script: str, *args: str, python: str = sys.executable) -> Result:
    """Run `script --one ARGS` with one thread, and return the JSON that it prints last."""
    done = subprocess.run(
        [python, script, "--one", *args],
        env={**os.environ, **ONE_THREAD},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result


def read_kept(kept: Path) -> list[Result]:
    """Return the results of earlier calls."""
    return [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []


def learn_or_speed(about: str, rows: Sequence[str]) -> argparse.ArgumentParser:
    """Return the parser of a command that trains rows with some seeds, or measures the speed.

    Args:
        about: the docstring of the command.
        rows: the names of its rows.
    """
    parser = argparse.ArgumentParser(description=about.splitlines()[0])
    parser.add_argument("what", choices=["learn", "speed"], nargs="?", default="learn")
    parser.add_argument("rows", nargs="*", metavar="ROW", help="; ".join(rows))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    return parser


def train_or_measure(
    about: str,
    script: str,
    results: Path,
    rows: Mapping[str, T],
    train: Callable[[T, int], Result],
    speed_text: Callable[[int], str],
    document: Callable[[Sequence[Result], str], str],
) -> None:
    """Run a command that trains what was not trained yet, or measures the speed.

    Args:
        about: the docstring of the command.
        script: its file.
        results: the page that it writes.
        rows: by name.
        train: trains an agent with a row and a seed, and returns the results.
        speed_text: measures the speed with some updates, and returns its part of the page.
        document: returns the page with all results and that part.
    """
    parser = learn_or_speed(about, [*rows])
    options = parser.parse_intermixed_args()
    if options.one:
        print(json.dumps(train(rows[options.one[0]], int(options.one[1]))))
        return
    kept, speed = results.with_suffix(".jsonl"), kept_speed(results)
    if options.what == "speed":
        speed = speed_text(options.updates)
    else:
        todo = left_to_run(parser, options.rows, dict.fromkeys(rows, options.seeds), kept)
        run_all(script, todo, kept, options.jobs)
    results.write_text(document(read_kept(kept), speed))
    print(results.read_text())


def kept_speed(results: Path) -> str:
    """Return the section on speed of a document of results, "" if there is none."""
    before = results.read_text() if results.exists() else ""
    return before[before.index("## Speed") :] if "## Speed" in before else ""


def left_to_run(
    parser: argparse.ArgumentParser, rows: Sequence[str], seeds: Mapping[str, int], kept: Path
) -> list[tuple[str, str]]:
    """Return row and seed of each run that is asked for and not done yet.

    Args:
        parser: of the command, which ends if there is no such row.
        rows: names that are asked for; all if there are none.
        seeds: how many each row is trained with, by name.
        kept: the results of earlier calls.
    """
    if unknown := [name for name in rows if name not in seeds]:
        parser.error(f"ROW: expected some of {'; '.join(seeds)}; got {'; '.join(unknown)}")
    done = {(result["row"], result["seed"]) for result in read_kept(kept)}
    return [
        (name, str(seed))
        for name in rows or seeds
        for seed in range(1, seeds[name] + 1)
        if (name, seed) not in done
    ]


def run_all(
    script: str,
    todo: Sequence[Sequence[str]],
    kept: Path,
    jobs: int,
    python: str = sys.executable,
) -> None:
    """Run all of `todo`, the arguments of each, and keep the results.

    Args:
        script: the file of the command.
        todo: the arguments of each run.
        kept: the file that the results are appended to.
        jobs: number of runs at a time.
        python: the Python that runs them.

    Raises:
        SystemExit: some of them failed; the results of the others are kept.
    """
    failed = []
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        runs = {pool.submit(run_apart, script, *args, python=python): args for args in todo}
        for future in concurrent.futures.as_completed(runs):
            if future.exception():
                failed.append(f"{' '.join(runs[future])}: {future.exception()}")
                continue
            result = future.result()
            with kept.open("a") as file:
                file.write(json.dumps(result) + "\n")
            print({k: v for k, v in result.items() if k != "curve"}, flush=True)
    if failed:
        raise SystemExit("\n".join(failed))
