"""Memory that two processes see: one writes arrays into it, the other reads them where they lie."""

import math
import mmap
import os
import tempfile
from typing import Any

import numpy as np
import numpy.typing as npt

_ALIGNMENT = 64  # bytes: a cache line
_FIRST_SIZE = 1 << 16


class SharedMemory:
    """A block of memory that grows when what is written needs more room.

    It has no name: nothing is left of it once all processes that hold it have ended, however they
    ended.

    Args:
        file: the number under which this process inherited it; without it, a new one.
    """

    def __init__(self, file: int | None = None) -> None:
        self.file = _unnamed_file() if file is None else file
        self._map: mmap.mmap | None = None
        self._written = 0

    def clear(self) -> None:
        """Write from the beginning again, over what is no longer needed."""
        self._written = 0

    def write(self, array: npt.NDArray[Any]) -> int:
        """Copy an array into the block; where it begins, in bytes.

        Raises:
            OSError: there is not enough memory.
        """
        start = -(-self._written // _ALIGNMENT) * _ALIGNMENT
        end = start + array.nbytes
        if end > self._size:
            self._grow(max(end, 2 * self._size, _FIRST_SIZE))
        if array.nbytes:
            np.copyto(self.read(start, array.dtype, array.shape), array)
        self._written = end
        return start

    def read(self, start: int, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """The array that begins at `start`: a view, which the next writing may change.

        Raises:
            ValueError: the block does not reach that far.
        """
        if start < 0:  # numpy reads there
            raise ValueError(f"start: expected at least 0, got {start}")
        end = start + math.prod(shape) * dtype.itemsize
        if end == start:
            return np.empty(shape, dtype)
        if self._map is None or end > len(self._map):
            self._remap()
        assert self._map is not None
        return np.ndarray(shape, dtype, self._map, start)

    def close(self) -> None:
        """Let go of it. Arrays that were read stay valid."""
        if self.file >= 0:
            os.close(self.file)
        self.file, self._map = -1, None

    @property
    def _size(self) -> int:
        return 0 if self._map is None else len(self._map)

    def _grow(self, size: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self.file, 0, size)  # too little memory is an error now, not a crash
        else:
            os.ftruncate(self.file, size)
        self._remap()

    def _remap(self) -> None:
        size = os.fstat(self.file).st_size
        if size == 0:
            raise ValueError("the shared memory is empty")
        self._map = mmap.mmap(self.file, size)  # the old one ends with the last array in it


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("entity_env")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
