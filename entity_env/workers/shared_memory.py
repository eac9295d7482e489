"""Memory that two processes share: one writes into it, the other reads it in place."""

import mmap
import os
import tempfile

_ALIGNMENT = 64  # bytes: a cache line
_FIRST_SIZE = 1 << 16


class SharedMemory:
    """Block of memory that grows with the data written to it.

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
        """Write from the beginning again, over data that is no longer needed."""
        self._written = 0

    def write(self, data: memoryview) -> tuple[int, int]:
        """Copy bytes into the block.

        Returns:
            Where they begin and where they end.

        Raises:
            OSError: there is not enough memory.
        """
        start = -(-self._written // _ALIGNMENT) * _ALIGNMENT
        self._written = end = start + data.nbytes
        if self._map is None or end > len(self._map):
            size = 0 if self._map is None else len(self._map)
            self._grow(max(end, 2 * size, _FIRST_SIZE))
        assert self._map is not None
        self._map[start:end] = data
        return start, end

    def read(self, start: int, end: int) -> memoryview:
        """Return the bytes from `start` to `end`: a view, which the next write may change."""
        if self._map is None or end > len(self._map):
            self._remap()
        assert self._map is not None
        return memoryview(self._map)[start:end]

    def close(self) -> None:
        """Release the memory. Views that were read stay valid."""
        if self.file >= 0:
            os.close(self.file)
        self.file, self._map = -1, None

    def _grow(self, size: int) -> None:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(self.file, 0, size)  # too little memory is an error now, not a crash
        else:
            os.ftruncate(self.file, size)
        self._remap()

    def _remap(self) -> None:
        # The old one ends with the last view of it.
        self._map = mmap.mmap(self.file, os.fstat(self.file).st_size)


def _unnamed_file() -> int:
    if hasattr(os, "memfd_create"):
        return os.memfd_create("entity_env")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
