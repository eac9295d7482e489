"""Checks of rows that were read, of their number, shape and dtype."""

from typing import Any

import numpy as np

from entity_env.errors import short_repr, unexpected
from entity_env.ragged import Ragged


def check_rows(
    rows: Ragged, what: str, dtype: Any, columns: tuple[int, ...], num_frames: int, exact: bool
) -> None:
    """Raise unless rows are of so many frames, and of a shape and dtype.

    Args:
        rows: to check.
        what: the field, for messages.
        dtype: bool, int64 or float32.
        columns: the shape of a row.
        num_frames: B.
        exact: accept the same dtype alone.

    Raises:
        InvalidObservation: with the field and what was expected.
    """
    expect(type(rows) is Ragged and len(rows) == num_frames, what, f"{num_frames} frames", rows)
    valid = rows.lengths.dtype == np.int64 and (rows.lengths >= 0).all()
    expect(valid, f"{what}: lengths", "counts", rows.lengths)
    shape, got = (int(rows.lengths.sum()), *columns), rows.values
    fits = is_like(got.dtype, dtype, exact) and got.shape == shape
    expect(fits, what, f"{np.dtype(dtype)} {shape}", f"{got.dtype} {got.shape}")


def is_like(found: "np.dtype[Any]", dtype: Any, exact: bool = False) -> bool:
    """Return whether an array of the dtype `found` may stand for one of `dtype`.

    Args:
        found: of the array.
        dtype: bool, int64, or float32, for which integers are accepted too.
        exact: accept the same dtype alone.
    """
    if exact or np.dtype(dtype).kind == "b":
        return bool(found == dtype)
    # Joined with int64, uint64 becomes float64, which is no index.
    is_index = found.kind in "iu" and np.can_cast(found, np.int64)
    return is_index if np.dtype(dtype).kind == "i" else found.kind in "fiu"


def expect(holds: bool | np.bool_, what: str, expected: str, got: object) -> None:
    """Raise unless a condition holds.

    Raises:
        InvalidObservation: "{what}: expected {expected}, got {got}".
    """
    if not holds:
        raise unexpected(None, what, expected, got if isinstance(got, str) else short_repr(got))
