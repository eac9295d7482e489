"""Reading the observations of a world as entities and global features."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from entity_env.adapters.infer import infer
from entity_env.adapters.mapping import FieldMap, Globals, Rows, column_index
from entity_env.adapters.space_numbers import Numbers, Space, number_names
from entity_env.adapters.tables import Table, locate, table, value_at
from entity_env.errors import InvalidSpace
from entity_env.spaces import Entity, EntityName, ObsSpace

Indices = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
_NO_NUMBERS: Numbers = np.zeros(0, dtype=np.float32)
_FEW = 64
"""So few numbers are compared one by one in less time than numpy takes to begin."""


class Frame(NamedTuple):
    """What an observation shows.

    Attributes:
        features: (n, num_features) per type.
        rows: (n,) int64 per type, the number in the world's field of the row of each entity; not
            to be written to, as frames share what is the same in all of them.
        global_features: (num_global_features,).
    """

    features: dict[EntityName, Numbers]
    rows: dict[EntityName, Indices]
    global_features: Numbers


class Reader:
    """Reads observations of one space.

    Args:
        space: of the observations.
        mapping: what its fields mean.
        columns: names that the world ships for the columns of its tables.

    Raises:
        InvalidSpace: the mapping does not fit the space, or something cannot be inferred.
    """

    def __init__(self, space: Space, mapping: FieldMap, columns: Sequence[str] = ()) -> None:
        for path in mapping.ignore:
            locate(space, path, "FieldMap.ignore")
        named = mapping.rows()
        found = infer(space, mapping.paths(), list(columns), mapping.action_mask)
        if twice := sorted(named.keys() & found.entities.keys()):
            raise InvalidSpace(
                f"FieldMap.entities: expected other names than those of inferred types, got {twice}"
                "; rename them, or name the fields of that name in the mapping or in ignore"
            )
        several = named | {name: [rows] for name, rows in found.entities.items()}
        self._types = {
            name: _TypeReader(space, name, rows, columns) for name, rows in several.items()
        }
        self._globals = [
            _GlobalsReader(space, part)
            for part in [*mapping.global_features, *found.global_features]
        ]
        fields = [one.field for reader in self._types.values() for one in reader.readers]
        fields += [part.field for part in self._globals]
        self._fields = {field.path: field for field in fields}
        self.obs_space = ObsSpace(
            [name for part in self._globals for name in part.features],
            {name: Entity(reader.features) for name, reader in self._types.items()},
        )

    def read(self, value: Any) -> Frame:
        """The entities and global features of an observation.

        Raises:
            InvalidObservation: it is not of the space.
        """
        values = {path: field.read(value) for path, field in self._fields.items()}
        features, rows = {}, {}
        for name, reader in self._types.items():
            features[name], rows[name], _ = reader.read(values)
        parts = [part.read(values) for part in self._globals]
        if len(parts) == 1:
            return Frame(features, rows, parts[0])
        return Frame(features, rows, np.concatenate(parts) if parts else _NO_NUMBERS.copy())

    def num_rows(self, name: EntityName) -> int | None:
        """Return how many rows the fields of a type always have, None if that varies."""
        counts = [reader.num_rows for reader in self._types[name].readers]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None


class _Field(NamedTuple):
    """A field of the observation, which is read once for everything that is shown of it."""

    path: str
    keys: list[Any]
    table: Table

    @classmethod
    def of(cls, space: Space, path: str, what: str) -> "_Field":
        """The field at a path of a mapping; `what` names the path in messages."""
        keys, found = locate(space, path, what)
        name = path or "observation"
        return cls(name, keys, table(found, name))

    def read(self, value: Any) -> Numbers:
        """(rows, columns), of which parts may be shown as they are."""
        return self.table.read(value_at(value, self.keys, self.path) if self.keys else value)


class _TypeReader:
    """Reads the entities of one type, from one or several fields."""

    def __init__(
        self, space: Space, name: EntityName, several: Sequence[Rows], declared: Sequence[str]
    ) -> None:
        if not several:
            raise InvalidSpace(f"FieldMap.entities[{name!r}]: expected Rows, got none")
        self.readers = [_RowsReader(space, rows, name, declared) for rows in several]
        self.features = self.readers[0].features
        for reader in self.readers:
            reader.reorder(self.features)

        self.read = self.readers[0].read if len(self.readers) == 1 else self._read_several

    def _read_several(self, values: Mapping[str, Numbers]) -> tuple[Numbers, Indices, int]:
        """The features, the numbers of their rows, and how many rows all fields have."""
        blocks, kept, start = [], [], 0
        for reader in self.readers:
            block, rows, total = reader.read(values)
            blocks.append(block)
            kept.append(start + rows)
            start += total
        return np.concatenate(blocks), np.concatenate(kept), start


class _RowsReader:
    """Reads the entities of one field."""

    def __init__(self, space: Space, rows: Rows, name: EntityName, declared: Sequence[str]) -> None:
        self._what = f"entities[{name!r}]"
        self.field = _Field.of(space, rows.path, f"FieldMap.{self._what}.path")
        source = self.field.table
        self._is_flat = source.is_flat
        self._span = _span_of(source, rows.span, f"FieldMap.{self._what}.span")
        names = _column_names(source, rows, self._span, declared, f"FieldMap.{self._what}")
        self._width = len(names)
        self._presence = _presence_column(names, rows.presence, f"FieldMap.{self._what}.presence")
        self._absent = None if rows.absent is None else np.asarray(rows.absent, dtype=np.float32)
        if self._absent is not None and self._absent.shape != (self._width,):
            raise InvalidSpace(
                f"FieldMap.{self._what}.absent: expected {self._width} numbers, got {rows.absent}"
            )
        self._absent_row = None if self._absent is None else self._absent.tolist()
        self.num_rows: int | None = None
        if source.is_flat or source.num_rows is not None:
            size = self._span.stop - self._span.start
            self.num_rows = size // self._width if source.is_flat else size
        others = [name for i, name in enumerate(names) if i != self._presence]
        self.features = others if rows.features is None else list(rows.features)
        self._columns = column_index(names, self.features, f"FieldMap.{self._what}.features")

    def reorder(self, features: list[str]) -> None:
        """Show the features in this order."""
        if sorted(features) != sorted(self.features):
            raise InvalidSpace(
                f"FieldMap.{self._what}: expected the same features from every field, got "
                f"{features} and {self.features}; name them in columns and features"
            )
        self._columns = [self._columns[self.features.index(name)] for name in features]
        self._shows_all = self._columns == list(range(self._width))

    def read(self, values: Mapping[str, Numbers]) -> tuple[Numbers, Indices, int]:
        """The features, the numbers of their rows, and how many rows the field has."""
        block = values[self.field.path]
        if self._is_flat:
            block = block[0, self._span].reshape(-1, self._width)
        else:
            block = block[self._span]
        total = len(block)
        rows = self._kept(block)
        if len(rows) < total:
            block = block.take(rows, axis=0)
        if not self._shows_all:
            # Not block[:, columns], which is of another memory layout, and slower to join.
            block = block.take(self._columns, axis=1)
        return block, rows, total

    def _kept(self, block: Numbers) -> Indices:
        """The numbers of the rows that stand for something."""
        total, presence, absent = len(block), self._presence, self._absent
        if absent is None and presence is None:
            return _first(total)
        if block.size <= _FEW:
            few = block.tolist()
            kept = [
                i
                for i, row in enumerate(few)
                if row != self._absent_row and (presence is None or row[presence] != 0)
            ]
            return _first(total) if len(kept) == total else np.array(kept, dtype=np.int64)
        return np.flatnonzero(_stand_for_something(block, presence, absent))


def _stand_for_something(block: Numbers, presence: int | None, absent: Numbers | None) -> Flags:
    """(rows,), whether a row is present and not what an absent one looks like."""
    here: Flags = np.ones(len(block), dtype=np.bool_)
    if presence is not None:
        here &= block[:, presence] != 0
    if absent is not None:
        here &= (block != absent).any(axis=1)
    return here


class _GlobalsReader:
    """Reads the numbers of one field."""

    def __init__(self, space: Space, part: Globals) -> None:
        what = f"FieldMap.global_features[{part.path!r}]"
        self.field = _Field.of(space, part.path, what)
        found = locate(space, part.path, what)[1]
        if not self.field.table.is_flat:
            raise InvalidSpace(
                f"{what}: expected a field with a fixed number of numbers, got {found}; "
                "name it in entities"
            )
        self._span = _span_of(self.field.table, part.span, f"{what}.span")
        size = self._span.stop - self._span.start
        names = part.columns or number_names(found, self.field.path)[self._span]
        if len(names) != size:
            raise InvalidSpace(f"{what}.columns: expected {size} names, got {list(names)}")
        self.features = list(part.features or names)
        self._columns = column_index(names, self.features, f"{what}.features")
        self._shows_all = self._columns == list(range(size))

    def read(self, values: Mapping[str, Numbers]) -> Numbers:
        """The features."""
        shown = values[self.field.path][0, self._span]
        return shown if self._shows_all else shown.take(self._columns)


@lru_cache(maxsize=256)
def _first(n: int) -> Indices:
    """The numbers of the first n rows, which many frames share."""
    rows = np.arange(n)
    rows.flags.writeable = False
    return rows


def _span_of(source: Table, span: tuple[int, int] | None, what: str) -> slice:
    """The numbers of a flat field, or the rows of a table, that count."""
    size = len(source.columns) if source.is_flat else source.num_rows
    start, end = span or (0, size)
    if span is not None and not 0 <= start < span[1] <= (span[1] if size is None else size):
        limit = "" if size is None else f" <= {size}"
        raise InvalidSpace(f"{what}: expected 0 <= start < end{limit}, got {span}")
    return slice(start, end)


def _presence_column(names: list[str], presence: str | int | None, what: str) -> int | None:
    """The column that says whether a row stands for anything: as given, or the one so called."""
    if isinstance(presence, int):
        if not 0 <= presence < len(names):
            raise InvalidSpace(f"{what}: expected 0 to {len(names) - 1}, got {presence}")
        return presence
    if presence is None:
        return names.index("presence") if "presence" in names else None
    return column_index(names, [presence], what)[0]


def _column_names(
    source: Table, rows: Rows, span: slice, declared: Sequence[str], what: str
) -> list[str]:
    """The names of the numbers of a row: as given, as the world ships them, or by position."""
    own = source.columns[span] if source.is_flat else source.columns
    if rows.columns is None:
        fits = declared and len(declared) == len(own) and not source.is_flat
        return list(declared) if fits else own
    given = list(rows.columns)
    fits = bool(given) and (
        len(own) % len(given) == 0 if source.is_flat else len(own) == len(given)
    )
    if not fits:
        expected = f"a divisor of {len(own)}" if source.is_flat else f"{len(own)}"
        raise InvalidSpace(f"{what}.columns: expected {expected} names, got {len(given)}: {given}")
    return given
