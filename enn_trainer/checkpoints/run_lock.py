"""Locks on the folder of a run, all of which the system releases when the process dies.

The process that trains holds a lock on the file `.lock`. The file can be removed, also with the
folder, while the process goes on; so on Linux it claims the folder as well. Whoever changes pins,
or deletes or replaces saves, holds a lock on the folder itself for that moment.
"""

import errno
import fcntl
import hashlib
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import final

from enn_trainer.base.errors import CheckpointError
from enn_trainer.checkpoints import disk
from entity_env.process import close_in_children
from entity_env.serialization.plain_open import open_plain

LOCK = ".lock"
MAX_LOCK_BYTES = 4096


class FileLock:
    """Open file, folder or socket that only one process has, and children of this one do not keep.

    Args:
        descriptor: of the open file, which is closed with the lock.

    Attributes:
        descriptor: of the open file; -1 once it is closed.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        close_in_children(self)

    def close(self) -> None:
        """Release the lock and close the file. Safe to call twice."""
        with suppress(OSError, ValueError):  # no locks; or it is closed
            # A child may have a copy of the file, which would keep the lock.
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        self.close_in_child()

    def close_in_child(self) -> None:
        """Close the file alone: to unlock it here would unlock it for the parent."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


@contextmanager
def folder_lock(run_dir: Path) -> Iterator[None]:
    """Keep all others from changing the pins of a run, and from deleting or replacing its saves.

    Raises:
        CheckpointError: there is no such folder.
    """
    with disk.naming(run_dir, "expected the folder of a run"):
        folder = FileLock(os.open(run_dir, os.O_RDONLY | os.O_DIRECTORY))
    with closing(folder):
        with suppress(OSError):  # the file system has no locks
            fcntl.flock(folder.descriptor, fcntl.LOCK_EX)
        yield


