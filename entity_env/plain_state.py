"""Conversion of the state of an environment or bot to plain data, and back.

Plain data are None, bool, int, float, str, bytes, NumPy arrays of numbers, lists, and dictionaries
of them whose keys are None, bool, int, float, str or bytes.
"""

import random
import struct
from typing import Any

import numpy as np

from entity_env.environment import SeededRandom
from entity_env.serialization.bounds import check_hashes


class PlainState(SeededRandom):
    """Mixin with `get_state` and `set_state` for what has plain data as attributes.

    These are None, bool, int, float, str, bytes, NumPy arrays and scalars of numbers or text,
    `random.Random`, `np.random.default_rng()`, and lists, tuples, sets and dictionaries of them. An
    object that two attributes share becomes two, and an array that is a part of another one a copy
    without the gaps. A world that is made of more than this writes both methods itself.
    """

    def get_state(self) -> dict[str, Any]:
        """Return all attributes as plain data that does not change later.

        Raises:
            TypeError: an attribute is not plain data.
        """
        attributes = {"rng": self.rng} | vars(self)
        return {name: to_plain(value, name) for name, value in attributes.items()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continue from a state that `get_state` returned."""
        attributes = {name: from_plain(value) for name, value in state.items()}
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


def to_plain(value: Any, what: str) -> Any:
    """Return a value as plain data: itself, a list, or a dictionary with its kind as the key.

    Args:
        value: one of the kinds that `PlainState` takes.
        what: its name in messages.

    Raises:
        TypeError: it is anything else; or a set that would be gone through in another order.
    """
    kind = type(value)
    # Python's own types.
    if kind in _SINGLE:
        return value
    if kind is list:
        return [to_plain(item, what) for item in value]
    if kind is tuple:
        return {"tuple": [to_plain(item, what) for item in value]}
    if kind is set:
        items = [*value]
        if [*set(items)] != items:  # their order depends on what else was in it
            raise TypeError(
                f"{what}: expected a set that keeps its order when it is made again, got one that "
                "had other members before; use a dictionary with values None, or a sorted list"
            )
        return {"set": [to_plain(item, what) for item in items]}
    if kind is dict:
        return {"dict": [[to_plain(k, what), to_plain(v, what)] for k, v in value.items()]}
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


def from_plain(value: Any) -> Any:
    """Return the value that `to_plain` was given."""
    if isinstance(value, list):
        return [from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
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
    items = from_plain(content)
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
