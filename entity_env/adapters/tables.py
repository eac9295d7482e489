"""The fields of an observation as tables: a row for each thing, a name for each column."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from entity_env.adapters.space_numbers import (
    Numbers,
    Space,
    as_array,
    children,
    join,
    number_names,
    numbers,
)
from entity_env.errors import InvalidObservation, InvalidSpace

_CELL = ["row", "column"]


@dataclass(frozen=True)
class Table:
    """How to read a field as rows of named numbers.

    Attributes:
        columns: the names.
        read: value -> (rows, columns) float32, a copy.
        is_flat: the field has no rows of its own: it is one row, which may be cut.
        num_rows: how many rows there always are, if it is always as many.
    """

    columns: list[str]
    read: Callable[[Any], Numbers]
    is_flat: bool = False
    num_rows: int | None = None


def parts_of(space: Space) -> list[tuple[Any, Space]]:
    """The keys and spaces of the fields of a space; nothing if it is a field itself.

    The nodes and edges of a graph come as sequences of their own.
    """
    if isinstance(space, spaces.Graph):
        nodes: list[tuple[Any, Space]] = [("nodes", _Part(space, "nodes"))]
        return nodes if space.edge_space is None else [*nodes, ("edges", _Part(space, "edges"))]
    return children(space)


class _Part(spaces.Space[Any]):
    """The nodes or the edges of a graph."""

    def __init__(self, graph: spaces.Graph, name: str) -> None:
        super().__init__()
        self.graph = graph
        self.name = name

    def __repr__(self) -> str:
        return f"the {self.name} of {self.graph}"


def locate(space: Space, path: str, what: str) -> tuple[list[Any], Space]:
    """The keys that lead to a field, and its space.

    Raises:
        InvalidSpace: there is no such field.
    """
    if not path:
        return [], space
    for key, part in parts_of(space):
        if path == str(key) or path.startswith(f"{key}."):
            try:
                keys, found = locate(part, path[len(str(key)) + 1 :], what)
            except InvalidSpace:
                continue  # "a.b" may be one key or two
            return [key, *keys], found
    raise InvalidSpace(f"{what}: expected a path among {all_paths(space)}, got {path!r}")


def all_paths(space: Space, path: str = "") -> list[str]:
    """The paths of a space and of all its fields."""
    below = [one for key, part in parts_of(space) for one in all_paths(part, join(path, key))]
    return [path, *below]


def value_at(value: Any, keys: Sequence[Any], what: str) -> Any:
    """The value of a field.

    Raises:
        InvalidObservation: the value has no such field.
    """
    for i, key in enumerate(keys):
        if key in ("nodes", "edges") and hasattr(value, "edge_links"):
            return value  # the edges are read with the nodes that they connect
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            raise InvalidObservation(
                f"{what}: expected a value at {'.'.join(map(str, keys[: i + 1]))}, got {value!r}"
            ) from None
    return value


def is_table(space: Space) -> bool:
    """Whether a field has rows of its own."""
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return len(space.shape) == 2
    return isinstance(space, spaces.Sequence | _Part)


def table(space: Space, what: str) -> Table:
    """How to read a field as a table.

    Args:
        space: of the field.
        what: the field, for messages.

    Raises:
        InvalidSpace: the field is not made of numbers.
    """
    try:
        return _table(space, what)
    except InvalidSpace as error:
        raise InvalidSpace(f"{what}: {error}") from None


def _table(space: Space, what: str) -> Table:
    if isinstance(space, _Part):
        return _graph_table(space.graph, space.name, what)
    if isinstance(space, spaces.Sequence):
        return _sequence_table(space, what)
    if isinstance(space, spaces.MultiDiscrete) and len(space.shape) == 2:
        least = space.start.min(axis=0)
        most = spaces.MultiDiscrete((space.start + space.nvec).max(axis=0) - least, start=least)
        return _of_rows(most, space.shape[0], what)
    if isinstance(space, spaces.Box | spaces.MultiBinary) and len(space.shape) == 2:
        row = spaces.Box(-np.inf, np.inf, space.shape[1:])
        return _of_rows(row, space.shape[0], what)
    if isinstance(space, spaces.Box) and len(space.shape) == 3:
        return _grid_table(space.shape, what)
    return Table(number_names(space, "feature"), _reader(space, 1, what), is_flat=True)


def _of_rows(row: Space, n: int, what: str) -> Table:
    return Table(number_names(row, "feature"), _reader(row, n, what), num_rows=n)


def _reader(space: Space, n: int, what: str) -> Callable[[Any], Numbers]:
    """What reads `n` values of a space as `numbers` does.

    An array of numbers as the space says, as almost every value is, needs no other look.
    """
    if not isinstance(space, spaces.Box | spaces.MultiBinary):
        return lambda value: numbers(space, value, n, what)
    shape = space.shape if n == 1 else (n, *space.shape)
    flat = n, math.prod(space.shape)

    def read(value: Any) -> Numbers:
        if type(value) is np.ndarray and value.shape == shape and value.dtype.kind in "fiub":
            return value.astype(np.float32).reshape(flat)
        return numbers(space, value, n, what)

    return read


def _grid_table(shape: tuple[int, ...], what: str) -> Table:
    """The cells of a grid as rows, with their places."""
    height, width, channels = shape
    cells = np.indices((height, width), dtype=np.float32).reshape(2, -1).T
    names = [*_CELL, *(f"feature.{i}" for i in range(channels))]
    return Table(
        names,
        lambda value: np.hstack(
            [cells, as_array(value, (1, *shape), what).reshape(len(cells), channels)]
        ),
        num_rows=len(cells),
    )


def _sequence_table(space: spaces.Sequence, what: str) -> Table:
    element = space.feature_space

    names = number_names(element, "feature")
    at_once = space.stack or not children(element)

    def read(value: Any) -> Numbers:
        n = _num_stacked(element if space.stack else None, value, what)
        if n == 0:
            return np.zeros((0, len(names)), dtype=np.float32)
        if at_once:
            return numbers(element, value, n, what)
        return np.concatenate([numbers(element, one, 1, what) for one in value])

    return Table(names, read)


def _num_stacked(element: Space | None, value: Any, what: str) -> int:
    """How many values there are in a list, or stacked in one of `element`."""
    for key, part in [] if element is None else children(element):
        return _num_stacked(part, value_at(value, [key], what), what)
    try:
        return len(value)
    except TypeError:
        raise InvalidObservation(f"{what}: expected several values, got {value!r}") from None


def _graph_table(graph: spaces.Graph, part: str, what: str) -> Table:
    """The nodes; or the edges, whose features are their own and those of the two ends.

    To a network that treats entities alike in any order the numbers of the nodes mean nothing.
    """
    names = number_names(graph.node_space, "feature")

    def nodes(value: Any) -> Numbers:
        return numbers(graph.node_space, value.nodes, len(value.nodes), what)

    if part == "nodes":
        return Table(names, nodes)
    edge_space: Any = graph.edge_space
    own = number_names(edge_space, "feature")

    def edges(value: Any) -> Numbers:
        if value.edge_links is None or len(value.edge_links) == 0:
            return np.zeros((0, len(own) + 2 * len(names)), dtype=np.float32)
        ends, links = nodes(value), np.asarray(value.edge_links, dtype=np.int64)
        if links.min() < 0 or links.max() >= len(ends):
            raise InvalidObservation(
                f"{what}: expected links between {len(ends)} nodes, got {links.tolist()}"
            )
        features = numbers(edge_space, value.edges, len(links), what)
        return np.hstack([features, ends[links[:, 0]], ends[links[:, 1]]])

    both = [f"{end}.{name}" for end in ("from", "to") for name in names]
    return Table([*own, *both], edges)
