"""Lock on the folder of a run, for the moments in which pins change or saves go."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from enn_trainer.checkpoints.file_lock import FileLock
from enn_trainer.errors import CheckpointError


@contextlib.contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Keep all others from changing the pins of a run, and from deleting or replacing its saves.

    Raises:
        CheckpointError: there is no such folder.
    """
    try:
        folder = FileLock(os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY))
    except OSError as error:
        raise CheckpointError(
            f"{run_dir}: expected the folder of a run: {error.strerror}"
        ) from None
    try:
        with contextlib.suppress(OSError):  # where the file system knows no locks
            folder.acquire()
        yield
    finally:
        folder.close()
