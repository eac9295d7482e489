"""Compiled embedding, attention and means over packed frames, with gradients for torch.

Packed frames lie one after the other without padding. All numbers are float32 on the CPU. The
functions compute the same as `embedding.py`, `attention.py` and `layout.py` in torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from entity_env.arrays import IntArray
from entity_env.ragged import row_indices
from rogue_net.input_norm import CLIP
from rogue_net.native.library import (
    VECTOR,
    Embedding,
    Frames,
    address,
    call,
    uninitialised,
)


class PackedRows(NamedTuple):
    """Rows of a table, and their weights, whose sum is the vector of each pair.

    Attributes:
        rows: int32 (pairs, corners).
        weights: float32 (pairs, corners), None where all are 1.
    """

    rows: Tensor
    weights: Tensor | None


class PackedPairs(NamedTuple):
    """Pairs of all frames: by frame, then by query, then by target."""

    keys: PackedRows
    values: PackedRows


@dataclass(frozen=True)
class PackedFrames:
    """B frames of R entities in all.

    Attributes:
        lengths: (B,) int64, the entities of each frame.
        visible: (R,) bool, the entities that visible ones may attend to; None for all.
        pairs: relative positions; None without.
        kept: (B,) int64, the rows of each frame that come out of the last block, its first ones;
            the others are attended to only. None if all come out.
    """

    lengths: IntArray
    visible: Tensor | None = None
    pairs: PackedPairs | None = None
    kept: IntArray | None = None

    @cached_property
    def row_start(self) -> IntArray:
        """(B + 1,) int64, the first row of each frame, and the end of the last."""
        return starts(self.lengths)

    @cached_property
    def kept_start(self) -> IntArray | None:
        """(B + 1,) int64, like `row_start` of the rows that come out; None if all do."""
        return None if self.kept is None else starts(self.kept)

    @property
    def kept_rows(self) -> Tensor:
        """(n,) int64, the rows that come out, if not all do."""
        assert self.kept is not None
        return torch.from_numpy(row_indices(self.row_start[:-1], self.kept))

    @property
    def num_rows(self) -> int:
        """Number of rows, R."""
        return int(self.row_start[-1])

    @cached_property
    def pair_start(self) -> IntArray:
        """(B + 1,) int64, the first pair of each frame, and the end of the last."""
        return starts(self.lengths**2)

    @cached_property
    def padded_pair_start(self) -> IntArray:
        """(B + 1,) int64, like `pair_start` with targets padded to whole vectors."""
        return starts(self.lengths * (-(-self.lengths // VECTOR) * VECTOR))


class TypeRows(NamedTuple):
    """The n entities of a type, with the parameters of its embedding.

    Attributes:
        x: (n, features), not yet normalised; without a gradient.
        label_rows: (n, kinds) int64, the row of each label in the last parameter; None without
            kinds.
        mean: (features,), None of a type of one vector, like `std`.
        std: (features,).
        to: (n,) int64, the row of each among all entities.
        parameters: weight and bias of the linear layer and of the norm, then the vectors of
            labels, if there are kinds; one vector of a type without features and kinds.
    """

    x: Tensor
    label_rows: Tensor | None
    mean: Tensor | None
    std: Tensor | None
    to: Tensor
    parameters: Sequence[Tensor]


def embed(types: Sequence[TypeRows], num_rows: int, width: int) -> Tensor:
    """Embed all entities.

    Args:
        types: the entities; together they have every row.
        num_rows: R.
        width: d_model.

    Returns:
        (R, d_model).
    """
    parameters = [parameter for one in types for parameter in one.parameters]
    x: Tensor = _Embed.apply(types, num_rows, width, *parameters)  # type: ignore[no-untyped-call]
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
    y: Tensor = _Attention.apply(qkv, frames, heads, gate, *tables)  # type: ignore[no-untyped-call]
    return y


def frame_means(x: Tensor, frames: PackedFrames) -> Tensor:
    """Return the mean over the rows of each frame, (R, d) -> (B, d); zero without rows."""
    means: Tensor = _FrameMeans.apply(x, frames)  # type: ignore[no-untyped-call]
    return means


class _Embed(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, types: Sequence[TypeRows], num_rows: int, width: int, *parameters: Tensor
    ) -> Tensor:
        out, kept = empty(num_rows, width), []
        for one in types:
            made = None if one.mean is None else empty(len(one.x) * (width + 2))
            call("embed_forward", embedding(one, width, made), width, CLIP, out)
            kept.append(made)
        ctx.save_for_backward(*kept, *parameters)
        ctx.types = types
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        types = ctx.types
        kept, parameters = ctx.saved_tensors[: len(types)], ctx.saved_tensors[len(types) :]
        gradients = zeros_like(parameters)
        dout, width = dout.contiguous(), dout.shape[1]
        left = iter(gradients)
        for one, made in zip(types, kept, strict=True):
            own = [next(left) for _ in one.parameters]
            call("embed_backward", embedding(one, width, made, own), width, CLIP, dout)
        return None, None, None, *gradients


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, frames: PackedFrames, heads: int, *of_pairs: Tensor | None
    ) -> Tensor:
        qkv = qkv.contiguous()
        gate, keys, values = map(contiguous, of_pairs)
        width = qkv.shape[1] // 3
        of_call = Call(frames, width, heads)
        of_call.set_tables(keys, values)
        weights, y = empty(of_call.num_scores), empty(len(qkv), width)
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
        dqkv = empty(*qkv.shape)
        call("attention_backward", of_call.frames, qkv, gate, weights, dy.contiguous(), dqkv, dgate)
        dqkv[frames.num_rows :] = 0.0
        return dqkv, None, None, dgate, dkeys, dvalues


class _FrameMeans(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, frames: PackedFrames) -> Tensor:
        ctx.rest = frames, len(x)
        means = empty(len(frames.lengths), x.shape[1])
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


class Call:
    """`Frames` of `blocks.h`, and what its pointers point to, which must live as long."""

    def __init__(self, frames: PackedFrames, width: int, heads: int = 1, layers: int = 1) -> None:
        scores = heads * frames.padded_pair_start
        self.num_scores = int(scores[-1])
        visible = None
        if frames.visible is not None:
            visible = frames.visible.contiguous().view(torch.uint8)
        self._alive = frames, scores, visible
        self.frames = Frames(
            num_frames=len(frames.lengths),
            row_start=address(frames.row_start),
            score_start=address(scores),
            visible=address(visible),
            kept_start=address(frames.kept_start),
            width=width,
            heads=heads,
            layers=layers,
            num_networks=1,
        )
        if frames.pairs is not None:
            self.frames.pair_start = address(frames.pair_start)
            for rows, packed in zip(
                (self.frames.keys, self.frames.values), frames.pairs, strict=True
            ):
                rows.corners = packed.rows.shape[1]
                rows.rows, rows.weights = address(packed.rows), address(packed.weights)

    def set_tables(self, keys: Tensor | None, values: Tensor | None, field: str = "table") -> None:
        """Set the tables of relative keys and values, or "table_grad", which is added to."""
        setattr(self.frames.keys, field, address(keys))
        setattr(self.frames.values, field, address(values))


def rows_of_type(one: TypeRows) -> Embedding:
    """Return `Embedding` of `blocks.h` for the entities of a type, without its parameters."""
    return Embedding(
        rows=len(one.x),
        features=one.x.shape[1],
        kinds=0 if one.label_rows is None else one.label_rows.shape[1],
        num_labels=0 if one.label_rows is None else len(one.parameters[-1]),
        x=address(one.x),
        label_rows=address(one.label_rows),
        mean=address(one.mean),
        std=address(one.std),
        to=address(one.to),
    )


def embedding(
    one: TypeRows, width: int, made: Tensor | None, gradients: Sequence[Tensor | None] = ()
) -> Embedding:
    """Return `Embedding` of `blocks.h`, which points into the arguments: keep these alive.

    Args:
        one: the entities of a type.
        width: d_model.
        made: memory for the activations of the backward pass; None for a type of one vector.
        gradients: the gradients of its parameters, to be added to.
    """
    of_call = rows_of_type(one)
    of_call.hidden = address(made)
    if made is not None:
        of_call.stats = of_call.hidden + made.element_size() * len(one.x) * width
    names = ["bias"] if made is None else ["weight", "bias", "norm_weight", "norm_bias"]
    if one.label_rows is not None:
        names.append("labels")
    for name, parameter in zip(names, one.parameters, strict=True):
        setattr(of_call, name, address(parameter))
    for name, gradient in zip(names, gradients, strict=bool(gradients)):
        setattr(of_call, f"{name}_grad", address(gradient))
    return of_call


def starts(sizes: IntArray) -> IntArray:
    """Return the cumulative sums of sizes, from 0 on: (n,) -> (n + 1,) int64."""
    return np.concatenate([[0], np.cumsum(sizes)])


def empty(*shape: int) -> Tensor:
    """Return an uninitialised float32 tensor for compiled code to write into."""
    return uninitialised(shape, torch.float32)


def contiguous(x: Tensor | None) -> Tensor | None:
    """Return a contiguous copy of a tensor, or itself if it is; None for None."""
    return None if x is None else x.contiguous()


def zeros_like(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return zeros of these shapes in one block of memory: one operation for all of them."""
    return cut(torch.zeros(sum(sizes(tensors))), tensors)


def cut(numbers: Tensor, like: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return views of consecutive numbers in the shapes of some tensors."""
    parts = torch.split(numbers, sizes(like))
    return [None if x is None else part.view(x.shape) for x, part in zip(like, parts, strict=True)]


def sizes(tensors: Sequence[Tensor | None]) -> list[int]:
    """Return the number of elements of each tensor; 0 for None."""
    return [0 if x is None else x.numel() for x in tensors]
