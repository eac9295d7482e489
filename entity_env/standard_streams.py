"""Standard output and standard error whose reader may leave, as after `| head`."""

import io
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, TextIO, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


@contextmanager
def reader_may_leave() -> Iterator[None]:
    """Discard what is printed once its reader has left, instead of raising BrokenPipeError.

    `sys.stdout`, `sys.stderr` and their originals in `sys` are replaced while the context is open,
    so this holds for every `print`, whoever calls it. No other BrokenPipeError is affected. Streams
    that are no files of the system, as in notebooks and tests, stay as they are.
    """
    replaced = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        guarded = _guarded(stream)
        if guarded is not None:
            setattr(sys, name, guarded)
            replaced.append((name, stream, guarded))
            if getattr(sys, f"__{name}__") is stream:
                setattr(sys, f"__{name}__", guarded)
                replaced.append((f"__{name}__", stream, guarded))
    try:
        yield
    finally:
        for name, stream, guarded in replaced:
            if not guarded.closed:
                guarded.flush()
            if getattr(sys, name) is guarded:  # nobody has replaced it meanwhile
                setattr(sys, name, stream)


class _ReaderMayLeave(io.FileIO):
    """File that is written to the null device once its reader has left."""

    def write(self, data: "ReadableBuffer") -> int:
        """Write bytes, or discard them."""
        try:
            return super().write(data)
        except (BrokenPipeError, ConnectionResetError):
            _discard(self.fileno())
            return memoryview(data).nbytes


def _discard(descriptor: int) -> None:
    """Write to the null device from now on, also from child processes and from C."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _guarded(stream: TextIO | None) -> TextIO | None:
    """Return a stream to the same file whose reader may leave; None without such a file."""
    if not isinstance(stream, io.TextIOWrapper) or stream.closed:
        return None
    raw = getattr(stream.buffer, "raw", stream.buffer)
    if type(raw) is not io.FileIO:
        return None
    try:
        stream.flush()  # what is printed from now on comes after it
    except (BrokenPipeError, ConnectionResetError):
        _discard(raw.fileno())
        stream.flush()
    file = _ReaderMayLeave(raw.fileno(), "w", closefd=False)
    is_unbuffered = stream.buffer is raw  # as by python -u
    return io.TextIOWrapper(
        cast("BinaryIO", file) if is_unbuffered else io.BufferedWriter(file),
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
