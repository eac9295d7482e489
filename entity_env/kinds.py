"""Features that are one of several labels, and the conversion of rows that hold labels to numbers.

A row of an entity type holds its numbers, then for each kind a label or its index.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.arrays import Float32Array, IntArray, as_block
from entity_env.errors import (
    InvalidObservation,
    InvalidSpace,
    did_you_mean,
    short_repr,
    truncate,
    unexpected,
)

MOST_LABELS = 2**15
"""Most labels of a kind: their indices are int16, or uint8 up to 256 labels."""


_FALSE_OR_TRUE = ["False", "True"]
_WIDEST = 200
"""Characters of the labels in a message."""


def check_unique(what: str, names: Iterable[str]) -> None:
    """Raise if a name is given twice.

    Raises:
        InvalidSpace: begins with `what` and lists the names.
    """
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InvalidSpace(f"{what}: every name must be given once, got {twice} more than once")


@dataclass
class Kind:
    """A feature that is one of several labels, such as a colour.

    Labels are identity: a network keeps what it has learnt of one when they are reordered, added or
    removed.

    Attributes:
        name: of the feature.
        labels: their order gives the index of each.

    Raises:
        InvalidSpace: the name or a label is not text, or the labels are not a sequence, are none,
            too many, or have one twice.
    """

    name: str
    labels: list[str]

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise InvalidSpace(f"Kind.name: expected text, got {short_repr(self.name)}")
        self.name = str.__str__(self.name)
        what, labels = f"Kind({self.name!r}).labels", self.labels
        is_list = isinstance(labels, Sequence) and not isinstance(labels, str)
        are_texts = is_list and all(isinstance(one, str) for one in labels)
        if not are_texts or not 0 < len(labels) <= MOST_LABELS:
            raise InvalidSpace(
                f"{what}: expected a list of 1 to {MOST_LABELS} names, got {short_repr(labels)}; "
                "give a list or tuple of texts, in an order that is always the same"
            )
        check_unique(what, labels)
        # Members of an enumeration become plain texts: workers and readers do not have its class.
        self.labels = [str.__str__(label) for label in labels]


class Flag(Kind):
    """A feature that is true or false: a `Kind` with the labels "False" and "True".

    Args:
        name: of the feature.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, _FALSE_OR_TRUE)


def split_kinds(
    what: str, features: Sequence[str | Kind], kinds: Sequence[Kind]
) -> tuple[list[str], list[Kind]]:
    """Return the names of the numbers among features, and the kinds.

    Args:
        what: the field, for messages.
        features: names of numbers, then kinds.
        kinds: further kinds.

    Raises:
        InvalidSpace: a name is given twice, a number stands behind a kind, or `kinds` has others.
    """
    are_kinds = [isinstance(feature, Kind) for feature in features]
    numbers: Any = features
    if any(are_kinds):
        count = are_kinds.index(True)
        if not all(are_kinds[count:]):
            name = features[are_kinds.index(False, count)]
            raise InvalidSpace(
                f"{what}: expected numbers before kinds, got the number {name!r} behind the kind "
                f"{features[count].name!r}; put it in front"  # type: ignore[union-attr]
            )
        numbers, kinds = list(features[:count]), [*features[count:], *kinds]  # type: ignore[list-item]
    if others := [kind for kind in kinds if not isinstance(kind, Kind)]:
        raise InvalidSpace(f"{what}: expected kinds behind the numbers, got {short_repr(others)}")
    # Flags become equal to what is read from a file.
    own = [Kind(kind.name, kind.labels) for kind in kinds]
    check_unique(what, [*numbers, *(kind.name for kind in own)])
    return numbers, own


def label_dtype(kinds: Sequence[Kind]) -> "np.dtype[Any]":
    """Return the dtype of the indices of labels: uint8, or int16 with more than 256 labels."""
    return np.dtype(np.uint8 if all(len(kind.labels) <= 256 for kind in kinds) else np.int16)


def label_map(have: Kind, wanted: Kind) -> IntArray:
    """Return the index in `wanted` of each label of `have`, -1 for one that is not there."""
    index = {label: i for i, label in enumerate(wanted.labels)}
    return np.array([index.get(label, -1) for label in have.labels], dtype=np.int64)


def one_hot_names(kinds: Sequence[Kind]) -> list[str]:
    """Return the names of the columns of `one_hot`: `kind=label`."""
    return [f"{kind.name}={label}" for kind in kinds for label in kind.labels]


def one_hot(indices: npt.NDArray[Any], kinds: Sequence[Kind]) -> Float32Array:
    """Return a column for each label, which is 1 where it applies.

    Args:
        indices: (n, K) integers.
        kinds: K of them.

    Returns:
        (n, labels of all kinds) float32.
    """
    columns = [
        indices[:, i, None] == np.arange(len(kind.labels), dtype=indices.dtype)
        for i, kind in enumerate(kinds)
    ]
    block: Float32Array = np.hstack(columns).astype(np.float32)
    return block


