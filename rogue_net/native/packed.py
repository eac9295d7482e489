"""Packed frames, one after the other without padding, for compiled functions."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rogue_net.native.library import VECTOR, Embedding, Frames, address
from rogue_net.ragged import Lengths


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
    """

    lengths: Lengths
    visible: Tensor | None = None
    pairs: PackedPairs | None = None

    @cached_property
    def row_start(self) -> Lengths:
        """(B + 1,) int64, the first row of each frame, and the end of the last."""
        return starts(self.lengths)

    @property
    def num_rows(self) -> int:
        """Number of rows, R."""
        return int(self.row_start[-1])

    @cached_property
    def pair_start(self) -> Lengths:
        """(B + 1,) int64, the first pair of each frame, and the end of the last."""
        return starts(self.lengths**2)

    @cached_property
    def padded_pair_start(self) -> Lengths:
        """(B + 1,) int64, like `pair_start` with targets padded to whole vectors."""
        return starts(self.lengths * (-(-self.lengths // VECTOR) * VECTOR))


class TypeRows(NamedTuple):
    """The n entities of a type, with the parameters of its embedding.

    Attributes:
        x: (n, features), not yet normalised; without a gradient.
        mean: (features,), None without features, like `std`.
        std: (features,).
        to: (n,) int64, the row of each among all entities.
        parameters: weight and bias of the linear layer and of the norm; one vector without
            features.
    """

    x: Tensor
    mean: Tensor | None
    std: Tensor | None
    to: Tensor
    parameters: Sequence[Tensor]


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
            width=width,
            heads=heads,
            layers=layers,
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
        features=0 if one.mean is None else one.x.shape[1],
        x=address(one.x),
        mean=address(one.mean),
        std=address(one.std),
        to=address(one.to),
    )


def embedding(
    one: TypeRows,
    width: int,
    made: Tensor | None,
    gradients: Sequence[Tensor | None] | None = None,
) -> Embedding:
    """Return `Embedding` of `blocks.h`, which points into the arguments: keep these alive.

    Args:
        one: the entities of a type.
        width: d_model.
        made: memory for the activations of the backward pass; None for a type without features.
        gradients: the gradients of its parameters, to be added to.
    """
    of_call = rows_of_type(one)
    of_call.hidden = address(made)
    if made is not None:
        of_call.stats = made.data_ptr() + made.element_size() * len(one.x) * width
    names = ("bias",) if made is None else ("weight", "bias", "norm_weight", "norm_bias")
    for name, parameter in zip(names, one.parameters, strict=True):
        setattr(of_call, name, address(parameter))
    for name, gradient in zip(names, gradients or (), strict=gradients is not None):
        setattr(of_call, f"{name}_grad", address(gradient))
    return of_call


def starts(sizes: Lengths) -> Lengths:
    """Return the cumulative sums of sizes, from 0 on: (n,) -> (n + 1,) int64."""
    starts = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=starts[1:])
    return starts


def empty(*shape: int) -> Tensor:
    """Return an uninitialised float32 tensor for compiled code to write into."""
    return torch.empty(shape, dtype=torch.float32)


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
