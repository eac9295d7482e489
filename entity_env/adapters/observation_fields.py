"""Fields of an observation, converted to rows of named numbers."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from gymnasium import spaces

from entity_env.adapters.gymnasium_spaces import (
    Numbers,
    Space,
    as_array,
    children,
    join_path,
    number_names,
    to_numbers,
)
from entity_env.errors import InvalidObservation, InvalidSpace

Convert: TypeAlias = Callable[[Any], Numbers]

FEATURE = "feature"
"""The name of the numbers of a field, to which `number_names` adds their positions."""


class GraphPart(spaces.Space[Any]):
    """The nodes or the edges of a graph, as a field of their own."""

    def __init__(self, graph: spaces.Graph, name: str) -> None:
        super().__init__()
        self.graph = graph
        self.name = name

    def __repr__(self) -> str:
        return f"the {self.name} of {self.graph}"


class Field(NamedTuple):
    """A field of an observation."""

    path: str  # "observation" for all of it
    keys: list[Any]  # on the path
    space: Space
    columns: list[str]  # names of the numbers of a row
    convert: Convert  # value -> (rows, columns) float32, a copy
    is_flat: bool  # it has no rows of its own: it is one row, which a mapping may cut
    num_rows: int | None  # None if it varies

    def read(self, observation: Any) -> Numbers:
        """Return (rows, columns) float32, of which parts may be shown as they are."""
        return self.convert(
            value_at(observation, self.keys, self.path) if self.keys else observation
        )


def field_at(space: Space, path: str, argument: str) -> Field:
    """Return the field of an observation at a path.

    Args:
        space: of the observation.
        path: of the field.
        argument: that names the path, for messages.

    Raises:
        InvalidSpace: there is no such field, or it does not consist of numbers.
    """
    keys, space = locate(space, path, argument)
    path, shape = path or "observation", space.shape
    is_flat, num_rows = False, None
    try:
        if isinstance(space, GraphPart):
            columns, convert = _graph_converter(space, path)
        elif isinstance(space, spaces.Sequence):
            columns, convert = _sequence_converter(space, path)
        elif isinstance(space, spaces.Box) and shape is not None and len(shape) == 3:
            num_rows = shape[0] * shape[1]
            columns, convert = _grid_converter(shape, path)
        elif is_table(space) and shape is not None:
            num_rows = shape[0]
            row: Space = spaces.Box(-np.inf, np.inf, shape[1:])
            if isinstance(space, spaces.MultiDiscrete):  # the choices of all rows
                first, end = space.start.min(axis=0), (space.start + space.nvec).max(axis=0)
                row = spaces.MultiDiscrete(end - first, start=first)
            columns = number_names(row, FEATURE)
            convert = _converter(row, num_rows, path)
        else:
            is_flat = True
            columns = number_names(space, FEATURE)
            convert = _converter(space, 1, path)
    except InvalidSpace as error:
        raise InvalidSpace(f"{path}: {error}") from None
    return Field(path, keys, space, columns, convert, is_flat, num_rows)


def is_table(space: Space) -> bool:
    """Return whether a field has rows of its own."""
    if isinstance(space, spaces.Box | spaces.MultiDiscrete | spaces.MultiBinary):
        return len(space.shape) == 2
    return isinstance(space, spaces.Sequence | GraphPart)


def fields_of(space: Space) -> list[tuple[Any, Space]]:
    """Return the keys and spaces of the fields of a space, [] if it is a field itself."""
    if isinstance(space, spaces.Graph):
        names = ["nodes"] if space.edge_space is None else ["nodes", "edges"]
        return [(name, GraphPart(space, name)) for name in names]
    return children(space)


def locate(space: Space, path: str, argument: str) -> tuple[list[Any], Space]:
    """Return the keys that lead to a field, and its space.

    Args:
        space: of the observation.
        path: of the field.
        argument: that names the path, for messages.

    Raises:
        InvalidSpace: there is no such field.
    """
    if not path:
        return [], space
    for key, part in fields_of(space):
        if path == str(key) or path.startswith(f"{key}."):
            try:
                keys, found = locate(part, path[len(str(key)) + 1 :], argument)
            except InvalidSpace:
                continue  # "a.b" may be one key or two
            return [key, *keys], found
    raise InvalidSpace(f"{argument}: expected a path among {_all_paths(space)}, got {path!r}")


def _all_paths(space: Space, path: str = "") -> list[str]:
    below = [_all_paths(part, join_path(path, key)) for key, part in fields_of(space)]
    return [path, *(one for paths in below for one in paths)]


def value_at(value: Any, keys: Sequence[Any], field: str) -> Any:
    """Return the value of a field.

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
                f"{field}: expected a value at {'.'.join(map(str, keys[: i + 1]))}, got {value!r}"
            ) from None
    return value


