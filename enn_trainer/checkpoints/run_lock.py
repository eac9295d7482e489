"""One process at a time trains in the folder of a run: a lock that the system releases at death."""

import errno
import json
import os
import re
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from enn_trainer.checkpoints import disk
from enn_trainer.checkpoints.checkpoint import WRITING
from enn_trainer.checkpoints.file_lock import FileLock
from enn_trainer.checkpoints.keep import DELETING, INDEX
from enn_trainer.checkpoints.pins import PINS, locked
from enn_trainer.errors import CheckpointError
from entity_env.plain_open import open_plain

LOCK = ".lock"
MAX_LOCK_BYTES = 4096
_LEFTOVER = re.compile(rf"({re.escape(WRITING)}|{re.escape(DELETING)})step-\d+-\d+")
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
        lock = FileLock(open_plain(path, os.O_RDWR | os.O_CREAT))
    try:
        if _is_locked(lock, run_dir, say):
            _sign(lock.descriptor)
            with locked(run_dir):  # a save may be pinned meanwhile, also without this lock
                _remove_leftovers(run_dir)
        yield
    finally:
        lock.close()


def _is_locked(lock: FileLock, run_dir: Path, say: Callable[[str], None]) -> bool:
    """Take the lock; False where there are none."""
    try:
        lock.acquire(wait=False)
    except BlockingIOError:
        raise CheckpointError(
            f"{run_dir}: expected a run that nobody trains, {_owner(lock.descriptor)} does; wait "
            "for its end, or give another --checkpoint-dir"
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
