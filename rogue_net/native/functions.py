"""Compiled embedding, attention and means over packed frames, with gradients for torch.

All numbers are float32 on the CPU. The functions compute the same as `embedding.py`, `attention.py`
and `pooling.py` in torch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rogue_net.native import packed
from rogue_net.native.library import PairCells, address, call
from rogue_net.native.packed import (
    Call,
    PackedFrames,
    PackedPairs,
    PackedRows,
    Tables,
    TypeRows,
    contiguous,
    embedding,
    zeros_like,
)


def embed(types: Sequence[TypeRows], num_rows: int, width: int, clip: float) -> Tensor:
    """Embed all entities.

    Args:
        types: the entities; together they have every row.
        num_rows: R.
        width: d_model.
        clip: of normalised features.

    Returns:
        (R, d_model).
    """
    parameters = [parameter for one in types for parameter in one.parameters]
    x: Tensor = _Embed.apply(types, num_rows, width, clip, *parameters)  # type: ignore[no-untyped-call]
    return x


def pair_cells(
    frames: PackedFrames,
    *,
    position: Tensor,
    heading: Tensor | None,
    placed: Tensor | None,
    first_value: Tensor | None,
    radial: bool,
    distance: bool,
    interpolate: bool,
    extent: Sequence[int],
    scale: float,
    num_cells: int,
    corners: int,
    no_row: tuple[int, int],
) -> PackedPairs:
    """Return the cells of each pair, see `RelposEncodingConfig` and `relpos_cells.py`.

    Args:
        frames: the rows of each frame.
        position: (R, axes) float32.
        heading: (R,) float32, angle in radians; None if all are 0.
        placed: (R,) bool, True for rows with a position; None if all have one.
        first_value: (R,) int32, the first row of the values of each target; None if values have
            the rows of keys.
        radial: a setting of the encoding, like the next four.
        distance: a setting.
        interpolate: a setting.
        extent: a setting.
        scale: a setting.
        num_cells: the number of cells of the encoding.
        corners: the number of cells of each pair.
        no_row: the row of a pair without relative position in the tables of keys and of values.
    """
    # Memory for the result.
    num_pairs = int(frames.pair_start[-1])
    rows = torch.empty(num_pairs, corners, dtype=torch.int32)
    values = torch.empty_like(rows) if first_value is not None else None
    weights = torch.empty(num_pairs, corners) if interpolate else None
    # Arrays that must live until the call is over, as it gets their addresses.
    position = position.contiguous()
    extents = np.array(extent, dtype=np.int64)
    placed = None if placed is None else placed.view(torch.uint8)
    call(
        "pair_cells",
        PairCells(
            num_frames=len(frames.lengths),
            row_start=address(frames.row_start),
            axes=position.shape[1],
            radial=radial,
            distance=distance,
            interpolate=interpolate,
            extent=address(extents),
            position=address(position),
            heading=address(heading),
            placed=address(placed),
            first_value=address(first_value),
            num_cells=num_cells,
            corners=corners,
            no_key=no_row[0],
            no_value=no_row[1],
            key_rows=address(rows),
            value_rows=address(values),
            weights=address(weights),
            inverse_scale=1.0 / scale,
        ),
    )
    keys = PackedRows(rows, weights)
    return PackedPairs(keys, keys if values is None else PackedRows(values, weights))


def attention(
    qkv: Tensor, frames: PackedFrames, heads: int, tables: Tables | None, gate: Tensor | None
) -> Tensor:
    """Attend within each frame; rows behind those of all frames are zero.

    Args:
        qkv: (R, 3 * d_model), queries, keys and values.
        frames: the rows of each frame.
        heads: H.
        tables: of the frames' pairs.
        gate: (R, d_head), the factors of each target's relative values; None for no gate.

    Returns:
        (R, d_model).
    """
    keys, values = (None, None) if tables is None else tables
    y: Tensor = _Attention.apply(qkv, gate, keys, values, frames, heads)  # type: ignore[no-untyped-call]
    return y


def frame_means(x: Tensor, frames: PackedFrames) -> Tensor:
    """Return the mean over the rows of each frame, (R, d) -> (B, d); zero without rows."""
    means: Tensor = _FrameMeans.apply(x, frames)  # type: ignore[no-untyped-call]
    return means


def embed_rows(types: Sequence[TypeRows], clip: float, out: Tensor) -> list[Tensor | None]:
    """Embed all entities into (R, d_model), and return activations for the backward pass."""
    width, kept = out.shape[1], []
    for one in types:
        made = packed.empty(len(one.x) * (width + 2)) if one.mean is not None else None
        call("embed_forward", embedding(one, width, made), width, clip, out)
        kept.append(made)
    return kept


def add_embedding_gradients(
    types: Sequence[TypeRows],
    kept: Sequence[Tensor | None],
    gradients: Sequence[Sequence[Tensor | None]],
    clip: float,
    dout: Tensor,
) -> None:
    """Add to the gradients of the types' parameters.

    Args:
        types: the entities.
        kept: begins with the activations of `embed_rows`.
        gradients: of the parameters of each type.
        clip: of normalised features.
        dout: (R, d_model), the gradient of the embedded entities.
    """
    width = dout.shape[1]
    for one, made, own in zip(types, kept[: len(types)], gradients, strict=True):
        call("embed_backward", embedding(one, width, made, own), width, clip, dout)


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        types: Sequence[TypeRows],
        num_rows: int,
        width: int,
        clip: float,
        *parameters: Tensor,
    ) -> Tensor:
        out = packed.empty(num_rows, width)
        kept = embed_rows(types, clip, out)
        ctx.save_for_backward(*kept, *parameters)
        ctx.rest = types, clip
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        types, clip = ctx.rest
        gradients = zeros_like(ctx.saved_tensors[len(types) :])
        left = iter(gradients)
        of_types = [[next(left) for _ in one.parameters] for one in types]
        add_embedding_gradients(types, ctx.saved_tensors, of_types, clip, dout.contiguous())
        return None, None, None, None, *gradients


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        qkv: Tensor,
        gate: Tensor | None,
        keys: Tensor | None,
        values: Tensor | None,
        frames: PackedFrames,
        heads: int,
    ) -> Tensor:
        qkv = qkv.contiguous()
        gate, keys, values = map(contiguous, (gate, keys, values))
        width = qkv.shape[1] // 3
        of_call = Call(frames, width, heads)
        of_call.set_tables(keys, values)
        weights, y = packed.empty(of_call.num_scores), packed.empty(len(qkv), width)
        call("attention_forward", of_call.frames, qkv, gate, weights, y)
        y[frames.num_rows :] = 0.0
        ctx.save_for_backward(qkv, gate, keys, values, weights)
        ctx.rest = frames, heads
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        qkv, gate, keys, values, weights = ctx.saved_tensors
        frames, heads = ctx.rest
        of_call = Call(frames, qkv.shape[1] // 3, heads)
        dkeys, dvalues, dgate = zeros_like((keys, values, gate))
        of_call.set_tables(keys, values)
        of_call.set_table_gradients(dkeys, dvalues)
        dqkv = packed.empty(*qkv.shape)
        call("attention_backward", of_call.frames, qkv, gate, weights, dy.contiguous(), dqkv, dgate)
        dqkv[frames.num_rows :] = 0.0
        return dqkv, dgate, dkeys, dvalues, None, None


class _FrameMeans(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, frames: PackedFrames) -> Tensor:
        ctx.rest = frames, len(x)
        means = packed.empty(len(frames.lengths), x.shape[1])
        of_call = Call(frames, x.shape[1])
        call("frame_means", of_call.frames, x.contiguous(), means)
        return means

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dmeans: Tensor) -> tuple[Tensor, None]:
        frames, num_rows = ctx.rest
        dx = dmeans.new_zeros(num_rows, dmeans.shape[1])
        of_call = Call(frames, dmeans.shape[1])
        call("frame_means_backward", of_call.frames, dmeans.contiguous(), dx)
        return dx, None
