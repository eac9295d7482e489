"""Opening of files in untrusted folders, without following links or waiting for pipes."""

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_plain(path: Path, flags: int) -> int:
    """Open a regular file and return its descriptor.

    Args:
        path: path of the file; its parent folders may be links.
        flags: flags of `os.open`. A new file has the default permissions of umask.

    Raises:
        OSError: the path is a link, a pipe or a device, or cannot be opened.
    """
    try:
        descriptor = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
    except OSError as error:
        if error.errno == errno.ELOOP:
            message = "expected a regular file, got a link; replace the link by its target"
            raise OSError(errno.ELOOP, message, str(path)) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    raise OSError(errno.EINVAL, "expected a regular file, got a pipe or a device", str(path))


def read_plain(path: Path) -> BinaryIO:
    """Open a regular file for reading; raises like `open_plain`."""
    return os.fdopen(open_plain(path, os.O_RDONLY), "rb")


def append_plain(path: Path) -> BinaryIO:
    """Open or create a regular file for appending; raises like `open_plain`."""
    return os.fdopen(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND), "ab")


def new_file(path: Path) -> BinaryIO:
    """Create a file for writing; an existing file or link at the path is removed.

    Raises:
        OSError: the file cannot be created, or the path is a folder.
    """
    path.unlink(missing_ok=True)
    return os.fdopen(open_plain(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL), "wb")


def replace_file(path: Path, data: bytes, temporary: Path) -> None:
    """Write a file atomically; a link at the path is replaced, not followed.

    Args:
        path: path of the file.
        data: content.
        temporary: path of the incomplete file, in the same folder.

    Raises:
        OSError: the file cannot be written; an existing file is unchanged.
    """
    try:
        with new_file(temporary) as file:
            file.write(data)
        temporary.replace(path)
    except BaseException:
        if not temporary.is_dir():
            temporary.unlink(missing_ok=True)
        raise
