"""Time and memory of processes with environments."""

import os
import resource
import sys
import time
from typing import NamedTuple


class ProcessTimes(NamedTuple):
    """Time and memory that a process with environments has used since it began.

    Attributes:
        pid: of the process.
        world_s: seconds in the environments' own code.
        cpu_s: seconds of processor time.
        peak_bytes: the most memory that it had in RAM.
        waited_s: seconds that another process has waited for its answers.
    """

    pid: int
    world_s: float
    cpu_s: float
    peak_bytes: int
    waited_s: float = 0.0


def times_of_this_process(world_s: float) -> ProcessTimes:
    """Return the time and memory of this process; `world_s` is that of environments' code."""
    return ProcessTimes(os.getpid(), world_s, time.process_time(), peak_bytes())


def peak_bytes() -> int:
    """Return the most memory that this process had in RAM."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return largest if sys.platform == "darwin" else 1024 * largest  # bytes there, else KB
