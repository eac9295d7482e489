"""Files of saves: every operation that can fail on a full disk, and safe reading.

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
from typing import BinaryIO

from enn_trainer.base.errors import CheckpointError
from entity_env.serialization.plain_open import read_plain

MAX_TEXT_BYTES = 1 << 22
"""Limit of a readable file such as a configuration; a thousand times the size of one."""
UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
"""Errors of operations that the system or the file system does not have."""


@contextmanager
def naming(path: Path | str, what: str = "cannot be written") -> Iterator[None]:
    """Raise errors of the system within the context as ones that name a path.

    Raises:
        CheckpointError: there was one.
    """
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: {what}: {error.strerror or error}") from None


def make_run_dir(run_dir: Path) -> None:
    """Make the folder of a run, before time is spent on the run.

    Raises:
        CheckpointError: it cannot be made or written to.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        if not os.access(run_dir, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise CheckpointError(
            f"--checkpoint-dir: expected a folder to write to, got {run_dir} ({error.strerror})"
        ) from None


def make_dir(path: Path) -> None:
    """Make a folder in one that exists."""
    with naming(path):
        os.mkdir(path)  # noqa: PTH102 (a test lets each call of this module fail)


def write_file(path: Path, data: bytes) -> None:
    """Write a file that does not exist yet; it is on the disk when this returns."""
    with naming(path):  # O_EXCL: nothing in its place is written to, nor what a link leads to
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def link_file(source: Path, target: Path) -> bool:
    """Give a file a second name, which shares its bytes.

    Returns:
        False where that is not possible, as on file systems without links.
    """
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        return False
    return True


def replace_file(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, in place of the one that exists."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")  # see `is_leftover_of`
    remove(temporary)
    try:
        write_file(temporary, data)
        rename(temporary, path)
    except CheckpointError:
        remove(temporary)
        raise


def is_leftover_of(name: str, files: Collection[str]) -> bool:
    """Return True if `replace_file` of one of the files leaves such a name when it is killed."""
    match = re.fullmatch(r"\.(.+)-\d+", name)
    return match is not None and match[1] in files


def sync_dir(path: Path) -> None:
    """Flush the names in a folder to the disk."""
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
        False where the system or the file system cannot do it.
    """
    with naming(other):
        libc = ctypes.CDLL(None, use_errno=True)  # Python does not have its functions for this
        names = os.fsencode(one), os.fsencode(other)
        if sys.platform == "darwin":
            RENAME_SWAP = 2  # noqa: N806 (as in stdio.h)
            status = libc.renamex_np(names[0], names[1], RENAME_SWAP)
        elif hasattr(libc, "renameat2"):  # not of every C library of Linux
            AT_FDCWD, RENAME_EXCHANGE = -100, 2  # noqa: N806 (as in fcntl.h and stdio.h)
            status = libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)
        else:
            return False
        error = ctypes.get_errno()
        if status != 0 and error not in UNSUPPORTED:
            raise OSError(error, os.strerror(error))
        return bool(status == 0)


def remove(path: Path) -> None:
    """Remove a file, or a folder with all that is in it, as far as the system allows."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


@contextmanager
def plain_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading while the context is open.

    Raises:
        CheckpointError: it cannot be read, or is a link, which may lead anywhere, or something that
            would be waited for, such as a pipe.
    """
    with naming(path, "cannot be read"), read_plain(path) as file:
        yield file


def size_of(file: BinaryIO) -> int:
    """Return the number of bytes of an open file."""
    return os.fstat(file.fileno()).st_size


def size_of_all(path: Path) -> int:
    """Return the bytes of a file, or of all files in a folder that still exist."""
    within = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    total = 0
    for file in [path, *within]:
        with suppress(OSError):
            total += file.lstat().st_size if file.is_file() else 0
    return total


def read_plain_file(path: Path, most_bytes: int) -> bytes:
    """Return the bytes of a file.

    Raises:
        CheckpointError: as for `plain_file`; or it is larger than `most_bytes`.
    """
    with plain_file(path) as file:
        if size_of(file) > most_bytes:
            raise CheckpointError(f"{path}: larger than it can be, {most_bytes} bytes")
        return file.read()
