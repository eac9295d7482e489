"""Claim on the name of a run's folder among the processes of this machine.

The lock file of a run can be removed, also with its folder, while its process goes on. A name of
Linux's abstract sockets cannot, and the system frees it when the process dies. The processes of
other machines do not see it, nor do those of containers with a network of their own.
"""

import errno
import os
import socket
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HELD: weakref.WeakSet[socket.socket] = weakref.WeakSet()


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
    with socket.socket(socket.AF_UNIX) as held:
        _HELD.add(held)
        is_free = True
        try:
            held.bind(name[:107])  # as many bytes as an address may have
        except OSError as error:
            is_free = error.errno != errno.EADDRINUSE
        yield is_free


def _close_in_child() -> None:
    for held in list(_HELD):
        held.close()


os.register_at_fork(after_in_child=_close_in_child)
