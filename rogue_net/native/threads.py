"""How the compiled blocks share their work among threads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

LEAST_COST = 2**16
"""Of a part, as of one row of d_model 256: 64 rows of 32 take longer than starting a thread."""
MOST_PARTS = 16


class _Own(threading.local):
    count: int | None = None


_own = _Own()


def num_threads() -> int:
    """So many threads share what the calling thread computes: by default as many as torch uses."""
    return torch.get_num_threads() if _own.count is None else _own.count


@contextmanager
def threads_at_work(count: int) -> Iterator[None]:
    """While the context is open, compiled blocks of the calling thread use so many threads."""
    before, _own.count = _own.count, count
    try:
        yield
    finally:
        _own.count = before


def num_parts(rows: int, width: int, num_gradients: int = 0) -> int:
    """Into how many parts the rows of a batch are cut, which follows from these numbers alone.

    Args:
        rows: R.
        width: d_model.
        num_gradients: numbers in the gradient of all parameters, which every part has of its own;
            0 without gradients.

    Returns:
        1 or an even number, so that two threads have as much to do.
    """
    most = rows * width**2 // LEAST_COST
    if num_gradients:
        most = min(most, 8 * rows * width // num_gradients)
    return max(1, 2 * (min(most, MOST_PARTS) // 2))
