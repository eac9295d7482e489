"""A disk on which one operation of the store fails."""

import errno
import os
from typing import Any

import pytest

from enn_trainer.checkpoints import disk

OPERATIONS = ("mkdir", "open", "write", "fsync", "rename")


class FailingOs:
    """What `disk.py` sees as `os`: some calls of its operations fail for want of room.

    Args:
        fails: whether the call with this number, from 0, does.
    """

    def __init__(self, fails: Any) -> None:
        self._fails = fails
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        return self._operation(name, real) if name in OPERATIONS else real

    def _operation(self, name: str, real: Any) -> Any:
        def call(*args: Any) -> Any:
            number, self.calls = self.calls, self.calls + 1
            if not self._fails(number):
                return real(*args)
            if name == "write":
                descriptor, data = args
                real(descriptor, data[: len(data) // 2])  # as much as there was room for
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        return call


def failing_disk(patch: pytest.MonkeyPatch, fails: Any) -> FailingOs:
    """Let operations of the store fail from now on, until the patch is undone."""
    failing = FailingOs(fails)
    patch.setattr(disk, "os", failing)
    return failing
