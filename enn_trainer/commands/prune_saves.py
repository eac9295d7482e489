"""Which saves of a run are deleted, and why the others stay."""

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from enn_trainer.checkpoints import checkpoint
from enn_trainer.checkpoints.find_save import read_best, valid_saves
from enn_trainer.checkpoints.pins import locked, read_pins
from enn_trainer.errors import CheckpointError
from enn_trainer.state_manager import KEEP_SAVES


@dataclass
class KeepPolicy:
    """What is kept.

    Attributes:
        keep: so many of the newest.
        keep_every_steps: the first save in each window of so many steps, but for the first window.
        best: the best by a metric, such as "eval/episodic_reward.mean max".
        keep_best: so many of the best.
    """

    keep: int = KEEP_SAVES
    keep_every_steps: int | None = None
    best: Sequence[str] = ()
    keep_best: int = 1


class Pruned(NamedTuple):
    """A valid save of a run.

    Attributes:
        saved: the save.
        reasons: why it stays; none if it goes.
    """

    saved: checkpoint.Checkpoint
    reasons: list[str]


def policy_of(run_dir: Path) -> KeepPolicy:
    """What the configuration of the newest save of a run says."""
    return KeepPolicy()


def prune(run_dir: Path, policy: KeepPolicy, dry_run: bool) -> list[Pruned]:
    """Delete what need not be kept; the newest valid save always is.

    Args:
        run_dir: the folder of the run.
        policy: what to keep.
        dry_run: delete nothing.

    Returns:
        Every valid save, oldest first.

    Raises:
        CheckpointError: a run goes on there, or it is not known what is pinned.
    """
    with _not_running(run_dir), locked(run_dir):
        saves = valid_saves(run_dir)
        reasons = reasons_to_keep(saves, policy, read_pins(run_dir))
        pruned = [Pruned(saved, reasons[saved.path.name]) for saved in saves]
        gone = [] if dry_run else [saved.path for saved, why in pruned if not why]
        trash = [path.rename(path.with_name(f".deleting-{path.name}")) for path in gone]
    for path in trash:
        shutil.rmtree(path, ignore_errors=True)
    if gone:
        checkpoint.keep_newest(run_dir, len(saves))  # writes the index
    return pruned


def reasons_to_keep(
    saves: Sequence[checkpoint.Checkpoint], policy: KeepPolicy, pins: Mapping[str, str]
) -> dict[str, list[str]]:
    """Why saves are kept, by their names; those that are not have no reasons.

    Args:
        saves: valid ones, oldest first.
        policy: what to keep.
        pins: notes of the pinned ones by their names.
    """
    reasons: dict[str, list[str]] = {saved.path.name: [] for saved in saves}
    for place, saved in enumerate(reversed(saves)):
        if place < max(policy.keep, 1):
            reasons[saved.path.name].append(
                "the newest" if place == 0 else f"among {policy.keep} newest"
            )
    if policy.keep_every_steps is not None:
        windows: dict[int, checkpoint.Checkpoint] = {}
        for saved in saves:
            windows.setdefault(saved.step // policy.keep_every_steps, saved)
        for window, saved in windows.items():
            if window > 0:
                reasons[saved.path.name].append(f"first from {window * policy.keep_every_steps} on")
    for text in policy.best:
        for saved in read_best(text).of(saves)[: policy.keep_best]:
            reasons[saved.path.name].append(f"best by {text}")
    for name, note in pins.items():
        if name in reasons:
            reasons[name].append(f"pinned: {note}" if note else "pinned")
    return reasons


@contextlib.contextmanager
def _not_running(run_dir: Path) -> Iterator[None]:
    """No run begins or goes on in a folder while the context is open."""
    try:
        lock = os.open(run_dir / ".lock", os.O_RDWR)
    except FileNotFoundError:
        yield
        return
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CheckpointError(
                f"{run_dir}: a run goes on here, which deletes what it need not keep by itself; "
                "pin what should stay"
            ) from None
        yield
    finally:
        os.close(lock)
