"""Claim on the name of a run's folder among the processes of this machine.

The lock file of a run can be removed, also with its folder, while its process goes on. A name of
Linux's abstract sockets cannot, and the system frees it when the process dies. The processes of
other machines do not see it, nor do those of containers with a network of their own.
"""

import errno
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from entity_env.forked_children import close_in_children


class _NameHolder(socket.socket):
    """A socket whose name is not kept alive by forked children."""

    def close_in_child(self) -> None:
        """Close the copy of a forked child; the name stays its parent's."""
        self.close()


@contextmanager
def claim(run_dir: Path) -> Iterator[bool]:
    """Hold the claim on a folder while the context is open.

    Args:
        run_dir: the folder, which need not be there; the one that it is in is.

    Yields:
        False if another process holds it. True elsewhere than on Linux.
    """
    if sys.platform != "linux":
        yield True
        return
    path = run_dir.resolve()
    parent = path.parent.stat()
    name = f"\0enn-trainer {parent.st_dev}:{parent.st_ino}:".encode() + os.fsencode(path.name)
    with _NameHolder(socket.AF_UNIX) as held:
        close_in_children(held)
        is_free = True
        try:
            held.bind(name[:107])  # as many bytes as an address may have
        except OSError as error:
            is_free = error.errno != errno.EADDRINUSE
        yield is_free
