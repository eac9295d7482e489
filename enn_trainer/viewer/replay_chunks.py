"""Chunks of replays: the columns of some steps as bytes, see `replay_format.py`."""

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
"""Weights kept of each row of attention, from the second rung on."""
NUMBERS_SHOWN = 4
"""Columns of each number: mean, deviation and the ends of its 90% range."""
_FREE_ROWS = 1 << 16  # that may take no bytes, as of types without features

Json: TypeAlias = dict[str, Any]
Array: TypeAlias = npt.NDArray[Any]
Columns: TypeAlias = dict[str, Array]
"""Flat arrays of some frames of an episode, by the names of `_Layout`."""
_ColumnIO: TypeAlias = Callable[[str, str, int, Array | None], Array]
"""Writer or reader of the next column of a chunk, which returns its numbers. It takes the name; the
dtype, such as "<f4", "?" for booleans; the size; and (size,) int64, the row of which each number is
the difference, -1 for none; None if no row has one."""


def all_types(header: Json) -> list[Any]:
    """Return name, numbers and kinds of each type; those of what is global are the last ones."""
    return [*header["types"], [GLOBAL, *header["global"]]]


@dataclass
class _Layout:
    """The columns of a chunk, in order, each of which the sizes of later ones may depend on.

    Args:
        header: of the page.
        schema: of the episode.
        steps: number of steps of the chunk.
        column: writes or reads a column.
        most_rows: most rows that a column may have.
    """

    header: Json
    schema: Json
    steps: int
    column: _ColumnIO
    most_rows: float = math.inf

    def __post_init__(self) -> None:
        self.sides, self.frames = self.header["sides"], self.steps * self.header["sides"]
        self.side = np.tile(np.arange(self.sides), self.steps)
        self.by_side = previous_rows(self.side)

    def transfer(self) -> None:
        """Write or read all columns.

        Raises:
            ReplayError: there are too many rows in a column, or positions beyond their frame.
        """
        self._of_frames("reward", "<f4")
        self._of_frames("value", "<f4")
        if self.schema["beside"] is not None:
            self._of_frames("beside value", "<f4")
        self._entities()
        num_actors = [self._action(a) for a in range(len(self.header["actions"]))]

        # Attention and influence in some frames, and pictures of some steps.
        if self.schema["attention"]:
            count = int(self._of_frames("attention", "?").sum())
            shapes = [self.column(name, "<u4", count, None) for name in ATTENTION_SHAPE]
            layers, heads, size = shapes
            is_whole = self.header["attention"] == "whole"
            kept = size if is_whole else np.minimum(size, STRONGEST)
            num_weights = int((layers * heads * size * kept).sum())
            if not is_whole:
                self.column("attention column", "<u4", num_weights, None)
            self.column("attention weight", "<f4", num_weights, None)
        if self.schema["influence"] is not None:
            shown_at = np.flatnonzero(self._of_frames("influence", "?"))
            size = self.column("influence size", "<u4", len(shown_at), None)
            self.column("influence entity", "<u4", int(size.sum()), None)
            self.column("influence value", "<f4", int(size.sum()), None)
            for a in self.schema["influence"]:
                cells = int((size * num_actors[a][shown_at]).sum())
                self.column(f"influence {a}", "<f4", cells, None)
        if self.schema["pictures"]:
            count = int(self.column("picture", "?", self.steps, None).sum())
            size = self.column("picture size", "<u4", count, None)
            self.column("picture byte", "|u1", int(size.sum()), None)

    def _entities(self) -> None:
        """Write or read the columns of each type, and keep the keys of all entities.

        Sets `num_entities`, (F,) int64; `keys`, int64 of all entities in the order of each frame,
        with that of the global actor behind them; and `starts`, (F,) int64, where those of a frame
        begin. Equal keys are the same entity.
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
        """Write or read the columns of a type; return its rows by frame, and their keys."""
        schema, sides, types = self.schema, self.sides, all_types(self.header)
        _, features, kinds = types[i]
        counts = self._of_frames(f"rows {i}", "<u4")
        rows, of_side = self._total(counts), np.repeat(self.side, counts)
        place = row_indices(np.zeros_like(counts), counts)
        key = ((place * len(types) + i) * sides + of_side) * 2 + 1
        if i in schema["identity"]:
            has_id = np.repeat(self._of_frames(f"identified {i}", "?"), counts)
            place_before = previous_rows(key[has_id])
            identity = self.column(f"identity {i}", "<u4", int(has_id.sum()), place_before)
            key[has_id] = ((identity * len(types) + i) * sides + of_side[has_id]) * 2
        before = previous_rows(key)
        for j in range(len(features)):
            self.column(f"feature {i} {j}", "<f4", rows, before)
        kind_bytes = dict(schema["kinds"])
        if i in kind_bytes:
            for k in range(len(kinds)):
                self.column(f"kind {i} {k}", f"<u{kind_bytes[i]}", rows, before)
        if i in schema["visible"]:
            self.column(f"visible {i}", "?", rows, before)
        return counts, key

    def _action(self, a: int) -> Array:
        """Write or read the columns of an action; return its number of actors by frame."""
        schema, (_, class_name, fields) = self.schema, self.header["actions"][a]
        counts = self._of_frames(f"actors {a}", "<u4")
        actors = self._places(f"actor {a}", counts)
        frame = np.repeat(np.arange(self.frames), counts)
        _check_positions(actors, self.num_entities[frame] + 1)
        rows, before = len(actors), previous_rows(self.keys[self.starts[frame] + actors])
        space = ACTION_SPACES[class_name](**fields)
        if columns := space.mask_columns:
            widths = np.full(rows, columns[0])
        else:
            actees = self._of_frames(f"actees {a}", "<u4")
            chosen_from = self._places(f"actee {a}", actees)
            _check_positions(chosen_from, np.repeat(self.num_entities, actees))
            widths = actees[frame]
        pairs, of_pairs = self._total(widths), _pairs_before(before, widths)
        if space.after is not None:
            self.column(f"taken {a}", "?", rows, before)
        if not space.components:
            _check_positions(self.column(f"chosen {a}", "<u4", rows, before), widths)
        if a in (schema["by_hand"] or []):
            self.column(f"by hand {a}", "?", rows, before)
        if space.components:
            for what in ("chosen", "low", "high"):
                self.column(f"{what} {a}", "<f4", pairs, of_pairs)
            widths = NUMBERS_SHOWN * widths
            pairs, of_pairs = self._total(widths), _pairs_before(before, widths)
        if a in schema["masks"]:
            self.column(f"mask {a}", "?", pairs, of_pairs)
        for what in ("probs", "beside"):
            if a in (schema[what] or []):
                self.column(f"{what} {a}", "<f4", pairs, of_pairs)
        return counts

    def _of_frames(self, name: str, dtype: str) -> Array:
        """Write or read a column with a number for each frame."""
        return self.column(name, dtype, self.frames, self.by_side)

    def _total(self, counts: Array) -> int:
        found = int(counts.sum())
        if found > self.most_rows:
            raise ReplayError(f"expected at most {self.most_rows} rows, got {found}")
        return found

    def _places(self, name: str, counts: Array) -> Array:
        """Write or read lists of positions, which continue those of the same side."""
        size, place = self._total(counts), row_indices(np.zeros_like(counts), counts)
        before = previous_rows(place * self.sides + np.repeat(self.side, counts))
        return self.column(name, "<u4", size, before)


def previous_rows(keys: IntArray) -> IntArray:
    """Return the last row before each one that has the same key, -1 where there is none."""
    order = np.argsort(keys, kind="stable")
    same = np.flatnonzero(keys[order[1:]] == keys[order[:-1]])
    previous = np.full(len(keys), -1)
    previous[order[same + 1]] = order[same]
    return previous


def _pairs_before(before: Array, widths: Array) -> IntArray:
    """Return the previous of each pair, as `previous_rows`, from those of rows of some widths."""
    starts = exclusive_cumsum(widths)
    shift = np.where((before >= 0) & (widths[before] == widths), starts - starts[before], -1)
    shift = np.repeat(shift, widths)
    pairs: IntArray = np.where(shift >= 0, np.arange(len(shift)) - shift, -1)
    return pairs


def _check_positions(positions: Array, limits: Array) -> None:
    if not (positions < limits).all():
        raise ReplayError("positions: expected those of entities and choices, got others")


def encoded_chunk(
    header: Json, schema: Json, steps: int, flat: Columns, cursors: dict[str, int]
) -> bytes:
    """Return the next chunk of an episode, and move the cursors behind it."""
    rounding, parts = _roundings(header), []

    def write(name: str, dtype: str, size: int, previous: Array | None) -> Array:
        start = cursors.get(name, 0)
        cursors[name] = end = start + size
        given = flat[name][start:end]
        values = given.astype(dtype)
        if len(values) != size or not (dtype == "<f4" or (values == given).all()):
            raise ReplayError(f"{name}: expected {size} rows that fit")
        codes = rounding[name].encode(values) if name in rounding else values
        packed = _packed(codes, previous)
        parts.extend([len(packed).to_bytes(4, "little"), packed])
        return given

    _Layout(header, schema, steps, write).transfer()
    return b"".join(parts)


def decoded_chunk(header: Json, schema: Json, steps: int, raw: bytes) -> Columns:
    """Return the columns of a chunk."""
    roundings, rest = _roundings(header), io.BytesIO(raw)
    flat: Columns = {}

    def read(name: str, dtype: str, size: int, previous: Array | None) -> Array:
        data = rest.read(int.from_bytes(rest.read(4), "little"))
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

    _Layout(header, schema, steps, read, _FREE_ROWS + 8 * len(raw)).transfer()
    if left := rest.read():
        raise ReplayError(f"expected {len(raw) - len(left)} bytes, got {len(raw)}")
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


def _unpacked(data: bytes, dtype: str, size: int, previous: Array | None) -> Array:
    """Return the numbers of a column, as `_packed` was given them."""
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
        # Each sum reaches twice as far back as the one before.
        bits = bits + np.where(previous >= 0, bits[previous], 0).astype(bits.dtype)
        previous = np.where(previous >= 0, previous[previous], -1)
    return (bits & 1).astype(np.bool_) if dtype == "?" else bits.view(dtype)


class Rounding(NamedTuple):
    """Rounding of numbers from `low` to `high` to codes of some bits, see the format."""

    bits: int
    low: float
    high: float

    def encode(self, values: Array) -> Array:
        """Return the codes of numbers."""
        top, extent = 2**self.bits - 4, self.high - self.low
        with np.errstate(invalid="ignore"):
            scale = top / extent if extent > 0 else 0.0
            codes = np.rint((values.astype(np.float64) - self.low) * scale)
        special = [np.isnan(values), values == np.inf, values == -np.inf]
        codes = np.select(special, [top + 1, top + 2, top + 3], codes)
        return codes.astype(f"<u{self.bits // 8}")

    def decode(self, codes: Array) -> Float32Array:
        """Return the numbers of codes."""
        top = 2**self.bits - 4
        values = self.low + codes.astype(np.float64) * ((self.high - self.low) / top)
        special = [codes == top + 1, codes == top + 2, codes == top + 3]
        return np.select(special, [np.nan, np.inf, -np.inf], values).astype(np.float32)


def _roundings(header: Json) -> dict[str, Rounding]:
    return {name: Rounding._make(rounding) for name, *rounding in header["rounding"]}
