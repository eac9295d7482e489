"""Compiled embedding, attention and frame means as differentiable torch functions.

Packed frames are stored one after the other, without padding. All tensors are float32 on the CPU.
The functions are equivalent to `embedding.py`, `attention.py` and `layout.py`.
"""

from collections.abc import Sequence
from copy import copy
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
    EmbeddingStruct,
    FramesStruct,
    address,
    call,
    uninitialised,
)


class PackedRows(NamedTuple):
    """Rows of a table for each pair, and their weights: v_p = sum_k weights_pk table[rows_pk].

    Attributes:
        rows: int32 (pairs, corners).
        weights: float32 (pairs, corners); None if all are 1.
    """

    rows: Tensor
    weights: Tensor | None


class PackedPairs(NamedTuple):
    """Relative positions of the pairs of all frames, sorted by frame, query and target."""

    keys: PackedRows
    values: PackedRows


@dataclass(frozen=True)
class PackedFrames:
    """B packed frames with R entities in total.

    Attributes:
        lengths: (B,) int64, the number of entities of each frame.
        visible: (R,) bool, the entities that visible entities may attend to; None for all.
        pairs: relative positions, or None.
        output_lengths: (B,) int64, the number of rows of each frame, from its first one on, that
            the last block outputs; the remaining rows are only attended to. None for all rows.
    """

    lengths: IntArray
    visible: Tensor | None = None
    pairs: PackedPairs | None = None
    output_lengths: IntArray | None = None

    def with_inputs(self, visible: Tensor | None, pairs: PackedPairs | None) -> "PackedFrames":
        """Return the same rows with these fields; the offsets are computed once for all."""
        offsets = self.row_start, self.padded_pair_start, pairs and self.pair_start
        assert offsets
        frames = copy(self)
        vars(frames).update(visible=visible, pairs=pairs)
        return frames

    @cached_property
    def row_start(self) -> IntArray:
        """(B + 1,) int64, the first row of each frame, and R."""
        return starts(self.lengths)

    @cached_property
    def output_start(self) -> IntArray | None:
        """(B + 1,) int64, `row_start` of the output rows; None if all rows are output."""
        return None if self.output_lengths is None else starts(self.output_lengths)

    @property
    def output_rows(self) -> Tensor:
        """(n,) int64, the output rows; requires `output_lengths`."""
        assert self.output_lengths is not None
        return torch.from_numpy(row_indices(self.row_start[:-1], self.output_lengths))

    @property
    def num_rows(self) -> int:
        """Number of rows, R."""
        return int(self.row_start[-1])

    @cached_property
    def pair_start(self) -> IntArray:
        """(B + 1,) int64, the first pair of each frame, and the number of pairs."""
        return starts(self.lengths**2)

    @cached_property
    def padded_pair_start(self) -> IntArray:
        """(B + 1,) int64, `pair_start` with targets padded to multiples of `VECTOR`."""
        return starts(self.lengths * (-(-self.lengths // VECTOR) * VECTOR))


class TypeRows(NamedTuple):
    """The n entities of a type, with the parameters of its embedding.

    Attributes:
        x: (n, features), not normalised, without gradient.
        label_rows: (n, kinds) int64, the row of each label in the last parameter; None without
            categorical features.
        mean: (features,); None for a type without features, like `std`.
        std: (features,).
        to: (n,) int64, the row of each entity among all entities.
        parameters: weight and bias of the linear layer and of the norm, then the label embeddings
            if there are any; or a single vector for a type without features.
    """

    x: Tensor
    label_rows: Tensor | None
    mean: Tensor | None
    std: Tensor | None
    to: Tensor
    parameters: Sequence[Tensor]


def embed(types: Sequence[TypeRows], num_rows: int, width: int) -> Tensor:
    """Embed the entities of all types.

    Args:
        types: the entities of each type, which cover all rows.
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
    """Attend within each frame; rows after the last frame are zero.

    Args:
        qkv: (R, 3 * d_model), queries, keys and values.
        frames: the rows of each frame.
        heads: H.
        tables: (rows, d_head) each, the relative keys and values that the pairs index, or None.
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
        out, activations = empty(num_rows, width), []
        for rows in types:
            buffer = None if rows.mean is None else empty(len(rows.x) * (width + 2))
            call("embed_forward", embedding(rows, width, buffer), width, CLIP, out)
            activations.append(buffer)
        ctx.save_for_backward(*activations, *parameters)
        ctx.types = types
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        types = ctx.types
        activations, parameters = ctx.saved_tensors[: len(types)], ctx.saved_tensors[len(types) :]
        gradients = zeros_like(parameters)
        dout, width = dout.contiguous(), dout.shape[1]
        remaining = iter(gradients)
        for rows, buffer in zip(types, activations, strict=True):
            grads = [next(remaining) for _ in rows.parameters]
            call("embed_backward", embedding(rows, width, buffer, grads), width, CLIP, dout)
        return None, None, None, *gradients


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, qkv: Tensor, frames: PackedFrames, heads: int, *relative: Tensor | None
    ) -> Tensor:
        qkv = qkv.contiguous()
        gate, keys, values = map(contiguous, relative)
        width = qkv.shape[1] // 3
        handle = FramesHandle(frames, width, heads)
        handle.set_tables(keys, values)
        weights, y = empty(handle.num_scores), empty(len(qkv), width)
        call("attention_forward", handle.frames, qkv, gate, weights, y)
        y[frames.num_rows :] = 0.0
        ctx.save_for_backward(qkv, gate, keys, values, weights)
        ctx.frames, ctx.heads = frames, heads
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        qkv, gate, keys, values, weights = ctx.saved_tensors
        frames, heads = ctx.frames, ctx.heads
        handle = FramesHandle(frames, qkv.shape[1] // 3, heads)
        dkeys, dvalues, dgate = zeros_like((keys, values, gate))
        handle.set_tables(keys, values)
        handle.set_tables(dkeys, dvalues, "table_grad")
        dqkv = empty(*qkv.shape)
        call("attention_backward", handle.frames, qkv, gate, weights, dy.contiguous(), dqkv, dgate)
        dqkv[frames.num_rows :] = 0.0
        return dqkv, None, None, dgate, dkeys, dvalues


class _FrameMeans(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, frames: PackedFrames) -> Tensor:
        ctx.frames, ctx.num_rows = frames, len(x)
        means = empty(len(frames.lengths), x.shape[1])
        handle = FramesHandle(frames, x.shape[1])
        call("frame_means", handle.frames, x.contiguous(), means)
        return means

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dmeans: Tensor) -> tuple[Tensor, None]:
        frames, num_rows = ctx.frames, ctx.num_rows
        dx = dmeans.new_zeros(num_rows, dmeans.shape[1])
        handle = FramesHandle(frames, dmeans.shape[1])
        call("frame_means_backward", handle.frames, dmeans.contiguous(), dx)
        return dx, None


class FramesHandle:
    """A `FramesStruct`, with references that keep the memory behind its pointers alive."""

    def __init__(self, frames: PackedFrames, width: int, heads: int = 1, layers: int = 1) -> None:
        scores = heads * frames.padded_pair_start
        self.num_scores = int(scores[-1])
        visible = None
        if frames.visible is not None:
            visible = frames.visible.contiguous().view(torch.uint8)
        self._alive = frames, scores, visible
        self.frames = FramesStruct(
            num_frames=len(frames.lengths),
            row_start=address(frames.row_start),
            score_start=address(scores),
            visible=address(visible),
            kept_start=address(frames.output_start),
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
        """Set the tables of relative keys and values, or their gradients with "table_grad"."""
        setattr(self.frames.keys, field, address(keys))
        setattr(self.frames.values, field, address(values))


def rows_of_type(entities: TypeRows) -> EmbeddingStruct:
    """Describe the entities of a type, without the parameters of the embedding."""
    return EmbeddingStruct(
        rows=len(entities.x),
        features=entities.x.shape[1],
        kinds=0 if entities.label_rows is None else entities.label_rows.shape[1],
        num_labels=0 if entities.label_rows is None else len(entities.parameters[-1]),
        x=address(entities.x),
        label_rows=address(entities.label_rows),
        mean=address(entities.mean),
        std=address(entities.std),
        to=address(entities.to),
    )


def embedding(
    entities: TypeRows, width: int, saved: Tensor | None, gradients: Sequence[Tensor | None] = ()
) -> EmbeddingStruct:
    """Describe the entities and the embedding of a type, with pointers into the arguments.

    Args:
        entities: the entities of a type.
        width: d_model.
        saved: (n * (d_model + 2),), activations for the backward pass; None for a type without
            features.
        gradients: gradients of the parameters, which are accumulated.
    """
    struct = rows_of_type(entities)
    struct.hidden = address(saved)
    if saved is not None:
        struct.stats = struct.hidden + saved.element_size() * len(entities.x) * width
    names = ["bias"] if saved is None else ["weight", "bias", "norm_weight", "norm_bias"]
    if entities.label_rows is not None:
        names.append("labels")
    for name, parameter in zip(names, entities.parameters, strict=True):
        setattr(struct, name, address(parameter))
    for name, gradient in zip(names, gradients, strict=bool(gradients)):
        setattr(struct, f"{name}_grad", address(gradient))
    return struct


def starts(sizes: IntArray) -> IntArray:
    """Return the cumulative sums of sizes with a leading 0: (n,) -> (n + 1,) int64."""
    return np.concatenate([[0], np.cumsum(sizes)])


def empty(*shape: int) -> Tensor:
    """Return an uninitialised float32 tensor for compiled code to write into."""
    return uninitialised(shape, torch.float32)


def contiguous(x: Tensor | None) -> Tensor | None:
    """Return a tensor in contiguous memory; None for None."""
    return None if x is None else x.contiguous()


def zeros_like(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return zeros in the shapes of tensors, as views of one allocation."""
    return cut(torch.zeros(sum(sizes(tensors))), tensors)


def cut(numbers: Tensor, like: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Split a flat tensor into views in the shapes of other tensors."""
    parts = torch.split(numbers, sizes(like))
    return [None if x is None else part.view(x.shape) for x, part in zip(like, parts, strict=True)]


def sizes(tensors: Sequence[Tensor | None]) -> list[int]:
    """Return the number of elements of each tensor; 0 for None."""
    return [0 if x is None else x.numel() for x in tensors]
