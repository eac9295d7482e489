"""Table, report and progress display of `enn eval`."""

import json
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from enn_trainer.config import TrainConfig
from enn_trainer.config.eval_config import all_suites
from enn_trainer.errors import ConfigError
from enn_trainer.evaluation.eval_metrics import Measured, with_interval
from enn_trainer.evaluation.evaluator import SuiteResult
from enn_trainer.tables import printable, show_table
from enn_trainer.tracking.progress import format_duration
from enn_trainer.tracking.track import flatten_config
from entity_env.serialization.plain_open import replace_file

LINE_EVERY_S = 5.0
UNNAMED = "as trained"
_COLUMNS = ("suite", "metric", "mean ± 95% ci", "min", "max", "values", "episodes")


def table(results: Mapping[str, SuiteResult], console: Console | None = None) -> None:
    """Print the results: a table on a terminal, plain columns elsewhere.

    Args:
        results: results by suite.
        console: console to print to; standard output by default.
    """
    console = Console() if console is None else console
    for suite, result in results.items():
        if not any(m.count for m in result.metrics.values()):
            missing = f", {result.missing} did not end" if result.missing else ""
            message = f"{suite or UNNAMED}: no results, as no episode counts{missing}"
            console.out(printable(message, console.encoding), highlight=False)
    rows = [
        (suite or UNNAMED, name, *_numbers(m), str(result.episodes))
        for suite, result in results.items()
        for name, m in result.metrics.items()
        if m.count
    ]
    if rows:
        show_table(_COLUMNS, rows, console, num_left=2, by_section=True)


def write_and_print(
    path: Path, content: Mapping[str, Any], results: Mapping[str, SuiteResult]
) -> list[str]:
    """Write the results to the report, then print them, so that a closed pipe loses nothing.

    Args:
        path: path of the report.
        content: content of the report.
        results: results by suite.

    Returns:
        Messages about problems.
    """
    problems = []
    # Write, then print.
    try:
        write_report(path, content)
    except OSError as error:
        problems.append(f"--json: {path} cannot be written: {error.strerror}")
    try:
        table(results)
        if not problems:
            print(printable(f"written to {path}", sys.stdout.encoding))
        sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # or it fails once more
        problems.append(f"standard output: {error.strerror}; the numbers are in {path}")
    # Videos that failed, and episodes that were not finished.
    problems += [
        f"{r.film_problem} (suite: {name or UNNAMED})"
        for name, r in results.items()
        if r.film_problem is not None
    ]
    unfinished = [f"{name or 'unnamed'}: {r.missing}" for name, r in results.items() if r.missing]
    if unfinished:
        problems.append(
            f"episodes that did not end within {next(iter(results.values())).max_steps} steps "
            f"and are left out ({', '.join(unfinished)}); raise --max-steps"
        )
    return problems


def report(
    path: Path, step: int, config: TrainConfig, results: Mapping[str, SuiteResult]
) -> dict[str, Any]:
    """Return results and settings of an evaluation as plain data for JSON.

    Args:
        path: path of the checkpoint.
        step: step of the checkpoint.
        config: configuration with the evaluation.
        results: results by suite.
    """
    assert config.eval is not None
    suites = dict(all_suites(config.eval, config.env))
    return {
        "checkpoint": str(path.resolve()),
        "step": step,
        "seed": config.seed if config.eval.seed is None else config.eval.seed,
        "suites": {
            name: {
                "config": flatten_config(suites[name]),
                "episodes": result.episodes,
                "missing": result.missing,
                "metrics": {key: _as_json(m) for key, m in result.metrics.items()},
            }
            for name, result in results.items()
        },
    }


def writable(path: Path, field: str) -> Path:
    """Return the file that a path leads to, through links, after checking that it can be written.

    Raises:
        ConfigError: the file cannot be written, or replacing it would replace a device or a pipe.
    """
    try:
        target = path.resolve()
        there = target.exists()
        ok = target.parent.is_dir() and os.access(target.parent, os.W_OK)
    except (OSError, RuntimeError):  # the name is too long, or the links are a circle
        there, ok = False, False
    if not ok or (there and not target.is_file()):
        raise ConfigError(f"{field}: expected a file in a folder to write to, got {path}")
    return target


def write_report(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file, complete or not at all, in place of an existing one."""
    data = (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()
    replace_file(path, data, path.with_name(f".writing-{path.name}"))


@final
class EvalProgress:
    """Progress display of an evaluation: a bar on a terminal, a line every few seconds elsewhere.

    Args:
        console: console to print to; standard error by default, so that the results can be piped.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = Console(stderr=True) if console is None else console
        self._start_s: dict[str, float] = {}
        self._shown_s = time.monotonic()
        self._bars: dict[str, Any] = {}
        self._progress: Progress | None = None
        if self._console.is_terminal:
            columns = (TextColumn("{task.description}", markup=False), BarColumn())
            # Drawn by `watch`, not by a thread: environments may start processes.
            self._progress = Progress(
                *columns,
                TimeRemainingColumn(),
                console=self._console,
                auto_refresh=False,
                transient=True,
            )

    def __enter__(self) -> Self:
        if self._progress is not None:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def watch(self, suite: str, share: float) -> None:
        """Show that a share of a suite, from 0 to 1, is finished."""
        now, name = time.monotonic(), suite or UNNAMED
        is_new = suite not in self._start_s
        start = self._start_s.setdefault(suite, now)
        if self._progress is not None:
            if suite not in self._bars:
                self._bars[suite] = self._progress.add_task(name, total=1.0)
            self._progress.update(self._bars[suite], completed=share)
            if is_new or now - self._shown_s >= 0.1 or share >= 1:
                self._progress.refresh()
                self._shown_s = now
        elif is_new or now - self._shown_s >= LINE_EVERY_S:
            self._shown_s = now
            left = format_duration((now - start) * (1 - share) / share) if share else "?"
            line = f"{name}: {share:.0%}" + ("" if is_new else f", left {left}")
            self._console.out(printable(line, self._console.encoding), highlight=False)


def _numbers(m: Measured) -> tuple[str, str, str, str]:
    return with_interval(m), f"{m.min:.4g}", f"{m.max:.4g}", str(m.count)


def _as_json(m: Measured) -> dict[str, Any]:
    """Return the fields, with null for NaN and infinity, such as the mean of no values."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in vars(m).items()
    }
