"""Guard regions filled with NaN around arrays that Python allocates for compiled code."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from rogue_net.native import functions, library

GUARD = 16
GUARD_VALUE = -7.25e30


@pytest.fixture(autouse=True)
def _native_arrays_are_not_overrun(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    blocks: list[Tensor] = []

    def guarded(*shape: int) -> Tensor:
        count = torch.Size(shape).numel()
        block = torch.full((count + 2 * GUARD,), GUARD_VALUE)
        blocks.append(block)
        block[GUARD : GUARD + count] = float("nan")  # a number that is never written shows as well
        return block[GUARD : GUARD + count].view(shape)

    monkeypatch.setattr(functions, "empty", guarded)
    monkeypatch.setattr(library.POISONED, "value", 1)  # those that C allocates, and integers
    yield
    for block in blocks:
        guards = torch.cat([block[:GUARD], block[-GUARD:]])
        assert bool((guards == GUARD_VALUE).all()), "compiled code wrote outside of an array"
