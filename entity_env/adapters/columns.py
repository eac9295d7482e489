"""Features of the rows of a field: its columns, columns that a mapping adds, and labels."""

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
"""Number of each label of a column."""

_NUMBER = "number"
"""Name of the column with the row number."""
_MAX_CODE = 2**24
"""Integers up to this size are exact in float32."""


class FeatureColumns:
    """Convert the columns of a field to features: numbers first, then kinds.

    Args:
        spec: mapping of the field.
        names: column names.
        choices: choices of discrete columns, as in a `Field`.
        path: path of the field, for messages.
        argument: name of the mapping, for messages.
        hidden: position of a column that is only a feature if it has labels.
        like: features of other fields of the same type, which must be equal.

    Attributes:
        entity: the features.
        row_filter: selection of rows by label.

    Raises:
        InvalidSpace: the mapping does not fit the columns, or `like`.
    """

    def __init__(
        self,
        spec: Rows | Globals,
        names: Sequence[str],
        choices: Sequence[range | None],
        path: str,
        argument: str,
        hidden: int | None = None,
        like: Entity | None = None,
    ) -> None:
        rows = spec if isinstance(spec, Rows) else Rows(one_hot=spec.one_hot, kinds=spec.kinds)
        self._path, self._argument, self._is_numbered = path, argument, rows.numbered
        added = [_NUMBER] * rows.numbered + [*rows.constants]

        # Labels of columns, and the row filter.
        one_hot = _codes_by_column(rows.one_hot, names, f"{argument}.one_hot")
        kinds = _codes_by_column(rows.kinds, [*names, *added], f"{argument}.kinds")
        if duplicates := sorted(one_hot.keys() & kinds.keys()):
            raise InvalidSpace(f"{argument}: expected one_hot or kinds, got both for {duplicates}")
        self._constants = _constants(rows.constants, kinds, f"{argument}.constants")
        self.row_filter = RowFilter(rows, names, {**one_hot, **kinds}, argument)

        # Columns that become features; discrete ones without labels are one-hot encoded.
        features = [n for i, n in enumerate(names) if i != hidden or n in one_hot or n in kinds]
        if spec.features is not None:
            features = list(spec.features)
            if duplicates := [name for name in features if name in added and name not in names]:
                raise InvalidSpace(
                    f"{argument}.features: expected columns of the field, got {duplicates}, which "
                    "numbered or constants add at the end; leave them out of features"
                )
        labelled = [*features, *added, *rows.only, *rows.leave_out]  # only these may have labels
        positions_of(labelled, [*one_hot], f"{argument}.one_hot")
        positions_of(labelled, [*kinds], f"{argument}.kinds")
        inferred = {
            name: _codes_of_choices(numbers, f"{argument}: {name}")
            for name, numbers in zip(names, choices, strict=bool(choices))
            if numbers and name in features and name not in one_hot and name not in kinds
        }
        one_hot = {n: codes for n, codes in {**one_hot, **inferred}.items() if n in features}
        one_hot = {n: self.row_filter.remaining(n, codes) for n, codes in one_hot.items()}
        kinds = {
            n: self.row_filter.remaining(n, kinds[n]) for n in kinds if n in [*features, *added]
        }

        # Features: numbers, where one-hot columns replace their column, then kinds.
        columns = {name: [f"{name}={label}" for label in one_hot[name]] for name in one_hot}
        extra = [one for name in columns for one in columns[name]] + added
        check_unique(f"{argument}: columns", [*{*names}, *extra])
        self.entity = _ordered_like(
            like,
            [
                n
                for name in [*features, *added]
                if name not in kinds
                for n in columns.get(name, [name])
            ],
            [Kind(name, [*kinds[name]]) for name in [*features, *added] if name in kinds],
            [*rows.constants],
            argument,
        )
        self._one_hot = [(name, names.index(name), codes) for name, codes in one_hot.items()]
        all_names = [*names, *extra]
        self._kinds = [
            (
                kind.name,
                all_names.index(kind.name),
                {one: kinds[kind.name][one] for one in kind.labels},
            )
            for kind in self.entity.kinds
        ]
        self._has_extra = len(extra) > 0
        self._columns = positions_of(all_names, self.entity.columns, f"{argument}.features")
        self._selects_all = self._columns == list(range(len(all_names)))

    def transform(self, block: Float32Array, rows: IntArray) -> Float32Array:
        """Convert rows of the field to features.

        Args:
            block: (n, columns) values of the rows; not modified.
            rows: (n,) row numbers in the field.

        Returns:
            (n, features) float32; kinds are label indices.

        Raises:
            InvalidObservation: a value has no label.
        """
        if self._has_extra:
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
        # take() keeps the row-major layout, which is faster to concatenate than block[:, columns].
        return block if self._selects_all else block.take(self._columns, axis=1)

    def _label_indices(
        self, values: Float32Array, name: str, codes: _Codes, option: str
    ) -> IntArray:
        """Return the label index of each value of a column, (n,)."""
        label_codes = np.fromiter(codes.values(), np.float32, len(codes))
        if np.array_equal(values, label_codes):  # fast path, for numbered rows
            return np.arange(len(codes))
        is_label = values[:, None] == label_codes
        has_label = is_label.any(axis=1)
        if not has_label.all():
            raise InvalidObservation(
                f"{self._path}: expected values of {name!r} with a name, "
                f"{short_repr(codes, LONG)}, got {values[~has_label][0]:g}; name it in "
                f"{self._argument}.{option}"
            )
        indices: IntArray = is_label.argmax(axis=1)
        return indices


