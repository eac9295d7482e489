"""Writing to the disk: everything of the store that can fail for want of room goes through here.

Each function raises a `CheckpointError` that names the file and the reason.
"""

import ctypes
import errno
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from enn_trainer.errors import CheckpointError


@contextmanager
def naming(path: Path, what: str = "cannot be written") -> Iterator[None]:
    """Turn an error of the system into one that names a path.

    Raises:
        CheckpointError: the system refused what was done within the context.
    """
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: {what}: {error.strerror or error}") from None


def make_dir(path: Path) -> None:
    """Make a folder in one that is there."""
    with naming(path):
        os.mkdir(path)  # noqa: PTH102 (a test lets each call of this module fail)


def write_file(path: Path, data: bytes) -> None:
    """Write a file that is not there yet; it is on the disk when this returns."""
    with naming(path):  # O_EXCL: nothing in its place is written to, nor what a link leads to
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, in place of the one that is there."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")  # see `is_leftover_of`
    remove(temporary)
    try:
        write_file(temporary, data)
        rename(temporary, path)
    except CheckpointError:
        remove(temporary)
        raise


def is_leftover_of(name: str, files: Collection[str]) -> bool:
    """Whether `replace_file` of one of these files leaves such a name behind if it is killed."""
    match = re.fullmatch(r"\.(.+)-\d+", name)
    return match is not None and match[1] in files


def sync_dir(path: Path) -> None:
    """Put the names in a folder on the disk."""
    with naming(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Give a file or folder another name in the same folder."""
    with naming(target):
        os.rename(source, target)  # noqa: PTH104 (as above)


def exchange(one: Path, other: Path) -> bool:
    """Swap the names of two folders in one step.

    Returns:
        Whether it was done; False where the system or the file system cannot do it.
    """
    with naming(other):
        error = _swap_names(os.fsencode(one), os.fsencode(other))
        if error in (0, *_CANNOT_SWAP):
            return error == 0
        raise OSError(error, os.strerror(error))


_CANNOT_SWAP = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)


def _swap_names(one: bytes, other: bytes) -> int:
    """Call the system's function for it, which Python does not have; return its error or 0."""
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "darwin":
        RENAME_SWAP = 2  # noqa: N806 (as in stdio.h)
        status = libc.renamex_np(one, other, RENAME_SWAP)
    elif hasattr(libc, "renameat2"):  # not of every C library of Linux
        AT_FDCWD, RENAME_EXCHANGE = -100, 2  # noqa: N806 (as in fcntl.h and stdio.h)
        status = libc.renameat2(AT_FDCWD, one, AT_FDCWD, other, RENAME_EXCHANGE)
    else:
        return errno.ENOSYS
    return 0 if status == 0 else ctypes.get_errno()


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, as far as the system lets us."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)
