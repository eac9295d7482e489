"""`FrameData`: the base of data of B frames, whose fields are taken, sliced and joined together."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from functools import cache, singledispatch
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.arrays import IntArray
from entity_env.ragged import Selection

Path: TypeAlias = tuple[str, ...]
"""Place of a leaf: names of fields, and of entries where a field is a mapping."""
_KIND = "frames"
SAME = {_KIND: "same"}
"""Metadata of a field that is the same for all frames."""
DROPPED = {_KIND: "dropped"}
"""Metadata of a field that has its default again in other frames."""
COUNT = {_KIND: "count"}
"""Metadata of a field with the number of frames, an `int`."""


def rows_of(name: str) -> dict[str, str]:
    """Return metadata of a mapping whose entries have the rows of another field of this name.

    The entries have `take(rows)` and `cat(pieces)`, as distributions over choices of actors do. An
    entry that is not in all pieces is in none that are joined.
    """
    return {_KIND: name}


_PLAIN = (int, float, bool, str)
_CONSTANT = (SAME[_KIND], DROPPED[_KIND])
_MAPPINGS = (dict, Mapping)  # the first is checked in a tenth of the time


@singledispatch
def take_leaf(leaf: Any, selection: Selection) -> Any:
    """Return a leaf of the selected frames; new types of leaves are registered here."""
    return leaf.select(selection)


@singledispatch
def slice_leaf(leaf: Any, frames: slice) -> Any:
    """Return a leaf of consecutive frames, a view where it can be one."""
    return leaf.slice(frames)


@singledispatch
def cat_leaves(first: Any, leaves: Sequence[Any]) -> Any:
    """Concatenate the frames of leaves of the type of the first one."""
    return first.cat(leaves)


# Arrays have an entry for each frame.
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
        """Leave them out, as there may be no views of them."""

    def cat(self, leaves: Sequence["_RowsOf"]) -> "_RowsOf":
        return self._replace(entry=self.entry.cat([leaf.entry for leaf in leaves]))


class FrameData:
    """Base class of dataclasses of B frames.

    A field is a leaf: an array or tensor with an entry for each frame, or rows of frames; more
    `FrameData`; a mapping of these; or None. Others are declared by metadata, `SAME`, `DROPPED`,
    `COUNT` or `rows_of`. What is added as a field is taken, sliced and
    joined with the rest wherever frames are.
    """

    def take(self, frames: IntArray) -> Self:
        """Return a copy of the given frames, in the given order."""
        return self.select(Selection(frames))

    def select(self, selection: Selection) -> Self:
        """Return a copy of the selected frames."""
        return self._map_leaves(lambda leaf: take_leaf(leaf, selection))

    def slice(self, frames: slice) -> Self:
        """Return consecutive frames, without what is declared by `rows_of`; tensors are views."""
        return self._map_leaves(lambda leaf: slice_leaf(leaf, frames))

    def map(self, change: Callable[[Any], Any]) -> Self:
        """Return the same frames with changed leaves, also with those of `FrameData` in fields.

        What is declared by metadata stays.
        """

        def mapped(leaf: Any) -> Any:
            if isinstance(leaf, FrameCount | _RowsOf):
                return leaf
            return leaf.map(change) if isinstance(leaf, FrameData) else change(leaf)

        return self._map_leaves(mapped)

    @classmethod
    def cat(cls, pieces: Sequence[Self]) -> Self:
        """Concatenate the frames of several pieces."""
        # Find all leaves before any are joined, as rows of a rollout grow in place.
        leaves = {
            name: _to_join(_leaves_of_all(pieces, name, kind), pieces, (name,))
            for name, kind in _fields_of(pieces[0]).changing
        }
        return pieces[0]._copy_with(
            {n: _map_tree(value, _LeafGroup.joined) for n, value in leaves.items()}
        )

    def missing(self, path: Path, like: Any) -> Any:
        """Return a leaf that is not given here, to join it with those of other pieces.

        Args:
            path: its place.
            like: the leaf of another piece.

        Returns:
            The leaf; None if pieces that are joined have none either.

        Raises:
            ValueError: all pieces have to have it.
        """
        raise ValueError(f"{'.'.join(path)}: expected in all pieces or in none, got some without")

    def _map_leaves(self, change: Callable[[Any], Any]) -> Self:
        """Return the same with other leaves and `FrameData`, of as many or as few frames."""
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
        """Return one with other values of the fields that differ from frame to frame."""
        for name, kind in _fields_of(self).declared:
            if kind == SAME[_KIND]:
                values[name] = getattr(self, name)
            elif kind == COUNT[_KIND]:
                values[name] = values[name].number
            elif name in values:
                values[name] = {key: leaf.entry for key, leaf in values[name].items()}
        return type(self)(**values)


class _Fields(NamedTuple):
    """Fields of a class, each with what its metadata declare.

    Attributes:
        changing: those that differ from frame to frame.
        declared: those with metadata.
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
    """Return the value of a field with changed leaves; entries that become None are left out."""
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
    """Leaves of one place, of all pieces."""

    leaves: Sequence[Any]

    def joined(self) -> Any:
        return cat_leaves(self.leaves[0], self.leaves)


def _to_join(values: Sequence[Any], pieces: Sequence[FrameData], path: Path) -> Any:
    """Return what to join of a field or entry: a `_LeafGroup`, a mapping of these or None."""
    present = [value for value in values if value is not None]
    if not present:
        return None
    if isinstance(present[0], _MAPPINGS):
        names = dict.fromkeys([name for value in present for name in value])
        return {n: _to_join([v.get(n) for v in values], pieces, (*path, n)) for n in names}
    if len(present) < len(values):
        values = [
            piece.missing(path, present[0]) if value is None else value
            for value, piece in zip(values, pieces, strict=True)
        ]
        if any(value is None for value in values):
            return None
    return _LeafGroup(values)
