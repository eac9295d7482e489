"""Compiled embedding, attention and means over packed frames, with gradients for torch.

All numbers are float32 on the CPU. The functions compute the same as `embedding.py`, `attention.py`
and `pooling.py` in torch.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rogue_net.native import packed
from rogue_net.native.library import call
from rogue_net.native.packed import (
    Call,
    PackedFrames,
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


def attention(
    qkv: Tensor,
    frames: PackedFrames,
    heads: int,
    tables: tuple[Tensor | None, Tensor | None],
    gate: Tensor | None,
) -> Tensor:
    """Attend within each frame; rows behind those of all frames are zero.

    Args:
        qkv: (R, 3 * d_model), queries, keys and values.
        frames: the rows of each frame.
        heads: H.
        tables: (rows, d_head) each, the relative keys and values of the frames' pairs, or None.
        gate: (R, d_head), the factors of each target's relative values; None for no gate.

    Returns:
        (R, d_model).
    """
    y: Tensor = _Attention.apply(qkv, gate, *tables, frames, heads)  # type: ignore[no-untyped-call]
    return y


def frame_means(x: Tensor, frames: PackedFrames) -> Tensor:
    """Return the mean over the rows of each frame, (R, d) -> (B, d); zero without rows."""
    means: Tensor = _FrameMeans.apply(x, frames)  # type: ignore[no-untyped-call]
    return means


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
        out, kept = packed.empty(num_rows, width), []
        for one in types:
            made = None if one.mean is None else packed.empty(len(one.x) * (width + 2))
            call("embed_forward", embedding(one, width, made), width, clip, out)
            kept.append(made)
        ctx.save_for_backward(*kept, *parameters)
        ctx.rest = types, clip
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        types, clip = ctx.rest
        kept, parameters = ctx.saved_tensors[: len(types)], ctx.saved_tensors[len(types) :]
        gradients = zeros_like(parameters)
        dout, width = dout.contiguous(), dout.shape[1]
        left = iter(gradients)
        for one, made in zip(types, kept, strict=True):
            own = [next(left) for _ in one.parameters]
            call("embed_backward", embedding(one, width, made, own), width, clip, dout)
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
        of_call.set_tables(dkeys, dvalues, "table_grad")
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
