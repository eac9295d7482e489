"""Conversion of values that environments return to arrays of real numbers."""

from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

_REAL = "buif"  # kinds of dtypes: bool, unsigned, integer, floating
_NAMES = {"c": "complex numbers", "U": "text", "S": "bytes", "M": "dates", "m": "timedelta64"}
_NOT_REAL = (
    str,
    bytes,
    bytearray,
    complex,
    np.complexfloating,
    np.character,
    np.datetime64,
    np.timedelta64,
    np.ma.MaskedArray,
)
_MAX_DEPTH = 64  # of nested sequences: as many axes as NumPy has


def real_array(values: Any) -> npt.NDArray[Any]:
    """Return an array-like of real numbers as an array of bools, integers or floats.

    NumPy itself would convert text, drop imaginary parts and ignore masks. Objects are accepted if
    they are numbers, such as fractions and decimals.

    Raises:
        TypeError: there is something else than real numbers, or a masked array.
        ValueError: nested sequences differ in length.
        OverflowError: an integer is too large for a float.
    """
    if has_mask(values):
        raise TypeError("a masked array; fill it, or leave the masked rows out")
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        raise
    except Exception as error:  # of an object's own conversion, such as a tensor's with gradients
        raise TypeError(f"{type(error).__name__}: {error}") from None
    if array.dtype.kind in _REAL:
        return array
    if array.dtype.kind != "O":
        raise TypeError(_NAMES.get(array.dtype.kind, str(array.dtype)))
    for cls in set(map(type, array.flat)):
        if issubclass(cls, _NOT_REAL) or not hasattr(cls, "__float__"):
            raise TypeError(f"values of type {cls.__name__}")
    try:
        return array.astype(np.float64)
    except OverflowError:
        raise OverflowError("an integer that is too large for a float") from None


def real_rows(rows: list[Any], width: int) -> npt.NDArray[np.float32] | None:
    """Return many rows of plain numbers as one array, or None if `real_array` has to look at them.

    Args:
        rows: lists and tuples of `width` numbers.
        width: the length of each row.
    """
    numbers = list(chain.from_iterable(rows))
    array = np.array(numbers)
    if array.shape != (len(numbers),) or (numbers and array.dtype.kind not in _REAL):
        return None
    if not np.isfinite(np.add.reduce(array)):  # a masked number became NaN
        return None
    return array.astype(np.float32).reshape(len(rows), width)


def has_mask(values: Any, depth: int = _MAX_DEPTH) -> bool:
    """Return whether an array-like is a masked array, or nested sequences that hold one."""
    if not isinstance(values, list | tuple):
        return isinstance(values, np.ma.MaskedArray)
    classes = set(map(type, values))
    if any(issubclass(cls, np.ma.MaskedArray) for cls in classes):
        return True
    is_nested = depth > 0 and any(issubclass(cls, list | tuple) for cls in classes)
    return is_nested and any(has_mask(value, depth - 1) for value in values)
