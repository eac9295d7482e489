"""Conversion of the state of an environment or bot to plain data, and back.

Plain data are None, bool, int, float, str, bytes, NumPy arrays of numbers, and lists and
dictionaries of plain data. Keys are None, bool, int, float, str or bytes.
"""

import ctypes
import math
import random
import struct
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from entity_env.environment import SeededRandom
from entity_env.serialization.bounds import check_hashes


class UnsavableSharingError(TypeError):
    """Error for arrays that share memory in a way that plain data cannot represent.

    An environment that raises it in `get_state` is treated as one without a state.
    """


class PlainState(SeededRandom):
    """Mixin that implements `get_state` and `set_state` by saving all attributes.

    Supported are None, bool, int, float, str, bytes, NumPy arrays and scalars of numbers or text,
    `random.Random`, `np.random.default_rng()`, and lists, tuples, sets and dictionaries of these.
    Shared references are restored, including cycles, and so is memory shared by array views; other
    views become contiguous copies. Implement both methods yourself for other attributes.
    """

    def get_state(self) -> dict[str, Any]:
        """Return a snapshot of all attributes as plain data.

        Raises:
            TypeError: the type of an attribute is not supported.
            UnsavableSharingError: an array that shares memory with another one has overlapping
                strides.
        """
        attributes = {"rng": self.rng} | vars(self)
        table, stand_ins = _shared_objects(attributes)
        state = {name: to_plain(value, name, stand_ins) for name, value in attributes.items()}
        return {**state, _SHARED: table} if table else state

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `get_state` returned."""
        shared = _read_shared(state.get(_SHARED, []))
        attributes = {n: from_plain(value, shared) for n, value in state.items() if n != _SHARED}
        vars(self).clear()
        vars(self).update(attributes)


def non_plain_part(value: Any, what: str) -> str:
    """Return the type and path of the first part of a value that is not plain data, or "".

    Args:
        value: the value to check.
        what: its name in messages.
    """
    if type(value) in (list, dict):
        for key, item in value.items() if type(value) is dict else enumerate(value):
            part = f"{what}[{key!r}]"
            if type(key) not in _SINGLE:
                return f"a {type(key).__name__} as key {part}"
            if culprit := non_plain_part(item, part):
                return culprit
        return ""
    is_array = type(value) is np.ndarray and value.dtype.kind in _NUMBERS
    return "" if is_array or type(value) in _SINGLE else f"{type(value).__name__} at {what}"


_SINGLE = (type(None), bool, int, float, str, bytes)
_NUMBERS = "biuf"
_TEXT = "US"
_WORDS = struct.Struct("<625I")
"""State of `random.Random`: half the time and size of a list of numbers."""


_SHARED = "shared objects"
"""Key of shared objects in a state; not a valid attribute name."""
_NONE_SHARED: dict[int, Any] = {}


def to_plain(value: Any, what: str, stand_ins: Mapping[int, Any] = _NONE_SHARED) -> Any:
    """Convert a value to plain data: the value itself, a list, or a dictionary `{type: content}`.

    Args:
        value: of a type that `PlainState` supports.
        what: its name in messages.
        stand_ins: references to shared objects as plain data, by `_key`.

    Raises:
        TypeError: the type is not supported, or a set would be restored with another iteration
            order.
    """
    if type(value) in _SINGLE:
        return value
    if stand_ins and (stand_in := stand_ins.get(_key(value))) is not None:
        return stand_in
    return _content(value, what, stand_ins)


def _content(value: Any, what: str, stand_ins: Mapping[int, Any]) -> Any:
    """Convert a value to plain data like `to_plain`, but ignore its own stand-in."""
    kind = type(value)
    # Python's own types.
    if kind is list:
        return [to_plain(item, what, stand_ins) for item in value]
    if kind is tuple:
        return {"tuple": [to_plain(item, what, stand_ins) for item in value]}
    if kind is set:
        items = [*value]
        if [*set(items)] != items:  # iteration order depends on removed members
            raise TypeError(
                f"{what}: expected a set with a reproducible iteration order, got one with removed "
                "members; use a dictionary with values None, or a sorted list"
            )
        return {"set": [to_plain(item, what) for item in items]}
    if kind is dict:
        items = value.items()
        return {"dict": [[to_plain(k, what), to_plain(v, what, stand_ins)] for k, v in items]}
    # Generators, arrays and scalars of NumPy.
    if kind is random.Random:
        version, words, gauss_next = value.getstate()
        return {"Random": [version, _WORDS.pack(*words), gauss_next]}
    if kind is np.random.Generator and type(value.bit_generator) is np.random.PCG64:
        state: Any = value.bit_generator.state
        numbers = [*state["state"].values(), state["has_uint32"], state["uinteger"]]
        return {"PCG64": b"".join(n.to_bytes(16, "little") for n in numbers)}
    if kind is np.ndarray and value.dtype.kind in _NUMBERS:
        return {"array": value.copy(order="K")}
    if isinstance(value, np.generic) and value.dtype.kind in _NUMBERS:
        return {"number": np.array(value)}
    if kind is np.ndarray and value.dtype.kind in _TEXT:
        return {"texts": [value.dtype.str, list(value.shape), value.ravel().tolist()]}
    if isinstance(value, np.generic) and value.dtype.kind in _TEXT:
        return {"text": [value.dtype.str, value.item()]}
    raise TypeError(f"{what}: expected plain data, got {kind.__name__}")


def from_plain(value: Any, shared: Sequence[Any] = ()) -> Any:
    """Convert plain data back to the value: the inverse of `to_plain`.

    Args:
        value: plain data.
        shared: the shared objects that stand-ins refer to.
    """
    if isinstance(value, list):
        return [from_plain(item, shared) for item in value]
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind == "same":
        return shared[content]
    if kind == "part":
        return _part(content, shared)
    if kind == "array":
        return content.copy(order="K")
    if kind == "number":
        return content[()]
    if kind == "texts":
        dtype, shape, texts = content
        return _text_array(texts, dtype).reshape(shape)
    if kind == "text":
        dtype, text = content
        return _text_array([text], dtype)[0]
    if kind == "Random":
        version, words, gauss_next = content
        rng = random.Random(0)
        rng.setstate((version, _WORDS.unpack(words), gauss_next))
        return rng
    if kind == "PCG64":
        numbers = [int.from_bytes(content[i : i + 16], "little") for i in range(0, 64, 16)]
        bits = np.random.PCG64(0)
        bits.state = {
            "bit_generator": "PCG64",
            "state": {"state": numbers[0], "inc": numbers[1]},
            "has_uint32": numbers[2],
            "uinteger": numbers[3],
        }
        return np.random.Generator(bits)
    items = from_plain(content, shared)
    if kind in ("set", "dict"):
        check_hashes(key if kind == "set" else key[0] for key in items)
    return {"tuple": tuple, "set": set, "dict": dict}[kind](items)


def _text_array(texts: list[Any], dtype: str) -> np.ndarray[Any, Any]:
    """Create an array of texts of a fixed-width dtype.

    Raises:
        ValueError: the dtype needs far more memory than the texts.
    """
    size = np.dtype(dtype).itemsize * len(texts)
    if size > max(1 << 20, 1024 * (len(texts) + sum(map(len, texts)))):
        raise ValueError(f"expected a dtype as wide as its texts, got {size} bytes of {dtype}")
    return np.array(texts, dtype)


# -- Shared objects --------------------------------------------------------------------------------

_Array: TypeAlias = "np.ndarray[Any, Any]"
_MUTABLE = {list, dict, set, np.ndarray, random.Random, np.random.Generator}
_NESTING = {*_MUTABLE, tuple}


def _key(value: Any) -> int:
    """Return the identity of an object; generators with the same bit generator are identical."""
    return id(value.bit_generator if type(value) is np.random.Generator else value)


def _shared_objects(attributes: Mapping[str, Any]) -> tuple[list[Any], dict[int, Any]]:
    """Return the objects and the array memory that are referenced more than once.

    Args:
        attributes: by name.

    Returns:
        The shared objects as plain data, then the shared memory; and by `_key` the stand-ins that
        refer to them.

    Raises:
        TypeError: a shared object is not supported.
        UnsavableSharingError: arrays share memory in a way that plain data cannot represent.
    """
    shared, arrays = _find_shared(attributes)
    blocks = [group for group in _overlapping(arrays) if len(group) > 1]
    parts: dict[int, Any] = {}
    memory = []
    for i, group in enumerate(blocks, len(shared)):
        block, array_parts = _block(i, group)
        memory.append({"array": block})
        parts |= array_parts
    stand_ins = parts | {key: {"same": i} for i, key in enumerate(shared)}
    table = [
        parts[key] if key in parts else _content(value, name, stand_ins)
        for key, (name, value) in shared.items()
    ]
    return [*table, *memory], stand_ins


def _find_shared(
    attributes: Mapping[str, Any],
) -> tuple[dict[int, tuple[str, Any]], list[tuple[str, _Array]]]:
    """Return objects referenced twice by `_key`, and all arrays, with names of attributes."""
    visited: set[int] = set()
    shared: dict[int, tuple[str, Any]] = {}
    arrays: list[tuple[str, _Array]] = []
    for name, attribute in attributes.items():
        stack = [attribute]
        while stack:
            value = stack.pop()
            kind = type(value)
            if kind in _MUTABLE:
                if (key := _key(value)) in visited:
                    shared[key] = name, value
                    continue
                visited.add(key)
            if kind is np.ndarray and value.dtype.kind in _NUMBERS + _TEXT and value.size:
                arrays.append((name, value))
            elif kind is list or kind is tuple:
                stack += [item for item in value if type(item) in _NESTING]
            elif kind is dict:
                stack += [item for item in value.values() if type(item) in _NESTING]
    return shared, arrays


def _bounds(array: _Array) -> tuple[int, int]:
    """Return the address of the first byte of an array, and the end address (exclusive)."""
    low = high = array.ctypes.data
    for count, stride in zip(array.shape, array.strides, strict=True):
        reach = (count - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high + array.itemsize


def _overlapping(arrays: Sequence[tuple[str, _Array]]) -> list[list[tuple[str, _Array]]]:
    """Group arrays that share memory."""
    if all(array.base is None for _, array in arrays):
        return []
    groups: list[list[tuple[str, _Array]]] = []
    open_groups: list[tuple[int, list[tuple[str, _Array]]]] = []
    for (low, high), entry in sorted(
        ((_bounds(named[1]), named) for named in arrays), key=lambda pair: pair[0]
    ):
        group, still_open = [entry], []
        for end, members in open_groups:
            if end <= low:  # sorted by start: no later array overlaps
                groups.append(members)
            elif any(_share_memory(entry[1], other) for _, other in members):
                group, high = [*members, *group], max(high, end)
            else:
                still_open.append((end, members))
        open_groups = [*still_open, (high, group)]
    return groups + [members for _, members in open_groups]


def _share_memory(a: _Array, b: _Array) -> bool:
    """Return whether two arrays share memory; True if the exact check takes too long."""
    try:
        return np.shares_memory(a, b, max_work=10_000)
    except np.exceptions.TooHardError:
        return True


def _block(i: int, group: Sequence[tuple[str, _Array]]) -> tuple[_Array, dict[int, Any]]:
    """Return the memory that a group of arrays shares, and their stand-ins by `_key`.

    Args:
        i: index of the memory in the table of shared objects.
        group: at least two arrays, with names of attributes.

    Raises:
        UnsavableSharingError: an array has overlapping strides.
    """
    bounds = [_bounds(array) for _, array in group]
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    parts = {}
    for k, (name, array) in enumerate(group):
        if array.nbytes > high - low:
            other = group[k - 1][0] if k else group[1][0]
            raise UnsavableSharingError(
                f"{other} and {name}: expected arrays without overlapping strides, got shape "
                f"{array.shape} with strides {array.strides}; copy the array, or write get_state "
                "and set_state"
            )
        offset = array.ctypes.data - low
        place = [offset, list(array.shape), list(array.strides)]
        parts[_key(array)] = {"part": [i, array.dtype.str, *place]}
    return np.frombuffer(ctypes.string_at(low, high - low), np.uint8), parts


def _part(content: Sequence[Any], shared: Sequence[Any]) -> _Array:
    """Create a view of shared memory from its stand-in.

    Raises:
        ValueError: the view exceeds the memory, or its dtype is neither numeric nor text.
    """
    i, name, offset, shape, strides = content
    block, dtype = shared[i], np.dtype(name)
    if dtype.kind not in _NUMBERS + _TEXT or math.prod(shape) * dtype.itemsize > block.nbytes:
        raise ValueError(f"expected an array of {block.nbytes} bytes, got {shape} of {dtype}")
    return np.ndarray(tuple(shape), dtype, block, offset, tuple(strides))


def _read_shared(table: Sequence[Any]) -> list[Any]:
    """Restore the shared objects of a table, which may reference each other."""
    shared: list[Any] = [[] if isinstance(content, list) else {} for content in table]
    # Objects without references first: sets, generators and arrays, then parts of arrays.
    leaves = [i for i, entry in enumerate(table) if isinstance(entry, dict) and "dict" not in entry]
    for i in sorted(leaves, key=lambda i: "part" in table[i]):
        shared[i] = from_plain(table[i], shared)
    # Fill lists and dictionaries once all objects exist.
    for entry, content in zip(shared, table, strict=True):
        if isinstance(content, list):
            entry += from_plain(content, shared)
        elif isinstance(content, dict) and "dict" in content:
            entry |= from_plain(content, shared)
    return shared
