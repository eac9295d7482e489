"""Questions and answers between two processes: words through a pipe, arrays in shared memory."""

import pickle
import select
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.shared_memory import SharedMemory

Arrays = list[npt.NDArray[Any]]

_ALIGNMENT = 8  # bytes: the largest number
_PADDING = [bytes(n) for n in range(_ALIGNMENT)]


class Channel:
    """One end of a connection on which both ends speak in turn.

    Both ends belong to the same program and trust each other, so messages are pickles: one call
    in C takes them apart, arrays out of band, at half the cost of anything of our own.

    Args:
        connection: the pipe.
        ours: where this end writes arrays.
        theirs: where the other end does.
    """

    def __init__(self, connection: Connection, ours: SharedMemory, theirs: SharedMemory) -> None:
        self.connection = connection
        self.ours = ours
        self.theirs = theirs
        self._waiting = select.poll()
        self._waiting.register(connection, select.POLLIN)

    def send(self, message: Any) -> None:
        """Send a message.

        Raises:
            OSError: the other end is gone, or there is not enough memory.
        """
        arrays: list[pickle.PickleBuffer] = []
        words = pickle.dumps(message, protocol=5, buffer_callback=arrays.append)
        self.ours.clear()
        places = [self.ours.write(array.raw()) for array in arrays]
        self.connection.send_bytes(pickle.dumps((words, places)))

    def wait(self, timeout_s: float | None) -> bool:
        """Whether a message, or the end of the other end, came in time."""
        return bool(self._waiting.poll(None if timeout_s is None else 1000 * timeout_s))

    def receive(self) -> Any:
        """The next message. Its arrays are views, valid until the other end sends again.

        Raises:
            EOFError, OSError: the other end is gone.
        """
        words, places = pickle.loads(self.connection.recv_bytes())
        return pickle.loads(words, buffers=[self.theirs.read(*place) for place in places])

    def close(self) -> None:
        """Close this end."""
        self.connection.close()
        self.ours.close()
        self.theirs.close()


@dataclass(frozen=True)
class FlatArrays:
    """Arrays that are sent as one: each by itself takes three times as long.

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
