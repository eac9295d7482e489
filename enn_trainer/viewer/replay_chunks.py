"""Chunks of replays: columns of some steps as bytes, see `replay_format.py`."""

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from enn_trainer.base.errors import ReplayError
from entity_env.arrays import Float32Array, IntArray
from entity_env.observation import GLOBAL
from entity_env.ragged import exclusive_cumsum, row_indices
from entity_env.spaces import ACTION_SPACES

ATTENTION_SHAPE = "attention layers", "attention heads", "attention size"
STRONGEST = 4
"""Number of weights stored per row of attention, from the second level on."""
NUMBERS_SHOWN = 4
"""Columns per continuous component: mean, standard deviation, and bounds of the 90% interval."""
_FREE_ROWS = 1 << 16  # rows without bytes, as of types without features

Json: TypeAlias = dict[str, Any]
Array: TypeAlias = npt.NDArray[Any]
Columns: TypeAlias = dict[str, Array]
"""Flat arrays of some frames of an episode, by the column names of `_ChunkLayout`."""
_ColumnIO: TypeAlias = Callable[[str, str, int, Array | None], Array]
"""Writer or reader of the next column of a chunk, returns its values.

Arguments: name; dtype, such as "<f4", "?" for bool; size; and (size,) int64, the row that each
value is stored as a difference to, -1 for none; None if no row has one.
"""


def all_types(header: Json) -> list[Any]:
    """Return name, numerical and categorical features of each type, and of the global features."""
    return [*header["types"], [GLOBAL, *header["global"]]]


