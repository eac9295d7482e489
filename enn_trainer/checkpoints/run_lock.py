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
from typing import final

from enn_trainer.checkpoints import disk, run_claim
from enn_trainer.checkpoints.checkpoint import (
    SUPERSEDED,
    WRITING,
    make_run_dir,
    restore_superseded,
)
from enn_trainer.checkpoints.file_lock import FileLock
from enn_trainer.checkpoints.folder_lock import locked
from enn_trainer.checkpoints.keep import DELETING, INDEX
from enn_trainer.checkpoints.pins import PINS
from enn_trainer.checkpoints.plain_file import plain_file
from enn_trainer.errors import CheckpointError
from entity_env.plain_open import open_plain

LOCK = ".lock"
MAX_LOCK_BYTES = 4096
_LEFTOVER = re.compile(
    rf"({'|'.join(map(re.escape, (WRITING, DELETING, SUPERSEDED)))})step-\d+-\d+"
)
_UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


@final
class RunLock:
    """Lock on the folder of a run; see `run_lock`.

    Args:
        run_dir: the folder, which is there.
        say: is told if the file system has no locks.

    Raises:
        CheckpointError: another process has it, or the lock cannot be written.
    """

    def __init__(self, run_dir: Path, say: Callable[[str], None]) -> None:
        self._shown, self._say = run_dir, say
        self._run_dir = run_dir.absolute()  # an environment may change the current folder
        self._path = self._run_dir / LOCK
        self._lock = self._taken()

    @property
    def is_current(self) -> bool:
        """True while the path still leads to the file that is locked."""
        return _is_at(self._lock.descriptor, self._path)

    def renew(self, foreign_save: Callable[[], str | None]) -> None:
        """Take the lock again, and make the folder again, after one of them was removed.

        Args:
            foreign_save: returns the name of a save in the folder that is not of this run, or None.

        Raises:
            CheckpointError: another process was faster, or they cannot be made.
        """
        make_run_dir(self._run_dir)
        try:
            lock = self._taken()
        except LockTaken as error:
            raise self._lost(f"{error.owner} trains there now") from None
        name = foreign_save()
        if name is not None:
            lock.close()
            raise self._lost(f"another process saved {name} there")
        self.close()
        self._lock = lock

    def close(self) -> None:
        """Let others have the folder."""
        self._lock.close()

    def _lost(self, how: str) -> CheckpointError:
        return CheckpointError(
            f"{self._shown}: this folder, or {LOCK} in it, was removed during the run, and {how}; "
            "this run ends, and saves nothing more there"
        )

    def _taken(self) -> FileLock:
        """Return the lock file, locked."""
        while True:
            with disk.naming(self._path):
                lock = FileLock(open_plain(self._path, os.O_RDWR | os.O_CREAT))
            try:
                if _is_locked(lock, self._shown, self._say):
                    if not _is_at(lock.descriptor, self._path):  # removed between the two
                        lock.close()
                        continue
                    _sign(lock.descriptor)
                    with locked(self._run_dir):  # a save may be pinned meanwhile, without this lock
                        _remove_leftovers(self._run_dir)
            except BaseException:
                lock.close()
                raise
            return lock


@contextmanager
def run_lock(run_dir: Path, say: Callable[[str], None] = print) -> Iterator[RunLock]:
    """Have the folder of a run for oneself; what dead processes left half done is removed.

    Reading saves needs no lock.

    Args:
        run_dir: the folder, which is there.
        say: is told if the file system has no locks.

    Raises:
        CheckpointError: another process has it, or the lock cannot be written.
    """
    with run_claim.claim(run_dir) as is_free:
        if not is_free:
            raise LockTaken(run_dir, _owner_of(run_dir / LOCK))
        lock = RunLock(run_dir, say)
        try:
            yield lock
        finally:
            lock.close()


class LockTaken(CheckpointError):  # noqa: N818 (it is the state of the lock)
    """Another process has the folder of a run.

    Attributes:
        owner: in words.
    """

    def __init__(self, run_dir: Path, owner: str) -> None:
        self.owner = owner.rstrip(",")
        super().__init__(
            f"{run_dir}: expected a run that nobody trains, {owner} does; wait for its end, or "
            "give another --checkpoint-dir"
        )


def _is_at(descriptor: int, path: Path) -> bool:
    """Return whether a path leads to an open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except OSError:
        return False


def _is_locked(lock: FileLock, run_dir: Path, say: Callable[[str], None]) -> bool:
    """Take the lock; False where there are none."""
    try:
        lock.acquire(wait=False)
    except BlockingIOError:
        raise LockTaken(run_dir, _owner(lock.descriptor)) from None
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


def _owner_of(path: Path) -> str:
    try:
        with plain_file(path) as file:
            return _owner(file.fileno())
    except CheckpointError:  # the file was removed
        return "another process"
