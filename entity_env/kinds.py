"""Categorical features, and conversion of rows with labels to numbers.

A row of an entity has its numeric features, then a label or its index per categorical feature.
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
"""Maximum number of labels of a categorical feature: indices are uint8, or int16 above 256."""


_FALSE_OR_TRUE = ["False", "True"]
_WIDEST = 200
"""Maximum number of characters of the labels in a message."""


def check_unique(what: str, names: Iterable[str]) -> None:
    """Check that names are unique.

    Raises:
        InvalidSpace: starts with `what` and lists the duplicate names.
    """
    duplicates = sorted(name for name, count in Counter(names).items() if count > 1)
    if duplicates:
        raise InvalidSpace(f"{what}: expected unique names, got {duplicates} more than once")


@dataclass
class Kind:
    """A categorical feature: one of several labels, such as a colour.

    Weights of a network are stored by label, so labels can be reordered, added or removed later.

    Attributes:
        name: of the feature.
        labels: in the order of their indices.

    Raises:
        InvalidSpace: the name or a label is not text, or the labels are empty, too many, not
            unique, or not a sequence.
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
        # Plain str for members of an enumeration: worker processes lack its class.
        self.labels = [str.__str__(label) for label in labels]


class Flag(Kind):
    """A boolean feature: a `Kind` with the labels "False" and "True".

    Args:
        name: of the feature.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name, _FALSE_OR_TRUE)


def split_kinds(
    what: str, features: Sequence[str | Kind], kinds: Sequence[Kind]
) -> tuple[list[str], list[Kind]]:
    """Split features into the names of numeric features and the categorical features.

    Args:
        what: the field, for messages.
        features: names of numeric features, then categorical features.
        kinds: more categorical features.

    Raises:
        InvalidSpace: names are not unique, a numeric feature follows a categorical one, or `kinds`
            contains something else.
    """
    are_kinds = [isinstance(feature, Kind) for feature in features]
    numbers: Any = features
    if any(are_kinds):
        count = are_kinds.index(True)
        if not all(are_kinds[count:]):
            name = features[are_kinds.index(False, count)]
            raise InvalidSpace(
                f"{what}: expected numeric features before categorical ones, got {name!r} after "
                f"{features[count].name!r}; move it to the front"  # type: ignore[union-attr]
            )
        numbers, kinds = list(features[:count]), [*features[count:], *kinds]  # type: ignore[list-item]
    if non_kinds := [kind for kind in kinds if not isinstance(kind, Kind)]:
        raise InvalidSpace(f"{what}: expected objects of Kind or Flag, got {short_repr(non_kinds)}")
    # Flags become plain kinds, equal to those read from a file.
    plain_kinds = [Kind(kind.name, kind.labels) for kind in kinds]
    check_unique(what, [*numbers, *(kind.name for kind in plain_kinds)])
    return numbers, plain_kinds


def label_dtype(kinds: Sequence[Kind]) -> "np.dtype[Any]":
    """Return the dtype of label indices: uint8, or int16 with more than 256 labels."""
    return np.dtype(np.uint8 if all(len(kind.labels) <= 256 for kind in kinds) else np.int16)


def label_map(source: Kind, target: Kind) -> IntArray:
    """Return the index in `target` of each label of `source`, -1 for missing labels."""
    index = {label: i for i, label in enumerate(target.labels)}
    return np.array([index.get(label, -1) for label in source.labels], dtype=np.int64)


def one_hot_names(kinds: Sequence[Kind]) -> list[str]:
    """Return the column names of `one_hot`: `feature=label`."""
    return [f"{kind.name}={label}" for kind in kinds for label in kind.labels]


def one_hot(indices: npt.NDArray[Any], kinds: Sequence[Kind]) -> Float32Array:
    """One-hot encode label indices.

    Args:
        indices: (n, K) integers.
        kinds: the K categorical features.

    Returns:
        (n, total number of labels) float32.
    """
    # (n, K) -> for each feature (n, labels) -> (n, total labels)
    columns = [
        indices[:, i, None] == np.arange(len(kind.labels), dtype=indices.dtype)
        for i, kind in enumerate(kinds)
    ]
    block: Float32Array = np.hstack(columns).astype(np.float32)
    return block


@lru_cache(maxsize=256)
def _index_of(labels: tuple[str, ...]) -> dict[Any, int]:
    """Return a map from labels and from indices to indices; 1, 1.0 and True are the same key."""
    return {**{label: i for i, label in enumerate(labels)}, **{i: i for i in range(len(labels))}}


def encoded_rows(rows: Sequence[Sequence[Any]], kinds: Sequence[Kind]) -> list[tuple[Any, ...]]:
    """Replace labels by their indices: the fast path of `as_rows`.

    Args:
        rows: of equal lengths; the last K columns are labels or indices.
        kinds: the K categorical features.

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
    """Convert features of n entities to (n, num_numbers + K) float32, with indices of labels.

    Args:
        features: rows of numbers and labels, or an array with label indices.
        n: number of rows.
        num_numbers: number of numeric columns, which come first.
        kinds: the K categorical features.
        what: the field, for messages.
        env_index: the environment, for messages.

    Raises:
        InvalidObservation: the shape is another one, or a label is unknown.
    """
    width = num_numbers + len(kinds)
    if not kinds:
        return as_block(features, n, width, what, env_index)
    if not (isinstance(features, np.ndarray) and features.dtype.kind in "biuf"):
        features = _encode_labels(features, width, kinds, what, env_index)
    block = as_block(features, n, width, what, env_index)
    position = first_unknown(block[:, num_numbers:], kinds)
    if position is not None:
        row, column = position
        value = block[row, num_numbers + column].item()
        raise unknown_label(kinds[column], value, row, what, env_index)
    return block


