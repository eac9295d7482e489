"""Runs that lose workers over and over, at any moment, and learn the bits of an undisturbed one."""

import contextlib
import io
import time
from pathlib import Path
from typing import NamedTuple

from tests.enn_trainer.losing_workers import with_losses_and_without
from tests.enn_trainer.resuming import assert_same


class Summary(NamedTuple):
    """Counts of what was done.

    Attributes:
        losses: workers that were lost.
        step: of the run at its end.
        seconds: for all of it.
    """

    losses: int
    step: int
    seconds: float

    def __str__(self) -> str:
        return (
            f"{self.losses} workers lost within {self.step} frames, and the agent has the bits of "
            f"one whose run lost none, {self.seconds:.0f} s"
        )


def lose_workers(folder: Path, seed: int, count: int) -> Summary:
    """Kill a number of workers of one run.

    Raises:
        AssertionError: the agent or its optimizer differ from those of an undisturbed run.
    """
    start = time.monotonic()
    with contextlib.redirect_stdout(io.StringIO()):
        disturbed, undisturbed, losses = with_losses_and_without(folder, count, seed=seed)
    assert_same(disturbed, undisturbed)
    return Summary(losses, disturbed.step, time.monotonic() - start)
