"""The values of Gymnasium spaces as rows of numbers, with a name for each number."""

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from entity_env.errors import InvalidObservation, InvalidSpace
from entity_env.real_numbers import real_array, shown

Space: TypeAlias = spaces.Space[Any]
Numbers: TypeAlias = npt.NDArray[np.float32]

_MOST_CHOICES = 4096


def join(path: str, part: object) -> str:
    """The path of a part of the field at `path`."""
    return f"{path}.{part}" if path else str(part)


def children(space: Space) -> list[tuple[Any, Space]]:
    """The keys and spaces of the parts of a space that has parts, else nothing."""
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    if isinstance(space, spaces.Tuple):
        return list(enumerate(space.spaces))
    return []


def number_names(space: Space, name: str) -> list[str]:
    """A name for each number of a value of a space.

    Args:
        space: a `Box`, `Discrete`, `MultiDiscrete` or `MultiBinary` or a `Dict` or `Tuple` of them.
        name: the name of the whole.

    Raises:
        InvalidSpace: it is another space, or one with too many choices for a number each.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return [one for key, part in children(space) for one in number_names(part, join(name, key))]
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return _positions(space.shape, name)
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        counts, starts = _choices(space)
        if sum(counts) > _MOST_CHOICES:
            raise InvalidSpace(
                f"{name}: expected at most {_MOST_CHOICES} choices, as each becomes a number, got "
                f"{sum(counts)}; name it in ignore, or wrap the world so that it is a Box"
            )
        owners = [name] if isinstance(space, spaces.Discrete) else _positions(space.shape, name)
        return [
            f"{owner}={start + i}"
            for owner, n, start in zip(owners, counts, starts, strict=True)
            for i in range(n)
        ]
    raise InvalidSpace(
        f"{name or 'observation'}: expected a space of numbers, got {space}; "
        "name it in ignore, or wrap the world"
    )


def numbers(space: Space, value: Any, n: int, what: str) -> Numbers:
    """The numbers of `n` values of a space: what is one of several choices becomes a 1 among 0s.

    Args:
        space: as for `number_names`.
        value: the values, batched as Gymnasium does it; for n=1 it may be the value itself.
        n: how many.
        what: the field, for messages.

    Returns:
        (n, numbers) float32, a copy.

    Raises:
        InvalidObservation: the value is not of this space.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        try:
            parts = [numbers(part, value[key], n, join(what, key)) for key, part in children(space)]
        except (KeyError, IndexError, TypeError) as error:
            raise InvalidObservation(f"{what}: expected {space}, got {value!r} ({error})") from None
        return np.hstack([np.zeros((n, 0), dtype=np.float32), *parts])
    shape = n, *(space.shape or ())
    if isinstance(space, spaces.Discrete | spaces.MultiDiscrete):
        counts, starts = _choices(space)
        return _one_hot(as_array(value, shape, what, np.float64), counts, starts, what)
    return as_array(value, shape, what)


def as_array(value: Any, shape: tuple[int, ...], what: str, dtype: Any = np.float32) -> Numbers:
    """Numbers of a shape, up to dimensions of size 1, as (shape[0], the rest), a copy.

    Raises:
        InvalidObservation: they are not numbers, or not of this shape.
    """
    try:
        array = np.array(real_array(value), dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidObservation(
            f"{what}: expected numbers, got {shown(value)} ({error})"
        ) from None
    if array.shape not in (shape[1:], shape) and (
        [d for d in array.shape if d != 1] != [d for d in shape if d != 1]
    ):
        expected = shape[1:] if shape[0] == 1 else shape
        raise InvalidObservation(f"{what}: expected shape {expected}, got {array.shape}")
    return array.reshape(shape[0], math.prod(shape[1:]))


def _choices(space: spaces.Discrete | spaces.MultiDiscrete) -> tuple[list[int], list[int]]:
    if isinstance(space, spaces.Discrete):
        return [int(space.n)], [int(space.start)]
    return space.nvec.ravel().tolist(), np.broadcast_to(space.start, space.shape).ravel().tolist()


def _one_hot(
    values: npt.NDArray[Any], counts: Sequence[int], starts: Sequence[int], what: str
) -> Numbers:
    """(n, parts) whole numbers -> (n, sum of counts) float32."""
    offsets = values - np.asarray(starts)
    if not ((offsets >= 0) & (offsets < np.asarray(counts)) & (offsets % 1 == 0)).all():
        raise InvalidObservation(
            f"{what}: expected numbers from {list(starts)} on, among {list(counts)} choices, got "
            f"{values.tolist()}"
        )
    flags: Numbers = np.zeros((len(values), sum(counts)), dtype=np.float32)
    columns = offsets.astype(np.int64) + np.cumsum([0, *counts])[:-1]
    flags[np.arange(len(values))[:, None], columns] = 1.0
    return flags


def _positions(shape: tuple[int, ...], name: str) -> list[str]:
    if int(np.prod(shape)) == 1:
        return [name]
    return [join(name, ".".join(map(str, index))) for index in np.ndindex(*shape)]
