"""Fields of Gymnasium observations as rows of numbers."""

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
"""The name of an observation without keys, and the usual key beside an action mask."""
CELL = ["row", "column"]
"""The names of the first columns of the cells of an image."""
_FEATURE = "feature"
"""The name of the numbers of a field, to which `number_names` adds their positions."""


class Field(NamedTuple):
    """A field of an observation."""

    path: str  # "observation" for all of it
    keys: list[Any]  # on the path
    space: Space
    columns: list[str]  # names of the numbers of a row
    convert: _Convert  # value -> (rows, columns) float32, a copy
    is_flat: bool  # it has no rows of its own: it is one row, which a mapping may cut
    num_rows: int | None  # None if it varies
    # The choices of each discrete number that is one column; empty if such are one-hot encoded.
    choices: list[range | None]

    @property
    def key(self) -> "FieldKey":
        """The path, and whether discrete numbers are one column each."""
        return self.path, bool(self.choices)

    def read(self, observation: Any) -> Float32Array:
        """Return (rows, columns) float32, of which parts may be shown as they are."""
        return self.convert(value_at(observation, self.keys, self.path))

    def choices_of_rows(self, span: slice, width: int) -> list[range | None]:
        """Return the choices of the columns of the rows that a part of a flat field is cut into."""
        own = self.choices[span]
        each = [[one for one in own[i::width] if one] for i in range(width if own else 0)]
        return [
            range(min(one.start for one in several), max(one.stop for one in several))
            if len(several) == len(own) // width
            else None
            for several in each
        ]

    def span(self, span: tuple[int, int] | None, argument: str) -> slice:
        """Return the part of the numbers of a flat field, or of the rows of a table."""
        size = len(self.columns) if self.is_flat else self.num_rows
        start, end = span or (0, size)
        if span is not None and not 0 <= start < span[1] <= (span[1] if size is None else size):
            limit = "" if size is None else f" <= {size}"
            raise InvalidSpace(f"{argument}: expected 0 <= start < end{limit}, got {span}")
        return slice(start, end)


def is_table(space: Space) -> bool:
    """Return whether a field has rows of its own."""
    return isinstance(space, spaces.Sequence | GraphPart) or len(space.shape or ()) == 2


def positions_of(names: Sequence[str], wanted: Sequence[str], argument: str) -> list[int]:
    """Return the positions of columns, which `argument` names in messages, among all names."""
    if missing := [name for name in wanted if name not in names]:
        hint = did_you_mean(str(missing[0]), map(str, names))
        raise InvalidSpace(f"{argument}: expected columns among {list(names)}, got {missing}{hint}")
    return [list(names).index(name) for name in wanted]


def field_at(space: Space, path: str, argument: str, names_choices: bool = False) -> Field:
    """Return the field of an observation.

    Args:
        space: of the observation.
        path: of the field.
        argument: that names the path, for messages.
        names_choices: discrete numbers are one column each, instead of one-hot encoded.

    Raises:
        InvalidSpace: there is no such field, or it does not consist of numbers.
    """
    _, keys, space = locate(space, path, argument)
    path, own_choices = path or OBSERVATION, _choices_of_columns(space) if names_choices else []
    if any(own_choices):
        space = as_boxes(space)
    else:
        own_choices = []
    shape = space.shape or ()
    # The columns of a row by the kind of space, and the conversion of an observation to rows.
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
            if isinstance(space, spaces.MultiDiscrete) and not is_flat:  # choices of all rows
                first, end = space.start.min(axis=0), (space.start + space.nvec).max(axis=0)
                row = spaces.MultiDiscrete(end - first, start=first)
            columns, n = number_names(row, _FEATURE), 1 if num_rows is None else num_rows
            if isinstance(row, spaces.Box):
                convert = partial(as_array, shape=(n, *row.shape), field=path)
            else:
                convert = partial(to_numbers, row, n=n, field=path)
    except InvalidSpace as error:
        raise InvalidSpace(f"{path}: {error}") from None
    return Field(path, keys, space, columns, convert, is_flat, num_rows, own_choices)


def _choices_of_columns(space: Space) -> list[range | None]:
    """Return the choices of the columns of the rows of a field, None for other numbers."""
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
    # A table or grid: the choices of all rows.
    ends = (space.start + space.nvec).reshape(-1, space.shape[-1]).max(axis=0).tolist()
    firsts = space.start.reshape(-1, space.shape[-1]).min(axis=0).tolist()
    place: list[range | None] = [None] * len(CELL) if len(space.shape) == 3 else []
    return place + list(map(range, firsts, ends))


def _grid_converter(shape: tuple[int, ...], path: str) -> tuple[list[str], _Convert]:
    """Convert the cells of a grid to rows, with their places."""
    height, width, channels = shape
    cells = np.indices((height, width), dtype=np.float32).reshape(2, -1).T

    def convert(value: Any) -> Float32Array:
        values = as_array(value, (1, *shape), path)
        return np.hstack([cells, values.reshape(len(cells), channels)])

    return [*CELL, *(f"{_FEATURE}.{i}" for i in range(channels))], convert


def _sequence_converter(space: spaces.Sequence, path: str) -> tuple[list[str], _Convert]:
    element = space.feature_space
    names = number_names(element, _FEATURE)
    # The values of a stacked sequence are arrays, of which one has the length.
    first = leaves(element)[0].keys if space.stack and children(element) else []

    def convert(value: Any) -> Float32Array:
        one = value_at(value, first, path)
        try:
            n = len(one)
        except TypeError:
            raise InvalidObservation(f"{path}: expected several values, got {one!r}") from None
        if n == 0:
            return np.zeros((0, len(names)), dtype=np.float32)
        if space.stack or not children(element):
            return to_numbers(element, value, n, path)
        return np.concatenate([to_numbers(element, one, 1, path) for one in value])

    return names, convert


def _graph_converter(part: GraphPart, path: str) -> tuple[list[str], _Convert]:
    """Convert the nodes; or the edges, with their own features and those of both ends.

    Node numbers would mean nothing to a network that does not know the order of entities.
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
