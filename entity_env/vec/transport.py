"""Messages between two processes: pickles through a pipe, arrays in shared memory."""

import io
import mmap
import os
import pickle
import select
import struct
import tempfile
from itertools import repeat
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from entity_env.process import close_in_children

_ALIGNMENT = 8  # bytes: the largest number
_FIRST_SIZE = 1 << 16
_SIZE = struct.Struct("<Q")  # of the block, before the pickle


class ChannelClosedError(Exception):
    """The other end of a channel is closed."""


def new_wake_event() -> int | None:
    """Return an event file that wakes the process waiting for it; None if the system has none.

    Linux takes a process that writes into a pipe for one that is about to sleep, and runs the
    reader of the pipe in its place: right for the last worker that gets a message, but the others
    should run on other cores, and not wait for the last message. An event before the message wakes
    them there; without it two workers ran one after the other in half of all runs.
    """
    return os.eventfd(0) if hasattr(os, "eventfd") else None


class SharedMemory:
    """Block of memory that two processes share, and that grows with the data written to it.

    It has no name, so the system frees it once all processes that hold it have ended, even if they
    crash.

    Args:
        file: the descriptor that this process inherited; by default a new block.
    """

    def __init__(self, file: int | None = None) -> None:
        self.file = _unnamed_file() if file is None else file
        self._map: mmap.mmap | None = None

    def write(self, data: bytes | bytearray) -> None:
        """Overwrite the block from its beginning with data.

        Raises:
            OSError: there is not enough memory.
        """
        size = 0 if self._map is None else len(self._map)
        if self._map is None or len(data) > size:
            size = max(len(data), 2 * size, _FIRST_SIZE)
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self.file, 0, size)  # too little is an error now, not a crash
            else:
                os.ftruncate(self.file, size)
            self._remap()
        assert self._map is not None
        self._map[: len(data)] = data

    def read(self, size: int) -> memoryview:
        """Return a view of the first `size` bytes, which the next write may change."""
        if self._map is None or size > len(self._map):
            self._remap()
        assert self._map is not None
        return memoryview(self._map)[:size]

    def close(self) -> None:
        """Release the memory. Views stay valid."""
        if self.file >= 0:
            os.close(self.file)
        self.file, self._map = -1, None

    def _remap(self) -> None:
        # The previous mapping is freed with its last view.
        self._map = mmap.mmap(self.file, os.fstat(self.file).st_size)


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("entity_env")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class _Pickler(pickle.Pickler):
    """Pickler that writes the data of all arrays into one block of memory outside of the pickle.

    One block is three times as fast as a buffer for each array. Unpickled arrays are writable views
    of the block, in C order.
    """

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5, buffer_callback=lambda _: False)
        self.file = file
        self.block = bytearray()

    def reducer_override(self, value: Any) -> Any:
        """Return an array's place in the block; leave everything else to pickle."""
        if type(value) is not np.ndarray or value.dtype.kind not in "biuf":
            return NotImplemented  # bytes of objects are pointers
        block, start = self.block, len(self.block)
        if start % _ALIGNMENT:
            block += bytes(-start % _ALIGNMENT)
            start = len(block)
        block += value.data if value.flags.c_contiguous else np.ascontiguousarray(value).data
        return np.ndarray, (value.shape, value.dtype.str, _BLOCK, start)


_BLOCK = pickle.PickleBuffer(bytearray())
"""Placeholder of the block in a pickle; writable, so that the views are writable."""


def packed(message: Any) -> bytes:
    """Serialize a message as bytes, for `unpacked`."""
    pickler = _Pickler(io.BytesIO())
    pickler.dump(message)
    return _SIZE.pack(len(pickler.block)) + pickler.block + pickler.file.getvalue()


def unpacked(data: bytes) -> Any:
    """Deserialize bytes of `packed` from a process of the same program."""
    end = _SIZE.size + _SIZE.unpack_from(data)[0]
    block = bytearray(memoryview(data)[_SIZE.size : end])
    return pickle.loads(memoryview(data)[end:], buffers=repeat(block))


class Channel:
    """One end of a connection over which both ends send messages in turn.

    Both ends belong to the same program and trust each other, so messages are pickles: one call
    in C reads them, arrays out of band, at half the cost of any format of our own.

    Args:
        connection: the pipe.
        outgoing: the memory into which this end writes arrays.
        incoming: the memory into which the other end writes arrays.
        peer_event: the event for which the other end waits, see `new_wake_event`.
        wake_event: the event for which this end waits.
    """

    def __init__(
        self,
        connection: Connection,
        outgoing: SharedMemory,
        incoming: SharedMemory,
        *,
        peer_event: int | None = None,
        wake_event: int | None = None,
    ) -> None:
        self.connection, self.outgoing, self.incoming = connection, outgoing, incoming
        self._peer_event, self._wake_event = peer_event, wake_event
        self._listening = select.poll()
        if wake_event is not None:
            self._listening.register(wake_event, select.POLLIN)
            self._listening.register(connection, select.POLLIN)
        self._waiting = select.poll()
        self._waiting.register(connection, select.POLLIN)
        close_in_children(self)

    def send(self, message: Any, is_last: bool = True) -> None:
        """Send a message.

        Args:
            message: a value that can be pickled.
            is_last: True if the sender waits next; else the event wakes the other end.

        Raises:
            ChannelClosedError: the other end is closed.
            OSError: there is not enough memory.
        """
        pickler = _Pickler(io.BytesIO())
        pickler.dump(message)
        self.outgoing.write(pickler.block)
        if self._peer_event is not None and not is_last:
            os.eventfd_write(self._peer_event, 1)
        try:
            head = _SIZE.pack(len(pickler.block))
            self.connection.send_bytes(head + pickler.file.getvalue())
        except ConnectionError:
            raise ChannelClosedError from None

    def wait(self, timeout_s: float | None) -> bool:
        """Return whether a message, or the end of the connection, arrived in time."""
        return bool(self._waiting.poll(None if timeout_s is None else 1000 * timeout_s))

    def receive(self) -> Any:
        """Return the next message. Its arrays are views, valid until the other end sends again.

        Raises:
            ChannelClosedError: the other end is closed.
        """
        if self._wake_event is not None and self._wake_event in dict(self._listening.poll()):
            os.eventfd_read(self._wake_event)
        try:
            received = self.connection.recv_bytes()
        except (EOFError, OSError):
            raise ChannelClosedError from None
        block = self.incoming.read(*_SIZE.unpack_from(received))
        return pickle.loads(memoryview(received)[_SIZE.size :], buffers=repeat(block))

    def close(self) -> None:
        """Close this end. Safe to call twice."""
        self.connection.close()
        for event in (self._peer_event, self._wake_event):
            if event is not None:
                os.close(event)
        self._peer_event = self._wake_event = None
        self.outgoing.close()
        self.incoming.close()

    close_in_child = close
