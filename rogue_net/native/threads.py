"""Threads of compiled blocks."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

LEAST_COST = 2**16
"""Smallest cost of a part, rows * d_model**2: 64 rows of 32 take longer than to start a thread."""
MOST_PARTS = 16


class _Own(threading.local):
    count: int | None = None


_own = _Own()


def num_threads() -> int:
    """Return the number of threads of the calling thread's blocks, by default that of torch."""
    return torch.get_num_threads() if _own.count is None else _own.count


@contextmanager
def threads_at_work(count: int) -> Iterator[None]:
    """Set the number of threads of compiled blocks in the calling thread, in the context."""
    before, _own.count = _own.count, count
    try:
        yield
    finally:
        _own.count = before


def num_parts(rows: int, width: int, num_gradients: int = 0) -> int:
    """Return the number of parts of the rows of a batch, a function of these numbers alone.

    Args:
        rows: R.
        width: d_model.
        num_gradients: elements of the gradient of all parameters, of which every part has its own;
            0 without gradients.

    Returns:
        1 or an even number, so that two threads have as much to do.
    """
    # Many small parts would take longer to start, and to add up their gradients, than they save.
    most = rows * width**2 // LEAST_COST
    if num_gradients:
        most = min(most, 8 * rows * width // num_gradients)
    return max(1, 2 * (min(most, MOST_PARTS) // 2))