def _converter(space: Space, n: int, field: str) -> Convert:
    """Return a function that converts `n` values of a space as `to_numbers` does."""
    if not isinstance(space, spaces.Box | spaces.MultiBinary):
        return lambda value: to_numbers(space, value, n, field)
    shape = space.shape if n == 1 else (n, *space.shape)
    flat = n, math.prod(space.shape)

    def convert(value: Any) -> Numbers:
        # Almost every value is an array of this shape, which needs no further checks.
        if type(value) is np.ndarray and value.shape == shape and value.dtype.kind in "fiub":
            return value.astype(np.float32).reshape(flat)
        return to_numbers(space, value, n, field)

    return convert


def _grid_converter(shape: tuple[int, ...], field: str) -> tuple[list[str], Convert]:
    """Convert the cells of a grid to rows, with their places."""
    height, width, channels = shape
    cells = np.indices((height, width), dtype=np.float32).reshape(2, -1).T

    def convert(value: Any) -> Numbers:
        values = as_array(value, (1, *shape), field)
        return np.hstack([cells, values.reshape(len(cells), channels)])

    return ["row", "column", *(f"{FEATURE}.{i}" for i in range(channels))], convert


def _sequence_converter(space: spaces.Sequence, field: str) -> tuple[list[str], Convert]:
    element = space.feature_space
    names = number_names(element, FEATURE)

    def convert(value: Any) -> Numbers:
        n = _num_elements(element if space.stack else None, value, field)
        if n == 0:
            return np.zeros((0, len(names)), dtype=np.float32)
        if space.stack or not children(element):
            return to_numbers(element, value, n, field)
        return np.concatenate([to_numbers(element, one, 1, field) for one in value])

    return names, convert


def _num_elements(stacked: Space | None, value: Any, field: str) -> int:
    """Return the length of a list, or of the arrays in a stacked value of a space."""
    for key, part in [] if stacked is None else children(stacked):
        return _num_elements(part, value_at(value, [key], field), field)
    try:
        return len(value)
    except TypeError:
        raise InvalidObservation(f"{field}: expected several values, got {value!r}") from None


def _graph_converter(part: GraphPart, field: str) -> tuple[list[str], Convert]:
    """Convert the nodes; or the edges, with their own features and those of both ends.

    Node numbers would mean nothing to a network that does not know the order of entities.
    """
    graph = part.graph
    names = number_names(graph.node_space, FEATURE)

    def nodes(value: Any) -> Numbers:
        return to_numbers(graph.node_space, value.nodes, len(value.nodes), field)

    if part.name == "nodes":
        return names, nodes
    edge_space: Any = graph.edge_space
    columns = number_names(edge_space, FEATURE)
    columns += [f"{end}.{name}" for end in ("from", "to") for name in names]

    def edges(value: Any) -> Numbers:
        if value.edge_links is None or len(value.edge_links) == 0:
            return np.zeros((0, len(columns)), dtype=np.float32)
        ends, links = nodes(value), np.asarray(value.edge_links, dtype=np.int64)
        if links.min() < 0 or links.max() >= len(ends):
            raise InvalidObservation(
                f"{field}: expected links between {len(ends)} nodes, got {links.tolist()}"
            )
        features = to_numbers(edge_space, value.edges, len(links), field)
        return np.hstack([features, ends[links[:, 0]], ends[links[:, 1]]])

    return columns, edges
