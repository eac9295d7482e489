"""Compiled recurrent cell: states of the rows that remember, level after level."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rogue_net.native.functions import empty, starts
from rogue_net.native.library import Cell, address, call
from rogue_net.ragged import Lengths


def cell_states(
    gates_in: Tensor,
    added: Tensor | None,
    before: Tensor,
    weight: Tensor,
    bias: Tensor,
    source: Lengths,
    levels: Sequence[Lengths],
) -> tuple[Tensor, Tensor]:
    """Return states and pool; the arguments are those of `memory.plain_states`, in float32."""
    rows = np.concatenate([np.zeros(0, np.int64), *levels])
    of_levels = starts(np.array([len(one) for one in levels], np.int64))
    index = np.ascontiguousarray(source), rows, of_levels
    arguments = gates_in, added, before, weight, bias
    states, pool = _States.apply(*arguments, index)  # type: ignore[no-untyped-call]
    return states, pool


class _States(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        gates_in: Tensor,
        added: Tensor | None,
        before: Tensor,
        weight: Tensor,
        bias: Tensor,
        index: tuple[Lengths, Lengths, Lengths],
    ) -> tuple[Tensor, Tensor]:
        num_rows, width = len(gates_in), weight.shape[1]
        pool = torch.cat([before, before.new_empty(num_rows, width)])
        states = empty(num_rows, width)
        kept = empty(5, num_rows, width) if any(ctx.needs_input_grad) else None
        inputs = [None if x is None else x.contiguous() for x in (gates_in, added, weight, bias)]
        cell = _cell(index, num_rows, len(before), width)
        names = ("gates_in", "added", "weight", "bias", "pool", "states", "kept")
        for name, tensor in zip(names, (*inputs, pool, states, kept), strict=True):
            setattr(cell, name, address(tensor))
        call("cell_forward", cell)
        if kept is not None:
            ctx.save_for_backward(kept, weight)
            ctx.rest = index, added is not None, len(before)
        return states, pool

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dstates: Tensor, dpool: Tensor) -> tuple[Tensor | None, ...]:
        kept, weight = ctx.saved_tensors
        index, has_added, num_before = ctx.rest
        num_rows, width = dstates.shape
        dstates, dpool, weight = dstates.contiguous(), dpool.clone(), weight.contiguous()
        dgates_in, dlast = empty(num_rows, 3 * width), empty(num_rows, width)
        cell = _cell(index, num_rows, num_before, width)
        names = ("kept", "weight", "dstates", "dpool", "dgates_in", "dlast")
        tensors = kept, weight, dstates, dpool, dgates_in, dlast
        for name, tensor in zip(names, tensors, strict=True):
            setattr(cell, name, address(tensor))
        call("cell_backward", cell)
        of_last = torch.cat([dgates_in[:, : 2 * width], dlast], dim=1)
        dadded = dpool[num_before:] if has_added else None
        dweight, dbias = of_last.t() @ kept[0], of_last.sum(dim=0)
        return dgates_in, dadded, dpool[:num_before], dweight, dbias, None


def _cell(
    index: tuple[Lengths, Lengths, Lengths], num_rows: int, num_before: int, width: int
) -> Cell:
    """Return `Cell` of `blocks.h` with sizes and indices."""
    source, rows, level_start = index
    return Cell(
        num_rows=num_rows,
        num_before=num_before,
        width=width,
        num_levels=len(level_start) - 1,
        level_start=address(level_start),
        rows=address(rows),
        source=address(source),
    )
