"""Stopping a run from outside without losing it."""

import contextlib
import os
import signal
import threading
from types import FrameType
from typing import Any, Self, final

_UNDERSTOOD = b"\nstopping after this update (once more to stop at once)\n"


@final
class Interrupts:
    """While the context is open, the first SIGINT or SIGTERM only asks the run to stop.

    A second one raises KeyboardInterrupt. Outside the main thread signals are left alone.
    """

    def __init__(self) -> None:
        self.requested = False
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

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
        # Not by print: a signal may come in the middle of one, which must not be entered again.
        # Not onto a terminal: the panel there would be torn.
        with contextlib.suppress(OSError):
            if not os.isatty(2):
                os.write(2, _UNDERSTOOD)
