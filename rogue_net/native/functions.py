"""Attention, blocks and means over packed frames, with their gradients, for torch.

Packed frames lie one after the other, without padding. All numbers are float32 on the CPU. What
these functions compute is what `attention.py`, `transformer.py` and `pooling.py` do in torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rogue_net.native.library import (
    GATES,
    VECTOR,
    Embedding,
    Frames,
    PairCells,
    address,
    call,
    numbers_for_backward,
)
from rogue_net.native.threads import num_parts, num_threads
from rogue_net.ragged import Lengths


class PackedRows(NamedTuple):
    """Which rows of a table make the vector of each pair.

    Attributes:
        rows: int32 (pairs, corners).
        weights: float32 (pairs, corners), None where all are 1.
    """

    rows: Tensor
    weights: Tensor | None


class PackedPairs(NamedTuple):
    """The pairs of all frames: of each frame query by query, of each query target by target."""

    keys: PackedRows
    values: PackedRows


@dataclass(frozen=True)
class PackedFrames:
    """B frames of R entities.

    Attributes:
        lengths: (B,) int64, the entities of each frame.
        visible: (R,) bool, what visible entities may attend to; None when it is everything.
        pairs: relative positions; None without.
    """

    lengths: Lengths
    visible: Tensor | None = None
    pairs: PackedPairs | None = None

    @cached_property
    def row_start(self) -> Lengths:
        """(B + 1,) int64, where the rows of each frame begin, and the end of the last."""
        return _starts(self.lengths)

    @cached_property
    def pair_start(self) -> Lengths:
        """(B + 1,) int64, where the pairs of each frame begin."""
        return _starts(self.lengths**2)

    @cached_property
    def padded_pair_start(self) -> Lengths:
        """(B + 1,) int64, where they would begin with targets padded to whole vectors."""
        return _starts(self.lengths * (-(-self.lengths // VECTOR) * VECTOR))


class Tables(NamedTuple):
    """What relative positions add, each with a gradient: (rows, d_head) of keys and of values."""

    keys: Tensor
    values: Tensor


class Gate(NamedTuple):
    """By what each target multiplies its relative values: a function of a linear layer.

    Attributes:
        kind: "linear", "relu", "gelu" or "sigmoid".
        weight: (d_head, d_model).
        bias: (d_head,).
    """

    kind: str
    weight: Tensor
    bias: Tensor


class TypeRows(NamedTuple):
    """The n entities of a type.

    Attributes:
        x: (n, features), not yet normalised; without a gradient.
        mean: (features,), None of no features, like `std`.
        std: (features,).
        to: (n,) int64, which row of all each is.
        parameters: weight and bias of the linear layer and of the norm; of no features, one vector.
    """

    x: Tensor
    mean: Tensor | None
    std: Tensor | None
    to: Tensor
    parameters: Sequence[Tensor]


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
    """Which cells of an encoding each pair has, see `RelposEncodingConfig` and `relpos_cells.py`.

    Args:
        frames: which rows make a frame.
        position: (R, axes) float32.
        heading: (R,) float32, angle in radians; None where all are 0.
        placed: (R,) bool, which rows have a position; None where all do.
        first_value: (R,) int32, the first row of the values of each target; None where values have
            the rows of keys.
        radial: of the encoding, like the next four.
        distance: of it.
        interpolate: of it.
        extent: of it.
        scale: of it.
        num_cells: cells of the encoding.
        corners: cells of each pair.
        no_row: of keys and values, the row of a pair without relative position.
    """
    num_pairs = int(frames.pair_start[-1])
    rows = torch.empty(num_pairs, corners, dtype=torch.int32)
    values = torch.empty_like(rows) if first_value is not None else None
    weights = torch.empty(num_pairs, corners) if interpolate else None
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
    """Attention between the entities of each frame.

    Args:
        qkv: (R, 3 * d_model), queries, keys and values.
        frames: which rows make a frame.
        heads: H.
        tables: of the frames' pairs.
        gate: (R, d_head), by what each target multiplies its relative values; None for nothing.

    Returns:
        (R, d_model).
    """
    keys, values = (None, None) if tables is None else tables
    y: Tensor = _Attention.apply(qkv, gate, keys, values, frames, heads)  # type: ignore[no-untyped-call]
    return y


def blocks(
    x: Tensor,
    frames: PackedFrames,
    heads: int,
    parameters: Sequence[Tensor],
    tables: Tables | None,
    gate: Gate | None,
) -> Tensor:
    """All blocks of a transformer.

    Args:
        x: (R, d_model).
        frames: which rows make a frame.
        heads: H.
        parameters: of each block weight and bias of: norm_1, query_key_value, project, norm_2, and
            both layers of the perceptron.
        tables: of the frames' pairs.
        gate: of all blocks.

    Returns:
        (R, d_model).
    """
    kind, *of_gate = (None, None, None) if gate is None else gate
    of_tables = (None, None) if tables is None else tables
    keep = torch.is_grad_enabled()
    y: Tensor = _Blocks.apply(  # type: ignore[no-untyped-call]
        x, frames, heads, kind, keep, *of_tables, *of_gate, *parameters
    )
    return y


def frame_means(x: Tensor, frames: PackedFrames) -> Tensor:
    """(R, d) -> (B, d), the mean over the rows of each frame; zero for an empty one."""
    means: Tensor = _FrameMeans.apply(x, frames)  # type: ignore[no-untyped-call]
    return means


class _Call:
    """`Frames` of `blocks.h`, and what its pointers point to, which must live as long."""

    def __init__(self, frames: PackedFrames, width: int, heads: int = 1, layers: int = 1) -> None:
        scores = heads * frames.padded_pair_start
        self.num_scores = int(scores[-1])
        self.alive: list[Any] = [frames, scores]
        self.frames = Frames(
            num_frames=len(frames.lengths),
            row_start=address(frames.row_start),
            score_start=address(scores),
            width=width,
            heads=heads,
            layers=layers,
        )
        if frames.visible is not None:
            self.set(visible=frames.visible.contiguous().view(torch.uint8))
        if frames.pairs is not None:
            self.frames.pair_start = address(frames.pair_start)
            for of_frames, packed in zip(self._pair_rows(), frames.pairs, strict=True):
                of_frames.corners = packed.rows.shape[1]
                self.set(of_frames, rows=packed.rows, weights=packed.weights)

    def set(self, struct: Any = None, **tensors: Tensor | None) -> None:
        """Set some of the pointers, of the frames if nothing else is named."""
        for name, x in tensors.items():
            self.alive.append(x)
            setattr(self.frames if struct is None else struct, name, address(x))

    def set_tables(self, *tables: Tensor | None) -> None:
        """Set the tables of relative keys and values."""
        for of_frames, table in zip(self._pair_rows(), tables, strict=True):
            self.set(of_frames, table=table)

    def set_table_gradients(self, *gradients: Tensor | None) -> None:
        """Set what the tables' gradients are added to."""
        for of_frames, gradient in zip(self._pair_rows(), gradients, strict=True):
            self.set(of_frames, table_grad=gradient)

    def _pair_rows(self) -> tuple[Any, Any]:
        return self.frames.keys, self.frames.values

    def set_gate(self, kind: str | None, weight: Tensor | None, bias: Tensor | None) -> None:
        """Set the gate of the blocks."""
        self.frames.gate_kind = GATES.index(kind)
        self.set(gate_weight=weight, gate_bias=bias)

    def set_parts(self, num_rows: int, num_gradients: int = 0) -> int:
        """Set how blocks are shared among threads, and return in how many parts."""
        self.frames.threads = num_threads()
        self.frames.parts = num_parts(num_rows, self.frames.width, num_gradients)
        self.frames.gradient_stride = num_gradients
        return int(self.frames.parts)


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
        out = parameters[0].new_empty(num_rows, width)
        kept = []
        for one in types:
            made = out.new_empty(len(one.x) * (width + 2)) if one.mean is not None else None
            call("embed_forward", _embedding(one, width, made), width, clip, out)
            kept.append(made)
        ctx.save_for_backward(*kept, *parameters)
        ctx.rest = types, clip
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dout: Tensor) -> tuple[Tensor | None, ...]:
        types, clip = ctx.rest
        gradients = _zeros_like(ctx.saved_tensors[len(types) :])
        dout, left = dout.contiguous(), iter(gradients)
        for one, made in zip(types, ctx.saved_tensors, strict=False):
            own = [next(left) for _ in one.parameters]
            of_call = _embedding(one, dout.shape[1], made)
            names = ("weight_grad", "bias_grad", "norm_weight_grad", "norm_bias_grad")
            for name, gradient in zip(names if len(own) > 1 else names[1:2], own, strict=True):
                setattr(of_call, name, address(gradient))
            call("embed_backward", of_call, dout.shape[1], clip, dout)
        return None, None, None, None, *gradients


