"""Nested Gymnasium spaces: paths, names, and conversion of values to numbers."""

import math
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from entity_env.arrays import Float32Array, real_array
from entity_env.errors import (
    LONG,
    InvalidObservation,
    InvalidSpace,
    did_you_mean,
    short_repr,
)
from entity_env.imports.extras import needs_extra

with needs_extra():
    from gymnasium import spaces

Space: TypeAlias = spaces.Space[Any]

MAX_CHOICES = 4096
_NESTED = spaces.Dict, spaces.Tuple
NUMBERS = spaces.Box, spaces.MultiBinary
DISCRETE = spaces.Discrete, spaces.MultiDiscrete


class GraphPart(spaces.Space[Any]):
    """Space of the nodes or edges of a graph, as a separate field."""

    def __init__(self, graph: spaces.Graph, name: str) -> None:
        super().__init__()
        self.graph = graph
        self.name = name

    def __repr__(self) -> str:
        return f"the {self.name} of {self.graph}"


class SpaceNode(NamedTuple):
    """A space or a nested part of it."""

    path: str
    keys: list[Any]  # of the path
    space: Space


def join_path(path: str, key: object) -> str:
    """Append a key to a path."""
    return f"{path}.{key}" if path else str(key)


def element_paths(shape: tuple[int, ...] | None, path: str) -> list[str]:
    """Return the path of each element of an array, in row-major order; `path` for a scalar."""
    return [".".join(filter(None, [path, *map(str, index)])) for index in np.ndindex(shape or ())]


def children(space: Space) -> list[tuple[Any, Space]]:
    """Return the keys and spaces of the parts of a `Dict`, `Tuple` or `Graph`, else []."""
    if isinstance(space, spaces.Graph):
        names = ["nodes"] if space.edge_space is None else ["nodes", "edges"]
        return [(name, GraphPart(space, name)) for name in names]
    if isinstance(space, spaces.Dict):
        return list(space.spaces.items())
    return list(enumerate(space.spaces)) if isinstance(space, spaces.Tuple) else []


def nodes(
    space: Space, path: str = "", skip: Collection[str] = (), keys: Sequence[Any] = ()
) -> Iterator[SpaceNode]:
    """Yield a space and its nested parts in order, except paths in `skip` and their parts."""
    if path not in skip:
        yield SpaceNode(path, [*keys], space)
        for key, part in children(space):
            yield from nodes(part, join_path(path, key), skip, [*keys, key])


def leaves(space: Space, path: str = "", skip: Collection[str] = ()) -> list[SpaceNode]:
    """Return the nodes without parts: all but `Dict`, `Tuple` and `Graph`."""
    candidates = nodes(space, path, skip)
    return [node for node in candidates if not isinstance(node.space, (*_NESTED, spaces.Graph))]


def locate(space: Space, path: str, argument: str) -> SpaceNode:
    """Return the field at a path.

    Args:
        space: observation space.
        path: path of the field.
        argument: name of the argument with the path, for messages.

    Raises:
        InvalidSpace: the path does not exist.
    """
    by_path: dict[str, SpaceNode] = {}
    for node in nodes(space):
        by_path.setdefault(node.path, node)  # "a.b" may be one key or two
    if path not in by_path:
        hint = did_you_mean(path, by_path)
        raise InvalidSpace(f"{argument}: expected a path among {[*by_path]}, got {path!r}{hint}")
    return by_path[path]


def value_at(value: Any, keys: Sequence[Any], field: str) -> Any:
    """Return the nested value at `keys`.

    Raises:
        InvalidObservation: a key is missing.
    """
    for i, key in enumerate(keys):
        if key in ("nodes", "edges") and hasattr(value, "edge_links"):
            return value  # edges are read together with their nodes
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise InvalidObservation(
                f"{field}: expected a value at {'.'.join(map(str, keys[: i + 1]))}, got {value!r}"
            ) from None
    return value


def choices(space: spaces.Discrete | spaces.MultiDiscrete) -> tuple[list[int], list[int]]:
    """Return the number of choices and the first number of each component."""
    if isinstance(space, spaces.Discrete):
        return [int(space.n)], [int(space.start)]
    return space.nvec.ravel().tolist(), np.broadcast_to(space.start, space.shape).ravel().tolist()


def as_boxes(space: Space) -> Space:
    """Replace discrete parts of a space by `Box`, so that `to_numbers` does not encode them."""
    if isinstance(space, DISCRETE):
        return spaces.Box(-np.inf, np.inf, space.shape or ())
    if isinstance(space, spaces.Dict):
        return spaces.Dict([(key, as_boxes(part)) for key, part in space.spaces.items()])
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([as_boxes(part) for part in space.spaces])
    if isinstance(space, spaces.Sequence):
        return spaces.Sequence(as_boxes(space.feature_space), stack=space.stack)
    if isinstance(space, GraphPart):
        graph = space.graph
        edges: Any = None if graph.edge_space is None else as_boxes(graph.edge_space)
        return GraphPart(spaces.Graph(as_boxes(graph.node_space), edges), space.name)
    return space


