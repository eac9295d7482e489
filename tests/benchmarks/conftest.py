"""Scripts of `benchmarks/`, which is no package, and torch's threads as they were."""

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script of `benchmarks/` by its name."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module


@pytest.fixture(autouse=True)
def _threads_kept() -> Iterator[None]:
    """Restore torch's threads, which scripts that are processes of their own set."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
