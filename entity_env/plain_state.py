"""Conversion of the state of an environment or bot to plain data, and back.

Plain data are None, bool, int, float, str, bytes, NumPy arrays of numbers, lists, and dictionaries
of them whose keys are None, bool, int, float, str or bytes.
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
    """Error of attributes that share memory which a state cannot describe.

    An environment that raises it from `get_state` counts as one without a state.
    """


class PlainState(SeededRandom):
    """Mixin with `get_state` and `set_state` for what has plain data as attributes.

    These are None, bool, int, float, str, bytes, NumPy arrays and scalars of numbers or text,
    `random.Random`, `np.random.default_rng()`, and lists, tuples, sets and dictionaries of them.
    What two attributes share they share again afterwards: objects, also in circles, and the memory
    of arrays that are views of one another. Other views become copies without the gaps.
    A world that is made of more than this writes both methods itself.
    """

    def get_state(self) -> dict[str, Any]:
        """Return all attributes as plain data that does not change later.

        Raises:
            TypeError: an attribute is not plain data.
            UnsavableSharingError: an array that shares memory with another one repeats some.
        """
        attributes = {"rng": self.rng} | vars(self)
        table, stand_ins = _shared_by(attributes)
        state = {name: to_plain(value, name, stand_ins) for name, value in attributes.items()}
        return {**state, _SHARED: table} if table else state

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that `get_state` returned."""
        shared = _read_shared(state.get(_SHARED, []))
        attributes = {n: from_plain(value, shared) for n, value in state.items() if n != _SHARED}
        vars(self).clear()
        vars(self).update(attributes)


def impure(value: Any, what: str) -> str:
    """Return the part of a value that is not plain data, or "".

    Args:
        value: the value to check.
        what: its name in messages.
    """
    if type(value) in (list, dict):
        for key, item in value.items() if type(value) is dict else enumerate(value):
            part = f"{what}[{key!r}]"
            if type(key) not in _SINGLE:
                return f"a {type(key).__name__} as key {part}"
            if found := impure(item, part):
                return found
        return ""
    is_array = type(value) is np.ndarray and value.dtype.kind in _NUMBERS
    return "" if is_array or type(value) in _SINGLE else f"{type(value).__name__} at {what}"


_SINGLE = (type(None), bool, int, float, str, bytes)
_NUMBERS = "biuf"
_TEXT = "US"
_WORDS = struct.Struct("<625I")
"""The state of a generator of `random`; packed in half the time and size of a list of numbers."""


_SHARED = "shared objects"
"""The key of the objects that several attributes hold, in a state; no name of an attribute."""
_NONE_SHARED: dict[int, Any] = {}


def to_plain(value: Any, what: str, stand_ins: Mapping[int, Any] = _NONE_SHARED) -> Any:
    """Return a value as plain data: itself, a list, or a dictionary with its kind as the key.

    Args:
        value: one of the kinds that `PlainState` takes.
        what: its name in messages.
        stand_ins: plain data in place of shared objects, by `_key`.

    Raises:
        TypeError: it is anything else; or a set that would be gone through in another order.
    """
    if type(value) in _SINGLE:
        return value
    if stand_ins and (one := stand_ins.get(_key(value))) is not None:
        return one
    return _content(value, what, stand_ins)