def choices_of_numbers(space: Space) -> list[range | None]:
    """Return the choices of each number of `as_boxes(space)`, None for numbers of a `Box`."""
    ranges: list[range | None] = []
    for _, _, leaf in leaves(space):
        if isinstance(leaf, DISCRETE):
            ranges += [range(start, start + n) for n, start in zip(*choices(leaf), strict=True)]
        else:
            ranges += [None] * math.prod(leaf.shape or ())
    return ranges


def number_names(space: Space, name: str) -> list[str]:
    """Return the names of the numbers that `to_numbers` returns.

    Args:
        space: a `Box`, `Discrete`, `MultiDiscrete`, `MultiBinary`, or a `Dict` or `Tuple` of them.
        name: name of the whole value.

    Raises:
        InvalidSpace: the space is not supported, or has too many choices for one-hot encoding.
    """
    names: list[str] = []
    for path, _, leaf in leaves(space, name):
        elements = element_paths(() if math.prod(leaf.shape or ()) == 1 else leaf.shape, path)
        if isinstance(leaf, NUMBERS):
            names += elements
        elif isinstance(leaf, DISCRETE):
            counts, starts = choices(leaf)
            if sum(counts) > MAX_CHOICES:
                raise InvalidSpace(
                    f"{path}: expected at most {MAX_CHOICES} choices, as each becomes a number, "
                    f"got {sum(counts)}; name it in ignore, or wrap the environment so that it is "
                    "a Box"
                )
            for element, count, start in zip(elements, counts, starts, strict=True):
                names += [f"{element}={start + i}" for i in range(count)]
        else:
            raise InvalidSpace(
                f"{path or 'observation'}: expected a space of numbers, got {leaf}; "
                "name it in ignore, or wrap the environment"
            )
    return names


def to_numbers(space: Space, value: Any, n: int, field: str) -> Float32Array:
    """Flatten `n` values of a space to numbers; discrete values are one-hot encoded.

    Args:
        space: space supported by `number_names`.
        value: values, batched like in Gymnasium; with n=1 also a single value.
        n: number of values.
        field: name of the field, for messages.

    Returns:
        (n, numbers) float32, a copy.

    Raises:
        InvalidObservation: the value does not fit the space.
    """
    if isinstance(space, _NESTED):
        parts = [
            to_numbers(part, value_at(value, [key], field), n, join_path(field, key))
            for key, part in children(space)
        ]
        return np.hstack([np.zeros((n, 0), dtype=np.float32), *parts])
    shape = n, *(space.shape or ())
    if not isinstance(space, DISCRETE):
        return as_array(value, shape, field)

    # One-hot encoding; float64, because float32 does not distinguish large integers.
    values = as_array(value, shape, field, np.float64)
    counts, starts = choices(space)
    offsets = values - np.asarray(starts)
    if not ((offsets >= 0) & (offsets < np.asarray(counts)) & (offsets % 1 == 0)).all():
        raise InvalidObservation(
            f"{field}: expected numbers from {starts} on, among {counts} choices, got "
            f"{values.tolist()}"
        )
    encoded: Float32Array = np.zeros((n, sum(counts)), dtype=np.float32)
    columns = offsets.astype(np.int64) + np.cumsum([0, *counts])[:-1]
    encoded[np.arange(n)[:, None], columns] = 1.0
    return encoded


def as_array(
    value: Any, shape: tuple[int, ...], field: str, dtype: Any = np.float32
) -> Float32Array:
    """Convert numbers to an array of shape (shape[0], product of the rest), a copy.

    Dimensions of size 1 may be missing or added.

    Raises:
        InvalidObservation: the value has elements that are not numbers, or another shape.
    """
    # Fast path for arrays of the expected shape.
    flat, expected = (shape[0], math.prod(shape[1:])), shape[1:] if shape[0] == 1 else shape
    if type(value) is np.ndarray and value.shape == expected and value.dtype.kind in "fiub":
        return value.astype(dtype).reshape(flat)
    try:
        array = np.array(real_array(value), dtype=dtype)
    except (TypeError, ValueError, OverflowError) as error:
        raise InvalidObservation(
            f"{field}: expected numbers, got {short_repr(value, LONG)} ({error})"
        ) from None
    if [d for d in array.shape if d != 1] != [d for d in shape if d != 1]:
        raise InvalidObservation(f"{field}: expected shape {expected}, got {array.shape}")
    return array.reshape(flat)
