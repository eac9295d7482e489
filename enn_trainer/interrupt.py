"""Stopping a run from outside without losing it."""

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from types import FrameType
from typing import Any, Self, final

GRACE_S = 5.0
"""An update under way has this long to end. Then it is given up, and done again when resumed."""
_UNDERSTOOD = b"\nstopping after this update (once more to stop at once)\n"


class StoppedAtOnce(KeyboardInterrupt):
    """A signal stops the program at once; a plain KeyboardInterrupt may be an environment's own."""


class UpdateAbandoned(Exception):  # noqa: N818 (no error: the run was asked to stop)
    """The run was asked to stop, and the update under way takes too long."""


@final
class Interrupts:
    """While the context is open, the first SIGINT or SIGTERM only asks the run to stop.

    A second one raises StoppedAtOnce. Outside the main thread signals are left alone.
    """

    def __init__(self) -> None:
        self.requested = False
        self._requested_s = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def is_requested(self) -> bool:
        """Whether the run was asked to stop."""
        return self.requested

    def check(self) -> None:
        """Called within an update, where it can be given up.

        Raises:
            UpdateAbandoned: the run was asked to stop `GRACE_S` ago.
        """
        if self.requested and time.monotonic() - self._requested_s >= GRACE_S:
            raise UpdateAbandoned

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise StoppedAtOnce
        self._requested_s = time.monotonic()
        self.requested = True
        # Not by print: a signal may come in the middle of one, which must not be entered again.
        # Not onto a terminal: the panel there would be torn.
        with contextlib.suppress(OSError):
            if not os.isatty(2):
                os.write(2, _UNDERSTOOD)


@contextlib.contextmanager
def stopped_by(*numbers: int) -> Iterator[None]:
    """Raise StoppedAtOnce where one of these signals comes. Other threads leave them alone."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise StoppedAtOnce

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, stop) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
