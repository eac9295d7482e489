"""`FrameData`: a batch of B frames that is indexed, sliced and concatenated field by field."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache, singledispatch
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.arrays import IntArray
from entity_env.ragged import Selection

Path: TypeAlias = tuple[str, ...]
"""Path of a leaf: names of fields, and keys of mappings."""
_KIND = "frames"
SAME = {_KIND: "same"}
"""Metadata of a field that is the same for all frames."""
DROPPED = {_KIND: "dropped"}
"""Metadata of a field that is reset to its default when frames are selected."""
COUNT = {_KIND: "count"}
"""Metadata of a field with the number of frames, an `int`."""


def rows_of(name: str) -> dict[str, str]:
    """Return metadata of a mapping with the rows of the entries of another field.

    The entries have `take(rows)` and `cat(pieces)`, such as distributions over the choices of
    actors. Concatenation drops entries that some pieces lack.

    Args:
        name: of the other field.
    """
    return {_KIND: name}


_PLAIN = (int, float, bool, str)
_CONSTANT = (SAME[_KIND], DROPPED[_KIND])
_MAPPINGS = (dict, Mapping)  # dict first: ten times as fast to check


@singledispatch
def take_leaf(leaf: Any, selection: Selection) -> Any:
    """Select frames of a leaf; register new leaf types here."""
    return leaf.select(selection)


@singledispatch
def slice_leaf(leaf: Any, frames: slice) -> Any:
    """Slice consecutive frames of a leaf, as a view if possible."""
    return leaf.slice(frames)


@singledispatch
def cat_leaves(first: Any, leaves: Sequence[Any]) -> Any:
    """Concatenate leaves of one type."""
    return first.cat(leaves)


# Arrays: one entry per frame.
@take_leaf.register(np.ndarray)
def _(leaf: npt.NDArray[Any], selection: Selection) -> Any:
    return leaf[selection.frames]


@slice_leaf.register(np.ndarray)
def _(leaf: npt.NDArray[Any], frames: slice) -> Any:
    return leaf[frames]


@cat_leaves.register(np.ndarray)
def _(first: npt.NDArray[Any], leaves: Sequence[Any]) -> Any:
    return np.concatenate(leaves)


class FrameCount(NamedTuple):
    """The value of a field declared by `COUNT`."""

    number: int


@take_leaf.register
def _(leaf: FrameCount, selection: Selection) -> FrameCount:
    return FrameCount(len(selection.frames))


@slice_leaf.register
def _(leaf: FrameCount, frames: slice) -> FrameCount:
    return FrameCount(len(range(leaf.number)[frames]))


@cat_leaves.register
def _(first: FrameCount, leaves: Sequence[FrameCount]) -> FrameCount:
    return FrameCount(sum(leaf.number for leaf in leaves))


class _RowsOf(NamedTuple):
    """An entry of a field declared by `rows_of`.

    Attributes:
        entry: has `take(rows)` and `cat(pieces)`.
        rows: of the other field.
    """

    entry: Any
    rows: Any

    def select(self, selection: Selection) -> "_RowsOf":
        return self._replace(entry=self.entry.take(selection.rows(self.rows)[1]))

    def slice(self, frames: slice) -> None:
        """Drop the entry, as there may be no view of it."""

    def cat(self, leaves: Sequence["_RowsOf"]) -> "_RowsOf":
        return self._replace(entry=self.entry.cat([leaf.entry for leaf in leaves]))


class FrameData:
    """Base class of dataclasses with the data of B frames.

    A field is a leaf (an array or tensor with one entry per frame, or ragged rows), nested
    `FrameData`, a mapping of these, or None. Declare other fields by the metadata `SAME`,
    `DROPPED`, `COUNT` or `rows_of`.
    """

    def take(self, frames: IntArray) -> Self:
        """Return a copy of the frames at these indices."""
        return self.select(Selection(frames))

    def select(self, selection: Selection) -> Self:
        """Return a copy of the selected frames."""
        return self._map_leaves(lambda leaf: take_leaf(leaf, selection))

    def slice(self, frames: slice) -> Self:
        """Return consecutive frames without the fields declared by `rows_of`; tensors are views."""
        return self._map_leaves(lambda leaf: slice_leaf(leaf, frames))

    def map(self, change: Callable[[Any], Any]) -> Self:
        """Apply a function to all leaves, including leaves of nested `FrameData`.

        Fields declared by metadata are unchanged.
        """

        def mapped(leaf: Any) -> Any:
            if isinstance(leaf, FrameCount | _RowsOf):
                return leaf
            return leaf.map(change) if isinstance(leaf, FrameData) else change(leaf)

        return self._map_leaves(mapped)

    @classmethod
    def cat(cls, pieces: Sequence[Self]) -> Self:
        """Concatenate the frames of several pieces."""
        # Collect all leaves before concatenation, as rows of a rollout grow in place.
        leaves = {
            name: _group_leaves(_leaves_of_all(pieces, name, kind), pieces, (name,))
            for name, kind in _fields_of(pieces[0]).changing
        }
        return pieces[0]._copy_with(
            {n: _map_tree(value, _LeafGroup.concatenated) for n, value in leaves.items()}
        )

    def missing(self, path: Path, like: Any) -> Any:
        """Return a substitute for a leaf that other pieces of a concatenation have.

        Args:
            path: of the leaf.
            like: the leaf of another piece.

        Returns:
            The leaf; None to drop it from the result.

        Raises:
            ValueError: all pieces must have the leaf.
        """
        raise ValueError(f"{'.'.join(path)}: expected in all pieces or in none, got some without")

    def _map_leaves(self, change: Callable[[Any], Any]) -> Self:
        """Return a copy with `change` applied to leaves and nested `FrameData`."""
        return self._copy_with(
            {
                name: _map_tree(self._leaves(name, kind) if kind else getattr(self, name), change)
                for name, kind in _fields_of(self).changing
            }
        )

    def _leaves(self, name: str, kind: str) -> Any:
        """Return the leaves of a field that is declared by `COUNT` or `rows_of`."""
        value = getattr(self, name)
        if kind == COUNT[_KIND]:
            return FrameCount(value)
        rows = getattr(self, kind)
        return {key: _RowsOf(entry, rows[key]) for key, entry in value.items()}

    def _copy_with(self, values: dict[str, Any]) -> Self:
        """Return a copy with other values of the per-frame fields."""
        for name, kind in _fields_of(self).declared:
            if kind == SAME[_KIND]:
                values[name] = getattr(self, name)
            elif kind == COUNT[_KIND]:
                values[name] = values[name].number
            elif name in values:
                values[name] = {key: leaf.entry for key, leaf in values[name].items()}
        return type(self)(**values)


class _Fields(NamedTuple):
    """Names and metadata of the fields of a class.

    Attributes:
        changing: per-frame fields.
        declared: fields with metadata.
    """

    changing: list[tuple[str, str | None]]
    declared: list[tuple[str, str]]


def _fields_of(data: FrameData) -> _Fields:
    cls: Any = type(data)
    return _find_fields(cls)


@cache
def _find_fields(cls: Any) -> _Fields:
    for field in fields(cls):
        if _KIND not in field.metadata and field.type in (*_PLAIN, *(t.__name__ for t in _PLAIN)):
            raise TypeError(
                f"{cls.__name__}.{field.name}: expected rows, arrays or tensors of frames, got "
                f"{field.type}; declare it by the metadata SAME, DROPPED or COUNT"
            )
    named = [(field.name, field.metadata.get(_KIND)) for field in fields(cls)]
    return _Fields(
        changing=[(name, kind) for name, kind in named if kind not in _CONSTANT],
        declared=[(name, kind) for name, kind in named if kind is not None],
    )


def _leaves_of_all(pieces: Sequence[FrameData], name: str, kind: str | None) -> list[Any]:
    if kind:
        return [piece._leaves(name, kind) for piece in pieces]
    return [getattr(piece, name) for piece in pieces]


def _map_tree(value: Any, change: Callable[[Any], Any]) -> Any:
    """Apply a function to the leaves of a field; entries that become None are dropped."""
    if value is None:
        return None
    if isinstance(value, _MAPPINGS):
        changed = {}
        for name, entry in value.items():
            if (leaf := _map_tree(entry, change)) is not None:
                changed[name] = leaf
        return changed
    return change(value)


class _LeafGroup(NamedTuple):
    """Leaves of all pieces at one path."""

    leaves: Sequence[Any]

    def concatenated(self) -> Any:
        return cat_leaves(self.leaves[0], self.leaves)


def _group_leaves(values: Sequence[Any], pieces: Sequence[FrameData], path: Path) -> Any:
    """Group the leaves of all pieces: a `_LeafGroup`, a mapping of these, or None if all are."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    if isinstance(present[0], _MAPPINGS):
        names = dict.fromkeys([name for value in present for name in value])
        return {n: _group_leaves([v.get(n) for v in values], pieces, (*path, n)) for n in names}
    if len(present) < len(values):
        values = [
            piece.missing(path, present[0]) if value is None else value
            for value, piece in zip(values, pieces, strict=True)
        ]
        if any(value is None for value in values):
            return None
    return _LeafGroup(values)
