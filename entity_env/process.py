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
"""Texts of the warnings of `warn_once`. The parent process logs the warnings of a worker."""


def warn_once(text: str) -> None:
    """Log a warning, unless this process has logged it before."""
    if text not in warned:
        warned.append(text)
        logger.warning(text)


@contextmanager
def ignore_broken_pipe() -> Iterator[None]:
    """Discard output to a closed pipe, as of `| head`, instead of raising BrokenPipeError.

    The context replaces `sys.stdout`, `sys.stderr`, `sys.__stdout__` and `sys.__stderr__`, so it
    affects every `print`, and no other pipe. Streams without a file descriptor, as in notebooks and
    tests, are left unchanged.
    """
    replaced = []
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        guarded = _tolerant_copy(stream)
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
            if getattr(sys, name) is guarded:  # not replaced in the meantime
                setattr(sys, name, stream)


class _BrokenPipeTolerantFile(io.FileIO):
    """File that switches to the null device when its pipe is closed by the reader."""

    def write(self, data: "ReadableBuffer") -> int:
        """Write bytes; discard them if the pipe is closed."""
        try:
            return super().write(data)
        except (BrokenPipeError, ConnectionResetError):
            _redirect_to_null(self.fileno())
            return memoryview(data).nbytes


def _redirect_to_null(descriptor: int) -> None:
    """Redirect a file descriptor to the null device, also for child processes and C code."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _tolerant_copy(stream: TextIO | None) -> TextIO | None:
    """Return a stream to the same file that tolerates a closed pipe; None if it has no file."""
    if not isinstance(stream, io.TextIOWrapper) or stream.closed:
        return None
    raw = getattr(stream.buffer, "raw", stream.buffer)
    if type(raw) is not io.FileIO:
        return None
    try:
        stream.flush()  # keep the order of the output
    except (BrokenPipeError, ConnectionResetError):
        _redirect_to_null(raw.fileno())
        stream.flush()
    file = _BrokenPipeTolerantFile(raw.fileno(), "w", closefd=False)
    is_unbuffered = stream.buffer is raw  # by python -u
    return io.TextIOWrapper(
        cast("BinaryIO", file) if is_unbuffered else io.BufferedWriter(file),
        encoding=stream.encoding,
        errors=stream.errors,
        newline="\n",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


class ProcessLocal(Protocol):
    """A resource that forked children must not share."""

    def close_in_child(self) -> None:
        """Close the copy in a forked child, without effect on the parent."""


_process_local: "weakref.WeakSet[ProcessLocal]" = weakref.WeakSet()


def close_in_children(resource: ProcessLocal) -> None:
    """Close a resource in children that are forked later.

    Has no effect on children that C code forks without `PyOS_AfterFork_Child`.
    """
    _process_local.add(resource)


def _close_all() -> None:
    for unshared in list(_process_local):
        unshared.close_in_child()
    _process_local.clear()


os.register_at_fork(after_in_child=_close_all)


class ProcessTimes(NamedTuple):
    """Time and memory used by a process with environments since its start.

    Attributes:
        pid: of the process.
        world_s: seconds in the code of environments.
        cpu_s: seconds of CPU time.
        peak_bytes: peak resident memory.
        waited_s: seconds that the parent process waited for it.
        made_s: seconds to recreate environments with varied arguments.
    """

    pid: int
    world_s: float
    cpu_s: float
    peak_bytes: int
    waited_s: float = 0.0
    made_s: float = 0.0


def times_of_this_process(world_s: float, made_s: float = 0.0) -> ProcessTimes:
    """Return the time and memory used by this process.

    Args:
        world_s: seconds in the code of environments.
        made_s: seconds to recreate environments.
    """
    return ProcessTimes(os.getpid(), world_s, time.process_time(), peak_bytes(), made_s=made_s)


def peak_bytes() -> int:
    """Return the peak resident memory of this process."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else 1024 * largest  # macOS: bytes, Linux: KB