@lru_cache(maxsize=256)
def _index_of(labels: tuple[str, ...]) -> dict[Any, int]:
    """Return the index of a label by the label, and by the index: 1, 1.0 and True are one key."""
    return {**{label: i for i, label in enumerate(labels)}, **{i: i for i in range(len(labels))}}


def encoded_rows(rows: Sequence[Sequence[Any]], kinds: Sequence[Kind]) -> list[tuple[Any, ...]]:
    """Return rows with the index of each label in place of it.

    Args:
        rows: of equal lengths, whose last columns are the kinds.
        kinds: K of them.

    Raises:
        Exception: of any class; rows differ in length, or a label is unknown.
    """
    columns: list[Any] = list(zip(*rows, strict=True))
    for column, kind in enumerate(kinds, len(columns) - len(kinds)):
        columns[column] = map(_index_of(tuple(kind.labels)).__getitem__, columns[column])
    return list(zip(*columns, strict=True))


def as_rows(
    features: Any,
    n: int,
    num_numbers: int,
    kinds: Sequence[Kind],
    what: str,
    env_index: int | None = None,
) -> Float32Array:
    """Return features of n entities as numbers, (n, num_numbers + kinds) float32.

    Args:
        features: rows of numbers and labels, or an array with their indices.
        n: the number of rows.
        num_numbers: the columns before those of the kinds.
        kinds: the last columns.
        what: the field, for messages.
        env_index: the environment, for messages.

    Raises:
        InvalidObservation: they are not of this shape, or a label is not one of its kind.
    """
    width = num_numbers + len(kinds)
    if not kinds:
        return as_block(features, n, width, what, env_index)
    if not (isinstance(features, np.ndarray) and features.dtype.kind in "biuf"):
        features = _rows_without_text(features, width, kinds, what, env_index)
    block = as_block(features, n, width, what, env_index)
    found = first_unknown(block[:, num_numbers:], kinds)
    if found is not None:
        row, column = found
        value = block[row, num_numbers + column].item()
        raise unknown_label(kinds[column], value, row, what, env_index)
    return block


def first_unknown(indices: npt.NDArray[Any], kinds: Sequence[Kind]) -> tuple[int, int] | None:
    """Return row and column of the first number that is no index of a label; None if all are.

    Args:
        indices: (n, K) numbers.
        kinds: K of them.
    """
    sizes = np.array([len(kind.labels) for kind in kinds])
    is_index = (indices >= 0) & (indices < sizes) & (indices == np.trunc(indices))
    if is_index.all():
        return None
    row, column = np.argwhere(~is_index)[0].tolist()
    return row, column


def _rows_without_text(
    features: Any, width: int, kinds: Sequence[Kind], what: str, env_index: int | None
) -> Any:
    """Return rows with the index of each label in place of it; name the first that is unknown."""
    try:
        rows = [list(row) for row in features]
    except TypeError:
        return features  # which `as_block` refuses
    index_of = [_index_of(tuple(kind.labels)) for kind in kinds]
    first = width - len(kinds)
    for i, row in enumerate(rows):
        if len(row) != width:
            names = ", ".join(kind.name for kind in kinds)
            expected = f"rows of {width} values, of which the last are {names}"
            raise unexpected(env_index, what, expected, f"{len(row)} in row {i}")
        for k, kind in enumerate(kinds):
            value = row[first + k]
            try:
                row[first + k] = index_of[k][value]
            except (KeyError, TypeError):  # the latter of what is not hashable
                raise unknown_label(kind, value, i, what, env_index) from None
    return rows


def unknown_label(
    kind: Kind, value: Any, row: int, what: str, env_index: int | None
) -> InvalidObservation:
    """Return the error for a value that is neither a label nor an index of one.

    Args:
        kind: the feature.
        value: the unknown label or index.
        row: of the entity.
        what: the field, for messages.
        env_index: the environment, for messages.
    """
    got, labels = f"{short_repr(value)} in row {row}", kind.labels
    if labels == _FALSE_OR_TRUE:
        return unexpected(env_index, what, f"{kind.name} to be False or True", got)
    # The labels last, as long messages are truncated.
    hint = f"; give a label, or its index from 0 to {len(labels) - 1}."
    if isinstance(value, str):
        hint = did_you_mean(repr(value), map(repr, labels), cutoff=0.0, separator="; ")
    got += f"{hint} Labels: {truncate(', '.join(map(repr, labels)), _WIDEST)}"
    return unexpected(env_index, what, f"{kind.name} to be one of {len(labels)} labels", got)
