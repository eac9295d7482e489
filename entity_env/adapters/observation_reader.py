"""Reader of observations as entities and global features."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.adapters.field_inference import infer_fields
from entity_env.adapters.gymnasium_spaces import Numbers, Space, join_path, number_names
from entity_env.adapters.mapping import FieldMap, Globals, Rows
from entity_env.adapters.observation_fields import Field, field_at, locate
from entity_env.errors import InvalidSpace
from entity_env.spaces import Entity, EntityName, ObsSpace

Indices: TypeAlias = npt.NDArray[np.int64]

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

    Raises:
        InvalidSpace: the mapping does not fit the space, or a field cannot be inferred.
    """

    def __init__(
        self, space: Space, mapping: FieldMap, columns: Sequence[str] = (), prefix: str = ""
    ) -> None:
        for path in mapping.ignore:
            locate(space, path, "FieldMap.ignore")
        named = mapping.rows()
        inferred, global_features = infer_fields(space, mapping, columns)
        if twice := sorted(named.keys() & inferred.keys()):
            raise InvalidSpace(
                f"FieldMap.entities: expected other names than those of inferred types, got {twice}"
                "; rename them, or name the fields of that name in the mapping or in ignore"
            )
        several = named | {name: [rows] for name, rows in inferred.items()}
        readers = {
            name: _EntityReader(space, name, rows, columns) for name, rows in several.items()
        }
        self.num_rows = {name: reader.num_rows for name, reader in readers.items()}
        self._entities = {join_path(prefix, name): reader for name, reader in readers.items()}
        global_features = [*mapping.global_features, *global_features]
        self._globals = [_GlobalsReader(space, given) for given in global_features]
        # A field that several types show is read once.
        fields = [rows.field for reader in readers.values() for rows in reader.rows]
        fields += [reader.field for reader in self._globals]
        self._fields = {field.path: field for field in fields}
        self.obs_space = ObsSpace(
            [name for reader in self._globals for name in reader.features],
            {name: Entity(reader.features) for name, reader in self._entities.items()},
        )

    def read(self, observation: Any) -> Frame:
        """Return the entities and global features of an observation.

        Raises:
            InvalidObservation: the observation is not of the space.
        """
        values = {path: field.read(observation) for path, field in self._fields.items()}
        features, rows = {}, {}
        for name, reader in self._entities.items():
            features[name], rows[name], _ = reader.read(values)
        blocks = [reader.read(values) for reader in self._globals]
        if len(blocks) == 1:
            return Frame(features, rows, blocks[0])
        return Frame(features, rows, np.concatenate([np.zeros(0, dtype=np.float32), *blocks]))


class _EntityReader:
    """Reader of the entities of one type, from one or several fields."""

    def __init__(
        self, space: Space, name: EntityName, several: Sequence[Rows], columns: Sequence[str]
    ) -> None:
        argument = f"FieldMap.entities[{name!r}]"
        if not several:
            raise InvalidSpace(f"{argument}: expected Rows, got none")
        self.rows = [_RowsReader(space, rows, argument, columns) for rows in several]
        self.features = self.rows[0].features
        for rows in self.rows:
            rows.select(self.features)
        counts = [rows.num_rows for rows in self.rows if rows.num_rows is not None]
        self.num_rows = sum(counts) if len(counts) == len(self.rows) else None
        self.read = self.rows[0].read if len(self.rows) == 1 else self._read_several

    def _read_several(self, values: Mapping[str, Numbers]) -> tuple[Numbers, Indices, int]:
        """Return the features, the numbers of their rows, and the number of rows of all fields."""
        blocks, kept, start = [], [], 0
        for reader in self.rows:
            block, rows, total = reader.read(values)
            blocks.append(block)
            kept.append(start + rows)
            start += total
        return np.concatenate(blocks), np.concatenate(kept), start


