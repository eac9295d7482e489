"""Components of Gymnasium actions: the discrete choices they consist of, and masks of these."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from gymnasium import spaces

from entity_env.adapters.gymnasium_spaces import (
    Flags,
    Space,
    children,
    choices,
    element_paths,
    join_path,
)
from entity_env.errors import InvalidObservation, InvalidSpace


class Component(NamedTuple):
    """One discrete choice within an action."""

    path: str  # in the action
    num_choices: int  # 0 for a Box, for which the mapping gives them
    start: int = 0  # the number of the first choice
    box: spaces.Box | None = None  # the space of a Box
    slot: int = 0  # the position among all components of the action


def components_of(space: Space, path: str = "") -> list[Component]:
    """Return the components of an action, in the order of the space.

    Raises:
        InvalidSpace: the action does not consist of choices.
    """
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return [
            component
            for key, part in children(space)
            for component in components_of(part, join_path(path, key))
        ]
    if isinstance(space, spaces.Box):
        return [Component(path, 0, box=space)]
    if isinstance(space, spaces.Discrete):
        return [Component(path, int(space.n), int(space.start))]
    if isinstance(space, spaces.MultiBinary):
        return [Component(one, 2) for one in element_paths(space.shape, path)]
    if isinstance(space, spaces.MultiDiscrete):
        return list(map(Component, element_paths(space.shape, path), *choices(space)))
    raise InvalidSpace(
        f"action {path!r}: expected Discrete, MultiDiscrete, MultiBinary or a Dict or Tuple of "
        f"them, got {space}; wrap the environment so that it takes one of these"
    )


def build_action(space: Space, values: Iterator[Any]) -> Any:
    """Return the action with these values of its components, in the order of the space."""
    if isinstance(space, spaces.Dict):
        return {key: build_action(part, values) for key, part in children(space)}
    if isinstance(space, spaces.Tuple):
        return tuple(build_action(part, values) for _, part in children(space))
    if isinstance(space, spaces.MultiDiscrete | spaces.MultiBinary):
        size = int(np.prod(space.shape))
        return np.array([next(values) for _ in range(size)], space.dtype).reshape(space.shape)
    value = next(values)
    return to_box(space, value) if isinstance(space, spaces.Box) else np.int64(value)


def to_box(space: spaces.Box, value: Any) -> npt.NDArray[Any]:
    """Return a value with the dtype and shape of a `Box`."""
    return np.asarray(value, dtype=space.dtype).reshape(space.shape)


def split_mask(space: Space, mask: Any, field: str) -> list[Flags | None]:
    """Split the mask of an action into the masks of its components.

    Args:
        space: of the action.
        mask: (choices,) for a `Discrete`; for several components their masks concatenated, or as
            rows, or in a tuple; for a `Dict` or `Tuple` a mask by key. None allows everything.
        field: the field with the mask, for messages.

    Returns:
        For each component (choices,) bool, or None where everything is allowed.

    Raises:
        InvalidObservation: the mask does not fit the action.
    """
    counts = [component.num_choices for component in components_of(space)]
    if mask is None:
        return [None] * len(counts)
    masks: dict[Any, Any]
    if isinstance(space, spaces.Dict) and isinstance(mask, Mapping):
        if unknown := [key for key in mask if key not in space.spaces]:
            raise InvalidObservation(
                f"{field}: expected masks by the keys {list(space.spaces)}, got {unknown}"
            )
        masks = {key: mask.get(key) for key in space.spaces}
    elif isinstance(space, spaces.Tuple) and isinstance(mask, list | tuple):
        if len(mask) != len(space.spaces):
            raise InvalidObservation(
                f"{field}: expected {len(space.spaces)} masks, got {len(mask)}"
            )
        masks = dict(enumerate(mask))
    else:
        return cut_mask(mask, counts, field)
    return [
        one
        for key, part in children(space)
        for one in split_mask(part, masks[key], join_path(field, key))
    ]


def cut_mask(mask: Any, counts: Sequence[int], field: str) -> list[Flags | None]:
    """Cut a mask into one for each component.

    Args:
        mask: 0 or 1 for each choice, in arrays or lists of any shape; in a list of the masks of
            all components, None allows everything.
        counts: (components,) the number of choices of each.
        field: the field with the mask, for messages.

    Raises:
        InvalidObservation: the mask does not have this many choices.
    """
    ends = list(accumulate(counts))
    if isinstance(mask, np.ndarray) and mask.dtype == np.bool_ and mask.shape == (sum(counts),):
        flags = mask.copy()  # the most frequent kind, which needs no checks
    else:
        masks = _flatten(mask)
        is_one_each = len(masks) == len(counts)
        if is_one_each:
            masks = [np.ones(n) if m is None else m for m, n in zip(masks, counts, strict=True)]
        try:
            flats = [np.asarray(one).reshape(-1) for one in masks]
            flat = np.concatenate(flats)
            flags = flat.astype(np.bool_)
            is_valid = bool((flat == flags).all()) and len(flat) == sum(counts)
        except (TypeError, ValueError):
            is_valid = False
        if not is_valid or (is_one_each and [len(one) for one in flats] != list(counts)):
            raise InvalidObservation(
                f"{field}: expected {sum(counts)} times 0 or 1, for {list(counts)} choices, got "
                f"{mask!r}"
            )
    return [flags[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _flatten(mask: Any) -> list[Any]:
    """Return the masks in nested lists; a list of numbers is one mask."""
    if not isinstance(mask, list | tuple) or not any(
        one is None or isinstance(one, list | tuple | np.ndarray) for one in mask
    ):
        return [mask]
    return [one for nested in mask for one in _flatten(nested)]
