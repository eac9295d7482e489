"""Settings of the process and of the GPU while a run is training."""

import ctypes
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from enn_trainer.config import TrainConfig
from enn_trainer.runtime.execution import Lanes
from enn_trainer.runtime.start_folder import paths_from
from entity_env.process import reader_may_leave
from entity_env.seeding import global_randomness_kept

# Parameters of `mallopt`, as in malloc.h.
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8
_KEPT_BYTES = 512 * 2**20
_LARGE_BYTES = 32 * 2**20  # glibc allows no more; larger blocks are returned to the system
_GC_THRESHOLD = 10_000
"""New objects before the collector runs; few enough that cycles do not fill the memory."""


def keep_freed_memory() -> bool:
    """Let malloc keep up to 512 MiB of freed memory, in one heap for all threads, from now on.

    Every operation of a network allocates and frees blocks of megabytes. By default glibc returns
    such blocks to the system, so that every operation begins with page faults, and gives each
    thread a heap of its own. With one heap that is kept, learning from CherryPick had 5,000
    instead of 180,000 page faults, took 4% less CPU time, and used at most 765 instead of 1,170
    MiB; Minefield had 26,000 instead of 92,000, took as long, and used 520 instead of 610 MiB (two
    lanes, torch 2.13).

    Returns:
        True if the C library is glibc and took the settings. Elsewhere nothing is changed.
    """
    if not sys.platform.startswith("linux"):
        return False
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "gnu_get_libc_version"):  # musl has a `mallopt` that ignores its arguments
        return False
    settings = {_M_TRIM_THRESHOLD: _KEPT_BYTES, _M_MMAP_THRESHOLD: _LARGE_BYTES, _M_ARENA_MAX: 1}
    return all(libc.mallopt(name, value) == 1 for name, value in settings.items())


@contextmanager
def infrequent_garbage_collection() -> Iterator[None]:
    """Raise the threshold of the garbage collector to 10,000 new objects within the context.

    Environments in this process create thousands of objects in every step, nearly all of which are
    freed without the collector. At Python's default of 700, updates took 7 to 10% longer in
    level-based foraging and 14% in MoveToOrigin (one process, updates with both thresholds in
    turns). A higher threshold of the caller, or a collector that is switched off, is left alone.
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
def process_settings(config: TrainConfig, lanes: Lanes, folder: Path) -> Iterator[None]:
    """Apply the settings of a run to the process within the context.

    Args:
        config: configuration of the run.
        lanes: threads of the run.
        folder: folder in which relative paths begin.
    """
    with (
        paths_from(folder),
        reader_may_leave(),
        lanes.at_work(),
        cudnn_deterministic(config.torch_deterministic),
        global_randomness_kept(),
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
