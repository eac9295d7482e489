"""Messages between two processes: pickles through a pipe, arrays in shared memory."""

import os
import pickle
import select
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.workers.forked_children import close_in_children
from entity_env.workers.shared_memory import SharedMemory

Arrays = list[npt.NDArray[Any]]


class ChannelClosedError(Exception):
    """Error of a channel whose other end is closed."""


_ALIGNMENT = 8  # bytes: the largest number
_PADDING = [bytes(n) for n in range(_ALIGNMENT)]


def new_bell() -> int | None:
    """Return a file that wakes the process waiting for it; None where the system has none.

    Linux takes a process that writes into a pipe for one that is about to sleep, and runs the
    reader of the pipe in its place: right for the last worker that gets a message, but the others
    should run on other cores, and not wait for the last message. A bell before the message wakes
    them there; without it two workers ran one after the other in half of all runs.
    """
    return os.eventfd(0) if hasattr(os, "eventfd") else None


class Channel:
    """One end of a connection whose ends send messages in turn.

    Both ends belong to the same program and trust each other, so messages are pickles: one call
    in C takes them apart, arrays out of band, at half the cost of anything of our own.

    Args:
        connection: the pipe.
        ours: the memory into which this end writes arrays.
        theirs: that of the other end.
        rings: the bell at which the other end waits, see `new_bell`.
        hears: the bell at which this end waits.
    """

    def __init__(
        self,
        connection: Connection,
        ours: SharedMemory,
        theirs: SharedMemory,
        *,
        rings: int | None = None,
        hears: int | None = None,
    ) -> None:
        self.connection = connection
        self.ours = ours
        self.theirs = theirs
        self._rings = rings
        self._hears = hears
        self._listening = select.poll()
        if hears is not None:
            self._listening.register(hears, select.POLLIN)
            self._listening.register(connection, select.POLLIN)
        self._waiting = select.poll()
        self._waiting.register(connection, select.POLLIN)
        close_in_children(self)

    def send(self, message: Any, is_last: bool = True) -> None:
        """Send a message.

        Args:
            message: a value that can be pickled.
            is_last: True if the sender then waits; if not, the bell wakes the other end.

        Raises:
            ChannelClosedError: the other end is gone.
            OSError: there is not enough memory.
        """
        arrays: list[pickle.PickleBuffer] = []
        words = pickle.dumps(message, protocol=5, buffer_callback=arrays.append)
        self.ours.clear()
        places = [self.ours.write(array.raw()) for array in arrays]
        if self._rings is not None and not is_last:
            os.eventfd_write(self._rings, 1)
        try:
            self.connection.send_bytes(pickle.dumps((words, places)))
        except ConnectionError:
            raise ChannelClosedError from None

    def wait(self, timeout_s: float | None) -> bool:
        """Return whether a message, or the end of the connection, arrived in time."""
        return bool(self._waiting.poll(None if timeout_s is None else 1000 * timeout_s))

    def receive(self) -> Any:
        """Return the next message. Its arrays are views, valid until the other end sends again.

        Raises:
            ChannelClosedError: the other end is gone.
        """
        if self._hears is not None and any(
            number == self._hears for number, _ in self._listening.poll()
        ):
            os.eventfd_read(self._hears)
        try:
            received = self.connection.recv_bytes()
        except (EOFError, OSError):
            raise ChannelClosedError from None
        words, places = pickle.loads(received)
        return pickle.loads(words, buffers=[self.theirs.read(*place) for place in places])

    def close(self) -> None:
        """Close this end. Safe to call twice."""
        self.connection.close()
        for bell in (self._rings, self._hears):
            if bell is not None:
                os.close(bell)
        self._rings = self._hears = None
        self.ours.close()
        self.theirs.close()

    close_in_child = close


@dataclass(frozen=True)
class FlatArrays:
    """Arrays that are sent as one buffer: separate ones take three times as long.

    They arrive as a list of writable views of one block of memory, in the order of C.
    """

    arrays: Sequence[npt.NDArray[Any]]

    def __reduce__(self) -> tuple[Any, ...]:
        shapes: list[tuple[str, tuple[int, ...]]] = []
        pieces: list[Any] = []
        for array in self.arrays:
            if array.dtype.kind not in "biuf":  # not bytes that mean the same elsewhere
                return list, (list(self.arrays),)
            shapes.append((array.dtype.str, array.shape))
            pieces += np.ascontiguousarray(array), _PADDING[-array.nbytes % _ALIGNMENT]
        return _arrays, (shapes, pickle.PickleBuffer(bytearray().join(pieces)))


def _arrays(shapes: Sequence[tuple[str, tuple[int, ...]]], block: memoryview | bytearray) -> Arrays:
    arrays: Arrays = []
    start = 0
    for dtype, shape in shapes:
        array: npt.NDArray[Any] = np.ndarray(shape, dtype, block, start)
        arrays.append(array)
        start += array.nbytes + -array.nbytes % _ALIGNMENT
    return arrays
