"""Claim on a run's folder among the processes of this machine.

The lock file of a run can be removed, also with its folder, while its process goes on. A name of
Linux's abstract sockets cannot, and the system frees it when the process dies. The processes of
other machines do not see it, nor do those of containers with a network of their own.
"""

import errno
import hashlib
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
    with ExitStack() as held:
        # In order, so that of two processes that begin at once one gets all that both want.
        yield all(_is_bound(name, held) for name in sorted(_socket_names(run_dir)))


def _socket_names(run_dir: Path) -> set[bytes]:
    """Return the names that a folder is claimed by.

    A path stays the same when the folders on the way are made again. The parent folder itself is
    found again behind links, mounts and other names of the folders on the way.
    """
    path = run_dir.resolve()
    return {
        _socket_name(path.parent, path.name),
        _socket_name(Path(path.anchor), str(path)),
        _socket_name(Path(path.anchor), str(run_dir.absolute())),  # its links may change
    }


def _socket_name(folder: Path, path: str) -> bytes:
    """Return the name of a socket for a path that begins in a folder."""
    status = folder.stat()
    key = f"{status.st_dev}:{status.st_ino}:".encode() + os.fsencode(path)
    # A digest, as an address has 107 bytes at most.
    return b"\0enn-trainer " + hashlib.sha256(key).hexdigest().encode()


def _is_bound(name: bytes, stack: ExitStack) -> bool:
    """Hold a name until the stack is closed; False if another process holds it."""
    held = stack.enter_context(_NameHolder(socket.AF_UNIX))
    close_in_children(held)
    try:
        held.bind(name)
    except OSError as error:
        return error.errno != errno.EADDRINUSE
    return True
