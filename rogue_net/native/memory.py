"""Compiled memory: from entities to the rows of the blocks that attend to states.

This computes the same as `memory.py` over packed frames, as one node of torch's graph.
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
"""Smallest number of rows of a part in each level: fewer take longer to read the weights."""


def joined_rows(
    memory: Memory,
    x: Tensor,
    frames: PackedFrames,
    places: MemoryPlaces,
    known: Tensor | None,
    of_frames: Tensor | None,
    added: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Return the rows of the blocks after memory, and the states of the rows that remember.

    Args:
        memory: its parameters.
        x: (P, d_model), the entities.
        frames: the rows of each frame.
        places: of the R rows that remember.
        known: (P,) bool, the entities that enter the means of frames; None for all.
        of_frames: (B, d_model), added to these means; None for nothing.
        added: (R, width), added to the states for later rows; None for nothing.

    Returns:
        (J, d_model), frame after frame its entities, those who are absent, and the frame itself if
        it remembers; and (R, width).
    """
    cell = memory.cell
    parameters = [
        *(cell.weight_ih, cell.bias_ih, cell.weight_hh, cell.bias_hh),
        memory.first_states(),
        *(memory.to_entities.weight, memory.to_rows.weight, memory.to_rows.bias),
    ]
    seen = None if known is None else known.contiguous().view(torch.uint8)
    rows = _Rows(places, frames, memory.remembering.frame, seen)
    joined, states = _Node.apply(rows, x, of_frames, added, *parameters)  # type: ignore[no-untyped-call]
    return joined, states


@dataclass
class _Rows:
    """`Memory` of `blocks.h`, and what its pointers point to, which must live as long.

    Attributes:
        places: of the rows that remember.
        frames: the rows of each frame.
        of_frame: True if the frame remembers.
        known: (P,) uint8, the entities in the means of frames; None for all.
    """

    places: MemoryPlaces
    frames: PackedFrames
    of_frame: bool
    known: Tensor | None

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
        self.num_joined += len(frames.lengths) if self.of_frame else 0
        names = "part_start row_start memory_start absent_start level row kind source absent"
        self.struct = library.Memory(
            num_frames=len(frames.lengths),
            num_rows=num_rows,
            num_entities=frames.num_rows,
            of_frame=self.of_frame,
            parts=len(part_start) - 1,
            known=address(self.known),
            **{name: address(one) for name, one in zip(names.split(), self._index, strict=True)},
        )

    def call(
        self, name: str, parameters: Sequence[Tensor], tensors: dict[str, Tensor | None]
    ) -> None:
        """Call a function with the given tensors."""
        addresses, struct = addresses_of(parameters), self.struct
        struct.parameters, struct.threads = address(addresses), num_threads()
        struct.width, struct.state_width = len(parameters[-1]), parameters[2].shape[1]
        struct.num_first = len(parameters[4])
        for field, tensor in tensors.items():
            setattr(struct, field, address(tensor))
        call(name, struct)


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: _Rows,
        x: Tensor,
        of_frames: Tensor | None,
        added: Tensor | None,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        parameters = tuple(parameter.contiguous() for parameter in parameters)
        num_rows, width = rows.struct.num_rows, parameters[2].shape[1]
        states = functions.empty(num_rows, width)
        kept: dict[str, Tensor | None] = {
            "x": x.contiguous(),
            "carried": rows.places.past.carried.float().contiguous(),
            "means": functions.empty(len(rows.frames.lengths), x.shape[1])
            if rows.of_frame
            else None,
            "states": states,
            "passed": states if added is None else functions.empty(num_rows, width),
            "gates": functions.empty(4, num_rows, width) if any(ctx.needs_input_grad) else None,
        }
        joined = functions.empty(rows.num_joined, x.shape[1])
        others = {"of_frames": contiguous(of_frames), "added": contiguous(added), "joined": joined}
        rows.call("memory_forward", parameters, kept | others)
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*kept.values(), *parameters)
        ctx.rest = rows, [*kept], of_frames is not None, added is not None
        return joined, states

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, djoined: Tensor | None, dstates: Tensor | None
    ) -> tuple[Tensor | None, ...]:
        rows, names, has_frames, has_added = ctx.rest
        kept = dict(zip(names, ctx.saved_tensors, strict=False))
        parameters, x, states = ctx.saved_tensors[len(names) :], kept["x"], kept["states"]
        dof_frames = torch.zeros_like(kept["means"]) if has_frames else None
        dstates = torch.zeros_like(states) if dstates is None else dstates.clone()
        if djoined is None:
            djoined = x.new_zeros(rows.num_joined, x.shape[1])
        sizes = functions.sizes(parameters)
        gradients = torch.zeros(rows.struct.parts, sum(sizes))
        rows.struct.gradient_stride = sum(sizes)
        made = {
            "djoined": djoined.contiguous(),
            "dstates": dstates,
            "dpassed": torch.zeros_like(states),
            "dx": functions.empty(*x.shape),
            "dof_frames": dof_frames,
            "gradients": gradients,
        }
        rows.call("memory_backward", parameters, kept | made)
        total = gradients[0] if len(gradients) == 1 else gradients.sum(dim=0)
        dadded = made["dpassed"] if has_added else None
        return None, made["dx"], dof_frames, dadded, *functions.cut(total, parameters)


def starts_of_parts(past: Past, parts: int) -> IntArray:
    """Cut frames into parts of about as many rows that remember, none of which needs another.

    Args:
        past: of B frames.
        parts: how many; there are fewer where sequences are long.

    Returns:
        (parts + 1,) int64, the first frame of each part, and B.
    """
    level, num_frames = past.level, len(past.level)
    whole = np.array([0, num_frames])
    is_first = level == 0
    # Sequences lie one after the other, from their first frame to the last.
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
    """Return which frames come directly after the one before, (B,) bool."""
    return np.diff(level, prepend=-2) == 1