class RowFilter:
    """Filter of the rows of a field that are entities, by `only` and `leave_out`.

    Args:
        rows: mapping of the field.
        names: column names.
        codes: label numbers by column.
        argument: name of the mapping, for messages.

    Attributes:
        is_all: whether all rows pass.

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

    def mask(self, block: Float32Array) -> BoolArray:
        """Return which rows pass, (n, columns) -> (n,) bool."""
        flags = np.ones(len(block), dtype=np.bool_)
        for _, position, numbers, is_only in self._parts:
            flags &= (block[:, position, None] == numbers).any(axis=1) == is_only
        return flags

    def remaining(self, name: str, codes: _Codes) -> _Codes:
        """Return the labels that a column can have in the rows that pass."""
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
    """Return the number of each label, by column."""
    positions_of(names, [*labels], argument)
    return {name: _codes(column, f"{argument}[{name!r}]") for name, column in labels.items()}


def _codes(labels: Labels, argument: str) -> _Codes:
    """Return the number of each label of a column."""
    is_list = isinstance(labels, Sequence) and not isinstance(labels, str)
    names = list(labels) if is_list or isinstance(labels, Mapping) else []
    codes = list(labels.values()) if isinstance(labels, Mapping) else list(range(len(names)))
    are_texts = all(isinstance(name, str) for name in names)
    are_whole = all(map(_is_whole, codes))
    if not (names and are_texts and are_whole and len({*names}) == len(names) == len({*codes})):
        raise InvalidSpace(
            f"{argument}: expected names of 0, 1 and so on, each once, or a whole number of up to "
            f"{_MAX_CODE} by name, got {labels!r}"
        )
    return dict(zip(names, map(int, codes), strict=True))


def _codes_of_choices(numbers: range, argument: str) -> _Codes:
    """Return default labels of a discrete column: its choices."""
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
    """Convert labels and numbers of a column to numbers."""
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
            options = short_repr(list(codes), LONG) if codes else "which one_hot or kinds names"
            hint = did_you_mean(value, codes) if isinstance(value, str) else ""
            raise InvalidSpace(
                f"{argument}: expected whole numbers or labels, {options}, got {value!r}{hint}"
            )
    return np.array(numbers, dtype=np.float32)


def _constants(
    values: Mapping[str, float | str], kinds: Mapping[str, _Codes], argument: str
) -> Float32Array:
    """Return constants as (n,) float32, with the numbers of labels."""
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
    """Convert numbers by name to (n,) float32.

    Raises:
        InvalidSpace: a value is not a finite number.
    """
    try:
        with np.errstate(over="ignore"):
            numbers = np.asarray(real_array(list(values.values())), dtype=np.float32)
    except (TypeError, ValueError, OverflowError):
        numbers = np.array([[np.nan]], dtype=np.float32)
    if numbers.shape != (len(values),) or not np.isfinite(numbers).all():
        raise InvalidSpace(f"{argument}: expected a finite number by name, got {dict(values)}")
    return numbers


def _ordered_like(
    like: Entity | None,
    features: Sequence[str],
    kinds: Sequence[Kind],
    constants: Sequence[str],
    argument: str,
) -> Entity:
    """Return the features, in the order of `like` if another field has set it.

    Raises:
        InvalidSpace: the features differ from `like`.
    """
    candidate = Entity(features, kinds, constants)
    if like is None:
        return candidate
    if sorted(candidate.features) != sorted(like.features) or _labels(candidate) != _labels(like):
        both = [[*entity.features, *entity.kinds] for entity in (like, candidate)]
        raise InvalidSpace(
            f"{argument}: expected the same features from every field, got {both[0]} and "
            f"{both[1]}; name them in columns and features"
        )
    return like


def _labels(entity: Entity) -> dict[str, list[str]]:
    return {kind.name: sorted(kind.labels) for kind in entity.kinds}
