"""Files of saves as they are read: plain ones inside their folder, and none that can run code."""

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
"""Of what a person reads, such as a configuration; a thousand times what one takes."""

MAX_HEADER_BYTES = 1 << 22
"""Of a file of safetensors, which name its tensors: a hundred bytes for each."""

_PICKLES = (".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".dill")


@contextmanager
def plain_file(path: Path) -> Iterator[BinaryIO]:
    """A file to be read, open while the context is.

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
        CheckpointError: as of `plain_file`.
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
    """The bytes of an open file."""
    return os.fstat(file.fileno()).st_size


def read_plain_file(path: Path, most_bytes: int) -> bytes:
    """The bytes of a file.

    Raises:
        CheckpointError: as of `plain_file`, or there are more of them.
    """
    with plain_file(path) as file:
        if size_of(file) > most_bytes:
            raise CheckpointError(f"{path}: larger than it can be, {most_bytes} bytes")
        return file.read()


def check_tensor_header(data: bytes) -> None:
    """Raise if the header of a file of safetensors is larger than that of any network.

    Its tensors take some hundred bytes each, also those that have no numbers.

    Args:
        data: The beginning of the file, at least eight bytes of it.

    Raises:
        SafetensorError: it is.
    """
    size = int.from_bytes(data[:8], "little")
    if size > MAX_HEADER_BYTES:
        raise SafetensorError(f"expected a header of at most {MAX_HEADER_BYTES} bytes, got {size}")


def refuse_pickles(save_dir: Path) -> None:
    """Refuse a folder with files that other programs would run what is in.

    Nothing here opens them; but a save that has some was not written by this program, or was
    changed by another one.

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
