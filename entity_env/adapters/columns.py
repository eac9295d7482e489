"""The features of the rows of a field: its numbers, those that a mapping adds, and labels."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.adapters.gymnasium_spaces import MAX_CHOICES
from entity_env.adapters.mapping import Globals, Labels, Rows
from entity_env.adapters.space_fields import positions_of
from entity_env.arrays import BoolArray, Float32Array, IntArray, real_array
from entity_env.errors import LONG, InvalidObservation, InvalidSpace, did_you_mean, short_repr
from entity_env.kinds import Kind, check_unique
from entity_env.spaces import Entity

_Codes: TypeAlias = dict[str, int]
"""The whole number of each label of a column."""

_NUMBER = "number"
"""The name of the column with the number of the row."""
_MAX_CODE = 2**24
"""The largest whole number that differs from all others in float32."""


class Columns:
    """Columns to show of the rows of a field: numbers, then kinds.

    Args:
        given: the mapping.
        names: of the numbers of a row.
        choices: of those that are discrete, as in a `Field`.
        path: of the field, for messages.
        argument: that names the mapping, for messages.
        hidden: the number of a column that is no feature unless it has labels.
        like: the features of other fields of the type, which must be the same.

    Attributes:
        entity: the features.
        selection: the choice of rows by their labels.

    Raises:
        InvalidSpace: the mapping does not fit the columns, or `like`.
    """

    def __init__(
        self,
        given: Rows | Globals,
        names: Sequence[str],
        choices: Sequence[range | None],
        path: str,
        argument: str,
        hidden: int | None = None,
        like: Entity | None = None,
    ) -> None:
        rows = given if isinstance(given, Rows) else Rows(one_hot=given.one_hot, kinds=given.kinds)
        self._path, self._argument, self._is_numbered = path, argument, rows.numbered
        added = [_NUMBER] * rows.numbered + [*rows.constants]

        # The labels of columns, and the rows to keep.
        one_hot = _codes_by_column(rows.one_hot, names, f"{argument}.one_hot")
        kinds = _codes_by_column(rows.kinds, [*names, *added], f"{argument}.kinds")
        if twice := sorted(one_hot.keys() & kinds.keys()):
            raise InvalidSpace(f"{argument}: expected one_hot or kinds, got both for {twice}")
        self._constants = _constants(rows.constants, kinds, f"{argument}.constants")
        self.selection = Selection(rows, names, {**one_hot, **kinds}, argument)

        # The own columns to show; discrete ones without labels are one-hot encoded as elsewhere.
        shown = [n for i, n in enumerate(names) if i != hidden or n in one_hot or n in kinds]
        if given.features is not None:
            shown = list(given.features)
            if twice := [name for name in shown if name in added and name not in names]:
                raise InvalidSpace(
                    f"{argument}.features: expected columns of the field, got {twice}, which "
                    "numbered or constants add at the end; leave them out of features"
                )
        used = [*shown, *added, *rows.only, *rows.leave_out]  # labels of others have no effect
        positions_of(used, [*one_hot], f"{argument}.one_hot")
        positions_of(used, [*kinds], f"{argument}.kinds")
        inferred = {
            name: _codes_of_choices(numbers, f"{argument}: {name}")
            for name, numbers in zip(names, choices, strict=bool(choices))
            if numbers and name in shown and name not in one_hot and name not in kinds
        }
        one_hot = {n: codes for n, codes in {**one_hot, **inferred}.items() if n in shown}
        one_hot = {n: self.selection.left(n, codes) for n, codes in one_hot.items()}
        kinds = {n: self.selection.left(n, kinds[n]) for n in kinds if n in [*shown, *added]}

        # The features: numbers, of which one-hot ones stand in the place of their column; kinds.
        columns = {name: [f"{name}={label}" for label in one_hot[name]] for name in one_hot}
        more = [one for name in columns for one in columns[name]] + added
        check_unique(f"{argument}: columns", [*{*names}, *more])
        self.entity = _in_order_of(
            like,
            [
                n
                for name in [*shown, *added]
                if name not in kinds
                for n in columns.get(name, [name])
            ],
            [Kind(name, [*kinds[name]]) for name in [*shown, *added] if name in kinds],
            [*rows.constants],
            argument,
        )
        self._one_hot = [(name, names.index(name), codes) for name, codes in one_hot.items()]
        joined = [*names, *more]
        self._kinds = [
            (
                kind.name,
                joined.index(kind.name),
                {one: kinds[kind.name][one] for one in kind.labels},
            )
            for kind in self.entity.kinds
        ]
        self._adds = len(more) > 0
        self._columns = positions_of(joined, self.entity.columns, f"{argument}.features")
        self._shows_all = self._columns == list(range(len(joined)))

    def of(self, block: Float32Array, rows: IntArray) -> Float32Array:
        """Return the features of rows of a field.

        Args:
            block: (n, columns) the numbers of the rows; it is not changed.
            rows: (n,) the numbers of the rows in the field.

        Returns:
            (n, features) float32, with the indices of labels.

        Raises:
            InvalidObservation: a number has no label.
        """
        if self._adds:
            parts: list[npt.NDArray[np.generic]] = [block]
            for name, position, codes in self._one_hot:
                index = self._label_indices(block[:, position], name, codes, "one_hot")
                parts.append(np.arange(len(codes)) == index[:, None])
            if self._is_numbered:
                parts.append(rows[:, None])
            if len(self._constants):
                parts.append(np.tile(self._constants, (len(block), 1)))
            block = np.concatenate(parts, axis=1, dtype=np.float32)
        elif self._kinds:
            block = block.copy()
        for name, position, codes in self._kinds:
            block[:, position] = self._label_indices(block[:, position], name, codes, "kinds")
        # Not block[:, columns], which is of another memory layout, and slower to join.
        return block if self._shows_all else block.take(self._columns, axis=1)

    def _label_indices(
        self, values: Float32Array, name: str, codes: _Codes, option: str
    ) -> IntArray:
        """Return the index of the label of each number of a column, (n,)."""
        of_labels = np.fromiter(codes.values(), np.float32, len(codes))
        if np.array_equal(values, of_labels):  # as of numbered rows
            return np.arange(len(codes))
        is_label = values[:, None] == of_labels
        has_label = is_label.any(axis=1)
        if not has_label.all():
            raise InvalidObservation(
                f"{self._path}: expected values of {name!r} with a name, "
                f"{short_repr(codes, LONG)}, got {values[~has_label][0]:g}; name it in "
                f"{self._argument}.{option}"
            )
        indices: IntArray = is_label.argmax(axis=1)
        return indices


class Selection:
    """Choice of the rows of a field that are entities, by `only` and `leave_out`.

    Args:
        rows: the mapping.
        names: of the numbers of a row.
        codes: the labels of columns.
        argument: that names the mapping, for messages.

    Attributes:
        is_all: no rows are left out.

    Raises:
        InvalidSpace: a column or label is unknown.
    """

    def __init__(
        self, rows: Rows, names: Sequence[str], codes: Mapping[str, _Codes], argument: str
    ) -> None:
        self._parts: list[tuple[str, int, Float32Array, bool]] = []
        for option, by_column in (("only", rows.only), ("leave_out", rows.leave_out)):
            positions = positions_of(names, [*by_column], f"{argument}.{option}")
            for position, (name, values) in zip(positions, by_column.items(), strict=True):
                what = f"{argument}.{option}[{name!r}]"
                numbers = _selected_numbers(values, codes.get(name, {}), what)
                self._parts.append((name, position, numbers, option == "only"))
        self._argument = argument
        self.is_all = not self._parts

    def keeps(self, block: Float32Array) -> BoolArray:
        """Return the rows to keep, (n,), of the numbers of all rows, (n, columns)."""
        flags = np.ones(len(block), dtype=np.bool_)
        for _, position, numbers, is_only in self._parts:
            flags &= (block[:, position, None] == numbers).any(axis=1) == is_only
        return flags

    def left(self, name: str, codes: _Codes) -> _Codes:
        """Return the labels of a column that rows can have which are kept."""
        for column, _, numbers, is_only in self._parts:
            if column == name:
                codes = {one: code for one, code in codes.items() if (code in numbers) == is_only}
        if not codes:
            raise InvalidSpace(
                f"{self._argument}: expected labels of {name!r} that are not left out, got none"
            )
        return codes


def _codes_by_column(
    labels: Mapping[str, Labels], names: Sequence[str], argument: str
) -> dict[str, _Codes]:
    """Return the whole number of each label, by column."""
    positions_of(names, [*labels], argument)
    return {name: _codes(given, f"{argument}[{name!r}]") for name, given in labels.items()}


def _codes(given: Labels, argument: str) -> _Codes:
    """Return the whole number of each label of a column."""
    is_list = isinstance(given, Sequence) and not isinstance(given, str)
    names = list(given) if is_list or isinstance(given, Mapping) else []
    codes = list(given.values()) if isinstance(given, Mapping) else list(range(len(names)))
    are_texts = all(isinstance(name, str) for name in names)
    are_whole = all(map(_is_whole, codes))
    if not (names and are_texts and are_whole and len({*names}) == len(names) == len({*codes})):
        raise InvalidSpace(
            f"{argument}: expected names of 0, 1 and so on, each once, or a whole number of up to "
            f"{_MAX_CODE} by name, got {given!r}"
        )
    return dict(zip(names, map(int, codes), strict=True))


def _codes_of_choices(numbers: range, argument: str) -> _Codes:
    """Return the labels of a discrete number that has none: its choices."""
    if len(numbers) > MAX_CHOICES or not (_is_whole(numbers.start) and _is_whole(numbers.stop)):
        raise InvalidSpace(
            f"{argument}: expected at most {MAX_CHOICES} choices, as each becomes a number, from "
            f"-{_MAX_CODE} to {_MAX_CODE}, got {len(numbers)} from {numbers.start}; name labels "
            "in kinds, or leave it out of features"
        )
    return {str(number): number for number in numbers}


def _is_whole(value: object) -> bool:
    return isinstance(value, int | np.integer) and abs(int(value)) <= _MAX_CODE


def _selected_numbers(values: Sequence[str | int], codes: _Codes, argument: str) -> Float32Array:
    """Return the numbers of a column that are given by their labels or as they are."""
    is_list = isinstance(values, Sequence) and not isinstance(values, str)
    if not is_list or not values:
        raise InvalidSpace(
            f"{argument}: expected a list of labels or whole numbers, got {values!r}"
        )
    numbers: list[int] = []
    for value in values:
        if isinstance(value, str) and value in codes:
            numbers.append(codes[value])
        elif _is_whole(value):
            numbers.append(int(value))
        else:
            known = short_repr(list(codes), LONG) if codes else "which one_hot or kinds names"
            hint = did_you_mean(value, codes) if isinstance(value, str) else ""
            raise InvalidSpace(
                f"{argument}: expected whole numbers or labels, {known}, got {value!r}{hint}"
            )
    return np.array(numbers, dtype=np.float32)


def _constants(
    values: Mapping[str, float | str], kinds: Mapping[str, _Codes], argument: str
) -> Float32Array:
    """Return constants, of which labels become their numbers, as (n,) float32."""
    numbers: dict[str, float | str] = {}
    for name, value in values.items():
        codes = kinds.get(name, {})
        if codes and value not in codes and value not in codes.values():
            hint = did_you_mean(value, codes) if isinstance(value, str) else ""
            raise InvalidSpace(
                f"{argument}[{name!r}]: expected a label, {short_repr(codes, LONG)}, got "
                f"{value!r}{hint}"
            )
        numbers[name] = codes.get(str(value), value)
    return finite_numbers(numbers, argument)


def finite_numbers(values: Mapping[str, float | str], argument: str) -> Float32Array:
    """Return numbers by name as (n,) float32.

    Raises:
        InvalidSpace: one is not a finite number.
    """
    try:
        with np.errstate(over="ignore"):
            numbers = np.asarray(real_array(list(values.values())), dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        numbers = np.array([[np.nan]], dtype=np.float32)
    if numbers.shape != (len(values),) or not np.isfinite(numbers).all():
        raise InvalidSpace(f"{argument}: expected a finite number by name, got {dict(values)}")
    return numbers


def _in_order_of(
    like: Entity | None,
    features: Sequence[str],
    kinds: Sequence[Kind],
    constants: Sequence[str],
    argument: str,
) -> Entity:
    """Return features in the order of those of other fields, if there are any.

    Raises:
        InvalidSpace: they differ.
    """
    own = Entity(features, kinds, constants)
    if like is None:
        return own
    if sorted(own.features) != sorted(like.features) or _labels(own) != _labels(like):
        both = [[*entity.features, *entity.kinds] for entity in (like, own)]
        raise InvalidSpace(
            f"{argument}: expected the same features from every field, got {both[0]} and "
            f"{both[1]}; name them in columns and features"
        )
    return like


def _labels(entity: Entity) -> dict[str, list[str]]:
    return {kind.name: sorted(kind.labels) for kind in entity.kinds}
