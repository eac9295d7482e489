"""The command `enn runs`."""

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from rich.console import Console

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.tables import in_bytes, show_records
from enn_trainer.checkpoints.disk import MAX_TEXT_BYTES, read_plain_file, size_of_all
from enn_trainer.checkpoints.format import (
    METRICS_FILE,
    RUN_FILE,
    folder_of_metrics,
    read_unverified,
    step_of,
)
from enn_trainer.checkpoints.retention import best_of, measured
from enn_trainer.checkpoints.run_lock import is_locked
from enn_trainer.cli.arguments import OneLineParser
from enn_trainer.config.formats import parse
from enn_trainer.runtime.trust import env_label
from entity_env.serialization.plain_open import read_plain

_EPILOG = """\
The return is from the last evaluation, or from training without evaluations. The best save is the
existing save with the highest return. A run is training while a process holds its lock.

examples:
  enn runs
  enn runs runs --json"""
RETURNS = ("eval/episodic_reward.mean", "episodic_reward.mean")
"""Tags of the return, in order of preference."""
TAIL_BYTES = 1 << 18
"""Number of bytes to read from the end of a file of metrics."""


def parser() -> OneLineParser:
    """Return the parser of `enn runs`."""
    description = "List the runs in a folder."
    listing = OneLineParser(prog="enn runs", description=description, epilog=_EPILOG)
    help = "a folder of runs, or a run (default: runs)"
    listing.run("folder", "DIR", help, nargs="?")
    listing.flag("--json", "print JSON")
    return listing


def runs_command(arguments: Sequence[str]) -> None:
    """Run `enn runs`: list the runs in a folder.

    Raises:
        ConfigError: the folder does not exist.
    """
    options = parser().parse_args(arguments)
    folder: Path = options.folder or Path("runs")
    if options.folder is not None and not folder.is_dir():
        raise ConfigError(f"DIR: expected a folder of runs, got {folder}, which is not a folder")
    runs = list_runs(folder)
    if options.json:
        print(json.dumps(runs, indent=1))
    elif not runs:
        print(f"{folder}: no runs here")
    else:
        for run in runs:
            run["size"] = in_bytes(run.pop("bytes"))
            for save in ("newest", "best"):  # the step is enough for RUN@STEP
                run[save] = None if run[save] is None else step_of(Path(run[save]))
        show_records(runs, Console(), num_left=3)


def list_runs(folder: Path) -> list[dict[str, Any]]:
    """Return a row for each run in a folder, by column.

    Earlier releases wrote metrics to a separate folder; these belong to the row of the run with
    the saves, if it exists.
    """
    within = [path for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
    paths = [folder] if any(step_of(path) is not None for path in within) else within
    by_path, merged = {}, set()
    for path in sorted(paths, key=lambda path: _natural(path.name)):
        run, logs = _read_run(path)
        merged |= {logs.resolve()} - {path.resolve()}
        if run["step"] is not None:
            by_path[path.resolve()] = run
    return [run for path, run in by_path.items() if path not in merged]


def _natural(name: str) -> list[int | str]:
    """Return a key for natural sorting, with Xor-2 before Xor-10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"([0-9]+)", name)]


def _read_run(path: Path) -> tuple[dict[str, Any], Path]:
    """Return the row of a run and the folder of its metrics."""
    # Saves, and settings of the newest one.
    saves: dict[str, Mapping[str, Any]] = {}
    for save in sorted(save for save in path.iterdir() if step_of(save) is not None):
        with suppress(CheckpointError):
            saves[save.name] = read_unverified(save).manifest
    newest, world, data_dir = max(saves, default=""), None, "."
    with suppress(CheckpointError, ValueError, KeyError, TypeError):
        text = read_plain_file(path / newest / "config.ron", MAX_TEXT_BYTES).decode()
        settings: Any = parse(text)
        world, data_dir = settings["env"]["id"], str(settings.get("data_dir", data_dir))
    name = saves[newest].get("run_name", "") if newest else ""
    logs = folder_of_metrics(path, data_dir, name)
    with suppress(CheckpointError, ValueError, KeyError, TypeError):
        world = json.loads(read_plain_file(logs / RUN_FILE, MAX_TEXT_BYTES))["config"]["env.id"]

    # The last values of metrics, and the best save by return.
    rows = _last_rows(logs / METRICS_FILE)
    values = {tag: x for record in saves.values() for tag, x in measured(record).items()}
    values |= {tag: x for row in rows for tag, x in row.items() if isinstance(x, int | float)}
    tag = next((tag for tag in RETURNS if tag in values), RETURNS[0])
    best = next(iter(best_of(saves, f"{tag} max", 1)), None)
    summary = {
        "run": path.name or str(path),
        "world": None if world is None else env_label(world),
        "training": is_locked(path),
        "step": max((record["step"] for record in [*saves.values(), *rows]), default=None),
        "return": values.get(tag),
        "newest": newest or None,
        "best": best,
        "best return": None if best is None else measured(saves[best])[tag],
        "bytes": size_of_all(path),
    }
    return summary, logs


def _last_rows(path: Path) -> list[dict[str, Any]]:
    """Read the rows at the end of a file of metrics."""
    rows = []
    with suppress(OSError), read_plain(path) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - TAIL_BYTES))
        for line in file.read().splitlines():
            with suppress(ValueError, RecursionError, TypeError, KeyError):
                row = json.loads(line)
                rows += [row] if type(row["step"]) is int else []
    return rows
