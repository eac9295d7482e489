"""Which saves of a run are kept: a function of their manifests, the settings and the pins alone."""

import hashlib
import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from enn_trainer.checkpoint_config import CheckpointConfig, read_best
from enn_trainer.checkpoints import disk
from enn_trainer.checkpoints.checkpoint import (
    MANIFEST,
    Checkpoint,
    saved_paths,
    verify,
)
from enn_trainer.checkpoints.folder_lock import locked
from enn_trainer.checkpoints.look_again import looking_again, reading
from enn_trainer.checkpoints.pins import read_pins
from enn_trainer.errors import CheckpointError

INDEX = "index.json"
DELETING = ".deleting-"
NEWEST = "newest"
PINNED = "pinned"
WRITTEN = "just written"

Manifests: TypeAlias = Mapping[str, Mapping[str, Any]]
"""What manifests say, by the name of the save."""


def reasons_to_keep(
    saves: Manifests, policy: CheckpointConfig, pins: Collection[str]
) -> dict[str, list[str]]:
    """Why each save of a run is kept; nothing for one that may go.

    Args:
        saves: the manifests of all valid saves.
        policy: the settings.
        pins: the names of saves that are pinned.

    Returns:
        For every save a list, such as `["newest", "every 1000 steps"]`.
    """
    reasons: dict[str, list[str]] = {name: [] for name in saves}
    by_step = sorted(saves, key=lambda name: saves[name]["step"])
    for name in by_step[-policy.keep :]:
        reasons[name].append(NEWEST)
    for reason, window in _windows(policy):
        for name in _first_of_each({name: window(saves[name]) for name in by_step}):
            reasons[name].append(reason)
    for text in policy.best:
        for name in best_of(saves, text, policy.keep_best):
            reasons[name].append(f"best {text}")
    for name in saves:
        if name in pins:
            reasons[name].append(PINNED)
    return reasons


def reasons_to_save(
    saves: Manifests, name: str, manifest: Mapping[str, Any], policy: CheckpointConfig
) -> list[str]:
    """Why a save that is not there yet would be kept for longer than a while.

    Args:
        saves: the manifests of those that are there.
        name: of the new one.
        manifest: what is known of the new one.
        policy: the settings.
    """
    reasons = reasons_to_keep({**saves, name: manifest}, policy, ())[name]
    return [reason for reason in reasons if reason != NEWEST]


def measured(manifest: Mapping[str, Any]) -> dict[str, float]:
    """The finite metrics that were measured at the step of a save, by tag."""
    numbers = {key: _number(value) for key, value in _metrics(manifest).items()}
    return {key: number for key, number in numbers.items() if number is not None}


class Pruned(NamedTuple):
    """What became of the saves of a run.

    Attributes:
        deleted: manifests of those that went, or would have gone, by name.
        reasons: why each of the others stays, by name.
        manifests: of those that stay, by name.
    """

    deleted: dict[str, Mapping[str, Any]]
    reasons: dict[str, list[str]]
    manifests: dict[str, Mapping[str, Any]]


def prune(
    run_dir: Path,
    policy: CheckpointConfig,
    dry_run: bool = False,
    known: "Verified | None" = None,
    written: str | None = None,
) -> Pruned:
    """Delete the saves that nothing keeps, and write the index anew.

    The newest valid save stays in any case. Directories that are no valid save are neither counted
    nor deleted.

    Args:
        run_dir: the folder of the run.
        policy: the settings.
        dry_run: whether to delete nothing and only say what would go.
        known: remembers between calls what was verified.
        written: the name of a save that was just written, which stays.

    Raises:
        CheckpointError: it is not known what is pinned, and nothing is deleted; or a save cannot
            be removed, or the index cannot be written.
    """
    known = Verified() if known is None else known
    known.saves(saved_paths(run_dir))  # takes minutes for large saves: before others wait for it
    with locked(run_dir):  # nothing is pinned or replaced between the look and the deed
        saves = {saved.path.name: saved.manifest for saved in known.saves(saved_paths(run_dir))}
        try:
            pins = read_pins(run_dir)
        except CheckpointError as error:
            raise CheckpointError(f"no save is deleted, as pins cannot be read: {error}") from None
        reasons = reasons_to_keep(saves, policy, pins)
        if written is not None and reasons.get(written) == []:
            reasons[written] = [WRITTEN]
        kept = Pruned(
            {name: saves[name] for name in saves if not reasons[name]},
            {name: why for name, why in reasons.items() if why},
            {name: saves[name] for name in saves if reasons[name]},
        )
        if dry_run:
            return kept
        trash = {name: run_dir / f"{DELETING}{name}-{os.getpid()}" for name in kept.deleted}
        for name, path in trash.items():
            disk.rename(run_dir / name, path)
    for path in trash.values():
        disk.remove(path)
    disk.replace_file(run_dir / INDEX, _index(run_dir, kept))
    return kept


