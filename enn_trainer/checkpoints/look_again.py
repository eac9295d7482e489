"""Looking again for saves that a run deletes or replaces while they are read."""

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from enn_trainer.errors import CheckpointError

C = TypeVar("C")
MOST_LOOKS = 20
"""How often saves are looked for that are deleted or replaced while they are read."""


class SaveGone(CheckpointError):  # noqa: N818 (caught to look again)
    """A save was deleted or replaced while it was read."""


def reading(path: Path, read: Callable[[Path], C]) -> C:
    """Read a save that a run may delete or replace meanwhile.

    Args:
        path: its directory.
        read: reads it.

    Raises:
        SaveGone: it was deleted or replaced, and reading it failed.
        CheckpointError: it cannot be read.
    """
    before = identity(path)
    try:
        return read(path)
    except SaveGone:
        raise
    except CheckpointError:
        if before is not None and identity(path) != before:
            raise SaveGone(f"{path}: deleted or replaced while it was read") from None
        raise


def looking_again(path: Path, look: Callable[[], C]) -> C:
    """Look for a save until one is read that was not deleted or replaced meanwhile.

    Args:
        path: of the save or its run, for messages.
        look: finds and reads it; raises `SaveGone` if it was deleted or replaced.

    Raises:
        CheckpointError: it was, too often.
    """
    for _ in range(MOST_LOOKS):
        try:
            return look()
        except SaveGone:
            continue
    raise CheckpointError(
        f"{path}: expected a save that stays while it is read, those found were deleted or "
        f"replaced {MOST_LOOKS} times in a row; have the run keep more of them (checkpoint.keep)"
    )


def identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a folder from another one of its name; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
