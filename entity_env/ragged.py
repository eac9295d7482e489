"""`Ragged`: a batch of frames with different numbers of rows, as a flat array and lengths.

Also converts buffers of the optional package `ragged_buffer`, which entity-gym environments use.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from entity_env.arrays import IntArray

try:
    import ragged_buffer
except ImportError:  # no wheel for this Python
    ragged_buffer = None  # type: ignore[assignment,unused-ignore]


class Selection:
    """Indices of frames, with a cache of indices on devices.

    Row indices are shared by arrays that share their lengths.

    Args:
        frames: (n,) int64, in any order.
    """

    def __init__(self, frames: IntArray) -> None:
        self.frames = frames
        self._cache: dict[tuple[int, Any], tuple[IntArray, IntArray, Any]] = {}
        self._index: dict[Any, Any] = {}

    def index(self, rows: Any) -> Any:
        """Return the indices of the frames on the device of `rows`; see `rows` for the argument."""
        if rows.place not in self._index:
            self._index[rows.place] = rows.index_of(self.frames)
        return self._index[rows.place]

    def rows(self, rows: Any) -> tuple[IntArray, Any]:
        """Return the lengths and the row indices of the selected frames.

        Args:
            rows: of all frames: a `Ragged`, or a ragged tensor on any device.
        """
        key = id(rows.lengths), rows.place
        if (cached := self._cache.get(key)) is None:
            lengths = rows.lengths[self.frames]
            index = rows.index_of(row_indices(rows.starts[self.frames], lengths))
            # Keep a reference to rows.lengths, so that its id is not reused.
            cached = self._cache[key] = rows.lengths, lengths, index
        return cached[1:]


@dataclass
class Ragged:
    """A batch of frames with different numbers of rows.

    Attributes:
        values: (rows,) or (rows, columns), the concatenated rows of all frames.
        lengths: (frames,) int64, the number of rows of each frame.

    Raises:
        ValueError: the sum of the lengths is not the number of rows.
    """

    values: npt.NDArray[Any]
    lengths: IntArray
    place: ClassVar[None] = None
    """Device of the rows; None for NumPy arrays."""

    def __post_init__(self) -> None:
        if np.add.reduce(self.lengths) != len(self.values):  # `sum` takes three times as long
            total, rows = int(self.lengths.sum()), len(self.values)
            raise ValueError(f"Ragged: lengths add up to {total}, but there are {rows} rows")

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: Any) -> "Ragged":
        """Return the frames at `index`: an int, a slice or an integer array."""
        if isinstance(index, tuple):  # as in entity-gym's `[frames, :, :]`
            index = index[0]
        frames = np.arange(len(self))[index].reshape(-1)
        return self.take(frames)

    @staticmethod
    def index_of(rows: IntArray) -> IntArray:
        """Return row indices on the device of the rows."""
        return rows

    @property
    def starts(self) -> IntArray:
        """(frames,) int64, the first row of each frame."""
        return exclusive_cumsum(self.lengths)

    def take(self, frames: IntArray) -> "Ragged":
        """Return a copy of the frames at these indices."""
        return self.select(Selection(frames))

    def select(self, selection: Selection) -> "Ragged":
        """Return a copy of the selected frames."""
        lengths, index = selection.rows(self)
        return Ragged(self.values[index], lengths)

    def slice(self, frames: slice) -> "Ragged":
        """Return a copy of consecutive frames."""
        return self.take(np.arange(len(self))[frames])

    def of_frames(self) -> list[npt.NDArray[Any]]:
        """Return the rows of each frame, as views."""
        ends = np.cumsum(self.lengths).tolist()
        return [self.values[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def split(self, frame_counts: Sequence[int]) -> list["Ragged"]:
        """Split into consecutive pieces with the given numbers of frames; the rows are views."""
        pieces, frame, row = [], 0, 0
        for count in frame_counts:
            lengths = self.lengths[frame : frame + count]
            rows = int(lengths.sum())
            pieces.append(Ragged(self.values[row : row + rows], lengths))
            frame, row = frame + count, row + rows
        return pieces

    @staticmethod
    def cat(pieces: Sequence["Ragged"]) -> "Ragged":
        """Concatenate the frames of several pieces."""
        values = np.concatenate([piece.values for piece in pieces])
        return Ragged(values, np.concatenate([piece.lengths for piece in pieces]))

    @staticmethod
    def empty(like: npt.NDArray[Any], frames: int) -> "Ragged":
        """Return frames without rows, of the dtype and columns of `like`."""
        return Ragged(like[:0], np.zeros(frames, dtype=np.int64))

    def size0(self) -> int:
        """Return the number of frames."""
        return len(self.lengths)

    def size1(self, frame: int | None = None) -> Any:
        """Return the number of rows of one frame, or of each."""
        return self.lengths if frame is None else int(self.lengths[frame])

    def size2(self) -> int:
        """Return the number of columns."""
        return int(self.values.shape[1]) if self.values.ndim > 1 else 1

    def items(self) -> int:
        """Return the total number of rows."""
        return len(self.values)

    def as_array(self) -> npt.NDArray[Any]:
        """Return the rows as (rows, columns), without a copy."""
        return self.values.reshape(len(self.values), self.size2())


def exclusive_cumsum(lengths: IntArray) -> IntArray:
    """Return the exclusive cumulative sum: (n,) int64 -> (n,) int64."""
    # sums[i] = lengths[0] + ... + lengths[i - 1]
    sums: IntArray = lengths.cumsum() - lengths
    return sums


def row_indices(starts: IntArray, lengths: IntArray) -> IntArray:
    """Concatenate the ranges starts[i], ..., starts[i] + lengths[i] - 1.

    Args:
        starts: (n,) int64.
        lengths: (n,) int64.

    Returns:
        (sum of lengths,) int64.
    """
    indices: IntArray = np.repeat(starts - exclusive_cumsum(lengths), lengths)
    indices += np.arange(len(indices))
    return indices


def is_ragged_buffer(value: object) -> bool:
    """Return whether a value is a buffer of the `ragged_buffer` package."""
    kinds = ("RaggedBufferF32", "RaggedBufferI64", "RaggedBufferBool")
    return any(isinstance(value, getattr(ragged_buffer, kind, ())) for kind in kinds)


def from_ragged_buffer(value: Any) -> Ragged:
    """Convert a buffer to a `Ragged`; a `Ragged` is returned unchanged."""
    if isinstance(value, Ragged):
        return value
    return Ragged(value.as_array(), np.asarray(value.size1(), dtype=np.int64).reshape(-1))


def as_choices(value: Any) -> Ragged:
    """Convert choices to a `Ragged`: (rows,) int, or (rows, components) float.

    Args:
        value: a `Ragged`, or a buffer of entity-gym, (rows, 1) int.
    """
    rows = from_ragged_buffer(value)
    if rows.values.ndim == 1 or rows.values.dtype.kind == "f":
        return rows
    return Ragged(rows.values.reshape(-1), rows.lengths)


def to_ragged_buffer(value: Ragged) -> Any:
    """Convert choices to the buffer that entity-gym environments expect: (n, 1) int64.

    Continuous actions, which entity-gym lacks, become float32 (n, components).
    """
    lengths = np.ascontiguousarray(value.lengths)
    if value.values.dtype.kind == "f":
        numbers = np.ascontiguousarray(value.as_array(), dtype=np.float32)
        return ragged_buffer.RaggedBufferF32.from_flattened(numbers, lengths)
    rows = np.ascontiguousarray(value.as_array(), dtype=np.int64)
    return ragged_buffer.RaggedBufferI64.from_flattened(rows, lengths)
