"""Multi-head attention between the entities of each frame, over padded frames; dropout."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from entity_env.ragged import row_indices
from entity_env.seeding import mix
from rogue_net.layout import PIECE_ROWS, Bucket, Layout, of_buckets
from rogue_net.ragged import EntityBatch, to_device
from rogue_net.relpos.attention import Pairs
from rogue_net.relpos.encoding import RelposEncoding


class Context(ABC):
    """Base class of the inputs that all layers share: the structure of a batch.

    Attributes:
        keys: (P,) int64, the random keys of dropout; None without dropout.
    """

    keys: Tensor | None = None

    def pieces(self, x: Tensor) -> list[tuple[Tensor, "Context"]]:
        """Split (P, d_model) rows into microbatches, each with its context."""
        return [(x, self)]

    @abstractmethod
    def mix(self, attention: "Attention", x: Tensor) -> Tensor:
        """Attend within each frame, before the projection, (P, d_model) -> (P, d_model)."""


@dataclass(frozen=True)
class PaddedContext(Context):
    """Layout, masks and relative positions of padded frames.

    Attributes:
        buckets: the frames among the P padded rows.
        visible: (P,) bool, the entities that visible entities may attend to; None if all are
            visible. Invisible entities may attend to all.
        masks: for each bucket the result of `attention_mask`.
        pairs: for each bucket the relative positions; None without relative positions.
        relpos: the encoding of relative positions.
        keys: (P,) int64, the random keys of dropout; None without dropout.
        weights: a list to which each layer appends the attention weights of its buckets, (b, H, n,
            n) each; None not to return them.
    """

    buckets: list[Bucket]
    visible: Tensor | None
    masks: list[Tensor | None]
    pairs: list[Pairs] | None = None
    relpos: RelposEncoding | None = None
    keys: Tensor | None = None
    weights: list[list[Tensor]] | None = None

    def pieces(self, x: Tensor) -> list[tuple[Tensor, Context]]:
        """Split into microbatches of up to `PIECE_ROWS` rows, or of one larger bucket.

        With attention weights, there is a single microbatch.
        """
        if len(x) <= PIECE_ROWS or self.weights is not None:
            return [(x, self)]
        # A microbatch has whole buckets; slice every field with a row for each entity.
        ends = np.cumsum([bucket.num_rows for bucket in self.buckets])
        pieces: list[Context] = []
        sizes = []
        first = start = 0
        while first < len(self.buckets):
            stop = max(first + 1, int(np.searchsorted(ends, start + PIECE_ROWS, side="right")))
            rows, in_piece = slice(start, int(ends[stop - 1])), slice(first, stop)
            pieces.append(
                replace(
                    self,
                    buckets=[replace(b, start=b.start - start) for b in self.buckets[in_piece]],
                    visible=None if self.visible is None else self.visible[rows],
                    masks=self.masks[in_piece],
                    pairs=None if self.pairs is None else self.pairs[in_piece],
                    keys=None if self.keys is None else self.keys[rows],
                )
            )
            sizes.append(rows.stop - start)
            first, start = stop, rows.stop
        return list(zip(torch.split(x, sizes), pieces, strict=True))

    def mix(self, attention: "Attention", x: Tensor) -> Tensor:
        """Attend within the frames of each bucket, (P, d_model) -> (P, d_model)."""
        qkv = of_buckets(attention.query_key_value(x), self.buckets)
        gate = None if self.relpos is None else self.relpos.gate_of(x)
        gates = [None] * len(qkv) if gate is None else of_buckets(gate, self.buckets)
        weights: list[Tensor] = []
        mixed = [
            attention.attend(rows, factors, self, k, weights)
            for k, (rows, factors) in enumerate(zip(qkv, gates, strict=True))
        ]
        if self.weights is not None:
            self.weights.append(weights)
        return mixed[0] if len(mixed) == 1 else torch.cat([x[:0], *mixed])


class Attention(nn.Module):
    """Multi-head attention between the entities of each frame.

    Args:
        n_head: H.
        d_model: width of the entities.
        attn_pdrop: dropout probability of attention weights.
        site: index of its dropout site.
    """

    def __init__(self, n_head: int, d_model: int, attn_pdrop: float = 0.0, site: int = 0) -> None:
        super().__init__()
        self.n_head = n_head
        self.pdrop = attn_pdrop
        self.site = site
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.project = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Attend within each frame, (P, d_model) -> (P, d_model)."""
        return self.project(context.mix(self, x))  # type: ignore[no-any-return]

    def attend(
        self,
        qkv: Tensor,
        gate: Tensor | None,
        context: PaddedContext,
        k: int,
        weights: list[Tensor],
    ) -> Tensor:
        """Attend within the frames of bucket k, (b * n, 3 * d_model) -> (b * n, d_model).

        Args:
            qkv: (b * n, 3 * d_model), queries, keys and values.
            gate: (b * n, d_head), factors of relative values, by target; None for no gate.
            context: of the batch.
            k: index of the bucket.
            weights: list to append the attention weights to, if `context.weights` is a list.
        """
        bucket, mask = context.buckets[k], context.masks[k]
        b, n, d = bucket.num_frames, bucket.length, qkv.shape[-1] // 3
        # Two fast paths: a single entity, and torch's fused attention.
        drops = context.keys is not None and self.pdrop > 0
        is_plain = context.relpos is None and context.weights is None and not drops
        if is_plain and n == 1:  # softmax over one entity is 1: the result is its value
            return qkv[:, 2 * d :]
        # (b * n, 3 * d_model) -> (b, H, n, d_head) each
        q, key, v = qkv.view(b, n, 3, self.n_head, d // self.n_head).permute(2, 0, 3, 1, 4)
        if is_plain and (qkv.is_cuda or qkv.dtype != torch.bfloat16):
            # On the CPU in bfloat16, fused attention takes twice as long as the operations below.
            mixed: Tensor = F.scaled_dot_product_attention(q, key, v, attn_mask=mask)
            return mixed.transpose(1, 2).reshape(b * n, d)
        # Attention weights: softmax(q k^T / sqrt(d_head) + q . relative keys / sqrt(d_head))
        scores = (q / math.sqrt(q.shape[-1])) @ key.transpose(2, 3)
        if context.relpos is not None and context.pairs is not None:
            scores = scores + context.relpos.scores(q, context.pairs[k])
        if mask is not None:
            scores = scores.masked_fill(~mask, -math.inf)
        attention = scores.softmax(dim=-1)
        if context.weights is not None:  # otherwise free their memory early
            weights.append(attention)
        if drops and context.keys is not None:
            # Flatten targets before heads: padding then does not change the random numbers.
            by_query = attention.permute(0, 2, 3, 1).reshape(b * n, n * self.n_head)
            by_query = dropout(by_query, self.pdrop, context.keys[bucket.rows], self.site)
            attention = by_query.view(b, n, n, self.n_head).permute(0, 3, 1, 2)
        # y = softmax(scores) @ (v + relative values): (b, H, n, d_head) -> (b * n, d_model)
        y: Tensor = attention @ v
        if context.relpos is not None and context.pairs is not None:
            target_gate = None if gate is None else gate.view(b, n, -1)
            y = y + context.relpos.weighted_values(attention, target_gate, context.pairs[k])
        return y.transpose(1, 2).reshape(b * n, d)


def attention_mask(bucket: Bucket, visible: Tensor | None) -> Tensor | None:
    """Compute the attention mask of a bucket, True where row i of a frame may attend to row j.

    Padding attends to all entities, as the softmax over an empty set would be NaN.

    Args:
        bucket: b frames padded to n rows.
        visible: (P,) bool, the visible rows of the layout; None if all are.

    Returns:
        (b, 1, n, n) bool, (b, 1, 1, n) if all are visible, or None if nothing is masked.
    """
    b, n = bucket.num_frames, bucket.length
    is_entity = bucket.is_entity
    if visible is None:
        return None if is_entity is None else is_entity.view(b, 1, 1, n)
    is_visible = visible[bucket.rows].view(b, n)
    allowed = is_visible[:, None, :] | ~is_visible[:, :, None]
    if is_entity is not None:
        allowed = (allowed | ~is_entity[:, :, None]) & is_entity[:, None, :]
    return allowed[:, None]


def weights_by_frame(weights: list[list[Tensor]], layout: Layout, n_head: int) -> list[Tensor]:
    """Split attention weights into frames, without padding.

    Args:
        weights: for each layer and bucket (b, H, n, n).
        layout: of the B frames.
        n_head: H.

    Returns:
        For each frame (layers, H, n, n): [l, h, i, j] is the weight of entity j for query i.
    """
    device = layout.row_of_entity.device
    lengths = layout.lengths.tolist()
    frames = [torch.zeros(len(weights), n_head, n, n, device=device) for n in lengths]
    if not weights:
        return frames
    padded_frames = [row for bucket in zip(*weights, strict=True) for row in torch.stack(bucket, 1)]
    for i, padded in zip(layout.frame_order.tolist(), padded_frames, strict=True):
        frames[i] = padded[..., : lengths[i], : lengths[i]]
    return frames


def dropout(x: Tensor, p: float, keys: Tensor | None, site: int) -> Tensor:
    """Apply dropout with random numbers that are a function of a key per row.

    Args:
        x: (rows, ...) float.
        p: probability to zero an element, in [0, 1).
        keys: (rows,) int64, the random key of each row; None to return `x`.
        site: index of the dropout layer, which selects a stream of random numbers.

    Source: Srivastava et al. 2014, "Dropout: a simple way to prevent neural networks from
        overfitting".
    """
    if keys is None or p == 0:
        return x
    # Random bits of element j of a row, SplitMix64: mix(mix(key + site * SITE) + j * GAMMA)
    width = x[0].numel() if len(x) else 0
    counter = torch.arange(1, width + 1, device=x.device) * _GAMMA
    site_seed = _signed((site + 1) * _SITE % 2**64)
    bits = _finalise(_finalise(keys + site_seed).unsqueeze(1) + counter)
    # Inverted dropout: x / (1 - p) with probability 1 - p, else 0
    is_kept = (bits & (2**24 - 1)) >= round(p * 2**24)
    return x * is_kept.view_as(x) / (1 - p)


def row_keys(batch: EntityBatch, layout: Layout) -> Tensor:
    """Return a random key for each padded row of a layout, (P,) int64; 0 for padding."""
    keys = batch.keys
    if keys is None:
        keys = torch.randint(2**62, (batch.num_frames,)).numpy()
    lengths = layout.lengths
    row_seeds = np.zeros(layout.num_rows, dtype=np.int64)
    row_seeds[row_indices(layout.first_row, lengths)] = mix(
        np.repeat(keys, lengths), row_indices(np.zeros_like(lengths), lengths)
    ).view(np.int64)
    return to_device(row_seeds, layout.row_of_entity.device)


def _signed(bits: int) -> int:
    """Reinterpret the bits of an unsigned 64-bit integer as int64."""
    return bits - 2**64 if bits >= 2**63 else bits


_GAMMA = _signed(0x9E3779B97F4A7C15)
_SITE = 0xD1342543DE82EF95


def _finalise(bits: Tensor) -> Tensor:
    """Apply the output function of SplitMix64 to int64 numbers.

    Source: Steele, Lea, Flood 2014, https://doi.org/10.1145/2660193.2660195.
    """
    bits = (bits ^ _shifted(bits, 30)) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shifted(bits, 27)) * _signed(0x94D049BB133111EB)
    return bits ^ _shifted(bits, 31)


def _shifted(bits: Tensor, by: int) -> Tensor:
    # Torch shifts are arithmetic: mask the copies of the sign bit.
    return torch.bitwise_and(bits >> by, 2 ** (64 - by) - 1)
