"""Padded rows of the entities of a batch.

Frames are sorted by length and cut into a few buckets, each padded to its longest frame. All
index tensors are made here, once per batch, and handed down.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from entity_env.arrays import IntArray
from entity_env.ragged import exclusive_cumsum, row_indices
from rogue_net.ragged import EntityBatch, to_device

MAX_PADDING = 0.02
"""Largest share of padding in a bucket with shorter frames ..."""
FREE_PADDING = 32
"""... or largest number of rows of padding: the operations of another bucket would cost more."""
FREE_PADDING_OF_PAIRS = 128
"""The same with relative positions, for which a bucket has more operations."""
PIECE_ROWS = 4096
"""Rows that go through all layers together: their activations stay in the processor's cache."""


@dataclass(frozen=True)
class Bucket:
    """Frames padded to the same length, in consecutive rows.

    Attributes:
        start: the first padded row.
        num_frames: b.
        length: n, the rows of each frame.
        is_entity: (b, n) bool, False for padding; None without padding.
    """

    start: int
    num_frames: int
    length: int
    is_entity: Tensor | None

    @property
    def num_rows(self) -> int:
        """Padded rows of the bucket, b * n."""
        return self.num_frames * self.length

    @property
    def rows(self) -> slice:
        """The padded rows of the bucket."""
        return slice(self.start, self.start + self.num_rows)


def of_buckets(x: Tensor, buckets: Sequence[Bucket]) -> tuple[Tensor, ...]:
    """Split (P, ...) into the rows of each bucket, as views.

    Split, not sliced: the gradient of each slice would be as large as the whole.
    """
    sizes = [bucket.num_rows for bucket in buckets]
    return torch.split(x, sizes) if sizes else ()


@dataclass(frozen=True)
class Layout:
    """The padded rows of a batch.

    Attributes:
        lengths: (B,) int64 on the host, entities per frame.
        num_rows: P, padded rows of all buckets together.
        buckets: the buckets, in the order of their rows. Empty frames are in none.
        row_of_entity: (entities,) int64, the padded row of each entity, where entities come type
            after type and within a type frame after frame.
        first_row: (B,) int64 on the host, the padded row of the first entity of each frame; the
            others follow. 0 for an empty frame.
        frame_order: (frames with entities,) int64, the frames in the order of their rows.
        is_in_order: True if entities are in the order of their rows.
    """

    lengths: IntArray
    num_rows: int
    buckets: list[Bucket]
    row_of_entity: Tensor
    first_row: IntArray
    frame_order: Tensor
    is_in_order: bool = False

    def rows(self, positions: Tensor, frame_of_position: IntArray) -> Tensor:
        """Return the padded rows of entities given by position in their frame.

        Args:
            positions: (n,) int64, positions in the frame.
            frame_of_position: (n,) int64 on the host, the frame of each.

        Returns:
            (n,) int64.
        """
        return positions + to_device(self.first_row[frame_of_position], positions.device)

    def pad(self, x: Tensor) -> Tensor:
        """Move rows to their places, (entities, ...) -> (P, ...); zero without an entity."""
        if self.is_in_order:
            return x
        return x.new_zeros(self.num_rows, *x.shape[1:]).index_copy(0, self.row_of_entity, x)

    def means(self, x: Tensor) -> Tensor:
        """Return the mean over the entities of each frame; zero for an empty frame.

        Args:
            x: (P, d), padded rows.

        Returns:
            (B, d).
        """
        means = [
            masked_mean(rows.view(bucket.num_frames, bucket.length, -1), bucket.is_entity)
            for rows, bucket in zip(of_buckets(x, self.buckets), self.buckets, strict=True)
        ]
        pooled = x.new_zeros(len(self.lengths), x.shape[1])
        if not means:
            return pooled
        return pooled.index_copy(0, self.frame_order, torch.cat(means))


def masked_mean(x: Tensor, among: Tensor | None) -> Tensor:
    """Return the mean of some rows of each frame, (b, n, d) -> (b, d); zero without rows."""
    if among is None:
        return x.mean(dim=1)
    among = among.unsqueeze(2)
    # sum_i m_i x_i / max(1, sum_i m_i)
    return (x * among).sum(dim=1) / among.sum(dim=1).clamp(min=1)


def make_layout(
    type_lengths: Mapping[str, IntArray], device: torch.device, free_padding: int = FREE_PADDING
) -> Layout:
    """Plan the padded rows of a batch.

    Args:
        type_lengths: (B,) entities per frame for each type, in the order of the types.
        device: where the index tensors go.
        free_padding: so many rows of padding cost less than a bucket.
    """
    counts = np.stack(list(type_lengths.values()))  # (types, B)
    lengths = counts.sum(axis=0)
    order = np.argsort(lengths, kind="stable")
    order = order[np.searchsorted(lengths[order], 1) :]  # without empty frames
    first_row = np.zeros_like(lengths)
    buckets: list[Bucket] = []
    start = 0
    for low, high in _cut(lengths[order], free_padding):
        frames, n = order[low:high], int(lengths[order[high - 1]])
        first_row[frames] = start + n * np.arange(len(frames))
        is_entity = None
        if lengths[frames[0]] != n:
            is_entity = to_device(np.arange(n) < lengths[frames][:, None], device)
        buckets.append(Bucket(start, len(frames), n, is_entity))
        start += len(frames) * n
    return Layout(
        lengths,
        start,
        buckets,
        to_device(rows_of_types(first_row, counts), device),
        first_row,
        to_device(order, device),
    )


def rows_of_types(first_row: IntArray, counts: IntArray) -> IntArray:
    """Return the row of each entity, type after type, from (B,) first rows of the frames."""
    in_frame = np.cumsum(counts, axis=0) - counts  # (types, B), the first position of each type
    rows = [
        row_indices(first_row + type_start, type_count)
        for type_start, type_count in zip(in_frame, counts, strict=True)
    ]
    return np.concatenate(rows)


def _cut(lengths: IntArray, free_padding: int) -> list[tuple[int, int]]:
    """Cut ascending lengths into ranges [low, high), each to be padded to its last length.

    A range has at most `PIECE_ROWS` rows, or one frame.
    """
    ranges = []
    before = exclusive_cumsum(lengths)
    high = len(lengths)
    while high > 0:
        n = int(lengths[high - 1])
        entities = before[high - 1] + n - before[:high]  # of the frames from each low to high
        padded = n * (high - np.arange(high))
        fits = padded - entities <= np.maximum(MAX_PADDING * padded, free_padding)
        low = int(np.flatnonzero(~fits)[-1]) + 1 if not fits.all() else 0
        frames = max(1, PIECE_ROWS // n)
        ranges += [(max(low, stop - frames), stop) for stop in range(high, low, -frames)]
        high = low
    return ranges[::-1]


def layout_of(batch: EntityBatch, types: list[str], of_pairs: bool = False) -> Layout:
    """Return the layout of a batch's entities of the given types, in their order.

    Args:
        batch: B frames.
        types: the types of the entities.
        of_pairs: True with relative positions.
    """
    device = batch.features[types[0]].values.device
    lengths = {name: batch.features[name].lengths for name in types}
    return make_layout(lengths, device, FREE_PADDING_OF_PAIRS if of_pairs else FREE_PADDING)


def visible_rows(batch: EntityBatch, types: list[str], layout: Layout) -> Tensor | None:
    """Return which padded rows are visible, (P,) bool; None if all entities are."""
    if not batch.visible:
        return None
    return layout.pad(torch.cat([batch.visibility(name).values for name in types]))
