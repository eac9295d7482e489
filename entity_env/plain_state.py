"""The state of a world as plain data, and back."""

import random
from typing import Any

import numpy as np

from entity_env.environment import SeededRandom


class PlainState(SeededRandom):
    """`get_state` and `set_state` for a world whose attributes are plain data.

    These are None, bool, int, float, str, NumPy arrays and scalars of numbers, `random.Random`,
    and lists, tuples, sets and dictionaries of them. An object that two attributes share becomes
    two. A world that is made of more than this writes both methods itself.
    """

    def get_state(self) -> dict[str, Any]:
        """All that the future depends on: None, bool, int, float, str, lists and dictionaries.

        Raises:
            TypeError: an attribute is not plain data.
        """
        attributes = {"rng": self.rng} | vars(self)
        return {name: _to_plain(value, name) for name, value in attributes.items()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on from a state that `get_state` returned."""
        attributes = {name: _from_plain(value) for name, value in state.items()}
        vars(self).clear()
        vars(self).update(attributes)


def _to_plain(value: Any, what: str) -> Any:
    """The value itself, a list, or a dictionary with one key that says what the value is."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [_to_plain(item, what) for item in value]
    if type(value) in (tuple, set):
        return {type(value).__name__: [_to_plain(item, what) for item in value]}
    if type(value) is dict:
        return {"dict": [[_to_plain(k, what), _to_plain(v, what)] for k, v in value.items()]}
    if type(value) is random.Random:
        version, words, gauss_next = value.getstate()
        return {"Random": [version, list(words), gauss_next]}
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        return {"array": [value.dtype.str, list(value.shape), value.ravel().tolist()]}
    raise TypeError(f"{what}: expected plain data, got {type(value).__name__}")


def _from_plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_from_plain(item) for item in value]
    if not isinstance(value, dict):
        return value
    [(kind, content)] = value.items()
    if kind == "array":
        dtype, shape, numbers = content
        return np.array(numbers, dtype=dtype).reshape(shape)[()]
    if kind == "Random":
        version, words, gauss_next = content
        rng = random.Random(0)
        rng.setstate((version, tuple(words), gauss_next))
        return rng
    return {"tuple": tuple, "set": set, "dict": dict}[kind](_from_plain(content))
