"""Compiled memory: from entities to the input of the blocks that attend to recurrent states.

Equivalent to `memory.py` over packed frames, as a single autograd function.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from entity_env.arrays import IntArray
from rogue_net.memory import Memory, MemoryPlaces
from rogue_net.native import functions, library
from rogue_net.native.functions import PackedFrames, contiguous, starts
from rogue_net.native.library import address, addresses_of, call
from rogue_net.native.network import MOST_PARTS, num_threads
from rogue_net.past import Past

LEAST_ROWS = 48
"""Smallest number of rows of a part per level; below, reading the weights takes longest."""


def joined_rows(
    memory: Memory,
    x: Tensor,
    frames: PackedFrames,
    places: MemoryPlaces,
    averaged: Tensor | None,
    frame_terms: Tensor | None,
    added: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Update the recurrent states, and return the input of the blocks after memory.

    Args:
        memory: the parameters.
        x: (P, d_model), the entities.
        frames: the rows of each frame.
        places: of the R recurrent rows.
        averaged: (P,) bool, the entities that enter the means of frames; None for all.
        frame_terms: (B, d_model), added to these means; None for no terms.
        added: (R, width), added to the states after the frame; None for no terms.

    Returns:
        (J, d_model), the rows of each frame: its entities, absent entities, and the frame itself if
        it has a state; and the states, (R, width).
    """
    cell = memory.cell
    parameters = [
        *(cell.weight_ih, cell.bias_ih, cell.weight_hh, cell.bias_hh),
        memory.first_states(),
        *(memory.to_entities.weight, memory.to_rows.weight, memory.to_rows.bias),
    ]
    averaged_bytes = None if averaged is None else averaged.contiguous().view(torch.uint8)
    rows = _MemoryHandle(places, frames, memory.remembering.frame, averaged_bytes)
    output, states = _MemoryFunction.apply(rows, x, frame_terms, added, *parameters)  # type: ignore[no-untyped-call]
    return output, states


