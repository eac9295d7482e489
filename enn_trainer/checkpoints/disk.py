"""File operations of checkpoints: durable writes and safe reads.

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
"""Size limit of a text file; a thousand times the size of a configuration."""
UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EOPNOTSUPP)
"""Error codes of operations that the system or the file system does not support."""


@contextmanager
def naming(path: Path | str, what: str = "cannot be written") -> Iterator[None]:
    """Convert an `OSError` within the context to a `CheckpointError` that names the path."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{path}: {what}: {error.strerror or error}") from None


def make_run_dir(run_dir: Path) -> None:
    """Create the folder of a run and check that it is writable.

    Raises:
        CheckpointError: it cannot be created or written to.
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
    """Create a folder; its parent must exist."""
    with naming(path):
        os.mkdir(path)  # noqa: PTH102 (a test lets each call of this module fail)


def write_file(path: Path, data: bytes) -> None:
    """Write a new file and flush it to the disk."""
    with naming(path):  # O_EXCL: never overwrite a file or follow a link
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def link_file(source: Path, target: Path) -> bool:
    """Create a hard link to a file.

    Returns:
        False if the file system has no hard links.
    """
    try:
        os.link(source, target, follow_symlinks=False)
    except OSError:
        return False
    return True


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file atomically."""
    temporary = path.with_name(f".{path.name}-{os.getpid()}")  # see `is_leftover_of`
    remove(temporary)
    try:
        write_file(temporary, data)
        rename(temporary, path)
    except CheckpointError:
        remove(temporary)
        raise


def is_leftover_of(name: str, files: Collection[str]) -> bool:
    """Return True for the temporary file of a killed `replace_file` of one of the files."""
    match = re.fullmatch(r"\.(.+)-\d+", name)
    return match is not None and match[1] in files


def sync_dir(path: Path) -> None:
    """Flush the entries of a folder to the disk."""
    with naming(path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def rename(source: Path, target: Path) -> None:
    """Rename a file or folder within its parent folder."""
    with naming(target):
        os.rename(source, target)  # noqa: PTH104 (as above)


def exchange(first: Path, second: Path) -> bool:
    """Swap two folders atomically.

    Returns:
        False if the system or the file system does not support it.
    """
    with naming(second):
        libc = ctypes.CDLL(None, use_errno=True)  # Python does not expose these functions
        names = os.fsencode(first), os.fsencode(second)
        if sys.platform == "darwin":
            RENAME_SWAP = 2  # noqa: N806 (as in stdio.h)
            status = libc.renamex_np(names[0], names[1], RENAME_SWAP)
        elif hasattr(libc, "renameat2"):  # missing in some C libraries of Linux
            AT_FDCWD, RENAME_EXCHANGE = -100, 2  # noqa: N806 (as in fcntl.h and stdio.h)
            status = libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)
        else:
            return False
        error = ctypes.get_errno()
        if status != 0 and error not in UNSUPPORTED:
            raise OSError(error, os.strerror(error))
        return bool(status == 0)


def remove(path: Path) -> None:
    """Remove a file or a folder with its content, ignoring errors."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


@contextmanager
def plain_file(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading while the context is open.

    Raises:
        CheckpointError: it cannot be read, or is a link, or a pipe or device that could block.
    """
    with naming(path, "cannot be read"), read_plain(path) as file:
        yield file


def size_of(file: BinaryIO) -> int:
    """Return the size of an open file in bytes."""
    return os.fstat(file.fileno()).st_size


def size_of_all(path: Path) -> int:
    """Return the size of a file, or of all files in a folder, in bytes."""
    within = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    total = 0
    for file in [path, *within]:
        with suppress(OSError):
            total += file.lstat().st_size if file.is_file() else 0
    return total


def read_plain_file(path: Path, most_bytes: int) -> bytes:
    """Return the content of a file.

    Raises:
        CheckpointError: as for `plain_file`; or the file is larger than `most_bytes`.
    """
    with plain_file(path) as file:
        if size_of(file) > most_bytes:
            raise CheckpointError(
                f"{path}: expected at most {most_bytes} bytes, got {size_of(file)}"
            )
        return file.read()