class Verified:
    """The saves that were verified in this process, so that gigabytes are not read again.

    A save counts as verified as long as its files have the sizes and times that they had.
    """

    def __init__(self) -> None:
        self._saves: dict[Path, tuple[object, Checkpoint]] = {}

    def remember(self, saved: Checkpoint) -> None:
        """Take a save that was just verified; its files need not stay open."""
        saved.release()
        self._saves[saved.path] = (_signature(saved.path), saved)

    def saves(self, paths: Iterable[Path]) -> list[Checkpoint]:
        """The valid saves among some directories; those that are gone are forgotten."""
        before, self._saves = self._saves, {}
        for path in paths:
            try:
                signature, saved = before.get(path, (None, None))
                if saved is None or signature != _signature(path):
                    saved = looking_again(path, partial(reading, path, verify))
                self.remember(saved)
            except (CheckpointError, OSError):
                continue  # no valid save
        return [saved for _, saved in self._saves.values()]


def _signature(path: Path) -> object:
    files = [(entry.name, entry.stat()) for entry in os.scandir(path)]
    return sorted((name, s.st_size, s.st_mtime_ns, s.st_ino) for name, s in files)


def _windows(
    policy: CheckpointConfig,
) -> list[tuple[str, Callable[[Mapping[str, Any]], int]]]:
    """For each kind of window the reason and the number of the one that a save is in."""
    windows: list[tuple[str, Callable[[Mapping[str, Any]], int]]] = []
    steps, minutes = policy.keep_every_steps, policy.keep_every_minutes
    if steps is not None:
        windows.append((f"every {steps} steps", lambda manifest: manifest["step"] // steps))
    if minutes is not None:
        reason = f"every {minutes:g} minutes"
        windows.append(
            (reason, lambda m: int((_number(m.get("time_used")) or 0) // (60 * minutes)))
        )
    return windows


def _first_of_each(windows: Mapping[str, int]) -> Iterable[str]:
    """The first save in each window but that at the very beginning, which is number 0."""
    first: dict[int, str] = {}
    for name, window in windows.items():
        first.setdefault(window, name)
    return [name for window, name in first.items() if window > 0]


def best_of(saves: Manifests, text: str, count: int) -> list[str]:
    """The names of the saves with the best values, the best first; of equal ones the earlier.

    Args:
        saves: the manifests of valid saves.
        text: what is best, such as "eval/episodic_reward.mean max".
        count: how many at most.
    """
    best = read_best(text)
    by_step = sorted(saves, key=lambda name: saves[name]["step"])
    values = {name: _number(_metrics(saves[name]).get(best.key)) for name in by_step}
    ranked = sorted(
        (-best.sign * value, i, name)
        for i, (name, value) in enumerate(values.items())
        if value is not None
    )
    return [name for _, _, name in ranked[:count]]


def _metrics(manifest: Mapping[str, Any]) -> Mapping[str, object]:
    metrics = manifest.get("metrics")
    return metrics if isinstance(metrics, Mapping) else {}


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) and math.isfinite(value) else None


def _index(run_dir: Path, kept: Pruned) -> bytes:
    """What is there, newest first, for people and programs; made of the directories alone."""
    index = [
        {
            "name": name,
            "step": manifest["step"],
            "created": manifest["created"],
            "time_used": manifest.get("time_used"),
            "why": manifest["why"],
            "kept": kept.reasons[name],
            "size": sum(file["size"] for file in manifest["files"].values()),
            "sha256": hashlib.sha256((run_dir / name / MANIFEST).read_bytes()).hexdigest(),
            "metrics": manifest.get("metrics", {}),
        }
        for name, manifest in kept.manifests.items()
    ]
    return json.dumps(index, indent=1).encode()
