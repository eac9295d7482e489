"""Conversion of the fields of Gymnasium observations to rows of numbers."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from entity_env.adapters.gymnasium_spaces import (
    GraphPart,
    Space,
    as_array,
    as_boxes,
    children,
    choices_of_numbers,
    leaves,
    locate,
    number_names,
    to_numbers,
    value_at,
)
from entity_env.arrays import Float32Array
from entity_env.errors import InvalidObservation, InvalidSpace, did_you_mean
from entity_env.imports.extras import needs_extra

with needs_extra():
    from gymnasium import spaces

_Convert: TypeAlias = Callable[[Any], Float32Array]
FieldKey: TypeAlias = tuple[str, bool]

OBSERVATION = "observation"
"""Name of an observation without keys, and its usual key in a `Dict` with an action mask."""
CELL = ["row", "column"]
"""Names of the first columns of the cells of an image."""
_FEATURE = "feature"
"""Name of the numbers of a field; `number_names` appends their indices."""


class Field(NamedTuple):
    """A field of an observation."""

    path: str  # "observation" for the whole observation
    keys: list[Any]  # of the path
    space: Space
    columns: list[str]  # names of the numbers of a row
    convert: _Convert  # value -> (rows, columns) float32, a copy
    is_flat: bool  # a single row, which a mapping may split
    num_rows: int | None  # None if it varies
    choices: list[range | None]  # of discrete columns; empty if they are one-hot encoded

    @property
    def key(self) -> "FieldKey":
        """Path, and whether discrete numbers are one column each."""
        return self.path, bool(self.choices)

    def read(self, observation: Any) -> Float32Array:
        """Convert the value of the field to (rows, columns) float32, a copy."""
        return self.convert(value_at(observation, self.keys, self.path))

    def choices_of_rows(self, span: slice, width: int) -> list[range | None]:
        """Return the choices of each column of a flat field that is split into rows of `width`."""
        choices = self.choices[span]
        columns = [
            [one for one in choices[i::width] if one] for i in range(width if choices else 0)
        ]
        return [
            range(min(one.start for one in ranges), max(one.stop for one in ranges))
            if len(ranges) == len(choices) // width
            else None
            for ranges in columns
        ]

    def span(self, span: tuple[int, int] | None, argument: str) -> slice:
        """Return a slice of the numbers of a flat field, or of the rows of a table."""
        size = len(self.columns) if self.is_flat else self.num_rows
        start, end = span or (0, size)
        if span is not None and not 0 <= start < span[1] <= (span[1] if size is None else size):
            limit = "" if size is None else f" <= {size}"
            raise InvalidSpace(f"{argument}: expected 0 <= start < end{limit}, got {span}")
        return slice(start, end)


def is_table(space: Space) -> bool:
    """Return whether the values of a space are rows."""
    return isinstance(space, spaces.Sequence | GraphPart) or len(space.shape or ()) == 2


def positions_of(names: Sequence[str], columns: Sequence[str], argument: str) -> list[int]:
    """Return the positions of columns among all names; `argument` is for messages."""
    if missing := [name for name in columns if name not in names]:
        hint = did_you_mean(str(missing[0]), map(str, names))
        raise InvalidSpace(f"{argument}: expected columns among {list(names)}, got {missing}{hint}")
    return [list(names).index(name) for name in columns]


def field_at(space: Space, path: str, argument: str, names_choices: bool = False) -> Field:
    """Return the field at a path of an observation space.

    Args:
        space: observation space.
        path: path of the field.
        argument: name of the argument with the path, for messages.
        names_choices: discrete numbers are one column each, instead of one-hot encoded.

    Raises:
        InvalidSpace: the path does not exist, or the field does not consist of numbers.
    """
    _, keys, space = locate(space, path, argument)
    path, column_choices = path or OBSERVATION, _choices_of_columns(space) if names_choices else []
    if any(column_choices):
        space = as_boxes(space)
    else:
        column_choices = []
    shape = space.shape or ()
    # Column names, and the conversion of values to rows, by type of space.
    is_flat, num_rows = not is_table(space), None
    try:
        if isinstance(space, GraphPart):
            columns, convert = _graph_converter(space, path)
        elif isinstance(space, spaces.Sequence):
            columns, convert = _sequence_converter(space, path)
        elif isinstance(space, spaces.Box) and len(shape) == 3:
            is_flat, num_rows = False, shape[0] * shape[1]
            columns, convert = _grid_converter(shape, path)
        else:
            row: Space = space
            if not is_flat:
                num_rows, row = shape[0], spaces.Box(-np.inf, np.inf, shape[1:])
            if isinstance(space, spaces.MultiDiscrete) and not is_flat:  # of all rows
                first, end = space.start.min(axis=0), (space.start + space.nvec).max(axis=0)
                row = spaces.MultiDiscrete(end - first, start=first)
            columns, n = number_names(row, _FEATURE), 1 if num_rows is None else num_rows
            if isinstance(row, spaces.Box):
                convert = partial(as_array, shape=(n, *row.shape), field=path)
            else:
                convert = partial(to_numbers, row, n=n, field=path)
    except InvalidSpace as error:
        raise InvalidSpace(f"{path}: {error}") from None
    return Field(path, keys, space, columns, convert, is_flat, num_rows, column_choices)


def _choices_of_columns(space: Space) -> list[range | None]:
    """Return the choices of each column, None for columns that are not discrete."""
    if isinstance(space, GraphPart):
        nodes = choices_of_numbers(space.graph.node_space)
        edge_space = space.graph.edge_space
        if space.name == "nodes" or edge_space is None:
            return nodes
        return choices_of_numbers(edge_space) + nodes + nodes
    if isinstance(space, spaces.Sequence):
        return choices_of_numbers(space.feature_space)
    if not isinstance(space, spaces.MultiDiscrete) or len(space.shape) not in (2, 3):
        return choices_of_numbers(space)
    # Table or grid: union of the choices of all rows.
    ends = (space.start + space.nvec).reshape(-1, space.shape[-1]).max(axis=0).tolist()
    starts = space.start.reshape(-1, space.shape[-1]).min(axis=0).tolist()
    position: list[range | None] = [None] * len(CELL) if len(space.shape) == 3 else []
    return position + list(map(range, starts, ends))


def _grid_converter(shape: tuple[int, ...], path: str) -> tuple[list[str], _Convert]:
    """Return the columns and conversion of a grid; its cells become rows with positions."""
    height, width, channels = shape
    cells = np.indices((height, width), dtype=np.float32).reshape(2, -1).T

    def convert(value: Any) -> Float32Array:
        values = as_array(value, (1, *shape), path)
        return np.hstack([cells, values.reshape(len(cells), channels)])

    return [*CELL, *(f"{_FEATURE}.{i}" for i in range(channels))], convert


def _sequence_converter(space: spaces.Sequence, path: str) -> tuple[list[str], _Convert]:
    element = space.feature_space
    names = number_names(element, _FEATURE)
    # A stacked sequence is a nested value of arrays; the length is that of the first array.
    first = leaves(element)[0].keys if space.stack and children(element) else []

    def convert(value: Any) -> Float32Array:
        array = value_at(value, first, path)
        try:
            n = len(array)
        except TypeError:
            raise InvalidObservation(f"{path}: expected a sequence, got {array!r}") from None
        if n == 0:
            return np.zeros((0, len(names)), dtype=np.float32)
        if space.stack or not children(element):
            return to_numbers(element, value, n, path)
        return np.concatenate([to_numbers(element, one, 1, path) for one in value])

    return names, convert


def _graph_converter(part: GraphPart, path: str) -> tuple[list[str], _Convert]:
    """Return the columns and conversion of the nodes or edges of a graph.

    Edges get the features of both nodes instead of their numbers, because a network that is
    invariant to the order of entities cannot use numbers.
    """
    graph, edge_space = part.graph, part.graph.edge_space
    names = number_names(graph.node_space, _FEATURE)

    def convert_nodes(value: Any) -> Float32Array:
        return to_numbers(graph.node_space, value.nodes, len(value.nodes), path)

    if part.name == "nodes" or edge_space is None:
        return names, convert_nodes
    columns = number_names(edge_space, _FEATURE)
    columns += [f"{end}.{name}" for end in ("from", "to") for name in names]

    def convert_edges(value: Any) -> Float32Array:
        if value.edge_links is None or len(value.edge_links) == 0:
            return np.zeros((0, len(columns)), dtype=np.float32)
        nodes, links = convert_nodes(value), np.asarray(value.edge_links, dtype=np.int64)
        if links.min() < 0 or links.max() >= len(nodes):
            raise InvalidObservation(
                f"{path}: expected links between {len(nodes)} nodes, got {links.tolist()}"
            )
        features = to_numbers(edge_space, value.edges, len(links), path)
        return np.hstack([features, nodes[links[:, 0]], nodes[links[:, 1]]])

    return columns, convert_edges
