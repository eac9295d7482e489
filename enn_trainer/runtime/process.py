"""Settings of the process and the GPU during training."""

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from enn_trainer.config import TrainConfig
from enn_trainer.runtime.execution import ThreadPool
from enn_trainer.runtime.start_folder import paths_from
from entity_env.process import ignore_broken_pipe
from entity_env.seeding import preserve_global_rng

# Parameters of `mallopt`, as in malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_FREE_BYTES = 512 * 2**20
_LARGE_BYTES = 32 * 2**20  # glibc allows no more; larger blocks are returned to the system
_GC_THRESHOLD = 10_000
"""New objects that trigger the collector; few enough that cycles do not fill the memory."""


def keep_freed_memory() -> bool:
    """Configure malloc to retain up to 512 MiB of freed memory, in one heap for all threads.

    Every operation of a network allocates and frees blocks of megabytes. By default glibc returns
    such blocks to the system, so that every operation begins with page faults, and uses a separate
    heap for each thread. With one retained heap, training on CherryPick had 5,000 instead of
    180,000 page faults, took 4% less CPU time, and used at most 765 instead of 1,170 MiB; Minefield
    had 26,000 instead of 92,000, took the same time, and used 520 instead of 610 MiB (two threads,
    torch 2.13).

    Returns:
        True if the C library is glibc and accepted the settings; otherwise nothing is changed.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):  # musl has a `mallopt` that ignores its arguments
        return False
    settings = {_M_TRIM_THRESHOLD: _FREE_BYTES, _M_MMAP_THRESHOLD: _LARGE_BYTES, _M_ARENA_MAX: 1}
    return all(libc.mallopt(name, value) == 1 for name, value in settings.items())


@contextmanager
def infrequent_garbage_collection() -> Iterator[None]:
    """Raise the threshold of the garbage collector to 10,000 new objects within the context.

    Environments in this process create thousands of objects in every step, and nearly all are freed
    without the collector. At Python's default of 700, updates took 7 to 10% longer in level-based
    foraging and 14% in MoveToOrigin (one process, updates with alternating thresholds). A higher
    threshold, or a disabled collector, is not changed.
    """
    before = gc.get_threshold()
    if 0 < before[0] < _GC_THRESHOLD:
        gc.set_threshold(_GC_THRESHOLD, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(before[0], before[1], before[2])


def choose_device(cuda: bool) -> torch.device:
    """Return the GPU if `cuda` is set and there is one, else the CPU."""
    return torch.device("cuda" if cuda and torch.cuda.is_available() else "cpu")


@contextmanager
def cudnn_deterministic(on: bool) -> Iterator[None]:
    """Restrict cuDNN to deterministic algorithms within the context, or lift the restriction."""
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = on
    try:
        yield
    finally:
        torch.backends.cudnn.deterministic = before


@contextmanager
def process_settings(config: TrainConfig, threads: ThreadPool, folder: Path) -> Iterator[None]:
    """Apply the settings of a run to the process within the context.

    Args:
        config: configuration of the run.
        threads: thread pool of the run.
        folder: base folder of relative paths.
    """
    with (
        paths_from(folder),
        ignore_broken_pipe(),
        threads.at_work(),
        cudnn_deterministic(config.torch_deterministic),
        preserve_global_rng(),
        infrequent_garbage_collection(),
    ):
        yield


@contextmanager
def empty_cache_after_steps(optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Release torch's cached GPU memory after every step of the optimizer within the context."""
    hook = optimizer.register_step_post_hook(lambda *_: torch.cuda.empty_cache())
    try:
        yield
    finally:
        hook.remove()
