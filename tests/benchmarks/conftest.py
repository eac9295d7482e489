"""Torch's threads as they were after scripts of `benchmarks/`."""

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture(autouse=True)
def _threads_kept() -> Iterator[None]:
    """Restore torch's threads, which scripts that are processes of their own set."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)