@final
class RunLock:
    """Lock of the process that trains in the folder of a run, taken when it is made.

    Args:
        run_dir: the folder, which exists.
        clean_up: removes from the folder what dead processes left half done.
        say: prints a line if the file system has no locks.

    Raises:
        LockTaken: another process has it.
        CheckpointError: the lock file cannot be written.
    """

    def __init__(
        self, run_dir: Path, clean_up: Callable[[Path], None], say: Callable[[str], None]
    ) -> None:
        self._shown, self._clean_up, self._say = run_dir, clean_up, say
        self._run_dir = run_dir.absolute()  # an environment may change the current folder
        self._path = self._run_dir / LOCK
        with ExitStack() as stack:
            if not stack.enter_context(claim(run_dir)):
                raise LockTaken(run_dir, self._path)
            self._lock = self._acquire()
            self._claim = stack.pop_all()

    @property
    def is_current(self) -> bool:
        """True while the path still leads to the file that is locked."""
        return _is_at(self._lock.descriptor, self._path)

    def renew(self, foreign_save: Callable[[], str | None]) -> None:
        """Make the folder again, and lock it again, after it or the lock file was removed.

        Args:
            foreign_save: returns the name of a save in the folder that is not of this run, or None.

        Raises:
            CheckpointError: another process was faster, or they cannot be made.
        """
        disk.make_run_dir(self._run_dir)
        try:
            lock = self._acquire()
        except LockTaken as error:
            raise self._lost(f"{error.owner} trains there now") from None
        name = foreign_save()
        if name is not None:
            lock.close()
            raise self._lost(f"another process saved {name} there")
        self._lock.close()
        self._lock = lock

    def close(self) -> None:
        """Let others have the folder."""
        self._lock.close()
        self._claim.close()

    def _lost(self, how: str) -> CheckpointError:
        return CheckpointError(
            f"{self._shown}: this folder, or {LOCK} in it, was removed during the run, and {how}; "
            "this run ends, and saves nothing more there"
        )

    def _acquire(self) -> FileLock:
        """Return the lock file, locked and signed, after cleaning up the folder."""
        while True:
            # Open and lock the file.
            with disk.naming(self._path):
                lock = FileLock(open_plain(self._path, os.O_RDWR | os.O_CREAT))
            with ExitStack() as on_error:
                on_error.callback(lock.close)
                try:
                    fcntl.flock(lock.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise LockTaken(self._shown, self._path) from None
                except OSError as error:
                    if error.errno not in (errno.ENOLCK, *disk.UNSUPPORTED):
                        raise CheckpointError(
                            f"{self._shown / LOCK}: cannot be locked: {error.strerror}"
                        ) from None
                    self._say(
                        f"{self._shown}: this file system has no locks ({error.strerror}); make "
                        "sure that no other process trains there"
                    )
                else:
                    # Sign it, unless it was removed meanwhile, and clean up.
                    if not _is_at(lock.descriptor, self._path):
                        continue
                    _sign(lock.descriptor)
                    with folder_lock(self._run_dir):  # pinning needs no lock but this
                        self._clean_up(self._run_dir)
                on_error.pop_all()
                return lock


def is_locked(run_dir: Path) -> bool:
    """Return True if a process trains in a folder, as far as the file system has locks."""
    with suppress(OSError), closing(FileLock(open_plain(run_dir / LOCK, os.O_RDONLY))) as lock:
        try:
            fcntl.flock(lock.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class LockTaken(CheckpointError):  # noqa: N818 (it is the state of the lock)
    """Another process trains in the folder of a run.

    Args:
        run_dir: the folder, for the message.
        lock: the path of the lock file, which has the owner.

    Attributes:
        owner: that process, for messages.
    """

    def __init__(self, run_dir: Path, lock: Path) -> None:
        self.owner, comma = "another process", ""
        # The file may have been removed, or is not signed yet.
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            owner = json.loads(disk.read_plain_file(lock, MAX_LOCK_BYTES))
            self.owner = f"process {owner['pid']} on {owner['host']}, since {owner['start']}"
            comma = ","
        super().__init__(
            f"{run_dir}: expected a run that nobody trains, {self.owner}{comma} does; wait for its "
            "end, or give another --checkpoint-dir"
        )


@contextmanager
def claim(run_dir: Path) -> Iterator[bool]:
    """Claim a folder among the processes of this machine while the context is open.

    A claim is a name of Linux's abstract sockets. Nobody can remove it, and the system frees it
    when the process dies. The processes of other machines do not see it, nor do those of
    containers with a network of their own.

    Args:
        run_dir: the folder, which need not exist; its parent does.

    Yields:
        False if another process has the claim. True elsewhere than on Linux.
    """
    if sys.platform != "linux":
        yield True
        return
    # A path stays the same when the folders on the way are made again. The parent folder itself is
    # found again behind links, mounts and other names of the folders on the way.
    path = run_dir.resolve()
    root = Path(path.anchor)
    # The links of the absolute path may change.
    keys = (path.parent, path.name), (root, str(path)), (root, str(run_dir.absolute()))
    names = set()
    for folder, rest in keys:
        status = folder.stat()
        key = f"{status.st_dev}:{status.st_ino}:".encode() + os.fsencode(rest)
        # A digest, as an address has 107 bytes at most.
        names.add(b"\0enn-trainer " + hashlib.sha256(key).hexdigest().encode())
    with ExitStack() as held:
        # In order, so that of two processes that begin at once one gets all that both want.
        yield all(_bind(name, held) for name in sorted(names))


def _bind(name: bytes, stack: ExitStack) -> bool:
    """Hold a name until the stack is closed; return False if another process holds it."""
    named = socket.socket(socket.AF_UNIX)
    stack.callback(FileLock(named.fileno()).close)  # before it has a name that a child could keep
    try:
        named.bind(name)
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    finally:
        named.detach()
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Return True if a path leads to an open file."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except OSError:
        return False


def _sign(descriptor: int) -> None:
    """Write who has the lock; only for people, so that a full disk does not matter."""
    start = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "start": start}
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)
