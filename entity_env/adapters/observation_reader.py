"""Reader of observations as entities and global features."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.adapters.gymnasium_spaces import (
    DISCRETE,
    NUMBERS,
    GraphPart,
    Numbers,
    Space,
    as_array,
    children,
    join_path,
    leaves,
    locate,
    number_names,
    to_numbers,
    value_at,
)
from entity_env.adapters.mapping import FieldMap, Globals, Rows
from entity_env.errors import InvalidObservation, InvalidSpace
from entity_env.extras import needs_extra
from entity_env.spaces import Entity, EntityName, ObsSpace

with needs_extra():
    from gymnasium import spaces

Indices: TypeAlias = npt.NDArray[np.int64]
_Convert: TypeAlias = Callable[[Any], Numbers]

_OBSERVATION = "observation"
"""The name of an observation without keys, and the usual key beside an action mask."""
_FEATURE = "feature"
"""The name of the numbers of a field, to which `number_names` adds their positions."""
_FEW = 64
"""A number of elements that Python compares in less time than a call of numpy takes."""


class Frame(NamedTuple):
    """Entities and global features of an observation."""

    features: dict[EntityName, Numbers]  # (n, num_features) per type
    # (n,) per type, the row of each entity in its field; read-only, as frames share these arrays.
    rows: dict[EntityName, Indices]
    global_features: Numbers  # (num_global_features,)


class ObservationReader:
    """Reader of observations of one space.

    Args:
        space: of the observations.
        mapping: the meaning of its fields.
        columns: names of the columns of tables, from the environment.
        prefix: of the names of types.

    Attributes:
        obs_space: the types and global features.
        num_rows: per type the number of rows of its fields if that is fixed, else None; by the
            names of the mapping.
        entities: the fields of each type with all columns named, by the names of the mapping.
        global_features: the fields that belong to no entity, likewise.

    Raises:
        InvalidSpace: the mapping does not fit the space, or a field cannot be inferred.
    """

    def __init__(
        self, space: Space, mapping: FieldMap, columns: Sequence[str] = (), prefix: str = ""
    ) -> None:
        for path in mapping.ignore:
            locate(space, path, "FieldMap.ignore")
        named = mapping.rows()
        inferred, global_features = _infer_fields(space, mapping, columns)
        if twice := sorted(named.keys() & inferred.keys()):
            raise InvalidSpace(
                f"FieldMap.entities: expected other names than those of inferred types, got {twice}"
                "; rename them, or name the fields of that name in the mapping or in ignore"
            )

        # Readers of the fields of each type, which show the same features.
        self.obs_space = ObsSpace()
        self.num_rows: dict[EntityName, int | None] = {}
        self.entities: dict[EntityName, list[Rows]] = {}
        self._entities: dict[EntityName, list[_RowsReader]] = {}
        for name, several in (named | inferred).items():
            argument = f"FieldMap.entities[{name!r}]"
            if not several:
                raise InvalidSpace(f"{argument}: expected Rows, got none")
            readers: list[_RowsReader] = []
            for rows in several:
                features = readers[0].features if readers else None
                readers.append(_RowsReader(space, rows, argument, columns, features))
            counts = [reader.num_rows for reader in readers if reader.num_rows is not None]
            self.num_rows[name] = sum(counts) if len(counts) == len(readers) else None
            self.entities[name] = [reader.rows for reader in readers]
            self._entities[join_path(prefix, name)] = readers
            self.obs_space.entities[join_path(prefix, name)] = Entity(readers[0].features)

        # The numbers of fields that belong to no entity. A field that several show is read once.
        self.global_features: list[Globals] = []
        self._globals: list[tuple[str, slice | Indices]] = []
        self._fields = {r.field.path: r.field for each in self._entities.values() for r in each}
        for given in [*mapping.global_features, *global_features]:
            field, index, names = _find_globals(space, given)
            self._fields[field.path] = field
            self._globals.append((field.path, index))
            self.obs_space.global_features += names
            self.global_features.append(given if given.features else replace(given, columns=names))

    def read(self, observation: Any) -> Frame:
        """Return the entities and global features of an observation.

        Raises:
            InvalidObservation: the observation is not of the space.
        """
        values = {path: field.read(observation) for path, field in self._fields.items()}
        features, rows = {}, {}
        for name, readers in self._entities.items():
            features[name], rows[name], start = readers[0].read(values)
            for reader in readers[1:]:
                more, more_rows, total = reader.read(values)
                features[name] = np.concatenate([features[name], more])
                rows[name] = np.concatenate([rows[name], start + more_rows])
                start += total
        blocks = [values[path][0, index] for path, index in self._globals]
        if len(blocks) == 1:
            return Frame(features, rows, blocks[0])
        return Frame(features, rows, np.concatenate([np.zeros(0, dtype=np.float32), *blocks]))


class _Field(NamedTuple):
    """A field of an observation."""

    path: str  # "observation" for all of it
    keys: list[Any]  # on the path
    space: Space
    columns: list[str]  # names of the numbers of a row
    convert: _Convert  # value -> (rows, columns) float32, a copy
    is_flat: bool  # it has no rows of its own: it is one row, which a mapping may cut
    num_rows: int | None  # None if it varies

    def read(self, observation: Any) -> Numbers:
        """Return (rows, columns) float32, of which parts may be shown as they are."""
        return self.convert(value_at(observation, self.keys, self.path))

    def span(self, span: tuple[int, int] | None, argument: str) -> slice:
        """Return the part of the numbers of a flat field, or of the rows of a table."""
        size = len(self.columns) if self.is_flat else self.num_rows
        start, end = span or (0, size)
        if span is not None and not 0 <= start < span[1] <= (span[1] if size is None else size):
            limit = "" if size is None else f" <= {size}"
            raise InvalidSpace(f"{argument}: expected 0 <= start < end{limit}, got {span}")
        return slice(start, end)


class _RowsReader:
    """Reader of the entities of one field; `features` are those of the other fields, if any.

    The attribute `rows` has the names of all columns, given or inferred.
    """

    def __init__(
        self,
        space: Space,
        rows: Rows,
        argument: str,
        columns: Sequence[str],
        features: list[str] | None,
    ) -> None:
        self.field = field = _field_at(space, rows.path, f"{argument}.path")
        self._span = field.span(rows.span, f"{argument}.span")

        # The names of the numbers of a row: given, from the environment, or positions.
        names = own = field.columns[self._span] if field.is_flat else field.columns
        if rows.columns is not None:
            names = list(rows.columns)
            left = len(own) % max(len(names), 1) if field.is_flat else len(own) - len(names)
            if left or not names:
                expected = f"a divisor of {len(own)}" if field.is_flat else f"{len(own)}"
                raise InvalidSpace(
                    f"{argument}.columns: expected {expected} names, got {len(names)}: {names}"
                )
        elif len(columns) == len(own) and not field.is_flat:
            names = list(columns)
        self._width = width = len(names)
        self.num_rows: int | None = None
        if field.is_flat or field.num_rows is not None:
            size = self._span.stop - self._span.start
            self.num_rows = size // width if field.is_flat else size

        # Rows that stand for no entity.
        presence = rows.presence
        if presence is None and "presence" in names:
            presence = names.index("presence")
        if isinstance(presence, str):
            presence = _positions(names, [presence], f"{argument}.presence")[0]
        elif presence is not None and not 0 <= presence < width:
            raise InvalidSpace(f"{argument}.presence: expected 0 to {width - 1}, got {presence}")
        self._presence = presence
        named = None if presence is None else names[presence]
        self.rows = replace(rows, columns=names, presence=named)
        self._absent = None if rows.absent is None else np.asarray(rows.absent, dtype=np.float32)
        if self._absent is not None and self._absent.shape != (width,):
            raise InvalidSpace(f"{argument}.absent: expected {width} numbers, got {rows.absent}")

        # The features, in the order of the other fields.
        shown = [name for i, name in enumerate(names) if i != presence]
        if rows.features is not None:
            shown = list(rows.features)
        self.features = shown if features is None else features
        if sorted(self.features) != sorted(shown):
            raise InvalidSpace(
                f"{argument}: expected the same features from every field, got "
                f"{features} and {shown}; name them in columns and features"
            )
        self._columns = _positions(names, self.features, f"{argument}.features")
        self._shows_all = self._columns == list(range(width))

    def read(self, values: Mapping[str, Numbers]) -> tuple[Numbers, Indices, int]:
        """Return the features, the numbers of their rows, and the number of rows of the field."""
        block = values[self.field.path]
        if self.field.is_flat:
            block = block[0, self._span].reshape(-1, self._width)
        else:
            block = block[self._span]
        total = len(block)
        rows = self._present_rows(block)
        if len(rows) < total:
            block = block.take(rows, axis=0)
        if not self._shows_all:
            # Not block[:, columns], which is of another memory layout, and slower to join.
            block = block.take(self._columns, axis=1)
        return block, rows, total

    def _present_rows(self, block: Numbers) -> Indices:
        """Return the numbers of the rows that stand for an entity."""
        total, presence, absent = len(block), self._presence, self._absent
        if absent is None and presence is None:
            return _first_rows(total)
        if block.size <= _FEW:
            absent_row = None if absent is None else absent.tolist()
            present = [
                i
                for i, row in enumerate(block.tolist())
                if row != absent_row and (presence is None or row[presence] != 0)
            ]
            return _first_rows(total) if len(present) == total else np.array(present, np.int64)
        is_present = np.ones(total, dtype=np.bool_) if presence is None else block[:, presence] != 0
        if absent is not None:
            is_present &= (block != absent).any(axis=1)
        return np.flatnonzero(is_present)


@lru_cache(maxsize=256)
def _first_rows(n: int) -> Indices:
    """Return the numbers of the first n rows, which many frames share."""
    rows = np.arange(n)
    rows.flags.writeable = False
    return rows


def _find_globals(space: Space, given: Globals) -> tuple[_Field, slice | Indices, list[str]]:
    """Return the field of global features, their columns in it, and their names."""
    argument = f"FieldMap.global_features[{given.path!r}]"
    field = _field_at(space, given.path, argument)
    if not field.is_flat:
        raise InvalidSpace(
            f"{argument}: expected a field with a fixed number of numbers, got {field.space}; "
            "name it in entities"
        )
    span = field.span(given.span, f"{argument}.span")
    names = list(given.columns or number_names(field.space, field.path)[span])
    size = span.stop - span.start
    if len(names) != size:
        raise InvalidSpace(f"{argument}.columns: expected {size} names, got {names}")
    if not given.features:
        return field, span, names
    columns = _positions(names, given.features, f"{argument}.features")
    return field, span.start + np.array(columns), list(given.features)


def _positions(names: Sequence[str], wanted: Sequence[str], argument: str) -> list[int]:
    if missing := [name for name in wanted if name not in names]:
        raise InvalidSpace(f"{argument}: expected columns among {list(names)}, got {missing}")
    return [list(names).index(name) for name in wanted]


def _is_table(space: Space) -> bool:
    """Return whether a field has rows of its own."""
    return isinstance(space, spaces.Sequence | GraphPart) or len(space.shape or ()) == 2


def _infer_fields(
    space: Space, mapping: FieldMap, columns: Sequence[str]
) -> tuple[dict[EntityName, list[Rows]], list[Globals]]:
    """Make entities of tables and sequences, and global features of all other numbers."""
    entities: dict[EntityName, list[Rows]] = {}
    global_features, problems = [], []
    keys = {key for key, _ in children(space)}
    root = _OBSERVATION if keys == {_OBSERVATION, mapping.action_mask} else ""
    for path, _, field in leaves(space, known=mapping.paths()):
        name = "" if path == root else path.removeprefix(f"{root}.")
        shape = field.shape if isinstance(field, spaces.Box) else ()
        # A flat field that the columns divide is a table in one row.
        is_flattened = len(shape) == 1 and columns and shape[0] and shape[0] % len(columns) == 0
        if _is_table(field) or is_flattened:
            if name in entities:
                problems.append(f"{path!r}, which is the path of two fields")
            entities[name or "entity"] = [Rows(path, columns=columns if is_flattened else None)]
        elif len(shape) > 2:
            problems.append(f"{path!r}, which looks like an image: {field}")
        elif isinstance(field, (*NUMBERS, *DISCRETE)):
            names = number_names(field, name or _OBSERVATION)
            global_features.append(Globals(path, columns=names))
        else:
            problems.append(f"{path!r}: {field}")
    if problems:
        raise InvalidSpace(
            f"observation: expected tables, sequences, graphs and numbers, got "
            f"{'; '.join(problems)}. Name each in a FieldMap: as Rows(path) to make entities of "
            "its rows or cells, or in ignore; or wrap the environment"
        )
    return entities, global_features


def _field_at(space: Space, path: str, argument: str) -> _Field:
    """Return the field of an observation at a path, which `argument` names in messages."""
    _, keys, space = locate(space, path, argument)
    path, shape = path or _OBSERVATION, space.shape or ()
    # The columns of a row by the kind of space, and the conversion of an observation to rows.
    is_flat, num_rows = not _is_table(space), None
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
    return _Field(path, keys, space, columns, convert, is_flat, num_rows)


def _grid_converter(shape: tuple[int, ...], path: str) -> tuple[list[str], _Convert]:
    """Convert the cells of a grid to rows, with their places."""
    height, width, channels = shape
    cells = np.indices((height, width), dtype=np.float32).reshape(2, -1).T

    def convert(value: Any) -> Numbers:
        values = as_array(value, (1, *shape), path)
        return np.hstack([cells, values.reshape(len(cells), channels)])

    return ["row", "column", *(f"{_FEATURE}.{i}" for i in range(channels))], convert


def _sequence_converter(space: spaces.Sequence, path: str) -> tuple[list[str], _Convert]:
    element = space.feature_space
    names = number_names(element, _FEATURE)
    # The values of a stacked sequence are arrays, of which one has the length.
    first = leaves(element)[0].keys if space.stack and children(element) else []

    def convert(value: Any) -> Numbers:
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

    def convert_nodes(value: Any) -> Numbers:
        return to_numbers(graph.node_space, value.nodes, len(value.nodes), path)

    if part.name == "nodes" or edge_space is None:
        return names, convert_nodes
    columns = number_names(edge_space, _FEATURE)
    columns += [f"{end}.{name}" for end in ("from", "to") for name in names]

    def convert_edges(value: Any) -> Numbers:
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
