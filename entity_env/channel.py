"""Questions and answers between two processes: words through a pipe, arrays in shared memory."""

from multiprocessing.connection import Connection
from typing import Any

from entity_env.messages import pack, unpack
from entity_env.shared_memory import SharedMemory


class Channel:
    """One end of a connection on which both ends speak in turn.

    Args:
        connection: the pipe.
        ours: where this end writes arrays.
        theirs: where the other end does.
    """

    def __init__(self, connection: Connection, ours: SharedMemory, theirs: SharedMemory) -> None:
        self.connection = connection
        self.ours = ours
        self.theirs = theirs

    def send(self, message: Any) -> None:
        """Send what `messages.pack` can express.

        Raises:
            MessageError: the message holds anything else; nothing is sent.
            OSError: the other end is gone, or there is not enough memory.
        """
        self.ours.clear()
        self.connection.send_bytes(pack(message, self.ours))

    def receive(self) -> Any:
        """The next message. Its arrays are views, valid until the other end sends again.

        Raises:
            MessageError: what came is no message.
            EOFError, OSError: the other end is gone.
        """
        return unpack(self.connection.recv_bytes(), self.theirs)

    def close(self) -> None:
        """Close this end."""
        self.connection.close()
        self.ours.close()
        self.theirs.close()