def first_unknown(indices: npt.NDArray[Any], kinds: Sequence[Kind]) -> tuple[int, int] | None:
    """Return row and column of the first invalid label index, None if all are valid.

    Args:
        indices: (n, K) numbers.
        kinds: the K categorical features.
    """
    sizes = np.array([len(kind.labels) for kind in kinds])
    is_index = (indices >= 0) & (indices < sizes) & (indices == np.trunc(indices))
    if is_index.all():
        return None
    row, column = np.argwhere(~is_index)[0].tolist()
    return row, column


def _encode_labels(
    features: Any, width: int, kinds: Sequence[Kind], what: str, env_index: int | None
) -> Any:
    """Replace labels by their indices; raise an error that names the first unknown label."""
    try:
        rows = [list(row) for row in features]
    except TypeError:
        return features  # `as_block` raises
    index_of = [_index_of(tuple(kind.labels)) for kind in kinds]
    first = width - len(kinds)
    for i, row in enumerate(rows):
        if len(row) != width:
            names = ", ".join(kind.name for kind in kinds)
            expected = f"rows of {width} values that end in {names}"
            raise unexpected(env_index, what, expected, f"{len(row)} in row {i}")
        for k, kind in enumerate(kinds):
            value = row[first + k]
            try:
                row[first + k] = index_of[k][value]
            except (KeyError, TypeError):  # TypeError: not hashable
                raise unknown_label(kind, value, i, what, env_index) from None
    return rows


def unknown_label(
    kind: Kind, value: Any, row: int, what: str, env_index: int | None
) -> InvalidObservation:
    """Return the error for an unknown label or index.

    Args:
        kind: the categorical feature.
        value: the unknown label or index.
        row: of the entity.
        what: the field, for messages.
        env_index: the environment, for messages.
    """
    got, labels = f"{short_repr(value)} in row {row}", kind.labels
    if labels == _FALSE_OR_TRUE:
        return unexpected(env_index, what, f"{kind.name} to be False or True", got)
    # Labels come last, as long messages are truncated.
    hint = f"; give a label, or its index from 0 to {len(labels) - 1}."
    if isinstance(value, str):
        hint = did_you_mean(repr(value), map(repr, labels), separator="; ") or ";"
    got += f"{hint} Labels: {truncate(', '.join(map(repr, labels)), _WIDEST)}"
    return unexpected(env_index, what, f"{kind.name} to be one of {len(labels)} labels", got)
