"""Limits on untrusted data: time and memory stay in proportion to its bytes.

msgpack allocates a list as its header says, level by level, before the items are read; and a
dictionary takes quadratic time if its keys share a hash, which integers modulo 2**61 - 1 can.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache
from typing import Any

import msgpack
import numpy as np
import numpy.typing as npt

from entity_env.errors import short_repr

MAX_SAME_HASH = 64
"""Most keys of a dictionary that may share a hash; of distinct 64-bit numbers at most 33 do."""

_NUMBER_DTYPE = re.compile(r"[<>|=]?[biuf]\d{1,2}")
_MAX_AXES = 32
_FREE = 1 << 16
_FREE_PER_BYTE = 64
_TEXT_KEYS = {str, bytes}  # with hashes that cannot be predicted
_KEYS = {type(None), bool, int, float, *_TEXT_KEYS}


def dict_of(pairs: Sequence[tuple[Any, Any]]) -> dict[Any, Any]:
    """Return a dictionary of items in linear time, whatever the keys are.

    Raises:
        ValueError: a key is there twice, is no plain value, or shares its hash with too many.
    """
    kinds = {type(key) for key, _ in pairs}
    if not kinds <= _TEXT_KEYS:
        for kind in kinds - _KEYS:
            raise ValueError(f"expected keys that are plain values, got a {kind.__name__}")
        check_hashes(key for key, _ in pairs)
    found = dict(pairs)
    if len(found) < len(pairs):
        twice = next(key for key, count in Counter(k for k, _ in pairs).items() if count > 1)
        raise ValueError(f"expected the key {short_repr(twice)} once, it is there twice")
    return found


def check_hashes(keys: Iterable[Hashable]) -> None:
    """Raise if so many keys share a hash that a dictionary or set of them takes quadratic time.

    Raises:
        ValueError: more than `MAX_SAME_HASH` of them do.
    """
    # Hashes are integers below 2**64, of which few share a hash in turn.
    counts = Counter(hash(key) for key in keys if type(key) not in _TEXT_KEYS)
    most = max(counts.values(), default=0)
    if most > MAX_SAME_HASH:
        raise ValueError(f"expected keys with different hashes, got {most} with the same one")


def unpack_bounded(
    data: bytes | memoryview,
    ext_hook: Callable[[int, bytes], Any],
    map_hook: Callable[[Sequence[tuple[Any, Any]]], Any] = dict_of,
) -> Any:
    """Read one msgpack value.

    Time is linear in the bytes; memory is at most about 100 bytes for each, which nothing but
    empty dictionaries takes.

    Args:
        data: The bytes, no more and no less.
        ext_hook: Read an extension type from its code and bytes.
        map_hook: Read a dictionary from its items; by default `dict_of`.

    Returns:
        None, bool, int, float, str, bytes, list, dict, and what `ext_hook` returns. A timestamp
        is read as its seconds.

    Raises:
        ValueError: a list or dictionary is longer than the data, or a key is there twice, is no
            plain value, or shares its hash with too many others.
        Exception: anything that msgpack or `ext_hook` raises for damaged data.
    """
    check_complete(data)
    return msgpack.unpackb(
        data, ext_hook=ext_hook, object_pairs_hook=map_hook, strict_map_key=False, timestamp=1
    )


def check_complete(data: bytes | memoryview) -> None:
    """Raise if a list or dictionary announces more items than there are; allocates nothing.

    Raises:
        ValueError: the data ends before the value does.
        Exception: anything that msgpack raises for damaged data.
    """
    unpacker = msgpack.Unpacker(max_buffer_size=len(data) or 1)
    unpacker.feed(data)
    try:
        unpacker.skip()
    except msgpack.OutOfData:
        raise ValueError(f"expected a value within its {len(data)} bytes, got more") from None


class Allowance:
    """Budget for data that takes memory once it is used, but no bytes in a file.

    Examples are an empty array with long axes, and rows without columns.

    Args:
        num_bytes: The size of the message.
    """

    def __init__(self, num_bytes: int) -> None:
        self.left = _FREE + _FREE_PER_BYTE * num_bytes

    def take(self, count: int, what: str) -> None:
        """Subtract `count` from the budget.

        Raises:
            ValueError: the budget is exceeded.
        """
        self.left -= count
        if self.left < 0:
            raise ValueError(f"expected {what} in proportion to the bytes, got {count}")


def number_array(
    dtype: Any, shape: Any, data: bytes, allowance: Allowance, start: int = 0
) -> npt.NDArray[Any]:
    """Return an array of numbers that can be written to, in memory of its own.

    Args:
        dtype: Its type, such as "<f4".
        shape: Its shape, with as many numbers as there are.
        data: The bytes.
        allowance: For an array without numbers.
        start: The first byte of the numbers.

    Raises:
        ValueError: this is no array of numbers, or of another size.
    """
    kind = _number_dtype(dtype) if isinstance(dtype, str) else None
    if kind is None:
        raise ValueError(f"expected an array of numbers, got {short_repr(dtype)}")
    are_ints = isinstance(shape, list) and {*map(type, shape)} <= {int}
    if not are_ints or len(shape) > _MAX_AXES or min(shape, default=0) < 0:
        raise ValueError(f"expected the shape of an array, got {short_repr(shape)}")
    # NumPy would set aside the other axes of an array without numbers; a view takes nothing.
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
