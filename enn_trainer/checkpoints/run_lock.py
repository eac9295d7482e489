"""Locks on the folder of a run; the system releases all of them when the process dies.

The training process locks the file `.lock`. As that file can be removed, alone or with its folder,
the process also claims the folder on Linux. Changes of pins, deletions and replacements of
checkpoints lock the folder itself for their duration.
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
    """Exclusive open file, folder or socket, which child processes do not inherit.

    Args:
        descriptor: descriptor of the open file, which is closed with the lock.

    Attributes:
        descriptor: descriptor of the open file; -1 once it is closed.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        close_in_children(self)

    def close(self) -> None:
        """Release the lock and close the file. Safe to call twice."""
        with suppress(OSError, ValueError):  # no locks, or closed already
            # A child may have a copy of the descriptor, which would keep the lock.
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        self.close_in_child()

    def close_in_child(self) -> None:
        """Close the file without unlocking it, which would unlock it for the parent too."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


@contextmanager
def folder_lock(run_dir: Path) -> Iterator[None]:
    """Lock the pins and checkpoints of a run against changes by other processes.

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
    """Lock of the process that trains in the folder of a run, acquired on construction.

    Args:
        run_dir: the folder, which exists.
        clean_up: removes leftovers of dead processes from the folder.
        say: prints a line if the file system has no locks.

    Raises:
        LockTaken: another process has the lock.
        CheckpointError: the lock file cannot be written.
    """

    def __init__(
        self, run_dir: Path, clean_up: Callable[[Path], None], say: Callable[[str], None]
    ) -> None:
        self._display_dir, self._clean_up, self._say = run_dir, clean_up, say
        self._run_dir = run_dir.absolute()  # an environment may change the current folder
        self._path = self._run_dir / LOCK
        with ExitStack() as stack:
            if not stack.enter_context(claim(run_dir)):
                raise LockTaken(run_dir, self._path)
            self._lock = self._acquire()
            self._claim = stack.pop_all()

    @property
    def is_current(self) -> bool:
        """True while the path still leads to the locked file."""
        return _is_at(self._lock.descriptor, self._path)

    def renew(self, foreign_save: Callable[[], str | None]) -> None:
        """Recreate and relock the folder after it or the lock file was removed.

        Args:
            foreign_save: returns the name of a checkpoint in the folder that another process saved,
                or None.

        Raises:
            CheckpointError: another process was faster, or the files cannot be created.
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
        """Release the folder."""
        self._lock.close()
        self._claim.close()

    def _lost(self, how: str) -> CheckpointError:
        return CheckpointError(
            f"{self._display_dir}: this folder, or {LOCK} in it, was removed during the run, and "
            f"{how}; this run ends without saving there again"
        )

    def _acquire(self) -> FileLock:
        """Lock and sign the lock file, clean up the folder, and return the lock."""
        while True:
            # Open and lock the file.
            with disk.naming(self._path):
                lock = FileLock(open_plain(self._path, os.O_RDWR | os.O_CREAT))
            with ExitStack() as on_error:
                on_error.callback(lock.close)
                try:
                    fcntl.flock(lock.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    raise LockTaken(self._display_dir, self._path) from None
                except OSError as error:
                    if error.errno not in (errno.ENOLCK, *disk.UNSUPPORTED):
                        raise CheckpointError(
                            f"{self._display_dir / LOCK}: cannot be locked: {error.strerror}"
                        ) from None
                    self._say(
                        f"{self._display_dir}: this file system has no locks ({error.strerror}); "
                        "make sure that no other process trains there"
                    )
                else:
                    # Sign it and clean up; retry if it was removed meanwhile.
                    if not _is_at(lock.descriptor, self._path):
                        continue
                    _sign(lock.descriptor)
                    with folder_lock(self._run_dir):  # against `pin`, which has no other lock
                        self._clean_up(self._run_dir)
                on_error.pop_all()
                return lock


def is_locked(run_dir: Path) -> bool:
    """Return True if a process trains in a folder; always False without file locks."""
    with suppress(OSError), closing(FileLock(open_plain(run_dir / LOCK, os.O_RDONLY))) as lock:
        try:
            fcntl.flock(lock.descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


class LockTaken(CheckpointError):  # noqa: N818 (it is the state of the lock)
    """Raised if another process trains in the folder of a run.

    Args:
        run_dir: the folder, for the message.
        lock: path of the lock file, which names the owner.

    Attributes:
        owner: the other process, for messages.
    """

    def __init__(self, run_dir: Path, lock: Path) -> None:
        self.owner, comma = "another process", ""
        # The file may be removed, or not signed yet.
        with suppress(ValueError, KeyError, TypeError, RecursionError):
            owner = json.loads(disk.read_plain_file(lock, MAX_LOCK_BYTES))
            self.owner = f"process {owner['pid']} on {owner['host']}, since {owner['start']}"
            comma = ","
        super().__init__(
            f"{run_dir}: expected a run that is not locked, {self.owner}{comma} trains it; wait "
            "for its end, or use another --checkpoint-dir"
        )


@contextmanager
def claim(run_dir: Path) -> Iterator[bool]:
    """Claim a folder among the processes of this machine while the context is open.

    A claim is the name of an abstract Unix socket. It cannot be removed, and the system frees it
    when the process dies. It is not visible on other machines, nor in containers with a separate
    network namespace.

    Args:
        run_dir: the folder, which may not exist; its parent must.

    Yields:
        False if another process has the claim. Always True on other systems than Linux.
    """
    if sys.platform != "linux":
        yield True
        return
    # A path survives recreation of its folders; the inode of the parent survives links, mounts and
    # renames of the folders on the path.
    path = run_dir.resolve()
    root = Path(path.anchor)
    # Links on the absolute path may change.
    keys = (path.parent, path.name), (root, str(path)), (root, str(run_dir.absolute()))
    names = set()
    for folder, relative in keys:
        status = folder.stat()
        key = f"{status.st_dev}:{status.st_ino}:".encode() + os.fsencode(relative)
        # A digest, as an address has 107 bytes at most.
        names.add(b"\0enn-trainer " + hashlib.sha256(key).hexdigest().encode())
    with ExitStack() as claims:
        # Sorted, so that one of two simultaneous processes gets all names.
        yield all(_bind(name, claims) for name in sorted(names))


def _bind(name: bytes, stack: ExitStack) -> bool:
    """Bind a socket to a name until the stack is closed; return False if the name is in use."""
    sock = socket.socket(socket.AF_UNIX)
    stack.callback(FileLock(sock.fileno()).close)  # before it is bound, as children inherit it
    try:
        sock.bind(name)
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    finally:
        sock.detach()
    return True


def _is_at(descriptor: int, path: Path) -> bool:
    """Return True if a path leads to the open file of a descriptor."""
    try:
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    except OSError:
        return False


def _sign(descriptor: int) -> None:
    """Write the owner into the lock file, for error messages only; a full disk is ignored."""
    start = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    owner = {"pid": os.getpid(), "host": socket.gethostname(), "start": start}
    with suppress(OSError):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(owner).encode(), 0)
