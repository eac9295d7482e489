"""Limits on untrusted data: time and memory are linear in the number of bytes.

msgpack allocates lists by their headers before it reads the items; and a dictionary takes quadratic
time if its keys share a hash, as integers modulo 2**61 - 1 do.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.errors import short_repr

MAX_SAME_HASH = 64
"""Maximum number of keys with the same hash; distinct 64-bit numbers have at most 33."""

_NUMBER_DTYPE = re.compile(r"[<>|=]?[biuf]\d{1,2}")
_MAX_AXES = 32
_FREE = 1 << 16
_FREE_PER_BYTE = 64
_TEXT_KEYS = {str, bytes}  # their hashes are randomised
_KEYS = {type(None), bool, int, float, *_TEXT_KEYS}


def dict_of(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """Create a dictionary from untrusted items in linear time.

    Raises:
        ValueError: a key occurs twice, is no plain value, or too many keys share a hash.
    """
    kinds = {type(key) for key, _ in pairs}
    if not kinds <= _TEXT_KEYS:
        for kind in kinds - _KEYS:
            raise ValueError(f"expected keys that are plain values, got a {kind.__name__}")
        check_hashes(key for key, _ in pairs)
    result = dict(pairs)
    if len(result) < len(pairs):
        duplicate = next(key for key, count in Counter(k for k, _ in pairs).items() if count > 1)
        raise ValueError(f"expected unique keys, got {short_repr(duplicate)} twice")
    return result


def check_hashes(keys: Iterable[Hashable]) -> None:
    """Check the number of keys with the same hash, which bounds the time of dictionaries and sets.

    Raises:
        ValueError: more than `MAX_SAME_HASH` keys share a hash.
    """
    # Counting is linear: hashes are integers below 2**64, and few of these share a hash.
    counts = Counter(hash(key) for key in keys if type(key) not in _TEXT_KEYS)
    most = max(counts.values(), default=0)
    if most > MAX_SAME_HASH:
        raise ValueError(f"expected keys with different hashes, got {most} with the same hash")


def unpack_bounded(
    data: bytes | memoryview,
    ext_hook: Callable[[int, bytes], Any],
    map_hook: Callable[[Sequence[tuple[Any, Any]]], Any] = dict_of,
) -> Any:
    """Read one msgpack value.

    Time is linear in the number of bytes; memory is at most about 100 times as large, which only
    empty dictionaries need.

    Args:
        data: bytes of exactly one value.
        ext_hook: function that reads an extension type from its code and bytes.
        map_hook: function that creates a dictionary from its items; by default `dict_of`.

    Returns:
        None, bool, int, float, str, bytes, list, dict, or a result of `ext_hook`. A timestamp is
        read as its seconds.

    Raises:
        ValueError: a list or dictionary is longer than the data, a key occurs twice or is no plain
            value, or too many keys share a hash.
        Exception: any exception of msgpack or `ext_hook` for damaged data.
    """
    import msgpack  # not at the top, as environments alone need no messages

    check_complete(data)
    return msgpack.unpackb(
        data, ext_hook=ext_hook, object_pairs_hook=map_hook, strict_map_key=False, timestamp=1
    )


def check_complete(data: bytes | memoryview) -> None:
    """Check that lists and dictionaries are not longer than the data, without allocating them.

    Raises:
        ValueError: the data ends before the value.
        Exception: any exception of msgpack for damaged data.
    """
    import msgpack

    unpacker = msgpack.Unpacker(max_buffer_size=len(data) or 1)
    unpacker.feed(data)
    try:
        unpacker.skip()
    except msgpack.OutOfData:
        raise ValueError(f"expected a value within its {len(data)} bytes, got more") from None


class Allowance:
    """Budget for data that needs memory when it is used but no bytes in a message.

    Examples are an empty array with long axes, and rows without columns.

    Args:
        num_bytes: size of the message.
    """

    def __init__(self, num_bytes: int) -> None:
        self.remaining = _FREE + _FREE_PER_BYTE * num_bytes

    def take(self, count: int, what: str) -> None:
        """Subtract `count` from the budget.

        Raises:
            ValueError: the budget is exceeded.
        """
        self.remaining -= count
        if self.remaining < 0:
            raise ValueError(f"expected {what} in proportion to the bytes, got {count}")


def number_array(
    dtype: Any, shape: Any, data: bytes, allowance: Allowance, start: int = 0
) -> npt.NDArray[Any]:
    """Create a writable array of numbers from untrusted bytes, as a copy.

    Args:
        dtype: name of the dtype, such as "<f4".
        shape: shape, which must match the number of bytes.
        data: the bytes.
        allowance: budget for an array without numbers.
        start: index of the first byte of the numbers.

    Raises:
        ValueError: dtype or shape is invalid, or does not match the data.
    """
    kind = _number_dtype(dtype) if isinstance(dtype, str) else None
    if kind is None:
        raise ValueError(f"expected an array of numbers, got {short_repr(dtype)}")
    are_ints = isinstance(shape, list) and {*map(type, shape)} <= {int}
    if not are_ints or len(shape) > _MAX_AXES or min(shape, default=0) < 0:
        raise ValueError(f"expected the shape of an array, got {short_repr(shape)}")
    # np.empty would allocate the other axes of an empty array; a view does not.
    if 0 in shape:
        allowance.take(math.prod(n for n in shape if n), "axes of an empty array")
    return np.frombuffer(bytearray(memoryview(data)[start:]), kind).reshape(shape)


@lru_cache(maxsize=64)
def _number_dtype(dtype: str) -> "np.dtype[Any] | None":
    if not _NUMBER_DTYPE.fullmatch(dtype):
        return None
    try:
        return np.dtype(dtype)
    except TypeError:
        return None
