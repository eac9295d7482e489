"""Signals ask a run to stop; they never break it."""

import signal

import pytest

from enn_trainer.runtime.interrupt import Interrupts
from tests.fork_server import run_program

PRINTING = """
import os, signal, threading
from enn_trainer.runtime.interrupt import Interrupts

with Interrupts() as interrupts:
    timer = threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    while not interrupts.requested:
        print("x" * 1000)
"""


def test_first_signal_requests_a_stop_and_second_interrupts() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with Interrupts() as interrupts:
        assert not interrupts.is_requested()
        signal.raise_signal(signal.SIGTERM)
        assert interrupts.is_requested()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.slow
def test_signal_during_print_is_handled() -> None:
    for _ in range(3):
        done = run_program(["-c", PRINTING])
        assert done.returncode == 0, done.stderr
        assert b"stopping after this update" in done.stderr
