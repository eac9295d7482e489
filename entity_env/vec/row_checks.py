"""Checks of the number, shape and dtype of rows that were read."""

from typing import Any

import numpy as np

from entity_env.errors import short_repr, unexpected
from entity_env.ragged import Ragged


def check_rows(
    rows: Ragged, what: str, dtype: Any, columns: tuple[int, ...], num_frames: int, exact: bool
) -> None:
    """Raise unless rows have the expected number of frames, shape and dtype.

    Args:
        rows: to check.
        what: the field, for messages.
        dtype: bool, int64 or float32.
        columns: the shape of a row.
        num_frames: B.
        exact: require the dtype itself.

    Raises:
        InvalidObservation: with the field and the expected value.
    """
    expect(type(rows) is Ragged and len(rows) == num_frames, what, f"{num_frames} frames", rows)
    valid = rows.lengths.dtype == np.int64 and (rows.lengths >= 0).all()
    expect(valid, f"{what}: lengths", "counts", rows.lengths)
    shape, got = (int(rows.lengths.sum()), *columns), rows.values
    matches = is_like(got.dtype, dtype, exact) and got.shape == shape
    expect(matches, what, f"{np.dtype(dtype)} {shape}", f"{got.dtype} {got.shape}")


def is_like(got: "np.dtype[Any]", dtype: Any, exact: bool = False) -> bool:
    """Return whether an array of dtype `got` is accepted for `dtype`.

    Args:
        got: dtype of the array.
        dtype: bool, int64, or float32, for which integers are accepted too.
        exact: require the dtype itself.
    """
    if exact or np.dtype(dtype).kind == "b":
        return bool(got == dtype)
    # Joined with int64, uint64 becomes float64, which is no index.
    is_index = got.kind in "iu" and np.can_cast(got, np.int64)
    return is_index if np.dtype(dtype).kind == "i" else got.kind in "fiu"


def expect(holds: bool | np.bool_, what: str, expected: str, got: object) -> None:
    """Raise unless a condition holds.

    Raises:
        InvalidObservation: "{what}: expected {expected}, got {got}".
    """
    if not holds:
        raise unexpected(None, what, expected, got if isinstance(got, str) else short_repr(got))
