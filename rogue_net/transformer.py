"""The transformer: pre-norm blocks over padded frames, and the mean over a frame."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rogue_net.layout import Bucket, Layout


class Transformer(nn.Module):
    """A stack of blocks in which the entities of a frame attend to each other.

    There is no positional encoding: permuting the entities of a frame permutes the result.
    """

    def __init__(self, n_layer: int, n_head: int, d_model: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(n_head, d_model) for _ in range(n_layer))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor, layout: Layout, visible: Tensor | None) -> Tensor:
        """Padded rows in, padded rows out.

        Args:
            x: (P, d_model), the padded rows of `layout`.
            layout: which rows make a frame.
            visible: (P,) bool, what visible entities may attend to; None when it is everything.
                Invisible entities may attend to all.
        """
        masks = [attention_mask(bucket, visible) for bucket in layout.buckets]
        for block in self.blocks:
            x = block(x, layout, masks)
        return x


class Block(nn.Module):
    """Attention, then a multi-layer perceptron, each added to its input."""

    def __init__(self, n_head: int, d_model: int) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(d_model)
        self.attention = Attention(n_head, d_model)
        self.norm_2 = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(
            nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model)
        )

    def forward(self, x: Tensor, layout: Layout, masks: list[Tensor | None]) -> Tensor:
        """(P, d_model) -> (P, d_model)."""
        x = x + self.attention(self.norm_1(x), layout, masks)
        x = x + self.mlp(self.norm_2(x))
        return x


class Attention(nn.Module):
    """Multi-head attention between the entities of each frame."""

    def __init__(self, n_head: int, d_model: int) -> None:
        super().__init__()
        self.n_head = n_head
        self.query_key_value = nn.Linear(d_model, 3 * d_model)
        self.project = nn.Linear(d_model, d_model)

    def forward(self, x: Tensor, layout: Layout, masks: list[Tensor | None]) -> Tensor:
        """(P, d_model) -> (P, d_model)."""
        qkv = self.query_key_value(x)
        mixed = [
            self.attend(qkv[bucket.rows], bucket, mask)
            for bucket, mask in zip(layout.buckets, masks, strict=True)
        ]
        y = mixed[0] if len(mixed) == 1 else torch.cat([x[:0], *mixed])
        return self.project(y)  # type: ignore[no-any-return]

    def attend(self, qkv: Tensor, bucket: Bucket, mask: Tensor | None) -> Tensor:
        """(b * n, 3 * d_model) -> (b * n, d_model), for one bucket."""
        b, n, d = bucket.num_frames, bucket.length, qkv.shape[-1] // 3
        if n == 1:  # an entity alone attends to itself
            return qkv[:, 2 * d :]
        q, k, v = qkv.view(b, n, 3, self.n_head, d // self.n_head).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # (b, H, n, d_head)
        return y.transpose(1, 2).reshape(b * n, d)


def attention_mask(bucket: Bucket, visible: Tensor | None) -> Tensor | None:
    """(b, 1, 1 or n, n) bool, True where row i of a frame may attend to row j; None for all.

    Padding attends to everything, so that no row is without anything to attend to.
    """
    b, n = bucket.num_frames, bucket.length
    is_entity = bucket.is_entity
    if visible is None:
        return None if is_entity is None else is_entity.view(b, 1, 1, n)
    seen = visible[bucket.rows].view(b, n)
    allowed = seen[:, None, :] | ~seen[:, :, None]
    if is_entity is not None:
        allowed = (allowed | ~is_entity[:, :, None]) & is_entity[:, None, :]
    return allowed[:, None]


def mean_over_frames(x: Tensor, layout: Layout) -> Tensor:
    """The mean over the entities of each frame; zero for an empty frame.

    Args:
        x: (P, d), padded rows.
        layout: which rows make a frame.

    Returns:
        (B, d).
    """
    means = []
    for bucket in layout.buckets:
        rows = x[bucket.rows].view(bucket.num_frames, bucket.length, -1)
        if bucket.is_entity is None:
            means.append(rows.mean(dim=1))
        else:
            is_entity = bucket.is_entity.unsqueeze(-1)
            means.append((rows * is_entity).sum(dim=1) / is_entity.sum(dim=1))
    pooled = x.new_zeros(len(layout.lengths), x.shape[1])
    if not means:
        return pooled
    return pooled.index_copy(0, layout.frame_order, torch.cat(means))
