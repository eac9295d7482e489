"""`Ragged`: rows that belong to frames, as one flat array and the number of rows of each frame.

This file alone knows `ragged_buffer`, the type that environments written for entity-gym use. It
accepts its buffers and gives them back at the border; where it is not installed nothing changes.
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
    """Frames to take. Rows of the same lengths are looked up once.

    Args:
        frames: (n,) int64, in any order.
    """

    def __init__(self, frames: IntArray) -> None:
        self.frames = frames
        self._cache: dict[tuple[int, Any], tuple[IntArray, IntArray, Any]] = {}

    def rows(self, rows: Any) -> tuple[IntArray, Any]:
        """Return the lengths of the rows of these frames, and their index.

        Args:
            rows: of all frames, a `Ragged`, or one that is elsewhere.
        """
        key = id(rows.lengths), rows.place
        if (cached := self._cache.get(key)) is None:
            lengths = rows.lengths[self.frames]
            index = rows.index_of(row_indices(rows.starts[self.frames], lengths))
            # With the lengths of all frames, as their id is that of others once they are gone.
            cached = self._cache[key] = rows.lengths, lengths, index
        return cached[1:]


@dataclass
class Ragged:
    """A batch of sequences of different lengths.

    Attributes:
        values: (rows,) or (rows, columns), the rows of all frames, frame after frame.
        lengths: (frames,) int64, the number of rows of each frame.

    Raises:
        ValueError: the lengths do not add up to the number of rows.
    """

    values: npt.NDArray[Any]
    lengths: IntArray
    place: ClassVar[None] = None
    """Device of the rows: they are arrays."""

    def __post_init__(self) -> None:
        if np.add.reduce(self.lengths) != len(self.values):  # `sum` takes three times as long
            total, rows = int(self.lengths.sum()), len(self.values)
            raise ValueError(f"Ragged: lengths add up to {total}, but there are {rows} rows")

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: Any) -> "Ragged":
        """Return the frames at `index` (an int, a slice or an array of ints), as a `Ragged`."""
        if isinstance(index, tuple):  # as in entity-gym's `[frames, :, :]`
            index = index[0]
        frames = np.arange(len(self))[index].reshape(-1)
        return self.take(frames)

    @staticmethod
    def index_of(rows: IntArray) -> IntArray:
        """Return the index of rows where these are."""
        return rows

    @property
    def starts(self) -> IntArray:
        """(frames,) int64, where the rows of each frame begin."""
        return exclusive_cumsum(self.lengths)

    def take(self, frames: IntArray) -> "Ragged":
        """Return the given frames, in the given order."""
        return self.select(Selection(frames))

    def select(self, selection: Selection) -> "Ragged":
        """Return the selected frames."""
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
        """Split into consecutive pieces of so many frames each. The rows are views, not copies."""
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
        """Return the number of rows of all frames together."""
        return len(self.values)

    def as_array(self) -> npt.NDArray[Any]:
        """Return the rows as (rows, columns), without a copy."""
        return self.values.reshape(len(self.values), self.size2())


def exclusive_cumsum(lengths: IntArray) -> IntArray:
    """Return the sum of all entries before each one, (n,) int64 from (n,) int64."""
    # sums[i] = lengths[0] + ... + lengths[i - 1]
    sums: IntArray = lengths.cumsum() - lengths
    return sums


def row_indices(starts: IntArray, lengths: IntArray) -> IntArray:
    """Return the numbers starts[i], ..., starts[i] + lengths[i] - 1 for each i in turn.

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
    """Return a `Ragged` with the rows of a buffer; a `Ragged` is returned as it is."""
    if isinstance(value, Ragged):
        return value
    return Ragged(value.as_array(), np.asarray(value.size1(), dtype=np.int64).reshape(-1))


def as_choices(value: Any) -> Ragged:
    """Return the choices of actors, a `Ragged` or a buffer: (rows,), or (rows, columns) of floats.

    Numbers of entity-gym are integers, (rows, 1).
    """
    rows = from_ragged_buffer(value)
    if rows.values.ndim == 1 or rows.values.dtype.kind == "f":
        return rows
    return Ragged(rows.values.reshape(-1), rows.lengths)


def to_ragged_buffer(value: Ragged) -> Any:
    """Return the buffer that environments for entity-gym expect: int64 indices, (n, 1).

    Numbers, which entity-gym does not know, are float32 (n, components).
    """
    lengths = np.ascontiguousarray(value.lengths)
    if value.values.dtype.kind == "f":
        numbers = np.ascontiguousarray(value.as_array(), dtype=np.float32)
        return ragged_buffer.RaggedBufferF32.from_flattened(numbers, lengths)
    rows = np.ascontiguousarray(value.as_array(), dtype=np.int64)
    return ragged_buffer.RaggedBufferI64.from_flattened(rows, lengths)
