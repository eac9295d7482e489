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
    """Pooling over the entities of a frame, between two projections.

    Visible entities get the pooled visible entities, so that invisible entities do not influence
    them; invisible entities get the pooled entities of the frame.

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
        """Replace each entity by its pooled frame, (P, d_model) -> (P, d_model)."""
        assert isinstance(context, PaddedContext)
        x = self.prepool(x)
        pooled = [
            self.of_bucket(rows, bucket, context.visible)
            for rows, bucket in zip(of_buckets(x, context.buckets), context.buckets, strict=True)
        ]
        return torch.cat([x[:0], *pooled])

    def of_bucket(self, x: Tensor, bucket: Bucket, visible: Tensor | None) -> Tensor:
        """Pool the frames of a bucket, (b * n, d_model) -> (b * n, d_model)."""
        rows = x.view(bucket.num_frames, bucket.length, -1)
        pooled_all = self.project(pool(rows, bucket.is_entity, self.pooling)).unsqueeze(1)
        if visible is None:
            return pooled_all.expand_as(rows).flatten(0, 1)  # type: ignore[no-any-return]
        is_visible = visible[bucket.rows].view(rows.shape[:2])
        pooled_visible = self.project(pool(rows, is_visible, self.pooling)).unsqueeze(1)
        return torch.where(is_visible.unsqueeze(2), pooled_visible, pooled_all).flatten(0, 1)


def pool(x: Tensor, mask: Tensor | None, pooling: str) -> Tensor:
    """Compute the mean and the maximum over the rows of each frame.

    Args:
        x: (b, n, d).
        mask: (b, n) bool, the rows to pool; None for all. The result is zero without any row.
        pooling: "mean", "max" or "meanmax".

    Returns:
        (b, d), or (b, 2 * d) with the mean before the maximum.
    """
    parts = []
    if "mean" in pooling:
        parts.append(masked_mean(x, mask))
    if "max" in pooling:
        masked = x if mask is None else x.masked_fill(~mask.unsqueeze(2), -math.inf)
        largest = masked.amax(dim=1)
        parts.append(largest.masked_fill(largest == -math.inf, 0))
    return torch.cat(parts, dim=1)


class Block(nn.Module):
    """Residual block: attention or pooling, then a multi-layer perceptron.

    Args:
        mixer: the attention or pooling layer.
        d_model: width of the entities.
        resid_pdrop: dropout probability of the residual branches.
        site: index of the block's first dropout site.
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

    def forward(self, x: Tensor, context: Context, output_rows: Tensor | None = None) -> Tensor:
        """Transform entities, (P, d_model) -> (P, d_model), or (n, d_model).

        Args:
            x: the entities.
            context: of these rows.
            output_rows: (n,) int64, the entities to return, while the rest are only attended to;
                not supported with dropout and pooling. None for all.
        """
        keys = context.keys
        # x + attention(norm(x)), then x + mlp(norm(x))
        if output_rows is None:
            mixed = self.attention(self.norm_1(x), context)
        else:
            assert isinstance(self.attention, Attention)
            mixed = context.mix(self.attention, self.norm_1(x)).index_select(0, output_rows)
            mixed, x = self.attention.project(mixed), x.index_select(0, output_rows)
        x = x + dropout(mixed, self.pdrop, keys, self.site)
        x = x + dropout(self.mlp(self.norm_2(x)), self.pdrop, keys, self.site + 1)
        return x

    def parameters_in_order(self) -> list[Tensor]:
        """Return the weight and bias of each layer, in the order of the forward pass."""
        assert isinstance(self.attention, Attention)
        mixer, (up, _, down) = self.attention, self.mlp
        mixed: list[Any] = [self.norm_1, mixer.query_key_value, mixer.project]
        parts = [*mixed, self.norm_2, up, down]
        return [parameter for part in parts for parameter in (part.weight, part.bias)]


class Transformer(nn.Module):
    """Stack of transformer blocks over the entities of a frame.

    Without relative positions it is equivariant to permutations of the entities of a frame.

    Args:
        config: sizes, pooling and dropout probabilities.
        first_block: number of blocks of the network before these. If it is above 0, there is no
            dropout before the first block, and the blocks are initialised to the identity.
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
        last_layers: list[Any] = [end for b in blocks for end in (b.attention.project, b.mlp[2])]
        if first_block:
            for layer in last_layers:
                nn.init.zeros_(layer.weight)
        elif config.init == "scaled":
            # std / (2 sqrt(n_layer)): the 2 * n_layer residual branches together add at most half
            # the variance of a row.
            with torch.no_grad():
                for layer in last_layers:
                    if not layer.weight.is_meta:
                        layer.weight /= 2 * math.sqrt(config.n_layer)

    def parameters_in_order(self) -> list[Tensor]:
        """Return the parameters of all blocks in the order of the forward pass."""
        blocks = (block for block in self.blocks if isinstance(block, Block))
        return [parameter for block in blocks for parameter in block.parameters_in_order()]

    def first_parameter(self) -> Tensor | None:
        """Return a parameter, for its device and dtype; None without blocks."""
        block = self.blocks[0] if self.blocks else None
        return block.norm_1.weight if isinstance(block, Block) else None

    def forward(self, x: Tensor, context: Context, output_rows: Tensor | None = None) -> Tensor:
        """Transform the rows of a batch, (P, d_model) -> (P, d_model).

        Args:
            x: the rows.
            context: of these rows.
            output_rows: the rows that the last block returns, see `Block`; in a context with a
                single microbatch.
        """
        outputs = [self._through(rows, piece, output_rows) for rows, piece in context.pieces(x)]
        return outputs[0] if len(outputs) == 1 else torch.cat(outputs)

    def _through(self, x: Tensor, context: Context, output_rows: Tensor | None) -> Tensor:
        x = dropout(x, self.pdrop, context.keys, 0)
        for block in self.blocks[:-1]:
            x = block(x, context)
        for block in self.blocks[-1:]:
            x = block(x, context, output_rows)
        return x


def init_linear(module: nn.Module, scheme: Init) -> None:
    """Initialise a linear layer with normally distributed weights and zero bias.

    Scaled weights preserve the variance of the input at every width (LeCun et al. 1998, "Efficient
    BackProp"). `Transformer` then divides the last layers of residual branches.

    Args:
        module: a linear layer; other modules are ignored.
        scheme: "scaled" for N(0, 1 / fan_in), "published" for N(0, 0.02^2).
    """
    # On meta, torch would import its compiler to initialise weights, which takes a second.
    if isinstance(module, nn.Linear) and not module.weight.is_meta:
        std = 0.02 if scheme == "published" else module.in_features**-0.5
        nn.init.normal_(module.weight, std=std)
        nn.init.zeros_(module.bias)
