"""Chunks of replays: the columns of some steps as bytes, see `replay_format.py`."""

from collections.abc import Generator
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from enn_trainer.errors import ReplayError
from entity_env.observation import GLOBAL
from entity_env.ragged import exclusive_cumsum, row_indices
from entity_env.spaces import ACTION_SPACES

STRONGEST = 4
"""Weights kept of each row of attention, from the second rung on."""
_FREE_ROWS = 1 << 16  # that may take no bytes, as of types without features

Json: TypeAlias = dict[str, Any]
Array: TypeAlias = npt.NDArray[Any]
Columns: TypeAlias = dict[str, Array]
"""Flat arrays of some frames of an episode, by the names of `_Layout.columns`."""


class _Column(NamedTuple):
    """A column of a chunk.

    Attributes:
        name: of the column.
        dtype: of its numbers, such as "<f4"; "?" for booleans.
        size: how many there are.
        previous: (size,) int64, the row of which each is the difference, -1 for none; None if no
            row has one.
    """

    name: str
    dtype: str
    size: int
    previous: npt.NDArray[np.int64] | None


def all_types(header: Json) -> list[Any]:
    """Return name, numbers and kinds of each type; those of what is global are the last ones."""
    return [*header["types"], [GLOBAL, *header["global"]]]


class _Entities(NamedTuple):
    """The entities of F frames.

    Attributes:
        starts: (F,) int64, the index in `keys` of the first entity of each.
        counts: (F,) int64, their number without the global actor, which is behind them.
        keys: int64, of all frames: equal ones are the same entity.
    """

    starts: npt.NDArray[np.int64]
    counts: npt.NDArray[np.int64]
    keys: npt.NDArray[np.int64]


_Part: TypeAlias = Generator[_Column, Array, None]