def _content(value: Any, what: str, stand_ins: Mapping[int, Any]) -> Any:
    """Return a value as plain data, also if it has a stand-in; arguments as for `to_plain`."""
    kind = type(value)
    # Python's own types.
    if kind is list:
        return [to_plain(item, what, stand_ins) for item in value]
    if kind is tuple:
        return {"tuple": [to_plain(item, what, stand_ins) for item in value]}
    if kind is set:
        items = [*value]
        if [*set(items)] != items:  # their order depends on what else was in it
            raise TypeError(
                f"{what}: expected a set that keeps its order when it is made again, got one that "
                "had other members before; use a dictionary with values None, or a sorted list"
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
    """Return the value that `to_plain` was given.

    Args:
        value: plain data.
        shared: the objects that stand-ins stand for.
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
    """Return an array of texts, each with as much memory as its type says.

    Raises:
        ValueError: the memory is out of proportion to the texts.
    """
    size = np.dtype(dtype).itemsize * len(texts)
    if size > max(1 << 20, 1024 * (len(texts) + sum(map(len, texts)))):
        raise ValueError(f"expected texts in proportion to their type, got {size} bytes of {dtype}")
    return np.array(texts, dtype)


# -- Objects that several attributes hold ----------------------------------------------------------

_Array: TypeAlias = "np.ndarray[Any, Any]"
_MUTABLE = {list, dict, set, np.ndarray, random.Random, np.random.Generator}
_NESTING = {*_MUTABLE, tuple}


def _key(value: Any) -> int:
    """Return the identity of an object; two generators that share their bits are one."""
    return id(value.bit_generator if type(value) is np.random.Generator else value)


def _shared_by(attributes: Mapping[str, Any]) -> tuple[list[Any], dict[int, Any]]:
    """Return what several attributes, or several places in one, hold.

    Args:
        attributes: by name.

    Returns:
        The shared objects as plain data, and after them the memory that arrays share; and plain
        data that stand for them wherever they are held, by `_key`.

    Raises:
        TypeError: something that is shared is not plain data.
        UnsavableSharingError: arrays share memory in a way that plain data cannot describe.
    """
    shared, arrays = _find_shared(attributes)
    blocks = [group for group in _overlapping(arrays) if len(group) > 1]
    parts: dict[int, Any] = {}
    memory = []
    for i, group in enumerate(blocks, len(shared)):
        block, of_arrays = _block(i, group)
        memory.append({"array": block})
        parts |= of_arrays
    stand_ins = parts | {key: {"same": i} for i, key in enumerate(shared)}
    table = [
        parts[key] if key in parts else _content(value, name, stand_ins)
        for key, (name, value) in shared.items()
    ]
    return [*table, *memory], stand_ins


def _find_shared(
    attributes: Mapping[str, Any],
) -> tuple[dict[int, tuple[str, Any]], list[tuple[str, _Array]]]:
    """Return the objects that are held twice, by `_key`, and all arrays; with their attributes."""
    seen: set[int] = set()
    shared: dict[int, tuple[str, Any]] = {}
    arrays: list[tuple[str, _Array]] = []
    for name, attribute in attributes.items():
        stack = [attribute]
        while stack:
            value = stack.pop()
            kind = type(value)
            if kind in _MUTABLE:
                if (key := _key(value)) in seen:
                    shared[key] = name, value
                    continue
                seen.add(key)
            if kind is np.ndarray and value.dtype.kind in _NUMBERS + _TEXT and value.size:
                arrays.append((name, value))
            elif kind is list or kind is tuple:
                stack += [item for item in value if type(item) in _NESTING]
            elif kind is dict:
                stack += [item for item in value.values() if type(item) in _NESTING]
    return shared, arrays


def _bounds(array: _Array) -> tuple[int, int]:
    """Return the addresses of the first byte of an array, and of the one after its last."""
    low = high = array.ctypes.data
    for count, stride in zip(array.shape, array.strides, strict=True):
        reach = (count - 1) * stride
        low, high = low + min(reach, 0), high + max(reach, 0)
    return low, high + array.itemsize


def _overlapping(arrays: Sequence[tuple[str, _Array]]) -> list[list[tuple[str, _Array]]]:
    """Return arrays in groups, those in one group share memory."""
    if all(array.base is None for _, array in arrays):
        return []
    groups: list[list[tuple[str, _Array]]] = []
    open_groups: list[tuple[int, list[tuple[str, _Array]]]] = []
    for (low, high), one in sorted(
        ((_bounds(named[1]), named) for named in arrays), key=lambda pair: pair[0]
    ):
        group, left = [one], []
        for end, others in open_groups:
            if end <= low:  # nothing that follows reaches back to it
                groups.append(others)
            elif any(_share(one[1], other) for _, other in others):
                group, high = [*others, *group], max(high, end)
            else:
                left.append((end, others))
        open_groups = [*left, (high, group)]
    return groups + [others for _, others in open_groups]


def _share(one: _Array, other: _Array) -> bool:
    """Return whether two arrays have a byte in common, or it is hard to say."""
    try:
        return np.shares_memory(one, other, max_work=10_000)
    except np.exceptions.TooHardError:
        return True


def _block(i: int, group: Sequence[tuple[str, _Array]]) -> tuple[_Array, dict[int, Any]]:
    """Return the memory that arrays share, and plain data that stand for them, by `_key`.

    Args:
        i: the number of the memory among all that is shared.
        group: two arrays or more, with their attributes.

    Raises:
        UnsavableSharingError: one of them repeats some of it.
    """
    bounds = [_bounds(array) for _, array in group]
    low, high = min(low for low, _ in bounds), max(high for _, high in bounds)
    parts = {}
    for k, (name, array) in enumerate(group):
        if array.nbytes > high - low:
            other = group[k - 1][0] if k else group[1][0]
            raise UnsavableSharingError(
                f"{other} and {name}: expected arrays in which no memory is repeated, got one of "
                f"shape {array.shape} with strides {array.strides}; copy it, or write get_state "
                "and set_state"
            )
        offset = array.ctypes.data - low
        place = [offset, list(array.shape), list(array.strides)]
        parts[_key(array)] = {"part": [i, array.dtype.str, *place]}
    return np.frombuffer(ctypes.string_at(low, high - low), np.uint8), parts


def _part(content: Sequence[Any], shared: Sequence[Any]) -> _Array:
    """Return an array that shares memory, of plain data that stand for it.

    Raises:
        ValueError: it reaches out of the memory, or is not of numbers or text.
    """
    i, name, offset, shape, strides = content
    block, dtype = shared[i], np.dtype(name)
    if dtype.kind not in _NUMBERS + _TEXT or math.prod(shape) * dtype.itemsize > block.nbytes:
        raise ValueError(f"expected an array of {block.nbytes} bytes, got {shape} of {dtype}")
    return np.ndarray(tuple(shape), dtype, block, offset, tuple(strides))


def _read_shared(table: Sequence[Any]) -> list[Any]:
    """Return the objects of a table, which may hold one another."""
    shared: list[Any] = [[] if isinstance(content, list) else {} for content in table]
    # Sets, generators and arrays, then parts of arrays; none of them holds others.
    others = [i for i, one in enumerate(table) if isinstance(one, dict) and "dict" not in one]
    for i in sorted(others, key=lambda i: "part" in table[i]):
        shared[i] = from_plain(table[i], shared)
    # Lists and dictionaries, once all objects are there.
    for one, content in zip(shared, table, strict=True):
        if isinstance(content, list):
            one += from_plain(content, shared)
        elif isinstance(content, dict) and "dict" in content:
            one |= from_plain(content, shared)
    return shared