@dataclass
class _MemoryHandle:
    """A `MemoryStruct`, with references that keep the memory behind its pointers alive.

    Attributes:
        places: of the recurrent rows.
        frames: the rows of each frame.
        has_frame: True if the frame has a state.
        averaged: (P,) uint8, the entities in the means of frames; None for all.
    """

    places: MemoryPlaces
    frames: PackedFrames
    has_frame: bool
    averaged: Tensor | None

    def __post_init__(self) -> None:
        past, frames = self.places.past, self.frames
        num_rows, num_levels = len(past.source.values), int(past.level.max(initial=0)) + 1
        parts = min(num_rows // (num_levels * LEAST_ROWS), MOST_PARTS)
        part_start = starts_of_parts(past, max(1, 2 * (parts // 2)))
        index = [
            part_start,
            frames.row_start,
            starts(past.source.lengths),
            starts(past.absent.lengths),
            past.level,
            self.places.row,
            past.kind.values,
            past.source.values,
            past.absent.values,
        ]
        self._index = [np.ascontiguousarray(one, dtype=np.int64) for one in index]
        self.num_joined = frames.num_rows + int(self._index[3][-1])
        self.num_joined += len(frames.lengths) if self.has_frame else 0
        names = "part_start row_start memory_start absent_start level row kind source absent"
        self.struct = library.MemoryStruct(
            num_frames=len(frames.lengths),
            num_rows=num_rows,
            num_entities=frames.num_rows,
            of_frame=self.has_frame,
            parts=len(part_start) - 1,
            known=address(self.averaged),
            **{name: address(one) for name, one in zip(names.split(), self._index, strict=True)},
        )

    def call(
        self, name: str, parameters: Sequence[Tensor], tensors: dict[str, Tensor | None]
    ) -> None:
        """Call a compiled function; `tensors` are fields of the struct."""
        addresses, struct = addresses_of(parameters), self.struct
        struct.parameters, struct.threads = address(addresses), num_threads()
        struct.width, struct.state_width = len(parameters[-1]), parameters[2].shape[1]
        struct.num_first = len(parameters[4])
        for field, tensor in tensors.items():
            setattr(struct, field, address(tensor))
        call(name, struct)


class _MemoryFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: _MemoryHandle,
        x: Tensor,
        frame_terms: Tensor | None,
        added: Tensor | None,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        parameters = tuple(parameter.contiguous() for parameter in parameters)
        num_rows, width = rows.struct.num_rows, parameters[2].shape[1]
        states = functions.empty(num_rows, width)
        saved: dict[str, Tensor | None] = {
            "x": x.contiguous(),
            "carried": rows.places.past.carried.float().contiguous(),
            "means": functions.empty(len(rows.frames.lengths), x.shape[1])
            if rows.has_frame
            else None,
            "states": states,
            "passed": states if added is None else functions.empty(num_rows, width),
            "gates": functions.empty(4, num_rows, width) if any(ctx.needs_input_grad) else None,
        }
        output = functions.empty(rows.num_joined, x.shape[1])
        extra = {"of_frames": contiguous(frame_terms), "added": contiguous(added), "joined": output}
        rows.call("memory_forward", parameters, saved | extra)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*saved.values(), *parameters)
        ctx.rows, ctx.names = rows, [*saved]
        ctx.has_terms, ctx.has_added = frame_terms is not None, added is not None
        return output, states

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, djoined: Tensor | None, dstates: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        rows, names = ctx.rows, ctx.names
        saved = dict(zip(names, ctx.saved_tensors, strict=False))
        parameters, x, states = ctx.saved_tensors[len(names) :], saved["x"], saved["states"]
        dof_frames = torch.zeros_like(saved["means"]) if ctx.has_terms else None
        dstates = torch.zeros_like(states) if dstates is None else dstates.clone()
        if djoined is None:
            djoined = x.new_zeros(rows.num_joined, x.shape[1])
        sizes = functions.sizes(parameters)
        gradients = torch.zeros(rows.struct.parts, sum(sizes))
        rows.struct.gradient_stride = sum(sizes)
        gradient_tensors = {
            "djoined": djoined.contiguous(),
            "dstates": dstates,
            "dpassed": torch.zeros_like(states),
            "dx": functions.empty(*x.shape),
            "dof_frames": dof_frames,
            "gradients": gradients,
        }
        rows.call("memory_backward", parameters, saved | gradient_tensors)
        total = gradients[0] if len(gradients) == 1 else gradients.sum(dim=0)
        dadded = gradient_tensors["dpassed"] if ctx.has_added else None
        return None, gradient_tensors["dx"], dof_frames, dadded, *functions.cut(total, parameters)


def starts_of_parts(past: Past, parts: int) -> IntArray:
    """Split frames into independent parts with similar numbers of recurrent rows.

    Args:
        past: of B frames.
        parts: number of parts; long sequences allow only fewer.

    Returns:
        (parts + 1,) int64, the first frame of each part, and B.
    """
    level, num_frames = past.level, len(past.level)
    whole = np.array([0, num_frames])
    is_first = level == 0
    # Parts need contiguous sequences, from their first frame to the last.
    if parts == 1 or not is_first[:1].all() or not (is_first | _continues(level)).all():
        return whole
    start = np.maximum.accumulate(np.where(is_first, np.arange(num_frames), 0))
    frame_of_row = np.repeat(np.arange(num_frames), past.kind.lengths)
    for sources in (past.source, past.absent):
        frame = np.repeat(np.arange(num_frames), sources.lengths)
        is_inside = (sources.values >= 0) & (sources.values < len(frame_of_row))
        earlier = frame_of_row[sources.values[is_inside]]
        if (start[earlier] != start[frame[is_inside]]).any():
            return whole
    firsts = np.flatnonzero(is_first)
    rows = past.kind.starts[firsts]
    cuts = np.searchsorted(rows, len(frame_of_row) * np.arange(1, parts) / parts)
    cuts = cuts[cuts < len(firsts)]
    ends: IntArray = np.unique(np.concatenate([[0], firsts[cuts], [num_frames]]))
    return ends


def _continues(level: IntArray) -> Any:
    """Return which frames directly follow the frame before them in a sequence, (B,) bool."""
    return np.diff(level, prepend=-2) == 1