class _Layout:
    """The columns of a chunk, in order.

    Each method yields columns, of which each has to be sent back before the next one.

    Args:
        header: of the page.
        schema: of the episode.
        steps: number of steps of the chunk.
        most_rows: most rows that a column may have.
    """

    def __init__(
        self, header: Json, schema: Json, steps: int, most_rows: float = float("inf")
    ) -> None:
        self.header, self.schema, self.steps, self.most_rows = header, schema, steps, most_rows
        self.sides, self.frames = header["sides"], steps * header["sides"]
        self.side = np.tile(np.arange(self.sides), steps)
        self.by_side = previous_rows(self.side)

    def columns(self) -> _Part:
        """Yield all columns.

        Raises:
            ReplayError: there are too many rows in a column, or positions beyond their frame.
        """
        yield _Column("reward", "<f4", self.frames, self.by_side)
        yield _Column("value", "<f4", self.frames, self.by_side)
        if self.schema["beside"] is not None:
            yield _Column("beside value", "<f4", self.frames, self.by_side)
        entities = yield from self._entities()
        num_actors = []
        for a in range(len(self.header["actions"])):
            num_actors.append((yield from self._action(a, entities)))
        if self.schema["attention"]:
            yield from self._attention()
        if self.schema["influence"] is not None:
            yield from self._influence(num_actors)
        if self.schema["pictures"]:
            count = int((yield _Column("picture", "?", self.steps, None)).sum())
            size = (yield _Column("picture size", "<u4", count, None)).astype(np.int64)
            yield _Column("picture byte", "|u1", int(size.sum()), None)

    def _entities(self) -> Generator[_Column, Array, _Entities]:
        """Yield the columns of each type, and return the keys of all entities."""
        types, lengths, keys = all_types(self.header), [], []
        for i in range(len(types) - (not self.schema["global"])):
            counts, key = yield from self._type(i)
            if i < len(types) - 1:
                lengths.append(counts)
                keys.append(key)

        # Keys in the order of entities of each frame, that of the global actor behind them.
        num_entities: Array = np.sum([np.zeros(self.frames, np.int64), *lengths], axis=0)
        starts = exclusive_cumsum(num_entities + 1)
        key_at = np.empty(int(num_entities.sum()) + self.frames, np.int64)
        key_at[starts + num_entities] = -1 - self.side
        offset = starts.copy()
        for counts, key in zip(lengths, keys, strict=True):
            key_at[row_indices(offset, counts)] = key
            offset += counts
        return _Entities(starts, num_entities, key_at)

    def _type(self, i: int) -> Generator[_Column, Array, tuple[Array, Array]]:
        """Yield the columns of a type; return its number of rows by frame, and their keys."""
        schema, sides, types = self.schema, self.sides, all_types(self.header)
        _, features, kinds = types[i]
        counts = yield from self._counts(f"rows {i}")
        rows, of_side = self._total(counts), np.repeat(self.side, counts)
        place = np.arange(rows) - np.repeat(exclusive_cumsum(counts), counts)
        key = ((place * len(types) + i) * sides + of_side) * 2 + 1
        if i in schema["identity"]:
            known = yield _Column(f"identified {i}", "?", self.frames, self.by_side)
            has_id = np.repeat(known, counts)
            place_before = previous_rows(key[has_id])
            identity = yield _Column(f"identity {i}", "<u4", int(has_id.sum()), place_before)
            key[has_id] = (identity.astype(np.int64) * sides + of_side[has_id]) * 2
        before = previous_rows(key)
        for j in range(len(features)):
            yield _Column(f"feature {i} {j}", "<f4", rows, before)
        kind_bytes = dict(schema["kinds"])
        if i in kind_bytes:
            for k in range(len(kinds)):
                yield _Column(f"kind {i} {k}", f"<u{kind_bytes[i]}", rows, before)
        if i in schema["visible"]:
            yield _Column(f"visible {i}", "?", rows, before)
        return counts, key

    def _action(self, a: int, entities: _Entities) -> Generator[_Column, Array, Array]:
        """Yield the columns of an action; return its number of actors by frame."""
        schema, (_, class_name, fields) = self.schema, self.header["actions"][a]
        counts = yield from self._counts(f"actors {a}")
        rows, frame = self._total(counts), np.repeat(np.arange(self.frames), counts)
        actors = (yield _Column(f"actor {a}", "<u4", rows, self._by_place(counts))).astype(np.int64)
        _check_positions(actors, entities.counts[frame] + 1)
        before = previous_rows(entities.keys[entities.starts[frame] + actors])
        columns = ACTION_SPACES[class_name](**fields).mask_columns
        if columns:
            widths = np.full(rows, columns[0])
        else:
            actees = yield from self._counts(f"actees {a}")
            by_place = self._by_place(actees)
            chosen_from = yield _Column(f"actee {a}", "<u4", self._total(actees), by_place)
            _check_positions(chosen_from, np.repeat(entities.counts, actees))
            widths = actees[frame]
        chosen = yield _Column(f"chosen {a}", "<u4", rows, before)
        _check_positions(chosen, widths)
        if a in (schema["by_hand"] or []):
            yield _Column(f"by hand {a}", "?", rows, before)
        pairs, before = self._total(widths), _pairs_before(before, widths)
        if a in schema["masks"]:
            yield _Column(f"mask {a}", "?", pairs, before)
        for what in ("probs", "beside"):
            if a in (schema[what] or []):
                yield _Column(f"{what} {a}", "<f4", pairs, before)
        return counts

    def _attention(self) -> _Part:
        """Yield the columns of the attention in some frames."""
        count = int((yield _Column("attention", "?", self.frames, self.by_side)).sum())
        layers = yield _Column("attention layers", "<u4", count, None)
        heads = yield _Column("attention heads", "<u4", count, None)
        size = (yield _Column("attention size", "<u4", count, None)).astype(np.int64)
        all_rows = layers * heads * size
        if self.header["attention"] == "whole":
            yield _Column("attention weight", "<f4", int((all_rows * size).sum()), None)
        else:
            few = int((all_rows * np.minimum(size, STRONGEST)).sum())
            yield _Column("attention column", "<u4", few, None)
            yield _Column("attention weight", "<f4", few, None)

    def _influence(self, num_actors: list[Array]) -> _Part:
        """Yield the columns of the influence in some frames."""
        is_shown = yield _Column("influence", "?", self.frames, self.by_side)
        shown_at = np.flatnonzero(is_shown)
        size = (yield _Column("influence size", "<u4", len(shown_at), None)).astype(np.int64)
        yield _Column("influence entity", "<u4", int(size.sum()), None)
        yield _Column("influence value", "<f4", int(size.sum()), None)
        for a in self.schema["influence"]:
            cells = int((size * num_actors[a][shown_at]).sum())
            yield _Column(f"influence {a}", "<f4", cells, None)

    def _counts(self, name: str) -> Generator[_Column, Array, Array]:
        """Yield a column of numbers by frame, and return them."""
        counts: Array = (yield _Column(name, "<u4", self.frames, self.by_side)).astype(np.int64)
        return counts

    def _total(self, counts: Array) -> int:
        found = int(counts.sum())
        if found > self.most_rows:
            raise ReplayError(f"expected at most {self.most_rows} rows, got {found}")
        return found

    def _by_place(self, counts: Array) -> npt.NDArray[np.int64]:
        """Return the previous rows of lists: those of the same side and place."""
        place = np.arange(int(counts.sum())) - np.repeat(exclusive_cumsum(counts), counts)
        return previous_rows(place * self.sides + np.repeat(self.side, counts))


