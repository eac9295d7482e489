"""Watch over the head of a Ray cluster."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from entity_env.errors import ClusterLostError

WATCH_S = 1.0
"""Seconds between two questions to the head of the cluster."""
ANSWER_S = 5.0
"""Seconds in which the head answers, unless it has too little of its processor."""
CLOSED_S = 5.0
"""Seconds after which a head is gone to which there is no connection."""
SILENT_S = 60.0
"""Seconds without an answer after which a head is gone to which there may be a connection."""


def connect(address: str, timeout_s: float) -> None:
    """Connect to HOST:PORT, and close the connection.

    Raises:
        OSError: nothing listens there; a TimeoutError if nothing answers in time.
    """
    host, _, port = address.rpartition(":")
    socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()


def check_head(is_sure: bool = False) -> None:
    """Raise ClusterLostError if the head of a cluster that this process joined is gone.

    Args:
        is_sure: wait for its next answer; before calls that would wait for a head that is gone.
    """
    for watch in _watches:
        watch.check(is_sure)


class _HeadWatch(threading.Thread):
    """Thread that asks the head of the cluster whether it and this node are alive.

    Args:
        ray: the module, joined to the cluster.
        field: the setting with the address, for messages.
    """

    def __init__(self, ray: Any, field: str) -> None:
        super().__init__(name="ray-head", daemon=True)
        self.ended = threading.Event()
        self._field, self._answers, self._is_lost = field, 0, False
        context = ray.get_runtime_context()
        self._address = context.gcs_address
        self._node = ray.NodeID.from_hex(context.get_node_id())
        self._head = ray._private.worker.global_worker.gcs_client

    def run(self) -> None:
        """Ask until the context of the cluster ends, or the head is gone."""
        answered_s = listened_s = time.monotonic()
        while not (self._is_lost or self.ended.wait(WATCH_S)):
            try:
                self._is_lost = not all(self._head.check_alive([self._node], timeout=ANSWER_S))
                answered_s = listened_s = time.monotonic()
                self._answers += 1
            except Exception:
                if self._may_listen():
                    listened_s = time.monotonic()
                now_s = time.monotonic()
                self._is_lost = now_s - listened_s > CLOSED_S or now_s - answered_s > SILENT_S

    def _may_listen(self) -> bool:
        """Return False if nothing listens at the head's address.

        A head that does not answer in time may have too little of its processor.
        """
        try:
            connect(self._address, ANSWER_S)
        except OSError as error:
            return isinstance(error, TimeoutError)
        return True

    def check(self, is_sure: bool = False) -> None:
        """Raise ClusterLostError if the head is gone, as `check_head`."""
        answers = self._answers
        while is_sure and self._answers == answers and not self._is_lost:
            time.sleep(WATCH_S / 20)
        if self._is_lost:
            raise ClusterLostError(
                f"{self._field}: the head of the cluster at {self._address} is gone; start a "
                "cluster and resume the run"
            )


_watches: list[_HeadWatch] = []


@contextmanager
def watched(ray: Any, field: str) -> Iterator[None]:
    """Return a context in which `check_head` knows of the cluster."""
    watch = _HeadWatch(ray, field)
    watch.start()
    _watches.append(watch)
    try:
        yield
    finally:
        watch.ended.set()
        _watches.remove(watch)
