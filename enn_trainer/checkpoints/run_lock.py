"""One process at a time trains in the folder of a run: a lock that the system releases at death."""

import errno
import fcntl
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from enn_trainer.checkpoints import disk
from enn_trainer.checkpoints.checkpoint import SUPERSEDED, WRITING, restore_superseded
from enn_trainer.checkpoints.folder_lock import locked
from enn_trainer.checkpoints.keep import DELETING, INDEX
from enn_trainer.checkpoints.pins import PINS
from enn_trainer.errors import CheckpointError

LOCK = ".lock"
MAX_LOCK_BYTES = 4096
_LEFTOVER = re.compile(
    rf"({'|'.join(map(re.escape, (WRITING, DELETING, SUPERSEDED)))})step-\d+-\d+"
)
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


@contextmanager
def run_lock(run_dir: Path, say: Callable[[str], None] = print) -> Iterator[None]:
    """Have the folder of a run for oneself; what dead processes left half done is removed.

    Reading saves needs no lock.

    Args:
        run_dir: the folder, which is there.
        say: is told if the file system has no locks.

    Raises:
        CheckpointError: another process has it, or the lock cannot be written.
    """
    path = run_dir / LOCK
    with disk.naming(path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        if _is_locked(descriptor, run_dir, say):
            _sign(descriptor)
            with locked(run_dir):  # a save may be pinned meanwhile, also without this lock
                _remove_leftovers(run_dir)
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int, run_dir: Path, say: Callable[[str], None]) -> bool:
    """Take the lock; False where there are none."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CheckpointError(
            f"{run_dir}: expected a run that nobody trains, {_owner(descriptor)} does; wait for "
            "its end, or give another --checkpoint-dir"
        ) from None
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise CheckpointError(f"{run_dir / LOCK}: cannot be locked: {error.strerror}") from None
        say(
            f"{run_dir}: this file system has no locks ({error.strerror}); see to it that no "
            "other process trains there"
        )
        return False
    return True


def _remove_leftovers(run_dir: Path) -> None:
    restore_superseded(run_dir)
    for entry in run_dir.iterdir():
        if _LEFTOVER.fullmatch(entry.name) or disk.is_leftover_of(entry.name, (INDEX, PINS)):
            disk.remove(entry)


def _sign(descriptor: int) -> None:
    """Say whose the lock is; only for people, so that a full disk does not matter."""
    owner = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "start": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)


def _owner(descriptor: int) -> str:
    try:
        owner = json.loads(os.pread(descriptor, MAX_LOCK_BYTES, 0))
        return f"process {owner['pid']} on {owner['host']}, since {owner['start']},"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return "another process"