class _RowsReader:
    """Reader of the entities of one field."""

    def __init__(self, space: Space, rows: Rows, argument: str, columns: Sequence[str]) -> None:
        self._argument = argument
        self.field = field = field_at(space, rows.path, f"{argument}.path")
        self._span = _span(field, rows.span, f"{argument}.span")

        # The names of the numbers of a row: given, from the environment, or positions.
        own = field.columns[self._span] if field.is_flat else field.columns
        names = own
        if rows.columns is not None:
            names = list(rows.columns)
            fits = bool(names) and (
                len(own) % len(names) == 0 if field.is_flat else len(own) == len(names)
            )
            if not fits:
                expected = f"a divisor of {len(own)}" if field.is_flat else f"{len(own)}"
                raise InvalidSpace(
                    f"{argument}.columns: expected {expected} names, got {len(names)}: {names}"
                )
        elif columns and len(columns) == len(own) and not field.is_flat:
            names = list(columns)
        self._names, self._width = names, len(names)

        # Rows that stand for no entity.
        presence = rows.presence
        if presence is None and "presence" in names:
            presence = "presence"
        if isinstance(presence, str):
            presence = _positions(names, [presence], f"{argument}.presence")[0]
        elif presence is not None and not 0 <= presence < len(names):
            raise InvalidSpace(
                f"{argument}.presence: expected 0 to {len(names) - 1}, got {presence}"
            )
        self._presence = presence
        self._absent = None if rows.absent is None else np.asarray(rows.absent, dtype=np.float32)
        if self._absent is not None and self._absent.shape != (self._width,):
            raise InvalidSpace(
                f"{argument}.absent: expected {self._width} numbers, got {rows.absent}"
            )
        self._absent_row = None if self._absent is None else self._absent.tolist()

        self.num_rows: int | None = None
        if field.is_flat or field.num_rows is not None:
            size = self._span.stop - self._span.start
            self.num_rows = size // self._width if field.is_flat else size
        self.features = [name for i, name in enumerate(names) if i != presence]
        if rows.features is not None:
            self.features = list(rows.features)
        self.select(self.features)

    def select(self, features: list[str]) -> None:
        """Show features in this order, which must be those of this field."""
        if sorted(features) != sorted(self.features):
            raise InvalidSpace(
                f"{self._argument}: expected the same features from every field, got "
                f"{features} and {self.features}; name them in columns and features"
            )
        self._columns = _positions(self._names, features, f"{self._argument}.features")
        self._shows_all = self._columns == list(range(self._width))

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
            present = [
                i
                for i, row in enumerate(block.tolist())
                if row != self._absent_row and (presence is None or row[presence] != 0)
            ]
            return _first_rows(total) if len(present) == total else np.array(present, np.int64)
        is_present = np.ones(total, dtype=np.bool_)
        if presence is not None:
            is_present &= block[:, presence] != 0
        if absent is not None:
            is_present &= (block != absent).any(axis=1)
        return np.flatnonzero(is_present)


class _GlobalsReader:
    """Reader of the numbers of one field that belong to no entity."""

    def __init__(self, space: Space, given: Globals) -> None:
        argument = f"FieldMap.global_features[{given.path!r}]"
        self.field = field = field_at(space, given.path, argument)
        if not field.is_flat:
            raise InvalidSpace(
                f"{argument}: expected a field with a fixed number of numbers, got {field.space}; "
                "name it in entities"
            )
        self._span = _span(field, given.span, f"{argument}.span")
        size = self._span.stop - self._span.start
        names = given.columns or number_names(field.space, field.path)[self._span]
        if len(names) != size:
            raise InvalidSpace(f"{argument}.columns: expected {size} names, got {list(names)}")
        self.features = list(given.features or names)
        self._columns = _positions(names, self.features, f"{argument}.features")
        self._shows_all = self._columns == list(range(size))

    def read(self, values: Mapping[str, Numbers]) -> Numbers:
        """Return the features."""
        numbers = values[self.field.path][0, self._span]
        return numbers if self._shows_all else numbers.take(self._columns)


@lru_cache(maxsize=256)
def _first_rows(n: int) -> Indices:
    """Return the numbers of the first n rows, which many frames share."""
    rows = np.arange(n)
    rows.flags.writeable = False
    return rows


def _span(field: Field, span: tuple[int, int] | None, argument: str) -> slice:
    """Return the part of the numbers of a flat field, or of the rows of a table, that is shown."""
    size = len(field.columns) if field.is_flat else field.num_rows
    start, end = span or (0, size)
    if span is not None and not 0 <= start < span[1] <= (span[1] if size is None else size):
        limit = "" if size is None else f" <= {size}"
        raise InvalidSpace(f"{argument}: expected 0 <= start < end{limit}, got {span}")
    return slice(start, end)


def _positions(names: Sequence[str], wanted: Sequence[str], argument: str) -> list[int]:
    missing = [name for name in wanted if name not in names]
    if missing:
        raise InvalidSpace(f"{argument}: expected columns among {list(names)}, got {missing}")
    return [list(names).index(name) for name in wanted]
