"""Questions and answers between two processes: words through a pipe, arrays in shared memory."""

import pickle
import select
from multiprocessing.connection import Connection
from typing import Any

from entity_env.shared_memory import SharedMemory


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
