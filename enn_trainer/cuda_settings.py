"""What a run sets for the GPU while it lasts."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


def choose_device(cuda: bool) -> torch.device:
    """The GPU if it is wanted and there is one, else the CPU."""
    return torch.device("cuda" if cuda and torch.cuda.is_available() else "cpu")


@contextmanager
def cudnn_deterministic(on: bool) -> Iterator[None]:
    """Whether cuDNN uses only deterministic algorithms while the context is open."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = on
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


@contextmanager
def cache_emptied_after_steps(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Give memory that torch keeps for later back to the GPU after every step of an optimizer."""
    hook = optimizer.register_step_post_hook(lambda *_: torch.cuda.empty_cache())
    try:
        yield
    finally:
        hook.remove()