@dataclass
class _ChunkLayout:
    """Columns of a chunk in order; sizes of columns may depend on earlier columns.

    Args:
        header: header of the page.
        schema: schema of the episode.
        steps: number of steps of the chunk.
        column: writer or reader of a column.
        max_rows: maximal number of rows per column.
    """

    header: Json
    schema: Json
    steps: int
    column: _ColumnIO
    max_rows: float = math.inf

    def __post_init__(self) -> None:
        self.sides, self.frames = self.header["sides"], self.steps * self.header["sides"]
        self.side = np.tile(np.arange(self.sides), self.steps)
        self.by_side = previous_rows(self.side)

    def transfer(self) -> None:
        """Write or read all columns.

        Raises:
            ReplayError: a column has too many rows, or a position is outside its frame.
        """
        self._per_frame("reward", "<f4")
        self._per_frame("value", "<f4")
        if self.schema["beside"] is not None:
            self._per_frame("beside value", "<f4")
        self._entities()
        num_actors = [self._action(a) for a in range(len(self.header["actions"]))]

        # Attention and influence in some frames, and pictures of some steps.
        if self.schema["attention"]:
            count = int(self._per_frame("attention", "?").sum())
            shapes = [self.column(name, "<u4", count, None) for name in ATTENTION_SHAPE]
            layers, heads, size = shapes
            is_whole = self.header["attention"] == "whole"
            num_columns = size if is_whole else np.minimum(size, STRONGEST)
            num_weights = int((layers * heads * size * num_columns).sum())
            if not is_whole:
                self.column("attention column", "<u4", num_weights, None)
            self.column("attention weight", "<f4", num_weights, None)
        if self.schema["influence"] is not None:
            explained_frames = np.flatnonzero(self._per_frame("influence", "?"))
            size = self.column("influence size", "<u4", len(explained_frames), None)
            self.column("influence entity", "<u4", int(size.sum()), None)
            self.column("influence value", "<f4", int(size.sum()), None)
            for a in self.schema["influence"]:
                cells = int((size * num_actors[a][explained_frames]).sum())
                self.column(f"influence {a}", "<f4", cells, None)
        if self.schema["pictures"]:
            count = int(self.column("picture", "?", self.steps, None).sum())
            size = self.column("picture size", "<u4", count, None)
            self.column("picture byte", "|u1", int(size.sum()), None)

    def _entities(self) -> None:
        """Write or read the columns of each type, and compute the keys of all entities.

        Sets `num_entities`, (F,) int64; `keys`, int64 of all entities in frame order, followed by
        the global actor in each frame; and `starts`, (F,) int64, the first key of each frame. Equal
        keys identify the same entity.
        """
        types = [self._type(i) for i in range(len(self.header["types"]))]
        if self.schema["global"]:
            self._type(len(types))
        every_frame = np.arange(self.frames)
        frame = np.concatenate([*(np.repeat(every_frame, n) for n, _ in types), every_frame])
        keys = np.concatenate([*(keys for _, keys in types), -1 - self.side])
        self.keys = keys[np.argsort(frame, kind="stable")]
        self.num_entities = np.bincount(frame) - 1
        self.starts = exclusive_cumsum(self.num_entities + 1)

    def _type(self, i: int) -> tuple[Array, Array]:
        """Write or read the columns of a type; return number of rows per frame, and row keys."""
        schema, sides, types = self.schema, self.sides, all_types(self.header)
        _, features, kinds = types[i]
        counts = self._per_frame(f"rows {i}", "<u4")
        rows, side = self._num_rows(counts), np.repeat(self.side, counts)
        place = row_indices(np.zeros_like(counts), counts)
        key = ((place * len(types) + i) * sides + side) * 2 + 1
        if i in schema["identity"]:
            has_id = np.repeat(self._per_frame(f"identified {i}", "?"), counts)
            previous_place = previous_rows(key[has_id])
            identity = self.column(f"identity {i}", "<u4", int(has_id.sum()), previous_place)
            key[has_id] = ((identity * len(types) + i) * sides + side[has_id]) * 2
        previous = previous_rows(key)
        for j in range(len(features)):
            self.column(f"feature {i} {j}", "<f4", rows, previous)
        kind_bytes = dict(schema["kinds"])
        if i in kind_bytes:
            for k in range(len(kinds)):
                self.column(f"kind {i} {k}", f"<u{kind_bytes[i]}", rows, previous)
        if i in schema["visible"]:
            self.column(f"visible {i}", "?", rows, previous)
        return counts, key

    def _action(self, a: int) -> Array:
        """Write or read the columns of an action; return its number of actors per frame."""
        schema, (_, class_name, fields) = self.schema, self.header["actions"][a]
        counts = self._per_frame(f"actors {a}", "<u4")
        actors = self._positions(f"actor {a}", counts)
        frame = np.repeat(np.arange(self.frames), counts)
        _check_positions(actors, self.num_entities[frame] + 1)
        rows, previous = len(actors), previous_rows(self.keys[self.starts[frame] + actors])
        space = ACTION_SPACES[class_name](**fields)
        if columns := space.mask_columns:
            widths = np.full(rows, columns[0])
        else:
            actees = self._per_frame(f"actees {a}", "<u4")
            positions = self._positions(f"actee {a}", actees)
            _check_positions(positions, np.repeat(self.num_entities, actees))
            widths = actees[frame]
        pairs, previous_pairs = self._num_rows(widths), _previous_pairs(previous, widths)
        if space.after is not None:
            self.column(f"taken {a}", "?", rows, previous)
        if not space.components:
            _check_positions(self.column(f"chosen {a}", "<u4", rows, previous), widths)
        if a in (schema["by_hand"] or []):
            self.column(f"by hand {a}", "?", rows, previous)
        if space.components:
            for column in ("chosen", "low", "high"):
                self.column(f"{column} {a}", "<f4", pairs, previous_pairs)
            widths = NUMBERS_SHOWN * widths
            pairs, previous_pairs = self._num_rows(widths), _previous_pairs(previous, widths)
        if a in schema["masks"]:
            self.column(f"mask {a}", "?", pairs, previous_pairs)
        for column in ("probs", "beside"):
            if a in (schema[column] or []):
                self.column(f"{column} {a}", "<f4", pairs, previous_pairs)
        return counts

    def _per_frame(self, name: str, dtype: str) -> Array:
        """Write or read a column with one value per frame."""
        return self.column(name, dtype, self.frames, self.by_side)

    def _num_rows(self, counts: Array) -> int:
        total = int(counts.sum())
        if total > self.max_rows:
            raise ReplayError(f"expected at most {self.max_rows} rows, got {total}")
        return total

    def _positions(self, name: str, counts: Array) -> Array:
        """Write or read position lists, as differences to the previous list of the same side."""
        size, place = self._num_rows(counts), row_indices(np.zeros_like(counts), counts)
        previous = previous_rows(place * self.sides + np.repeat(self.side, counts))
        return self.column(name, "<u4", size, previous)


def previous_rows(keys: IntArray) -> IntArray:
    """Return the index of the previous row with the same key, or -1, (rows,) int64."""
    order = np.argsort(keys, kind="stable")
    same = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
    previous = np.full(len(keys), -1)
    previous[order[same + 1]] = order[same]
    return previous


def _previous_pairs(previous: Array, widths: Array) -> IntArray:
    """Expand the previous row of each row to (row, column) pairs, given the width of each row."""
    starts = exclusive_cumsum(widths)
    shift = np.where((previous >= 0) & (widths[previous] == widths), starts - starts[previous], -1)
    shift = np.repeat(shift, widths)
    pairs: IntArray = np.where(shift >= 0, np.arange(len(shift)) - shift, -1)
    return pairs


def _check_positions(positions: Array, limits: Array) -> None:
    if not (positions < limits).all():
        raise ReplayError("positions: expected indices of entities and choices, got larger ones")


