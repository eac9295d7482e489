"""Handling of SIGINT and SIGTERM, which stop a run with a save."""

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
"""Time that the running update has to finish. Then it is discarded, and repeated after a resume."""
_UNDERSTOOD = b"\nstopping after this update (once more to stop at once)\n"


def interrupted_status(number: int) -> int:
    """Return the exit status of a run that a signal ended, as shells have it; 0 for no signal."""
    return 128 + number if number else 0


class StoppedAtOnce(KeyboardInterrupt):
    """Raised when a signal stops the program at once.

    A class of its own, as a plain KeyboardInterrupt may come from an environment.

    Attributes:
        status: exit status, as shells have it for programs that this signal ends.
    """

    def __init__(self, number: int) -> None:
        self.status = interrupted_status(number)


class UpdateAbandoned(Exception):  # noqa: N818 (control flow, not an error)
    """Raised in an update that does not finish in time after a request to stop."""


@final
class Interrupts:
    """Signal handlers as a context: the first SIGINT or SIGTERM is recorded as a request to stop.

    A second one raises StoppedAtOnce. Outside the main thread no handlers are installed.

    Attributes:
        number: of the signal that requested to stop; 0 before.
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
        """Count a signal that another process of the run got; 0 for none."""
        if number and not self.requested:
            self._requested_s = time.monotonic()
            self.number = number

    def check(self) -> None:
        """Raise within an update if it is to be discarded.

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
        # Not by print, which is not reentrant: the signal may have interrupted one.
        # Not to a terminal, where it would break the panel.
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

    For imports: an exception that a signal raises within one may become another, or be ignored.
    """

    def end(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(OSError):
            os.write(2, b"interrupted\n")
        os._exit(interrupted_status(number))

    return _handled_by(end, *numbers)


def is_raised_by_code(error: KeyboardInterrupt) -> bool:
    """Return True for an error that an environment raised: a note says which one, and when."""
    return bool(getattr(error, "__notes__", ()))


@contextlib.contextmanager
def one_line_if_interrupted() -> Iterator[None]:
    """Return a context that a KeyboardInterrupt ends with one line and exit status 130."""
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
            if signal.getsignal(number) != signal.SIG_IGN:  # as a rank that failed ignores it
                signal.signal(number, handler_before)
