"""The actions of a world as a list of parts, each of them one of several choices."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from entity_env.adapters.space_numbers import Space, children, join
from entity_env.errors import InvalidObservation, InvalidSpace

Flags: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Part:
    """One choice within an action.

    Attributes:
        path: where it is.
        num_choices: how many there are; 0 for a `Box`, whose choices the mapping has to give.
        start: the number of the first.
        space: the `Box`, else None.
    """

    path: str
    num_choices: int
    start: int = 0
    space: spaces.Box | None = None


def parts(space: Space, path: str = "") -> list[Part]:
    """The parts of an action, in the order of the space.

    Raises:
        InvalidSpace: it is not made of choices.
    """
    if isinstance(space, spaces.Discrete):
        return [Part(path, int(space.n), int(space.start))]
    if isinstance(space, spaces.MultiDiscrete):
        starts = np.broadcast_to(space.start, space.shape).ravel().tolist()
        counts = space.nvec.ravel().tolist()
        return [
            Part(join(path, ".".join(map(str, index))), n, start)
            for index, n, start in zip(np.ndindex(*space.shape), counts, starts, strict=True)
        ]
    if isinstance(space, spaces.MultiBinary):
        return [Part(join(path, ".".join(map(str, i))), 2) for i in np.ndindex(*space.shape)]
    if isinstance(space, spaces.Box):
        return [Part(path, 0, space=space)]
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return [part for key, child in children(space) for part in parts(child, join(path, key))]
    raise InvalidSpace(
        f"action {path!r}: expected Discrete, MultiDiscrete, MultiBinary or a Dict or Tuple of "
        f"them, got {space}; wrap the world so that it takes one of these"
    )


def assemble(space: Space, values: Iterator[Any]) -> Any:
    """The action made of the values of its parts, in their order."""
    if isinstance(space, spaces.Dict):
        return {key: assemble(child, values) for key, child in children(space)}
    if isinstance(space, spaces.Tuple):
        return tuple(assemble(child, values) for _, child in children(space))
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        size = int(np.prod(space.shape))
        return np.array([next(values) for _ in range(size)], space.dtype).reshape(space.shape)
    value = next(values)
    return in_box(space, value) if isinstance(space, spaces.Box) else np.int64(value)


def in_box(space: spaces.Box, value: Any) -> npt.NDArray[Any]:
    """A value as a `Box` has it."""
    return np.asarray(value, dtype=space.dtype).reshape(space.shape)


def split_mask(space: Space, mask: Any, what: str) -> list[Flags | None]:
    """What a mask allows for each part of an action.

    Args:
        space: of the action.
        mask: (choices,) for a `Discrete`; for several parts the masks one after the other, flat or
            as rows or as a tuple; for a `Dict` or `Tuple` a mask by key. None allows everything.
        what: the mask, for messages.

    Returns:
        For each part (choices,) bool, or None where everything is allowed.

    Raises:
        InvalidObservation: the mask does not fit.
    """
    own = parts(space)
    if mask is None:
        return [None] * len(own)
    if isinstance(space, spaces.Dict) and isinstance(mask, Mapping):
        if unknown := [key for key in mask if key not in space.spaces]:
            raise InvalidObservation(
                f"{what}: expected masks by the keys {list(space.spaces)}, got {unknown}"
            )
        by_key = [(child, mask.get(key), key) for key, child in children(space)]
        return [one for child, m, key in by_key for one in split_mask(child, m, join(what, key))]
    if isinstance(space, spaces.Tuple) and isinstance(mask, list | tuple):
        if len(mask) != len(space.spaces):
            raise InvalidObservation(f"{what}: expected {len(space.spaces)} masks, got {len(mask)}")
        by_position = zip(space.spaces, mask, range(len(mask)), strict=True)
        return [one for child, m, i in by_position for one in split_mask(child, m, join(what, i))]
    return cut_mask(mask, [part.num_choices for part in own], what)


def cut_mask(mask: Any, counts: Sequence[int], what: str) -> list[Flags | None]:
    """A mask for so many choices each, in whatever shape, cut into one for each part.

    Of the masks in a list None allows everything.
    """
    if isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (sum(counts),):
        return _cut(mask.copy(), counts)  # as most worlds give it: nothing is left to check
    pieces = _pieces(mask)
    one_each = len(pieces) == len(counts)
    if one_each:
        pieces = [np.ones(n) if m is None else m for m, n in zip(pieces, counts, strict=True)]
    try:
        flats = [np.asarray(piece).reshape(-1) for piece in pieces]
        flat = np.concatenate(flats)
        flags = flat.astype(np.bool_)
        usable = bool((flat == flags).all()) and len(flat) == sum(counts)
    except (TypeError, ValueError):
        usable = False
    if not usable or (one_each and [len(one) for one in flats] != list(counts)):
        raise InvalidObservation(
            f"{what}: expected {sum(counts)} times 0 or 1, for {list(counts)} choices, got {mask!r}"
        )
    return _cut(flags, counts)


def _cut(flags: Flags, counts: Sequence[int]) -> list[Flags | None]:
    ends = list(accumulate(counts))
    return [flags[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _pieces(mask: Any) -> list[Any]:
    """The masks in a list, however nested; a list of numbers is one mask."""
    if not isinstance(mask, list | tuple) or not any(
        one is None or isinstance(one, list | tuple | np.ndarray) for one in mask
    ):
        return [mask]
    return [piece for one in mask for piece in _pieces(one)]
