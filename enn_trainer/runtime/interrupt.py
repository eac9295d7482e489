"""Handling of SIGINT and SIGTERM, which stop a run after a save."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Self, final

GRACE_S = 5.0
"""Time for the running update to finish. Then it is discarded, and repeated after a resume."""
_UNDERSTOOD = b"\nstopping after this update (once more to stop at once)\n"


def interrupted_status(number: int) -> int:
    """Return the exit status, by shell convention, of a run ended by a signal; 0 for no signal."""
    return 128 + number if number else 0


class StoppedAtOnce(KeyboardInterrupt):
    """Raised when a signal stops the program at once.

    A separate class, as a plain KeyboardInterrupt may come from an environment.

    Attributes:
        status: exit status, by shell convention for this signal.
    """

    def __init__(self, number: int) -> None:
        self.status = interrupted_status(number)


class UpdateAbandoned(Exception):  # noqa: N818 (control flow, not an error)
    """Raised in an update that does not finish in time after a request to stop."""


@final
class Interrupts:
    """Context manager with signal handlers: the first SIGINT or SIGTERM is a request to stop.

    The second raises StoppedAtOnce. Outside the main thread no handlers are installed.

    Attributes:
        number: signal number of the request to stop; 0 before.
    """

    def __init__(self) -> None:
        self.number = 0
        self._requested_s = 0.0
        self._is_handled = False
        self._handlers = _handled_by(self._handle, signal.SIGINT, signal.SIGTERM)

    def __enter__(self) -> Self:
        self._handlers.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._handlers.__exit__(None, None, None)

    @property
    def requested(self) -> bool:
        """True after a request to stop."""
        return self.number != 0

    def is_requested(self) -> bool:
        """Return True after a request to stop."""
        return self.requested

    def take(self, number: int) -> None:
        """Record a signal received by another process of the run; 0 for none."""
        if number and not self.requested:
            self._requested_s = time.monotonic()
            self.number = number

    def check(self) -> None:
        """Raise if the running update must be discarded.

        Raises:
            UpdateAbandoned: stopping was requested at least `GRACE_S` seconds ago.
        """
        if self.requested and time.monotonic() - self._requested_s >= GRACE_S:
            raise UpdateAbandoned

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._is_handled:
            raise StoppedAtOnce(number)
        self._is_handled = True
        self.take(number)
        # Not by print, which is not reentrant and may be what the signal interrupted.
        # Not to a terminal, where it would break the progress panel.
        with contextlib.suppress(OSError):
            if not os.isatty(2):
                os.write(2, _UNDERSTOOD)


def stopped_by(*numbers: int) -> contextlib.AbstractContextManager[None]:
    """Return a context in which these signals raise StoppedAtOnce, if in the main thread."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise StoppedAtOnce(number)

    return _handled_by(stop, *numbers)


def ended_by(*numbers: int) -> contextlib.AbstractContextManager[None]:
    """Return a context in which these signals end the process at once, with one line.

    For imports: an exception raised by a signal during an import may be replaced or ignored.
    """

    def end(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(2, b"interrupted\n")
        os._exit(interrupted_status(number))

    return _handled_by(end, *numbers)


def is_raised_by_code(error: KeyboardInterrupt) -> bool:
    """Return True for an error raised by an environment, which has a note with its place."""
    return bool(getattr(error, "__notes__", ()))


@contextlib.contextmanager
def one_line_if_interrupted() -> Iterator[None]:
    """Return a context that exits with one line and status 130 on a KeyboardInterrupt."""
    try:
        yield
    except KeyboardInterrupt as error:
        if is_raised_by_code(error):
            raise
        print("interrupted", file=sys.stderr)
        sys.exit(interrupted_status(signal.SIGINT))


@contextlib.contextmanager
def _handled_by(handler: Callable[[int, FrameType | None], None], *numbers: int) -> Iterator[None]:
    in_main_thread = threading.current_thread() is threading.main_thread()
    before = {number: signal.signal(number, handler) for number in numbers if in_main_thread}
    try:
        yield
    finally:
        for number, handler_before in before.items():
            if signal.getsignal(number) != signal.SIG_IGN:  # a failed rank ignores it
                signal.signal(number, handler_before)