def encode_chunk(
    header: Json, schema: Json, steps: int, flat: Columns, cursors: dict[str, int]
) -> bytes:
    """Encode the next chunk of an episode, and advance the cursors."""
    rounding, parts = _roundings(header), []

    def write(name: str, dtype: str, size: int, previous: Array | None) -> Array:
        start = cursors.get(name, 0)
        cursors[name] = end = start + size
        source = flat[name][start:end]
        values = source.astype(dtype)
        if len(values) != size or not (dtype == "<f4" or (values == source).all()):
            raise ReplayError(f"{name}: expected {size} rows that fit")
        codes = rounding[name].encode(values) if name in rounding else values
        packed = _packed(codes, previous)
        parts.extend([len(packed).to_bytes(4, "little"), packed])
        return source

    _ChunkLayout(header, schema, steps, write).transfer()
    return b"".join(parts)


def decode_chunk(header: Json, schema: Json, steps: int, raw: bytes) -> Columns:
    """Decode the columns of a chunk."""
    roundings, stream = _roundings(header), io.BytesIO(raw)
    flat: Columns = {}

    def read(name: str, dtype: str, size: int, previous: Array | None) -> Array:
        data = stream.read(int.from_bytes(stream.read(4), "little"))
        rounding = roundings.get(name)
        stored = dtype if rounding is None else f"<u{rounding.bits // 8}"
        expected = -(-size // 8) if stored == "?" else size * np.dtype(stored).itemsize
        if len(data) != expected:
            raise ReplayError(f"{name}: expected {expected} bytes, got {len(data)}")
        values = _unpacked(data, stored, size, previous)
        if dtype == "<u4":
            values = values.astype(np.int64)
        flat[name] = values if rounding is None else rounding.decode(values)
        return flat[name]

    _ChunkLayout(header, schema, steps, read, _FREE_ROWS + 8 * len(raw)).transfer()
    if extra := stream.read():
        raise ReplayError(f"expected {len(raw) - len(extra)} bytes, got {len(raw)}")
    return flat


def _packed(values: Array, previous: Array | None) -> bytes:
    """Pack a column: differences, zigzag, then byte planes."""
    width = values.dtype.itemsize
    bits = values.view(f"<u{width}")
    if previous is not None and len(bits):
        bits = bits - np.where(previous >= 0, bits[previous], 0).astype(bits.dtype)
    if values.dtype == np.bool_:
        return np.packbits(bits & 1).tobytes()
    if previous is not None:
        bits = (bits << 1) ^ -(bits >> (8 * width - 1))
    return bits.astype(f"<u{width}").view(np.uint8).reshape(len(bits), width).T.tobytes()


def _unpacked(data: bytes, dtype: str, size: int, previous: Array | None) -> Array:
    """Unpack the result of `_packed`."""
    octets = np.frombuffer(data, np.uint8)
    bits: Array
    if dtype == "?":
        bits = np.unpackbits(octets, count=size)
    else:
        width = np.dtype(dtype).itemsize
        bits = np.ascontiguousarray(octets.reshape(width, size).T).view(f"<u{width}").reshape(size)
        if previous is not None:
            bits = (bits >> 1) ^ -(bits & 1)
    while previous is not None and (previous >= 0).any():
        # Prefix sums by doubling: each pass covers twice as many previous rows.
        bits = bits + np.where(previous >= 0, bits[previous], 0).astype(bits.dtype)
        previous = np.where(previous >= 0, previous[previous], -1)
    return (bits & 1).astype(np.bool_) if dtype == "?" else bits.view(dtype)


class Rounding(NamedTuple):
    """Quantization of values in [low, high] to codes, see `replay_format.py`."""

    bits: int
    low: float
    high: float

    def encode(self, values: Array) -> Array:
        """Quantize values."""
        top, extent = 2**self.bits - 4, self.high - self.low
        with np.errstate(invalid="ignore"):
            scale = top / extent if extent > 0 else 0.0
            codes = np.rint((values.astype(np.float64) - self.low) * scale)
        special = [np.isnan(values), values == np.inf, values == -np.inf]
        codes = np.select(special, [top + 1, top + 2, top + 3], codes)
        return codes.astype(f"<u{self.bits // 8}")

    def decode(self, codes: Array) -> Float32Array:
        """Dequantize codes."""
        top = 2**self.bits - 4
        values = self.low + codes.astype(np.float64) * ((self.high - self.low) / top)
        special = [codes == top + 1, codes == top + 2, codes == top + 3]
        return np.select(special, [np.nan, np.inf, -np.inf], values).astype(np.float32)


def _roundings(header: Json) -> dict[str, Rounding]:
    return {name: Rounding._make(rounding) for name, *rounding in header["rounding"]}
