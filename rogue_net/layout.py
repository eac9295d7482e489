"""Padded layout of the entities of a batch.

Frames are sorted by length and split into a few buckets, each padded to its longest frame. Index
tensors are computed once per batch, and passed to all layers.
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
"""Largest fraction of padding in a bucket, unless it has at most `FREE_PADDING` rows of padding."""
FREE_PADDING = 32
"""Number of rows of padding that cost less than the operations of another bucket."""
FREE_PADDING_OF_PAIRS = 128
"""`FREE_PADDING` with relative positions, as a bucket then has more operations."""
PIECE_ROWS = 4096
"""Number of rows of a microbatch: its activations fit into the processor's cache."""


@dataclass(frozen=True)
class Bucket:
    """Frames padded to the same length, stored in consecutive rows.

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

    The gradient of a slice would be as large as `x`; the gradient of a split is not.
    """
    sizes = [bucket.num_rows for bucket in buckets]
    return torch.split(x, sizes) if sizes else ()


@dataclass(frozen=True)
class Layout:
    """The padded rows of a batch.

    Attributes:
        lengths: (B,) int64 on the host, number of entities of each frame.
        num_rows: P, number of padded rows of all buckets.
        buckets: the buckets, in the order of their rows, without empty frames.
        row_of_entity: (entities,) int64, the padded row of each entity, with entities sorted by
            type, then frame.
        first_row: (B,) int64 on the host, the padded row of the first entity of each frame, which
            the remaining ones follow; 0 for an empty frame.
        frame_order: (frames with entities,) int64, the frames in the order of their rows.
        is_in_order: True if `row_of_entity` is the identity.
    """

    lengths: IntArray
    num_rows: int
    buckets: list[Bucket]
    row_of_entity: Tensor
    first_row: IntArray
    frame_order: Tensor
    is_in_order: bool = False

    def rows(self, positions: Tensor, frame_of_position: IntArray) -> Tensor:
        """Convert positions of entities in their frame to padded rows.

        Args:
            positions: (n,) int64, positions in the frame.
            frame_of_position: (n,) int64 on the host, the frame of each.

        Returns:
            (n,) int64.
        """
        return positions + to_device(self.first_row[frame_of_position], positions.device)

    def pad(self, x: Tensor) -> Tensor:
        """Scatter entities to padded rows, (entities, ...) -> (P, ...); zero for padding."""
        if self.is_in_order:
            return x
        return x.new_zeros(self.num_rows, *x.shape[1:]).index_copy(0, self.row_of_entity, x)

    def means(self, x: Tensor) -> Tensor:
        """Compute the mean over the entities of each frame; zero for an empty frame.

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


def masked_mean(x: Tensor, mask: Tensor | None) -> Tensor:
    """Compute the mean over masked rows of each frame, (b, n, d) -> (b, d); zero without any."""
    if mask is None:
        return x.mean(dim=1)
    mask = mask.unsqueeze(2)
    # sum_i m_i x_i / max(1, sum_i m_i)
    return (x * mask).sum(dim=1) / mask.sum(dim=1).clamp(min=1)


def make_layout(
    type_lengths: Mapping[str, IntArray], device: torch.device, free_padding: int = FREE_PADDING
) -> Layout:
    """Plan the padded rows of a batch.

    Args:
        type_lengths: (B,) number of entities of each frame, for each type in order.
        device: device of the index tensors.
        free_padding: number of rows of padding that cost less than another bucket.
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
    """Return the row of each entity, sorted by type, then frame.

    Args:
        first_row: (B,) int64, the first row of each frame.
        counts: (types, B) int64, number of entities.
    """
    in_frame = np.cumsum(counts, axis=0) - counts  # (types, B), the first position of each type
    rows = [
        row_indices(first_row + type_start, type_count)
        for type_start, type_count in zip(in_frame, counts, strict=True)
    ]
    return np.concatenate(rows)


def _cut(lengths: IntArray, free_padding: int) -> list[tuple[int, int]]:
    """Split ascending lengths into ranges [low, high) of frames to pad to the same length.

    A range has at most `PIECE_ROWS` rows, or a single frame.
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


def layout_of(batch: EntityBatch, types: list[str], has_relpos: bool = False) -> Layout:
    """Plan the padded rows of the entities of a batch.

    Args:
        batch: B frames.
        types: the entity types, in the order of the network.
        has_relpos: True for a network with relative positions.
    """
    device = batch.features[types[0]].values.device
    lengths = {name: batch.features[name].lengths for name in types}
    return make_layout(lengths, device, FREE_PADDING_OF_PAIRS if has_relpos else FREE_PADDING)


def visible_rows(batch: EntityBatch, types: list[str], layout: Layout) -> Tensor | None:
    """Return which padded rows are visible to the policy, (P,) bool; None if all entities are."""
    if not batch.visible:
        return None
    return layout.pad(torch.cat([batch.visibility(name).values for name in types]))
