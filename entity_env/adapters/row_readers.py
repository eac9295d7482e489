"""Readers that convert a field of an observation to entities or global features."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from entity_env.adapters.columns import FeatureColumns, finite_numbers
from entity_env.adapters.gymnasium_spaces import Space, number_names
from entity_env.adapters.mapping import Globals, Place, Rows
from entity_env.adapters.space_fields import CELL, FieldKey, field_at, positions_of
from entity_env.arrays import Float32Array, IntArray
from entity_env.errors import LONG, InvalidSpace, did_you_mean, short_repr
from entity_env.spaces import Entity

_MAX_PYTHON_ELEMENTS = 64
"""Up to this many elements, comparisons in Python are faster than a call of NumPy."""


ROW = "row"
"""Value of `Rows.identity` for entities with fixed rows."""


class FieldRows(NamedTuple):
    """The n entities of a field in a frame.

    Attributes:
        features: (n, num_features) float32.
        rows: (n,) int64, row numbers; read-only, because frames share these arrays.
        total: number of rows of the field, including rows without an entity.
        keys: (n,) numbers that identify the entities within a frame.
    """

    features: Float32Array
    rows: IntArray
    total: int
    keys: npt.NDArray[Any]


class RowsReader:
    """Reader of a field with rows that are entities.

    The features must be equal to `like`, if another field of the type has set it. Attribute `rows`
    is the mapping with the names of all columns; `entity` has the features.
    """

    def __init__(
        self,
        space: Space,
        rows: Rows,
        argument: str,
        columns: Sequence[str],
        like: Entity | None,
    ) -> None:
        self.field = field = field_at(space, rows.path, f"{argument}.path", rows.names_choices)
        self.span = field.span(rows.span, f"{argument}.span")

        # Column names: from the mapping, from the environment, or indices.
        names = field.columns[self.span] if field.is_flat else field.columns
        count = len(names)
        if rows.columns is not None:
            names = list(rows.columns)
            remainder = count % max(len(names), 1) if field.is_flat else count - len(names)
            is_image = field.columns[: len(CELL)] == CELL
            is_moved = is_image and any(
                name in names and names.index(name) != i for i, name in enumerate(CELL)
            )
            if remainder or not names or is_moved:
                expected = f"a divisor of {count}" if field.is_flat else f"{count}"
                if is_image:
                    expected += f" (of a cell of an image: {CELL}, then the channels)"
                raise InvalidSpace(
                    f"{argument}.columns: expected {expected} names, got {len(names)}: {names}"
                )
        elif len(columns) == count and not field.is_flat:
            names = list(columns)
        self._width = width = len(names)
        self.num_rows: int | None = None
        if field.is_flat or field.num_rows is not None:
            size = self.span.stop - self.span.start
            self.num_rows = size // width if field.is_flat else size

        # Rows without an entity.
        presence = rows.presence
        if presence is None and "presence" in names:
            presence = names.index("presence")
        if isinstance(presence, str):
            presence = positions_of(names, [presence], f"{argument}.presence")[0]
        elif presence is not None and not 0 <= presence < width:
            raise InvalidSpace(f"{argument}.presence: expected 0 to {width - 1}, got {presence}")
        self._presence = presence
        presence_name = None if presence is None else names[presence]
        self.rows = replace(rows, columns=names, presence=presence_name)
        self._absent = None if rows.absent is None else np.asarray(rows.absent, dtype=np.float32)
        if self._absent is not None and self._absent.shape != (width,):
            raise InvalidSpace(f"{argument}.absent: expected {width} numbers, got {rows.absent}")

        choices = field.choices_of_rows(self.span, width) if field.is_flat else field.choices
        self._columns = FeatureColumns(rows, names, choices, field.path, argument, presence, like)
        self.entity = self._columns.entity

        self._identity: int | None = None
        if rows.identity not in (None, ROW):
            self._identity = positions_of(names, [rows.identity], f"{argument}.identity")[0]

    def read(self, values: Mapping[FieldKey, Float32Array]) -> FieldRows:
        """Read the entities of the field."""
        block = values[self.field.key]
        if self.field.is_flat:
            block = block[0, self.span].reshape(-1, self._width)
        else:
            block = block[self.span]
        total = len(block)
        rows = self._present_rows(block)
        if len(rows) < total:
            block = block.take(rows, axis=0)
        if not self._columns.row_filter.is_all:
            is_kept = self._columns.row_filter.mask(block)
            block, rows = block[is_kept], rows[is_kept]
        keys = rows if self._identity is None else block[:, self._identity]
        return FieldRows(self._columns.transform(block, rows), rows, total, keys)

    def _present_rows(self, block: Float32Array) -> IntArray:
        """Return the numbers of the rows with an entity."""
        total, presence, absent = len(block), self._presence, self._absent
        if absent is None and presence is None:
            return _first_rows(total)
        if block.size <= _MAX_PYTHON_ELEMENTS:
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


class GlobalsReader:
    """Reader of a field with global features.

    Attribute `globals` is the mapping with the names of all columns; `entity` has the features.
    """

    def __init__(self, space: Space, mapping: Globals) -> None:
        argument = f"FieldMap.global_features[{mapping.path!r}]"
        self.field = field = field_at(space, mapping.path, argument, mapping.names_choices)
        if not field.is_flat:
            raise InvalidSpace(
                f"{argument}: expected a field with a fixed number of numbers, got {field.space}; "
                "name it in entities"
            )
        self.span = span = field.span(mapping.span, f"{argument}.span")
        names = list(mapping.columns or number_names(field.space, field.path)[span])
        size = span.stop - span.start
        if len(names) != size:
            raise InvalidSpace(f"{argument}.columns: expected {size} names, got {names}")
        self.globals = replace(mapping, columns=names, features=mapping.features or None)
        choices = field.choices_of_rows(span, size)
        self._columns = FeatureColumns(self.globals, names, choices, field.path, argument)
        self.entity = self._columns.entity

    def read(self, values: Mapping[FieldKey, Float32Array]) -> Float32Array:
        """Read the features, (numbers + kinds,) float32."""
        block = values[self.field.key][:, self.span]
        features: Float32Array = self._columns.transform(block, _first_rows(1))[0]
        return features


class PlaceReader:
    """Reader of a `Place`, an entity with constant features.

    The features must be equal to `like`, if a field of the type has set it. Attribute `entity` has
    the features.
    """

    def __init__(self, place: Place, argument: str, like: Entity | None) -> None:
        self.rows, self.num_rows = place, 1
        names = [*place.features]
        self.entity = Entity(names, constants=names) if like is None else like
        if sorted(place.features) != sorted(self.entity.columns):
            raise InvalidSpace(
                f"{argument}: expected the same features from every field, got "
                f"{self.entity.columns} and {[*place.features]}"
            )
        values = {name: place.features[name] for name in self.entity.columns}
        for kind in self.entity.kinds:
            label = values[kind.name]
            if label not in kind.labels:
                hint = did_you_mean(label, kind.labels) if isinstance(label, str) else ""
                raise InvalidSpace(
                    f"{argument}: Place.{kind.name}: expected a label, "
                    f"{short_repr(kind.labels, LONG)}, got {label!r}{hint}"
                )
            values[kind.name] = kind.labels.index(str(label))
        self._block = finite_numbers(values, argument)[None]

    def read(self, values: Mapping[FieldKey, Float32Array]) -> FieldRows:
        """Return the entity, a copy."""
        return FieldRows(self._block.copy(), _first_rows(1), 1, _first_rows(1))


@lru_cache(maxsize=256)
def _first_rows(n: int) -> IntArray:
    """Return a shared, read-only array of the first n row numbers."""
    rows = np.arange(n)
    rows.flags.writeable = False
    return rows
