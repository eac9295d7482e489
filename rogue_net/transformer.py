"""Transformer of pre-norm blocks over padded frames, with attention or pooling."""

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from rogue_net.attention import Attention, Context, PaddedContext, dropout
from rogue_net.config import Init, RogueNetConfig
from rogue_net.layout import Bucket, masked_mean, of_buckets

SITES_PER_BLOCK = 3
"""Number of dropout sites in a block."""


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


class Block(nn.Module):
    """Residual block: attention or pooling, then a multi-layer perceptron.

    Args:
        mixer: the attention or pooling layer.
        d_model: width of the entities.
        resid_pdrop: dropout probability of the residual branches.
        site: the number of the block's first dropout site.
    """

    def __init__(
        self, mixer: Attention | Pool, d_model: int, resid_pdrop: float = 0.0, site: int = 0
    ) -> None:
        super().__init__()
        self.pdrop = resid_pdrop
        self.site = site
        self.norm_1 = nn.LayerNorm(d_model)
        self.attention = mixer
        self.norm_2 = nn.LayerNorm(d_model)
        self.mlp = nn.Sequential(
            nn.Linear(d_model, 4 * d_model), nn.GELU(), nn.Linear(4 * d_model, d_model)
        )

    def forward(self, x: Tensor, context: Context, kept: Tensor | None = None) -> Tensor:
        """Transform entities, (P, d_model) -> (P, d_model), or (len(kept), d_model).

        Args:
            x: the entities.
            context: of these.
            kept: (n,) int64, the entities to return, without dropout and pooling; the others are
                attended to only. None for all.
        """
        keys = context.keys
        # x + attention(norm(x)), then x + mlp(norm(x))
        if kept is None:
            mixed = self.attention(self.norm_1(x), context)
        else:
            assert isinstance(self.attention, Attention)
            mixed = context.mix(self.attention, self.norm_1(x)).index_select(0, kept)
            mixed, x = self.attention.project(mixed), x.index_select(0, kept)
        x = x + dropout(mixed, self.pdrop, keys, self.site)
        x = x + dropout(self.mlp(self.norm_2(x)), self.pdrop, keys, self.site + 1)
        return x

    def parameters_in_order(self) -> list[Tensor]:
        """Return weight and bias of each layer, in the order of the forward pass."""
        assert isinstance(self.attention, Attention)
        mixer, (up, _, down) = self.attention, self.mlp
        mixed: list[Any] = [self.norm_1, mixer.query_key_value, mixer.project]
        parts = [*mixed, self.norm_2, up, down]
        return [parameter for part in parts for parameter in (part.weight, part.bias)]


class Transformer(nn.Module):
    """Stack of blocks in which the entities of a frame attend to each other.

    Without relative positions it is equivariant: permuting the entities of a frame permutes the
    result.

    Args:
        config: sizes, pooling and dropout probabilities.
        first_block: number of blocks of the network before these. Where there are any, the rows
            come from them: there is no dropout before the first block, and at first the blocks
            change nothing.
    """

    def __init__(self, config: RogueNetConfig, first_block: int = 0) -> None:
        super().__init__()
        self.pdrop = 0.0 if first_block else config.embd_pdrop
        width, blocks = config.d_model, []
        for block in range(first_block, first_block + config.n_layer):
            site = 1 + block * SITES_PER_BLOCK
            mixer: Attention | Pool = Attention(config.n_head, width, config.attn_pdrop, site + 2)
            if config.pooling is not None:
                mixer = Pool(config.pooling, width)
            blocks.append(Block(mixer, width, config.resid_pdrop, site))
        self.blocks = nn.ModuleList(blocks)
        self.apply(partial(init_linear, scheme=config.init))
        ends: list[Any] = [end for b in blocks for end in (b.attention.project, b.mlp[2])]
        if first_block:
            for layer in ends:
                nn.init.zeros_(layer.weight)
        elif config.init == "scaled":
            # The 2 * n_layer residual branches together add at most half the variance of a row.
            with torch.no_grad():
                for layer in ends:
                    if not layer.weight.is_meta:
                        layer.weight /= 2 * math.sqrt(config.n_layer)

    def parameters_in_order(self) -> list[Tensor]:
        """Return the parameters of all blocks in the order of the forward pass."""
        blocks = (block for block in self.blocks if isinstance(block, Block))
        return [parameter for block in blocks for parameter in block.parameters_in_order()]

    def first_parameter(self) -> Tensor | None:
        """Return a parameter, which has the device and dtype of all, or None without blocks."""
        block = self.blocks[0] if self.blocks else None
        return block.norm_1.weight if isinstance(block, Block) else None

    def forward(self, x: Tensor, context: Context, kept: Tensor | None = None) -> Tensor:
        """Transform the rows of the layout of `context`, (P, d_model) -> (P, d_model).

        Args:
            x: the rows.
            context: of these.
            kept: the rows that come out of the last block, in a context of one piece; see `Block`.
        """
        done = [self._through(rows, piece, kept) for rows, piece in context.pieces(x)]
        return done[0] if len(done) == 1 else torch.cat(done)

    def _through(self, x: Tensor, context: Context, kept: Tensor | None) -> Tensor:
        x = dropout(x, self.pdrop, context.keys, 0)
        for block in self.blocks[:-1]:
            x = block(x, context)
        for block in self.blocks[-1:]:
            x = block(x, context, kept)
        return x


def init_linear(module: nn.Module, scheme: Init) -> None:
    """Initialise a linear layer with normally distributed weights and zero bias.

    Scaled weights keep the variance of their input at every width (LeCun et al. 1998, "Efficient
    BackProp"), so that rows of different frames differ by the same share at every width. A
    transformer then divides those that end residual branches.

    Args:
        module: a layer; other modules stay as they are.
        scheme: "scaled" for N(0, 1 / fan_in), "published" for N(0, 0.02^2).
    """
    # There is nothing to draw on meta, where torch would import its compiler for it: a second.
    if isinstance(module, nn.Linear) and not module.weight.is_meta:
        std = 0.02 if scheme == "published" else module.in_features**-0.5
        nn.init.normal_(module.weight, std=std)
        nn.init.zeros_(module.bias)
