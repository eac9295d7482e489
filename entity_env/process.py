"""Standard streams, warnings, forked children, time and memory of this process."""

import io
import logging
import os
import resource
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, Protocol, TextIO, cast

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


logger = logging.getLogger(__name__)
warned: list[str] = []
"""Texts of the warnings of `warn_once`. In a worker they are logged by its parent."""


def warn_once(text: str) -> None:
    """Log a warning, unless this process has logged it before."""
    if text not in warned:
        warned.append(text)
        logger.warning(text)


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
        for alias in (name, f"__{name}__"):
            if guarded is not None and getattr(sys, alias) is stream:
                setattr(sys, alias, guarded)
                replaced.append((alias, stream, guarded))
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


class Unshared(Protocol):
    """A resource that belongs to one process."""

    def close_in_child(self) -> None:
        """Close the copy of a forked child, without effect on the resource of its parent."""


_unshared: "weakref.WeakSet[Unshared]" = weakref.WeakSet()


def close_in_children(resource: Unshared) -> None:
    """Let children that are forked from now on close their copy of a resource.

    Children forked by code in C that does not tell Python are not reached.
    """
    _unshared.add(resource)


def _close_all() -> None:
    for unshared in list(_unshared):
        unshared.close_in_child()
    _unshared.clear()


os.register_at_fork(after_in_child=_close_all)


class ProcessTimes(NamedTuple):
    """Time and memory that a process with environments has used since it began.

    Attributes:
        pid: of the process.
        world_s: seconds in the environments' own code.
        cpu_s: seconds of processor time.
        peak_bytes: the most memory that it had in RAM.
        waited_s: seconds that another process has waited for its answers.
        made_s: seconds in which environments were made anew for arguments that vary.
    """

    pid: int
    world_s: float
    cpu_s: float
    peak_bytes: int
    waited_s: float = 0.0
    made_s: float = 0.0


def times_of_this_process(world_s: float, made_s: float = 0.0) -> ProcessTimes:
    """Return the time and memory of this process.

    Args:
        world_s: seconds in the environments' own code.
        made_s: seconds in which environments were made anew.
    """
    return ProcessTimes(os.getpid(), world_s, time.process_time(), peak_bytes(), made_s=made_s)


def peak_bytes() -> int:
    """Return the most memory that this process had in RAM."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else 1024 * largest  # bytes there, else KB
