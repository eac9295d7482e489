"""A lock on an open file that the system releases with its process."""

import contextlib
import fcntl
import os

from entity_env.forked_children import close_in_children


class FileLock:
    """An exclusive lock on a file or folder. Children of this process do not hold it.

    Args:
        descriptor: of the open file, which is closed with the lock.

    Attributes:
        descriptor: of the open file; -1 once it is closed.
    """

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        close_in_children(self)

    def acquire(self, wait: bool = True) -> None:
        """Take the lock.

        Args:
            wait: until another process releases it.

        Raises:
            BlockingIOError: another process has it, and `wait` is False.
            OSError: the file system has no locks.
        """
        fcntl.flock(self.descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))

    def close(self) -> None:
        """Release the lock and close the file. Safe to call twice."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor < 0:
            return
        with contextlib.suppress(OSError):  # there are no locks, so none was taken
            fcntl.flock(
                descriptor, fcntl.LOCK_UN
            )  # a child may have a copy of the file all the same
        os.close(descriptor)

    def close_in_child(self) -> None:
        """Close the file alone: to unlock it here would unlock it for the parent."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
