"""Array types, and conversion of values that environments return to NumPy arrays."""

from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.errors import LONG, short_repr, unexpected

BoolArray: TypeAlias = npt.NDArray[np.bool_]
IntArray: TypeAlias = npt.NDArray[np.int64]
Float32Array: TypeAlias = npt.NDArray[np.float32]
FloatArray: TypeAlias = npt.NDArray[np.float64]
ImageArray: TypeAlias = npt.NDArray[np.uint8]
"""(height, width, 3) RGB."""

_REAL = "buif"  # kinds of dtypes: bool, unsigned, integer, floating
_NAMES = {"c": "complex numbers", "U": "text", "S": "bytes", "M": "dates", "m": "timedelta64"}
_TEXT = str, bytes, bytearray, np.character
_NOT_REAL = *_TEXT, complex, np.complexfloating, np.datetime64, np.timedelta64, np.ma.MaskedArray
_MAX_DEPTH = 64  # of nested sequences: as many axes as NumPy has


def real_array(values: Any) -> npt.NDArray[Any]:
    """Convert real numbers to an array of bools, integers or floats.

    `np.asarray` would convert text, drop imaginary parts and ignore masks. Fractions, decimals and
    other number objects become float64.

    Raises:
        TypeError: the values are not real numbers, or are in a masked array.
        ValueError: nested sequences differ in length.
        OverflowError: an integer is too large for a float.
    """
    if has_mask(values):
        raise TypeError("a masked array; fill it, or leave the masked rows out")
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        raise
    except Exception as error:  # by __array__, such as that of a tensor with gradients
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


def real_rows(rows: list[Any], width: int) -> Float32Array | None:
    """Convert rows of plain numbers to one array: the fast path of `real_array`.

    Args:
        rows: lists and tuples of `width` numbers.
        width: the length of each row.

    Returns:
        (rows, width) float32; None if the rows need the checks of `real_array`.
    """
    elements = list(chain.from_iterable(rows))
    array = np.array(elements)
    if array.shape != (len(elements),) or (elements and array.dtype.kind not in _REAL):
        return None
    if not np.isfinite(np.add.reduce(array)):  # a masked number became NaN
        return None
    return array.astype(np.float32).reshape(len(rows), width)


def has_mask(values: Any, depth: int = _MAX_DEPTH) -> bool:
    """Return whether an array-like is a masked array, or a nested sequence with one inside."""
    if not isinstance(values, list | tuple):
        return isinstance(values, np.ma.MaskedArray)
    classes = set(map(type, values))
    if any(issubclass(cls, np.ma.MaskedArray) for cls in classes):
        return True
    is_nested = depth > 0 and any(issubclass(cls, list | tuple) for cls in classes)
    return is_nested and any(has_mask(value, depth - 1) for value in values)


def as_block(
    features: Any, n: int, width: int, what: str, env_index: int | None = None
) -> Float32Array:
    """Convert features to float32 (n, width).

    Raises:
        InvalidObservation: the features are not numbers, or have another shape.
    """
    try:
        array = np.asarray(real_array(features), dtype=np.float32)
    except (TypeError, ValueError, OverflowError) as error:
        got = f"{short_repr(features, LONG)} ({error})"
        raise unexpected(env_index, what, f"{n} rows of {width} numbers", got) from None
    if array.shape != (n, width):
        raise unexpected(env_index, what, f"shape ({n}, {width})", array.shape)
    return array


def as_flag(value: Any, name: str, env_index: int | None = None) -> bool:
    """Convert a bool, an integer, or an array with one element to a bool; None is False.

    Raises:
        InvalidObservation: the value is text, a sequence, a fraction or NaN.
    """
    if type(value) is bool:
        return value
    if value is None or isinstance(value, int | np.integer | np.bool_):
        return bool(value)
    array = None if isinstance(value, list | tuple) else _real_or_none(value)
    if array is not None and array.size == 1 and array.item() in (0, 1):
        return bool(array.item())
    raise unexpected(env_index, name, "True or False", short_repr(value, LONG))


def as_flags(flags: Any, what: str, env_index: int | None = None) -> BoolArray:
    """Convert booleans, or zeros and ones, to a boolean array.

    Raises:
        InvalidObservation: there are other values, or the array is masked.
    """
    try:
        if not has_mask(flags):
            array = np.asarray(flags)
            if array.dtype == np.bool_:
                return array
            if array.dtype.kind in "iuf" and np.isin(array, (0, 1)).all():
                return array.astype(np.bool_)
    except Exception:  # nested sequences of different lengths, or an error of __array__
        pass
    raise unexpected(env_index, what, "booleans", short_repr(flags, LONG))


def as_numbers(values: Sequence[Any], env_indices: Sequence[int], what: str) -> FloatArray:
    """Convert one number per environment to float64 (n,).

    Args:
        values: (n,) real numbers.
        env_indices: (n,) indices of the environments, for the message.
        what: the field, for the message.

    Raises:
        InvalidObservation: a value is not a real number.
    """
    reals = _real_or_none(values)
    if reals is not None and reals.shape == (len(values),):
        return reals.astype(np.float64)
    arrays = map(_real_or_none, values)
    i = next(i for i, array in enumerate(arrays) if array is None or array.ndim)
    raise unexpected(env_indices[i], what, "a number", short_repr(values[i], LONG))


def _real_or_none(values: Any) -> npt.NDArray[Any] | None:
    try:
        return real_array(values)
    except (TypeError, ValueError, OverflowError):
        return None


def all_none(values: Sequence[Any]) -> bool:
    """Return whether all values are None, without comparing the elements of arrays."""
    return set(map(type, values)) <= {type(None)}
