"""Pinned saves: those of a run that are never deleted, and why.

They are in `pins.json` in the folder of the run, notes by names of saves. It is written whole or
not at all, and only under a lock, so that nothing is lost while a run goes on.
"""

import json
import os
from pathlib import Path

from enn_trainer.checkpoints import disk
from enn_trainer.checkpoints.checkpoint import Checkpoint
from enn_trainer.checkpoints.folder_lock import locked
from enn_trainer.checkpoints.look_again import SaveGone
from enn_trainer.checkpoints.plain_file import read_plain_file
from enn_trainer.errors import CheckpointError

PINS = "pins.json"
MAX_BYTES = 1 << 20


def read_pins(run_dir: Path) -> dict[str, str]:
    """The notes of the pinned saves of a run, by the names of the saves.

    Raises:
        CheckpointError: the file is damaged, so that it is not known what is pinned.
    """
    path = run_dir / PINS
    if not os.path.lexists(path):
        return {}
    data = read_plain_file(path, MAX_BYTES)
    try:
        pins = json.loads(data)
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path}: damaged, not JSON; repair or remove it") from None
    if not isinstance(pins, dict) or not all(isinstance(note, str) for note in pins.values()):
        raise CheckpointError(
            f"{path}: expected notes by the names of saves, got something else; repair or remove it"
        )
    return pins


def pin(saved: Checkpoint, note: str = "") -> None:
    """Let a save never be deleted; one that is pinned gets another note.

    Raises:
        CheckpointError: this cannot be written, or the save was deleted in this moment.
    """
    path = saved.path.resolve()
    with locked(path.parent):
        _write(path.parent, {**read_pins(path.parent), path.name: note})
        if not path.is_dir():  # deleted before it was locked
            _write(path.parent, _without(read_pins(path.parent), path.name))
            raise SaveGone(f"{saved.path}: was deleted while it was to be pinned")


def unpin(path: Path) -> None:
    """Let a save be deleted again.

    Args:
        path: of the save, which need not be valid nor there.

    Raises:
        CheckpointError: it is not pinned, or this cannot be written.
    """
    path = path.resolve()
    with locked(path.parent):
        pins = read_pins(path.parent)
        if path.name not in pins:
            names = ", ".join(sorted(pins)) or "none"
            raise CheckpointError(f"{path}: expected a pinned save, pinned are: {names}")
        _write(path.parent, _without(pins, path.name))


def _without(pins: dict[str, str], name: str) -> dict[str, str]:
    return {other: note for other, note in pins.items() if other != name}


def _write(run_dir: Path, pins: dict[str, str]) -> None:
    disk.replace_file(run_dir / PINS, (json.dumps(pins, indent=1) + "\n").encode())
