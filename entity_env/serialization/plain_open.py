"""Opening of files in untrusted folders: no link is followed, no pipe waited for."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_plain(path: Path, flags: int) -> int:
    """Open a regular file and return its descriptor.

    Args:
        path: of the file; folders on the way to it may be links.
        flags: of `os.open`. The permissions of a new file are those of umask.

    Raises:
        OSError: there is a link in its place, which may lead anywhere, or a pipe or a device; or
            the system does not allow it.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            message = "expected a file of its own, got a link; put what it leads to in its place"
            raise OSError(errno.ELOOP, message, str(path)) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "expected a file of its own, got a pipe or a device", str(path))


def read_plain(path: Path) -> BinaryIO:
    """Open a regular file to read it; raises as `open_plain`."""
    return os.fdopen(open_plain(path, os.O_RDONLY), "rb")


def append_plain(path: Path) -> BinaryIO:
    """Open a regular file to append to it, which is made if it is not there; as `open_plain`."""
    return os.fdopen(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")


def new_file(path: Path) -> BinaryIO:
    """Create a file and open it to write; another of its name is removed, a link not followed.

    Raises:
        OSError: the system does not allow it, or there is a folder in its place.
    """
    path.unlink(missing_ok=True)
    return os.fdopen(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")


def replace_file(path: Path, data: bytes, temporary: Path) -> None:
    """Write a file completely or not at all; a link in its place is replaced, not followed.

    Args:
        path: of the file.
        data: the content.
        temporary: its path until it is complete, in the same folder.

    Raises:
        OSError: it cannot be written; what was there is as it was.
    """
    try:
        with new_file(temporary) as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        if not temporary.is_dir():
            temporary.unlink(missing_ok=True)
        raise
