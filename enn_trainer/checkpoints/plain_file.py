"""Safe reading of files of saves: no link is followed, no pipe waited for, no pickle opened."""

import errno
import os
import stat
import weakref
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, final

from safetensors import SafetensorError

from enn_trainer.errors import CheckpointError

MAX_TEXT_BYTES = 1 << 22
"""Limit of a readable file such as a configuration; a thousand times the size of one."""

MAX_HEADER_BYTES = 1 << 22
"""Limit of the header of a safetensors file: a hundred bytes for each tensor."""

_PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".dill")


@contextmanager
def plain_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file for reading while the context is open.

    Raises:
        CheckpointError: it cannot be read, or is a link, which may lead anywhere, or something that
            would be waited for, such as a pipe.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        with os.fdopen(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise CheckpointError(f"{path}: cannot be read: expected a file of its own")
            yield file
    except OSError as error:
        reason = error.strerror
        if error.errno == errno.ELOOP:
            reason = "expected a file of its own, got a link; put what it leads to in its place"
        raise CheckpointError(f"{path}: cannot be read: {reason}") from None


@final
class OpenFiles:
    """Files of a folder, held open, so that they can be read after they are deleted.

    They are closed with the last reference to the object.

    Args:
        folder: where they are.
        names: of the files.

    Raises:
        CheckpointError: as for `plain_file`.
    """

    def __init__(self, folder: Path, names: Iterable[str]) -> None:
        with ExitStack() as stack:
            self._files = {name: stack.enter_context(plain_file(folder / name)) for name in names}
            self._close = weakref.finalize(self, stack.pop_all().close)

    @property
    def is_closed(self) -> bool:
        """True once the files can no longer be read."""
        return not self._close.alive

    def rewound(self, name: str) -> BinaryIO:
        """Return a file, at its beginning."""
        self._files[name].seek(0)
        return self._files[name]

    def close(self) -> None:
        """Close the files."""
        self._close()


def size_of(file: BinaryIO) -> int:
    """Return the number of bytes of an open file."""
    return os.fstat(file.fileno()).st_size


def read_plain_file(path: Path, most_bytes: int) -> bytes:
    """Return the bytes of a file.

    Raises:
        CheckpointError: as for `plain_file`; or it is larger than `most_bytes`.
    """
    with plain_file(path) as file:
        if size_of(file) > most_bytes:
            raise CheckpointError(f"{path}: larger than it can be, {most_bytes} bytes")
        return file.read()


def check_tensor_header(data: bytes) -> None:
    """Raise if the header of a safetensors file is larger than that of any network.

    Each tensor takes some hundred bytes of it, also an empty one.

    Args:
        data: the beginning of the file, at least eight bytes of it.

    Raises:
        SafetensorError: it is.
    """
    size = int.from_bytes(data[:8], "little")
    if size > MAX_HEADER_BYTES:
        raise SafetensorError(f"expected a header of at most {MAX_HEADER_BYTES} bytes, got {size}")


def check_no_pickles(save_dir: Path) -> None:
    """Raise if there is a pickle in a folder, or in one that is in it.

    Nothing here opens pickles; but a save with one was not written by this program, or was changed
    by another one.

    Raises:
        CheckpointError: there is one.
    """
    for folder, _, names in os.walk(save_dir):
        for name in names:
            if name.lower().endswith(_PICKLES):
                raise CheckpointError(
                    f"{Path(folder) / name}: a pickle, which can run any code when it is opened; "
                    "expected no such file in a checkpoint: it is never read, delete it"
                )
