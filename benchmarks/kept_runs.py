"""Runs in processes of their own, whose results are kept as JSON lines and not repeated."""

import concurrent.futures
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

Result = dict[str, Any]


def run_apart(script: str, *args: str) -> Result:
    """Run `script --one ARGS` with one thread, and return the JSON that it prints last."""
    done = subprocess.run(
        [sys.executable, script, "--one", *args],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    result: Result = json.loads(done.stdout.splitlines()[-1])
    return result


def read_kept(kept: Path) -> list[Result]:
    """Return the results of earlier calls."""
    return [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []


def run_all(script: str, todo: Sequence[Sequence[str]], kept: Path, jobs: int) -> None:
    """Run all of `todo`, the arguments of each, and keep the results.

    Args:
        script: the file of the command.
        todo: the arguments of each run.
        kept: the file that the results are appended to.
        jobs: number of runs at a time.
    """
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        runs = [pool.submit(run_apart, script, *args) for args in todo]
        for future in concurrent.futures.as_completed(runs):
            result = future.result()
            with kept.open("a") as file:
                file.write(json.dumps(result) + "\n")
            print({k: v for k, v in result.items() if k != "curve"}, flush=True)
