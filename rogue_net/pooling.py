"""Pooling over the entities of a frame, as an alternative to attention."""

import math

import torch
from torch import Tensor, nn

from rogue_net.attention import Context, PaddedContext
from rogue_net.layout import Bucket, masked_mean, of_buckets


class Pool(nn.Module):
    """Projection of the mean or maximum, or both, of the projected entities of a frame.

    Invisible entities do not influence visible ones: visible entities get the pooled visible
    entities, the others the pool of all.

    Args:
        pooling: "mean", "max" or "meanmax".
        d_model: width of the entities.
    """

    def __init__(self, pooling: str, d_model: int) -> None:
        super().__init__()
        self.pooling = pooling
        self.prepool = nn.Linear(d_model, d_model)
        self.project = nn.Linear(d_model * (2 if pooling == "meanmax" else 1), d_model)

    def forward(self, x: Tensor, context: Context) -> Tensor:
        """Return each entity's pooled frame, (P, d_model) -> (P, d_model)."""
        assert isinstance(context, PaddedContext)
        x = self.prepool(x)
        pooled = [
            self.of_bucket(rows, bucket, context.visible)
            for rows, bucket in zip(of_buckets(x, context.buckets), context.buckets, strict=True)
        ]
        return torch.cat([x[:0], *pooled])

    def of_bucket(self, x: Tensor, bucket: Bucket, visible: Tensor | None) -> Tensor:
        """Return the pooled frames of a bucket, (b * n, d_model) -> (b * n, d_model)."""
        rows = x.view(bucket.num_frames, bucket.length, -1)
        everyone = self.project(pool(rows, bucket.is_entity, self.pooling)).unsqueeze(1)
        if visible is None:
            return everyone.expand_as(rows).flatten(0, 1)  # type: ignore[no-any-return]
        seen = visible[bucket.rows].view(rows.shape[:2])
        of_seen = self.project(pool(rows, seen, self.pooling)).unsqueeze(1)
        return torch.where(seen.unsqueeze(2), of_seen, everyone).flatten(0, 1)


def pool(x: Tensor, among: Tensor | None, pooling: str) -> Tensor:
    """Return the mean and maximum of each frame.

    Args:
        x: (b, n, d).
        among: (b, n) bool, the rows to pool; None for all. Both are zero where there is no row.
        pooling: "mean", "max" or "meanmax".

    Returns:
        (b, d), or (b, 2 * d) with the mean before the maximum.
    """
    parts = []
    if "mean" in pooling:
        parts.append(masked_mean(x, among))
    if "max" in pooling:
        masked = x if among is None else x.masked_fill(~among.unsqueeze(2), -math.inf)
        largest = masked.amax(dim=1)
        parts.append(largest.masked_fill(largest == -math.inf, 0))
    return torch.cat(parts, dim=1)
