"""Settings of the process and of the GPU hold while a run is training, and no longer."""

import gc
import os
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from enn_trainer import ConfigError, TrainConfig
from enn_trainer.config.load import load_config
from enn_trainer.runtime import process
from enn_trainer.runtime.process import (
    choose_device,
    cudnn_deterministic,
    empty_cache_after_steps,
    infrequent_garbage_collection,
    keep_freed_memory,
)
from tests.enn_trainer.builders import run_small
from tests.enn_trainer.worlds import Meadow
from tests.fork_server import run_program

# By default glibc returns large blocks only until it has seen some, and the end of its heap only
# where nothing lies behind it, which depends on what else was allocated. With a fixed threshold it
# returns every large block.
ALLOCATES = """
import ctypes, resource, sys
import torch
from enn_trainer.runtime.process import keep_freed_memory
M_MMAP_THRESHOLD = -3
assert ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**17) == 1
if sys.argv[1] == "kept":
    assert keep_freed_memory()
torch.set_num_threads(1)
for i in range(20):
    if i == 10:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    blocks = [torch.zeros(2**18) for _ in range(40)]
    del blocks
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
@pytest.mark.skipif(
    "CS_GNU_LIBC_VERSION" not in os.confstr_names,
    reason="needs glibc",
)
def test_freed_blocks_are_reused() -> None:
    """In forked processes: it cannot be undone."""
    faults = {
        how: int(run_program(["-c", ALLOCATES, how], check=True, text=True).stdout)
        for how in ("kept", "given back")
    }
    assert faults["kept"] * 10 < faults["given back"], faults  # 0 and 100,000 were seen


def test_other_systems_are_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not keep_freed_memory()


def test_other_c_libraries_are_not_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Musl:
        def mallopt(self, name: int, value: int) -> int:
            raise AssertionError("its arguments mean nothing there")

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(process.ctypes, "CDLL", lambda name: Musl())
    assert not keep_freed_memory()


@pytest.fixture(autouse=True)
def thresholds_kept() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


class Node:
    """Refers to itself, so that only the search finds it."""

    def __init__(self) -> None:
        self.itself = self


@pytest.mark.slow
def test_many_objects_do_not_trigger_collection() -> None:
    gc.set_threshold(700, 10, 10)
    with infrequent_garbage_collection():
        gc.collect()
        before = gc.get_stats()[0]["collections"]
        kept = [[i] for i in range(5_000)]
        assert gc.get_stats()[0]["collections"] == before
    assert gc.get_threshold() == (700, 10, 10)
    del kept


def test_reference_cycles_are_collected() -> None:
    """Else a world whose units know each other would fill the memory."""
    gc.set_threshold(700, 10, 10)
    with infrequent_garbage_collection():
        left = weakref.ref(Node())
        kept = [[i] for i in range(50_000)]
        assert left() is None
    del kept


@pytest.mark.parametrize("own", [(0, 10, 10), (50_000, 5, 5)])
def test_higher_gc_threshold_is_not_changed(own: tuple[int, int, int]) -> None:
    gc.set_threshold(*own)
    with infrequent_garbage_collection():
        assert gc.get_threshold() == own
    assert gc.get_threshold() == own


def test_gc_threshold_is_restored_after_an_error() -> None:
    gc.set_threshold(701, 10, 10)
    with pytest.raises(ValueError, match="in the world"), infrequent_garbage_collection():
        raise ValueError("in the world")
    assert gc.get_threshold() == (701, 10, 10)


class Asks(Meadow):
    """Notes what is set while it is reset. Only for tests."""

    seen: set[bool] = set()  # noqa: RUF012 (of the class, as `train` makes the objects)

    def reset(self) -> Any:
        Asks.seen.add(torch.backends.cudnn.deterministic)
        return super().reset()


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("asked", [False, True])
def test_cudnn_is_deterministic_during_the_run_only(
    tmp_path: Path, before: bool, asked: bool
) -> None:
    with cudnn_deterministic(before):
        Asks.seen.clear()
        overrides = [f"torch_deterministic={str(asked).lower()}", "total_timesteps=24"]
        run_small(tmp_path, *overrides, env=Asks)
        assert Asks.seen == {asked}
        assert torch.backends.cudnn.deterministic == before


def test_cudnn_is_restored_after_a_run_that_fails(tmp_path: Path) -> None:
    class Fails(Meadow):
        def act(self, actions: Any) -> Any:
            raise ZeroDivisionError

    with cudnn_deterministic(False):
        with pytest.raises(ZeroDivisionError):
            run_small(tmp_path, env=Fails)
        assert not torch.backends.cudnn.deterministic


def test_gpu_is_used_if_configured_and_available(monkeypatch: pytest.MonkeyPatch) -> None:
    for there in (False, True):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert choose_device(True).type == ("cuda" if there else "cpu")
        assert choose_device(False).type == "cpu"


def test_cache_is_emptied_after_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    emptied: list[int] = []
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: emptied.append(1))
    optimizer = torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))])
    with empty_cache_after_steps(optimizer):
        optimizer.step()
        optimizer.step()
        assert len(emptied) == 2
    optimizer.step()
    assert len(emptied) == 2


def test_cuda_empty_cache_requires_cuda() -> None:
    with pytest.raises(ConfigError, match=r"^cuda_empty_cache: expected cuda=true"):
        load_config(TrainConfig, None, ["cuda=false", "cuda_empty_cache=true"])


def test_gpu_settings_work_without_a_gpu(tmp_path: Path) -> None:
    """Configurations travel between machines."""
    assert run_small(tmp_path, "cuda=true", "cuda_empty_cache=true").state.step == 72
