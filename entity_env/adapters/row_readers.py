"""Readers of the entities of one type in the fields of an observation."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.adapters.gymnasium_spaces import Numbers, Space
from entity_env.adapters.mapping import Place, Rows
from entity_env.adapters.space_fields import CELL, field_at, positions_of
from entity_env.errors import InvalidObservation, InvalidSpace
from entity_env.kinds import check_unique
from entity_env.real_numbers import real_array

Indices: TypeAlias = npt.NDArray[np.int64]

_NUMBER = "number"
"""The name of the column with the number of the row."""
_FEW = 64
"""A number of elements that Python compares in less time than a call of numpy takes."""
_MAX_CODE = 2**24
"""The largest whole number that differs from all others in float32."""


class RowsReader:
    """Reader of the entities of one field; `features` are those of the other fields, if any.

    The attribute `rows` has the names of all columns of the field, given or inferred.
    """

    def __init__(
        self,
        space: Space,
        rows: Rows,
        argument: str,
        columns: Sequence[str],
        features: list[str] | None,
    ) -> None:
        self.field = field = field_at(space, rows.path, f"{argument}.path")
        self._span = field.span(rows.span, f"{argument}.span")

        # The names of the numbers of a row: given, from the environment, or positions.
        names = own = field.columns[self._span] if field.is_flat else field.columns
        if rows.columns is not None:
            names = list(rows.columns)
            left = len(own) % max(len(names), 1) if field.is_flat else len(own) - len(names)
            if left or not names:
                expected = f"a divisor of {len(own)}" if field.is_flat else f"{len(own)}"
                if len(field.space.shape or ()) == 3:
                    expected += f" (of a cell of an image: {CELL}, then the channels)"
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
            presence = positions_of(names, [presence], f"{argument}.presence")[0]
        elif presence is not None and not 0 <= presence < width:
            raise InvalidSpace(f"{argument}.presence: expected 0 to {width - 1}, got {presence}")
        self._presence = presence
        named = None if presence is None else names[presence]
        self.rows = replace(rows, columns=names, presence=named)
        self._absent = None if rows.absent is None else np.asarray(rows.absent, dtype=np.float32)
        if self._absent is not None and self._absent.shape != (width,):
            raise InvalidSpace(f"{argument}.absent: expected {width} numbers, got {rows.absent}")

        # The features: columns of the field, and those that are added to them.
        shown = [n for i, n in enumerate(names) if i != presence or n in rows.one_hot]
        if rows.features is not None:
            shown = list(rows.features)
        self._added = _AddedColumns(rows, names, shown, argument, field.path)
        shown = [one for name in shown for one in self._added.kinds.get(name, [name])]
        shown += self._added.others
        self.features = _in_order_of(features, shown, argument)
        names = [*names, *self._added.names]
        self._columns = positions_of(names, self.features, f"{argument}.features")
        self._shows_all = self._columns == list(range(len(names)))

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
        if self._added.names:
            block = self._added.append_to(block, rows)
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


class _AddedColumns:
    """Columns that a mapping adds to those of a field: one-hot ones, the number, constants.

    Args:
        rows: the mapping.
        names: of the columns of the field.
        shown: those of them that are features.
        argument: that names the mapping, for messages.
        path: of the field, for messages.

    Attributes:
        kinds: for each column of the field that is one-hot encoded, the names of its columns.
        others: the names of the other added columns.
        names: of all added columns.
    """

    def __init__(
        self, rows: Rows, names: Sequence[str], shown: Sequence[str], argument: str, path: str
    ) -> None:
        self._path, self._argument = path, argument
        self._positions = positions_of(names, [*rows.one_hot], f"{argument}.one_hot")
        positions_of(shown, [*rows.one_hot], f"{argument}.one_hot")  # others would have no effect
        self._codes = {
            column: _codes(given, f"{argument}.one_hot[{column!r}]")
            for column, given in rows.one_hot.items()
        }
        self._is_numbered = rows.numbered
        self._constants = _constants(rows.constants, f"{argument}.constants")
        self.kinds = {
            name: [f"{name}={kind}" for kind in codes] for name, codes in self._codes.items()
        }
        self.others = [_NUMBER] * rows.numbered + [*rows.constants]
        self.names = [name for kinds in self.kinds.values() for name in kinds] + self.others
        check_unique(f"{argument}: columns", [*{*names}, *self.names])

    def append_to(self, block: Numbers, rows: Indices) -> Numbers:
        """Return rows of a field with the added columns; `rows` are their numbers."""
        parts: list[npt.NDArray[Any]] = [block]
        for position, (column, codes) in zip(self._positions, self._codes.items(), strict=True):
            values = block[:, position, None]
            is_kind = values == np.array(list(codes.values()), dtype=np.float32)
            if not is_kind.any(axis=1).all():
                value = values[~is_kind.any(axis=1)][0, 0]
                raise InvalidObservation(
                    f"{self._path}: expected values of {column!r} with a name, {codes}, got "
                    f"{value:g}; name it in {self._argument}.one_hot"
                )
            parts.append(is_kind)
        if self._is_numbered:
            parts.append(rows[:, None])
        parts.append(np.tile(self._constants, (len(block), 1)))
        return np.concatenate(parts, axis=1, dtype=np.float32)


class PlaceReader:
    """Reader of an entity with constant features; `features` are those of other fields, if any."""

    def __init__(self, place: Place, argument: str, features: list[str] | None) -> None:
        self.rows, self.num_rows = place, 1
        self.features = _in_order_of(features, list(place.features), argument)
        values = {name: place.features[name] for name in self.features}
        self._block = _constants(values, argument)[None]

    def read(self, values: Mapping[str, Numbers]) -> tuple[Numbers, Indices, int]:
        """Return the features, the number of the row, and the number of rows."""
        return self._block.copy(), _first_rows(1), 1


def _codes(given: Sequence[str] | Mapping[str, int], argument: str) -> dict[str, int]:
    """Return the whole number of each name of a column."""
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    names = list(given) if is_list or isinstance(given, Mapping) else []
    codes = list(given.values()) if isinstance(given, Mapping) else list(range(len(names)))
    are_texts = all(isinstance(name, str) for name in names)
    are_whole = all(isinstance(code, int | np.integer) and abs(code) <= _MAX_CODE for code in codes)
    if not (names and are_texts and are_whole and len({*names}) == len(names) == len({*codes})):
        raise InvalidSpace(
            f"{argument}: expected names of 0, 1 and so on, each once, or a whole number of up to "
            f"{_MAX_CODE} by name, got {given!r}"
        )
    return dict(zip(names, map(int, codes), strict=True))


def _constants(values: Mapping[str, float], argument: str) -> Numbers:
    """Return constants as (n,) float32."""
    try:
        with np.errstate(over="ignore"):
            numbers = np.asarray(real_array(list(values.values())), dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        numbers = np.array([[np.nan]], dtype=np.float32)
    if numbers.shape != (len(values),) or not np.isfinite(numbers).all():
        raise InvalidSpace(f"{argument}: expected a finite number by name, got {dict(values)}")
    return numbers


def _in_order_of(features: list[str] | None, shown: list[str], argument: str) -> list[str]:
    """Return the features that are shown, in the order of those of other fields, if any."""
    if features is not None and sorted(features) != sorted(shown):
        raise InvalidSpace(
            f"{argument}: expected the same features from every field, got "
            f"{features} and {shown}; name them in columns and features"
        )
    return shown if features is None else features


@lru_cache(maxsize=256)
def _first_rows(n: int) -> Indices:
    """Return the numbers of the first n rows, which many frames share."""
    rows = np.arange(n)
    rows.flags.writeable = False
    return rows
