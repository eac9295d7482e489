"""Stopping a run from outside without losing it."""

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any, Self, final


@final
class Interrupts:
    """While the context is open, the first SIGINT or SIGTERM only asks the run to stop.

    A second one raises KeyboardInterrupt. Outside the main thread signals are left alone.

    Args:
        say: tells a person what was understood.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self.requested = False
        self._say = say
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
        self._say("stopping after this update (once more to stop at once)")