def _embedding(one: TypeRows, width: int, made: Tensor | None) -> Embedding:
    """`Embedding` of `blocks.h`; what its pointers point to are the arguments."""
    num_rows = len(one.x)
    of_call = Embedding(
        rows=num_rows,
        features=0 if made is None else one.x.shape[1],
        x=address(one.x),
        mean=address(one.mean),
        std=address(one.std),
        to=address(one.to),
        hidden=address(made),
        stats=None if made is None else made.data_ptr() + 4 * num_rows * width,
    )
    if made is None:
        of_call.bias = address(one.parameters[0])
        return of_call
    for name, parameter in zip(
        ("weight", "bias", "norm_weight", "norm_bias"), one.parameters, strict=True
    ):
        setattr(of_call, name, address(parameter))
    return of_call


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
        gate, keys, values = map(_contiguous, (gate, keys, values))
        width = qkv.shape[1] // 3
        of_call = _Call(frames, width, heads)
        of_call.set_tables(keys, values)
        weights, y = qkv.new_empty(of_call.num_scores), qkv.new_empty(len(qkv), width)
        call("attention_forward", of_call.frames, qkv, gate, weights, y)
        ctx.save_for_backward(qkv, gate, keys, values, weights)
        ctx.rest = frames, heads
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        qkv, gate, keys, values, weights = ctx.saved_tensors
        frames, heads = ctx.rest
        of_call = _Call(frames, qkv.shape[1] // 3, heads)
        dkeys, dvalues, dgate = _zeros_like((keys, values, gate))
        of_call.set_tables(keys, values)
        of_call.set_table_gradients(dkeys, dvalues)
        dqkv = torch.empty_like(qkv)
        call("attention_backward", of_call.frames, qkv, gate, weights, dy.contiguous(), dqkv, dgate)
        return dqkv, dgate, dkeys, dvalues, None, None


PARAMETERS_OF_BLOCK = 12


class _Blocks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        frames: PackedFrames,
        heads: int,
        gate_kind: str | None,
        keep: bool,
        *weights: Tensor | None,
    ) -> Tensor:
        keys, values, gate_weight, gate_bias, *parameters = map(_contiguous, weights)
        of_call = _Call(frames, x.shape[1], heads, len(parameters) // PARAMETERS_OF_BLOCK)
        of_call.set_tables(keys, values)
        of_call.set_gate(gate_kind, gate_weight, gate_bias)
        of_call.set_parts(len(x))
        y = x.clone(memory_format=torch.contiguous_format)
        made = x.new_empty(numbers_for_backward(of_call.frames)) if keep else None
        call("blocks_forward", of_call.frames, parameters, y, made)
        if keep:
            ctx.save_for_backward(keys, values, gate_weight, gate_bias, *parameters, made)
            ctx.rest = frames, heads, gate_kind
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        *weights, made = ctx.saved_tensors
        keys, values, gate_weight, gate_bias, *parameters = weights
        frames, heads, gate_kind = ctx.rest
        of_call = _Call(frames, dy.shape[1], heads, len(parameters) // PARAMETERS_OF_BLOCK)
        sizes = _sizes(weights)
        of_parts = torch.zeros(of_call.set_parts(len(dy), sum(sizes)), sum(sizes))
        gradients = _cut(of_parts[0], weights)
        dkeys, dvalues, dgate_weight, dgate_bias, *of_parameters = gradients
        of_call.set_tables(keys, values)
        of_call.set_table_gradients(dkeys, dvalues)
        of_call.set_gate(gate_kind, gate_weight, gate_bias)
        of_call.set(gate_weight_grad=dgate_weight, gate_bias_grad=dgate_bias)
        dx = dy.clone(memory_format=torch.contiguous_format)
        call("blocks_backward", of_call.frames, parameters, of_parameters, made, dx)
        if len(of_parts) > 1:
            gradients = _cut(of_parts.sum(dim=0), weights)
        return dx, None, None, None, None, *gradients


class _FrameMeans(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, frames: PackedFrames) -> Tensor:
        ctx.rest = frames, len(x)
        means = x.new_empty(len(frames.lengths), x.shape[1])
        of_call = _Call(frames, x.shape[1])
        call("frame_means", of_call.frames, x.contiguous(), means)
        return means

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dmeans: Tensor) -> tuple[Tensor, None]:
        frames, num_rows = ctx.rest
        dx = dmeans.new_empty(num_rows, dmeans.shape[1])
        of_call = _Call(frames, dmeans.shape[1])
        call("frame_means_backward", of_call.frames, dmeans.contiguous(), dx)
        return dx, None


def _starts(sizes: Lengths) -> Lengths:
    starts = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def _contiguous(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()


def _zeros_like(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Zeros of these shapes, in one block of memory: one operation for all of them."""
    return _cut(torch.zeros(sum(_sizes(tensors))), tensors)


def _cut(numbers: Tensor, like: Sequence[Tensor | None]) -> list[Tensor | None]:
    """The numbers one after the other, in the shapes of some tensors."""
    parts = torch.split(numbers, _sizes(like))
    return [None if x is None else part.view(x.shape) for x, part in zip(like, parts, strict=True)]


def _sizes(tensors: Sequence[Tensor | None]) -> list[int]:
    return [0 if x is None else x.numel() for x in tensors]
