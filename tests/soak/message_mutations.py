"""Damage to episodes of a checkpoint: nested messages with other values, types and shapes."""

import copy
import dataclasses
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from entity_env.ragged import Ragged
from entity_env.serialization.messages import MessageError, pack, unpack

Damage = Callable[[Random, bytes], bytes]

_VALUES: list[Any] = [
    *(None, True, 0, -1, 1, 2, 7, 10**6, 2**31, 2**63 - 1, 2**64, -(2**63), 2**300, 0.5, -0.0),
    *(float("nan"), float("inf"), 1e308, "", "s0", "x" * 5000, b"", b"\xc1", b"\x00" * 99),
    *([], [[]], [0], ["s0", "s0"], {}, {"dict": []}, {"tuple": [1, 2]}, {"set": [[1]]}),
    *({"Random": [3, b"", None]}, {"number": np.array(1.0)}, {"x": 1}, [[[[[[[[[]]]]]]]]]),
    *(np.zeros(0), np.zeros((2, 0)), np.array([True]), np.arange(3), np.full((2, 2), np.nan)),
    *(np.array(2**63 - 1), np.array([-1, -1]), np.array([2**62, 2**62], dtype=np.int64)),
]
_DTYPES = ("?", "u1", "i1", "<i4", "<i8", "<u8", "<f2", "<f4", "<f8", ">i8", ">f4")


def messages(rng: Random, data: bytes, of_bytes: Damage) -> bytes:
    """Other content of a message.

    Args:
        rng: chooses.
        data: a message; anything else is damaged as bytes.
        of_bytes: how bytes are damaged that are none.
    """
    try:
        return pack(edited(rng, unpack(data), of_bytes))
    except (MessageError, RecursionError):
        return of_bytes(rng, data)


def edited(rng: Random, value: Any, of_bytes: Damage) -> Any:
    """The value with one change, most often somewhere deep in it."""
    if rng.random() < 0.04:
        return _instead(rng)
    if isinstance(value, Ragged) and value.values.dtype == np.uint8 and rng.random() < 0.8:
        return _with_other_message(rng, value, of_bytes)
    if dataclasses.is_dataclass(value) and dataclasses.fields(value):
        name = rng.choice([field.name for field in dataclasses.fields(value)])
        changed = copy.copy(value)
        object.__setattr__(changed, name, edited(rng, getattr(value, name), of_bytes))
        return changed
    if isinstance(value, dict) and value:
        return _other_dict(rng, value, of_bytes)
    if isinstance(value, list) and value:
        return _other_list(rng, value, of_bytes)
    if isinstance(value, np.ndarray):
        return _other_array(rng, value)
    if isinstance(value, bytes) and value:
        return messages(rng, value, of_bytes)
    if type(value) in (int, float) and rng.random() < 0.5:
        return value + rng.choice((-1, 1, 0.5, 2**40))
    return _instead(rng)


def _instead(rng: Random) -> Any:
    return rng.choice(_VALUES)


def _other_dict(rng: Random, value: dict[Any, Any], of_bytes: Damage) -> dict[Any, Any]:
    key, other = (rng.choice([*value]) for _ in range(2))
    edit = rng.random()
    if edit < 0.7:
        return {**value, key: edited(rng, value[key], of_bytes)}
    if edit < 0.8:
        return {name: item for name, item in value.items() if name != key}
    if edit < 0.87:
        return {**value, key: value[other], other: value[key]}
    if edit < 0.93:
        return dict(reversed(value.items()))
    return {**value, rng.choice(("x", "", 3, b"x", None, key * 2 if key else 0)): value[key]}


def _other_list(rng: Random, value: list[Any], of_bytes: Damage) -> list[Any]:
    at = rng.randrange(len(value))
    edit = rng.random()
    if edit < 0.7:
        return [*value[:at], edited(rng, value[at], of_bytes), *value[at + 1 :]]
    if edit < 0.8:
        return value[:at] + value[at + 1 :]
    return rng.choice((value * 2, value[::-1], [value], [*value, _instead(rng)]))


def _other_array(rng: Random, value: np.ndarray[Any, Any]) -> Any:
    edit = rng.randrange(5)
    if edit == 0:
        with np.errstate(all="ignore"):
            return value.astype(rng.choice(_DTYPES))
    if edit == 1:
        shapes = [value.reshape(-1), value[None], value[..., None], value.T]
        return rng.choice([*shapes, value[:0], value[:-1]] if value.ndim else shapes)
    if edit == 2 and value.ndim:
        return np.concatenate([value, value[: rng.randint(0, 2)]])
    if edit == 3:
        return rng.choice((value.tolist(), value[()]))
    changed = value.copy().reshape(-1)
    for _ in range(min(changed.size, rng.randint(1, 3))):
        number = rng.choice((0, 1, -1, 5, 2**31, float("nan"), float("inf"), 1e30))
        with np.errstate(all="ignore"):
            changed[rng.randrange(changed.size)] = np.array(number).astype(value.dtype)
    return changed.reshape(value.shape)


def _with_other_message(rng: Random, value: Ragged, of_bytes: Damage) -> Ragged:
    """One of many messages, with the lengths that fit."""
    rows = [value[i].values.tobytes() for i in range(len(value))]
    at = rng.randrange(len(rows))
    rows[at] = messages(rng, rows[at], of_bytes)
    lengths = np.array([len(row) for row in rows], dtype=np.int64)
    return Ragged(np.frombuffer(b"".join(rows), np.uint8), lengths)
