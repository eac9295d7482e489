"""Reading the observations of a world as entities and global features."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.adapters.infer import infer
from entity_env.adapters.mapping import FieldMap, Globals, Rows, column_index
from entity_env.adapters.space_numbers import Numbers, Space, number_names
from entity_env.adapters.tables import Table, locate, table, value_at
from entity_env.errors import InvalidSpace
from entity_env.spaces import Entity, EntityName, ObsSpace

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Frame:
    """What an observation shows.

    Attributes:
        features: (n, num_features) per type.
        rows: (n,) int64 per type, the number in the world's field of the row of each entity.
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
        self.obs_space = ObsSpace(
            [name for part in self._globals for name in part.features],
            {name: Entity(reader.features) for name, reader in self._types.items()},
        )

    def read(self, value: Any) -> Frame:
        """The entities and global features of an observation.

        Raises:
            InvalidObservation: it is not of the space.
        """
        features, rows = {}, {}
        for name, reader in self._types.items():
            features[name], rows[name] = reader.read(value)
        blank: Numbers = np.zeros(0, dtype=np.float32)
        return Frame(
            features, rows, np.concatenate([blank, *(part.read(value) for part in self._globals)])
        )


class _TypeReader:
    """Reads the entities of one type, from one or several fields."""

    def __init__(
        self, space: Space, name: EntityName, several: Sequence[Rows], declared: Sequence[str]
    ) -> None:
        if not several:
            raise InvalidSpace(f"FieldMap.entities[{name!r}]: expected Rows, got none")
        self._readers = [_RowsReader(space, rows, name, declared) for rows in several]
        self.features = self._readers[0].features
        for reader in self._readers:
            reader.reorder(self.features)

    def read(self, value: Any) -> tuple[Numbers, Indices]:
        """The features, and the numbers of their rows, counted over all fields."""
        blocks, kept, start = [], [], 0
        for reader in self._readers:
            block, rows, total = reader.read(value)
            blocks.append(block)
            kept.append(start + rows)
            start += total
        return (
            (blocks[0], kept[0])
            if len(blocks) == 1
            else (
                np.concatenate(blocks),
                np.concatenate(kept),
            )
        )


class _RowsReader:
    """Reads the entities of one field."""

    def __init__(self, space: Space, rows: Rows, name: EntityName, declared: Sequence[str]) -> None:
        self._what = f"entities[{name!r}]"
        self._keys, part = locate(space, rows.path, f"FieldMap.{self._what}.path")
        self._field = rows.path or "observation"
        self._table = table(part, self._field)
        self._span = _span_of(self._table, rows.span, f"FieldMap.{self._what}.span")
        names = _column_names(self._table, rows, self._span, declared, f"FieldMap.{self._what}")
        self._width = len(names)
        self._presence = _presence_column(names, rows.presence, f"FieldMap.{self._what}.presence")
        self._absent = None if rows.absent is None else np.asarray(rows.absent, dtype=np.float32)
        if self._absent is not None and self._absent.shape != (self._width,):
            raise InvalidSpace(
                f"FieldMap.{self._what}.absent: expected {self._width} numbers, got {rows.absent}"
            )
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

    def read(self, value: Any) -> tuple[Numbers, Indices, int]:
        """The features, the numbers of their rows, and how many rows the field has."""
        values = self._table.read(value_at(value, self._keys, self._field))
        if self._table.is_flat:
            values = values[0, self._span].reshape(-1, self._width)
        else:
            values = values[self._span]
        here = np.ones(len(values), dtype=np.bool_)
        if self._presence is not None:
            here &= values[:, self._presence] != 0
        if self._absent is not None:
            here &= (values != self._absent).any(axis=1)
        return values[here][:, self._columns], np.flatnonzero(here), len(values)


class _GlobalsReader:
    """Reads the numbers of one field."""

    def __init__(self, space: Space, part: Globals) -> None:
        what = f"FieldMap.global_features[{part.path!r}]"
        self._keys, found = locate(space, part.path, what)
        self._field = part.path or "observation"
        self._table = table(found, self._field)
        if not self._table.is_flat:
            raise InvalidSpace(
                f"{what}: expected a field with a fixed number of numbers, got {found}; "
                "name it in entities"
            )
        self._span = _span_of(self._table, part.span, f"{what}.span")
        size = self._span.stop - self._span.start
        names = part.columns or number_names(found, self._field)[self._span]
        if len(names) != size:
            raise InvalidSpace(f"{what}.columns: expected {size} names, got {list(names)}")
        self.features = list(part.features or names)
        self._columns = column_index(names, self.features, f"{what}.features")

    def read(self, value: Any) -> Numbers:
        """The features."""
        values = self._table.read(value_at(value, self._keys, self._field))[0]
        shown: Numbers = values[self._span][self._columns]
        return shown


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