def previous_rows(keys: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the last row before each one that has the same key, -1 where there is none."""
    order = np.argsort(keys, kind="stable")
    same = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
    previous = np.full(len(keys), -1)
    previous[order[same + 1]] = order[same]
    return previous


def _pairs_before(before: Array, widths: Array) -> npt.NDArray[np.int64]:
    """Return the previous of each pair, as `previous_rows`, from those of rows of some widths."""
    starts = exclusive_cumsum(widths)
    shift = np.where((before >= 0) & (widths[before] == widths), starts - starts[before], -1)
    shift = np.repeat(shift, widths)
    pairs: npt.NDArray[np.int64] = np.where(shift >= 0, np.arange(len(shift)) - shift, -1)
    return pairs


def _check_positions(positions: Array, limits: Array) -> None:
    if not (positions < limits).all():
        raise ReplayError("positions: expected those of entities and choices, got others")


def encoded_chunk(
    header: Json, schema: Json, steps: int, flat: Columns, cursors: dict[str, int]
) -> bytes:
    """Return the next chunk of an episode, and move the cursors behind it."""
    rounding = {name: how for name, *how in header["rounding"]}
    walk, parts = _Layout(header, schema, steps).columns(), []
    try:
        column = next(walk)
        while True:
            start = cursors.get(column.name, 0)
            cursors[column.name] = end = start + column.size
            given = flat[column.name][start:end]
            values = given.astype(column.dtype)
            if len(values) != column.size or not (column.dtype == "<f4" or (values == given).all()):
                raise ReplayError(f"{column.name}: expected {column.size} rows that fit")
            kept = rounded(values, *rounding[column.name]) if column.name in rounding else values
            packed = _packed(kept, column.previous)
            parts += [len(packed).to_bytes(4, "little"), packed]
            column = walk.send(values)
    except StopIteration:
        return b"".join(parts)


def decoded_chunk(header: Json, schema: Json, steps: int, raw: bytes) -> Columns:
    """Return the columns of a chunk."""
    rounding = {name: how for name, *how in header["rounding"]}
    layout = _Layout(header, schema, steps, _FREE_ROWS + 8 * len(raw))
    walk, at, flat = layout.columns(), 0, {}
    try:
        column = next(walk)
        while True:
            size = int.from_bytes(raw[at : at + 4], "little")
            data, at = raw[at + 4 : at + 4 + size], at + 4 + size
            how = rounding.get(column.name)
            values = _unpacked(data, column, column.dtype if how is None else f"<u{how[0] // 8}")
            values = values if how is None else unrounded(values, *how)
            flat[column.name] = values
            column = walk.send(values)
    except StopIteration:
        if at != len(raw):
            raise ReplayError(f"expected {at} bytes, got {len(raw)}") from None
        return flat


def _packed(values: Array, previous: Array | None) -> bytes:
    """Return the bytes of a column: differences, zigzag, one byte of all numbers after another."""
    width = values.dtype.itemsize
    bits = values.view(f"<u{width}")
    if previous is not None and len(bits):
        bits = bits - np.where(previous >= 0, bits[previous], 0).astype(bits.dtype)
    if values.dtype == np.bool_:
        return np.packbits(bits & 1).tobytes()
    if previous is not None:
        bits = (bits << 1) ^ -(bits >> (8 * width - 1))
    return bits.astype(f"<u{width}").view(np.uint8).reshape(len(bits), width).T.tobytes()


def _unpacked(data: bytes, column: _Column, dtype: str) -> Array:
    """Return the numbers of a column, as `_packed` was given them."""
    is_flag, width = dtype == "?", np.dtype(dtype).itemsize
    expected = -(-column.size // 8) if is_flag else column.size * width
    if len(data) != expected:
        raise ReplayError(f"{column.name}: expected {expected} bytes, got {len(data)}")
    octets = np.frombuffer(data, np.uint8)
    bits: Array
    if is_flag:
        bits = np.unpackbits(octets, count=column.size)
    else:
        planes = octets.reshape(width, column.size)
        bits = np.ascontiguousarray(planes.T).view(f"<u{width}").reshape(column.size)
        if column.previous is not None:
            bits = (bits >> 1) ^ -(bits & 1)
    previous = column.previous
    while previous is not None and (previous >= 0).any():
        # Each sum reaches twice as far back as the one before.
        bits = bits + np.where(previous >= 0, bits[previous], 0).astype(bits.dtype)
        previous = np.where(previous >= 0, previous[previous], -1)
    return (bits & 1).astype(np.bool_) if is_flag else bits.view(dtype)


def rounded(values: Array, bits: int, low: float, high: float) -> Array:
    """Return the codes of numbers, see the format."""
    top = 2**bits - 4
    with np.errstate(invalid="ignore"):
        scale = top / (high - low) if high > low else 0.0
        codes = np.rint((values.astype(np.float64) - low) * scale)
    codes = np.select(
        [np.isnan(values), values == np.inf, values == -np.inf], [top + 1, top + 2, top + 3], codes
    )
    return codes.astype(f"<u{bits // 8}")


def unrounded(codes: Array, bits: int, low: float, high: float) -> npt.NDArray[np.float32]:
    """Return the numbers of codes."""
    top = 2**bits - 4
    values = low + codes.astype(np.float64) * ((high - low) / top)
    special = [codes == top + 1, codes == top + 2, codes == top + 3]
    return np.select(special, [np.nan, np.inf, -np.inf], values).astype(np.float32)
