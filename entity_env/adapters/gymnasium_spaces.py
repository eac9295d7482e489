"""Paths, names and numbers of the values of Gymnasium spaces."""

import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from entity_env.errors import InvalidObservation, InvalidSpace
from entity_env.real_numbers import real_array
from entity_env.short_repr import LONG, short_repr

Space: TypeAlias = spaces.Space[Any]
Numbers: TypeAlias = npt.NDArray[np.float32]
Flags: TypeAlias = npt.NDArray[np.bool_]

_MAX_CHOICES = 4096
_NESTED = spaces.Dict, spaces.Tuple
_DISCRETE = spaces.Discrete, spaces.MultiDiscrete


def join_path(path: str, key: object) -> str:
    """Return the path of a part of the field at `path`."""
    return f"{path}.{key}" if path else str(key)


def element_paths(shape: tuple[int, ...], path: str) -> list[str]:
    """Return the path of each element of an array, in row-major order."""
    return [join_path(path, ".".join(map(str, index))) for index in np.ndindex(*shape)]


def children(space: Space) -> list[tuple[Any, Space]]:
    """Return the keys and spaces of the parts of a `Dict` or `Tuple`, [] for any other space."""
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else []


def choices(space: spaces.Discrete | spaces.MultiDiscrete) -> tuple[list[int], list[int]]:
    """Return the number of choices of each component, and the number of its first choice."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)], [int(space.start)]
    return space.nvec.ravel().tolist(), np.broadcast_to(space.start, space.shape).ravel().tolist()


def number_names(space: Space, name: str) -> list[str]:
    """Return a name for each number of a value of a space.

    Args:
        space: a `Box`, `Discrete`, `MultiDiscrete`, `MultiBinary`, or a `Dict` or `Tuple` of them.
        name: the name of the whole value.

    Raises:
        InvalidSpace: the space is of another kind, or has too many choices for a number each.
    """
    if isinstance(space, _NESTED):
        return [
            one for key, part in children(space) for one in number_names(part, join_path(name, key))
        ]
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return _array_names(space.shape, name)
    if not isinstance(space, _DISCRETE):
        raise InvalidSpace(
            f"{name or 'observation'}: expected a space of numbers, got {space}; "
            "name it in ignore, or wrap the environment"
        )
    counts, starts = choices(space)
    if sum(counts) > _MAX_CHOICES:
        raise InvalidSpace(
            f"{name}: expected at most {_MAX_CHOICES} choices, as each becomes a number, got "
            f"{sum(counts)}; name it in ignore, or wrap the environment so that it is a Box"
        )
    components = [name] if isinstance(space, spaces.Discrete) else _array_names(space.shape, name)
    return [
        f"{component}={start + i}"
        for component, count, start in zip(components, counts, starts, strict=True)
        for i in range(count)
    ]


def to_numbers(space: Space, value: Any, n: int, field: str) -> Numbers:
    """Return the numbers of `n` values of a space; discrete values are one-hot encoded.

    Args:
        space: as for `number_names`.
        value: the values, batched in the way of Gymnasium; for n=1 also the value itself.
        n: the number of values.
        field: for messages.

    Returns:
        (n, numbers) float32, a copy.

    Raises:
        InvalidObservation: the value is not of this space.
    """
    if isinstance(space, _NESTED):
        try:
            parts = [
                to_numbers(part, value[key], n, join_path(field, key))
                for key, part in children(space)
            ]
        except (KeyError, IndexError, TypeError) as error:
            raise InvalidObservation(
                f"{field}: expected {space}, got {value!r} ({error})"
            ) from None
        return np.hstack([np.zeros((n, 0), dtype=np.float32), *parts])
    shape = n, *(space.shape or ())
    if not isinstance(space, _DISCRETE):
        return as_array(value, shape, field)

    # One-hot. As float64, in which large numbers of choices differ.
    values = as_array(value, shape, field, np.float64)
    counts, starts = choices(space)
    offsets = values - np.asarray(starts)
    if not ((offsets >= 0) & (offsets < np.asarray(counts)) & (offsets % 1 == 0)).all():
        raise InvalidObservation(
            f"{field}: expected numbers from {starts} on, among {counts} choices, got "
            f"{values.tolist()}"
        )
    encoded: Numbers = np.zeros((n, sum(counts)), dtype=np.float32)
    columns = offsets.astype(np.int64) + np.cumsum([0, *counts])[:-1]
    encoded[np.arange(n)[:, None], columns] = 1.0
    return encoded


def as_array(value: Any, shape: tuple[int, ...], field: str, dtype: Any = np.float32) -> Numbers:
    """Return numbers of a shape, up to dimensions of size 1, as (shape[0], the rest), a copy.

    Raises:
        InvalidObservation: the value does not consist of numbers, or has another shape.
    """
    try:
        array = np.array(real_array(value), dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidObservation(
            f"{field}: expected numbers, got {short_repr(value, LONG)} ({error})"
        ) from None
    if [d for d in array.shape if d != 1] != [d for d in shape if d != 1]:
        expected = shape[1:] if shape[0] == 1 else shape
        raise InvalidObservation(f"{field}: expected shape {expected}, got {array.shape}")
    return array.reshape(shape[0], math.prod(shape[1:]))


def _array_names(shape: tuple[int, ...], name: str) -> list[str]:
    return [name] if math.prod(shape) == 1 else element_paths(shape, name)
