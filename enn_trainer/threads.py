"""How many threads torch uses for one operation."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch

SMALL_D_MODEL = 64


@contextmanager
def torch_threads(d_model: int) -> Iterator[None]:
    """One thread for small networks while the context is open, unless OMP_NUM_THREADS is set.

    The operations of a small network take tens of microseconds: a second thread gains little on an
    idle machine, and on a busy one every operation waits for it (measured at d_model 16: ten times
    slower with two threads when another program uses one of two cores).
    """
    before = torch.get_num_threads()
    if d_model < SMALL_D_MODEL and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
