"""Freed memory is kept where the C library can be told to."""

import os
import subprocess
import sys

import pytest

from enn_trainer import malloc

# By itself glibc gives back large blocks only until it has seen some, and the end of its heap only
# where nothing lies behind it, so that what it does hangs on what else was allocated. Told from
# where on blocks are large, it gives back each of them.
ALLOCATES = """
import ctypes, resource, sys
import torch
from enn_trainer.malloc import keep_freed_memory
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
def test_blocks_that_were_freed_are_used_again() -> None:
    """In a process of its own: it cannot be undone."""
    faults = {
        how: int(
            subprocess.run(
                [sys.executable, "-c", ALLOCATES, how],
                check=True,
                timeout=100,
                capture_output=True,
                text=True,
            ).stdout
        )
        for how in ("kept", "given back")
    }
    assert faults["kept"] * 10 < faults["given back"], faults  # 0 and 100,000 were seen


def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert not malloc.keep_freed_memory()


def test_other_c_libraries_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    class Musl:
        def mallopt(self, name: int, value: int) -> int:
            raise AssertionError("its arguments mean nothing there")

    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(malloc.ctypes, "CDLL", lambda name: Musl())
    assert not malloc.keep_freed_memory()
