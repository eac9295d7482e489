"""A narrow network over packed frames, compiled as a single autograd function.

For small batches, the overhead of torch and Python per operation exceeds the computation. The rows
of a batch are split into parts, which a thread pool processes. Equivalent to `embedding.py`,
`transformer.py`, `layout.py` and `heads.py`.
"""

import ctypes
import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from entity_env.arrays import IntArray
from rogue_net.config import RogueNetConfig
from rogue_net.input_norm import CLIP
from rogue_net.native import functions, library
from rogue_net.native.functions import FramesHandle, PackedFrames, TypeRows, contiguous
from rogue_net.native.library import (
    HeadStruct,
    address,
    array_of,
    call,
    uninitialised,
)
from rogue_net.native.weights import Weights

WIDEST = 64
"""Largest d_model; for wider blocks, matrix products in torch are as fast."""


LEAST_COST = 2**16
"""Smallest cost of a part, rows * d_model**2: 64 rows of width 32, for which a thread pays off."""
MOST_PARTS = 16


class ChoiceInput(NamedTuple):
    """Inputs of the head of a categorical action.

    Attributes:
        rows: (actors,) int64, the row of each actor among all entities.
        mask: (actors, choices) bool, the legal choices; None if all are.
        chosen: (actors,) int64, choices to evaluate; None to sample or maximise.
        uniforms: (actors,) float32 in [0, 1), to sample with; None for the most probable choices.
        num_choices: the number of labels.
    """

    rows: Tensor
    mask: Tensor | None
    chosen: Tensor | None
    uniforms: Tensor | None
    num_choices: int


@dataclass
class CompiledNetwork:
    """A `NetworkStruct`, with references that keep the memory behind its pointers alive.

    Outputs are not referenced, as they refer to this object in the autograd graph.

    Attributes:
        frames: the rows of each frame.
        types: the entities of each type, which cover all rows; empty with `x`.
        config: settings of the network.
        choices: inputs of the action heads.
        mean_sizes: the number of outputs of each regression head.
        weights: of the network; or of several networks without gradients.
        first_frame: (networks + 1,) int64, the first frame of each network, and B.
        x: (R, d_model), the embedded entities; None to embed `types`.
    """

    frames: PackedFrames
    types: Sequence[TypeRows]
    config: RogueNetConfig
    choices: Sequence[ChoiceInput]
    mean_sizes: Sequence[int]
    weights: Sequence[Weights]
    first_frame: IntArray | None = None
    x: Tensor | None = None

    def __post_init__(self) -> None:
        config, relpos = self.config, self.config.relpos_encoding
        self.parameters = self.weights[0].parameters
        rows = [functions.rows_of_type(one) for one in self.types]
        types = array_of(library.EmbeddingStruct, rows)
        addresses = np.concatenate([one.addresses for one in self.weights])
        statistics = np.concatenate([one.addresses_of_statistics for one in self.weights])
        handle = FramesHandle(self.frames, config.d_model, config.n_head, config.n_layer)
        frames = handle.frames
        frames.gate_kind = library.GATES.index(relpos and relpos.value_gate)
        frames.num_networks, frames.num_parameters = len(self.weights), len(self.parameters)
        frames.first_frame = address(self.first_frame)
        self.heads = (HeadStruct * len(self.choices))()
        self.means = (HeadStruct * len(self.mean_sizes))()
        self.struct = library.NetworkStruct(
            frames=frames,
            num_types=len(types),
            num_choices=len(self.heads),
            num_means=len(self.means),
            types=ctypes.addressof(types),
            choices=ctypes.addressof(self.heads),
            means=ctypes.addressof(self.means),
            parameters=address(addresses),
            statistics=address(statistics),
            clip=CLIP,
        )
        self._alive = types, addresses, statistics, handle
        self.buffers: list[Tensor] = []

    def run(self) -> Sequence[Tensor]:
        """Run the network, as a single autograd function if gradients are enabled.

        Returns:
            (R, d_model), the entities after all blocks, or the output rows; (B, size) for each
            regression head, NaN for networks without it; and for each action the log-probabilities
            (actors, choices), -inf where not allowed, log-probabilities of the choices (actors,),
            entropies (actors,), and choices (actors,) int64 unless they are inputs.
        """
        if len(self.weights) > 1 or not torch.is_grad_enabled():
            return self.forward(keep=False)
        # The entities are an argument, as they may require a gradient.
        x, self.x = self.x, None if self.x is None else self.x.detach()
        outputs: Sequence[Tensor] = _NetworkFunction.apply(self, x, *self.parameters)  # type: ignore[no-untyped-call]
        return outputs

    def forward(self, keep: bool) -> list[Tensor]:
        """Return all outputs, see `run`.

        Args:
            keep: True to save the activations for the backward pass.
        """
        struct = self.struct
        # Memory for the entities, the pooled frames and the activations.
        width, rows = self.config.d_model, self.frames.num_rows
        num_frames = len(self.frames.lengths)
        # Blocks work in place, except for the last one if it outputs only some of the rows.
        if self.x is None:
            x = functions.empty(rows, width)
        else:
            x = (
                self.x
                if self.frames.output_lengths is not None and self.config.n_layer == 1
                else self.x.clone()
            )
        struct.x = address(x)
        output, output_start = x, self.frames.output_start
        if output_start is not None:
            output = functions.empty(int(output_start[-1]), width)
            struct.kept = address(output)
        self._set_parts(rows)
        if self.mean_sizes:
            struct.pooled = self._buffer(num_frames * width)
        with_features = sum(len(one.x) for one in self.types if one.mean is not None)
        struct.embedded = self._buffer(with_features * (width + 2))
        struct.made = self._buffer(library.numbers_for_backward(struct.frames)) if keep else None
        # Heads.
        outputs = [output]
        kinds = library.LINEAR_HEAD, library.CHOICE_HEAD
        for i, size in enumerate(self.mean_sizes):
            means = functions.empty(num_frames, size)
            if len(self.weights) > 1:
                means.fill_(math.nan)
            outputs.append(means)
            self.means[i] = HeadStruct(kinds[0], num_frames, size, num_frames, said=address(means))
        for i, choice in enumerate(self.choices):
            n, size = len(choice.rows), choice.num_choices
            log_probs = functions.empty(n, size)
            log_prob, entropy = functions.empty(n), functions.empty(n)
            outputs += [log_probs, log_prob, entropy]
            chosen = None
            if choice.chosen is None:
                chosen = uninitialised(choice.rows.shape, torch.int64)
                outputs.append(chosen)
            self.heads[i] = HeadStruct(
                kind=kinds[1],
                rows=n,
                width=size,
                x_rows=len(output),
                from_rows=address(choice.rows),
                mask=address(choice.mask),
                said=address(log_probs),
                given=address(choice.chosen),
                uniforms=address(choice.uniforms),
                chosen=address(chosen),
                logprobs=address(log_prob),
                entropies=address(entropy),
            )
        call("network_forward", struct)
        return outputs

    def backward(self, x: Tensor, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients of the entities, None without `x`, and of the parameters.

        Args:
            x: the first output.
            gradients: the gradients of all outputs.
        """
        # Gradients of the outputs.
        dx, *doutputs = map(contiguous, gradients)
        dx = torch.zeros_like(x) if dx is None else dx.clone()
        num_rows, struct = self.frames.num_rows, self.struct
        if self.frames.output_lengths is not None:
            struct.dkept, doutput = address(dx), dx
            dx = functions.empty(num_rows, doutput.shape[1])
        grads = iter(doutputs)
        for head in self.means:
            head.dsaid = address(next(grads))
        for choice, head in zip(self.choices, self.heads, strict=True):
            head.dsaid, head.dlogprobs, head.dentropies = (address(next(grads)) for _ in range(3))
            if choice.chosen is None:
                next(grads)
        # Gradients of the parameters from each part, (parts, parameters), and their sum.
        numbers = functions.sizes(self.parameters)
        size_array = array_of(ctypes.c_int64, numbers)
        parts = torch.zeros(self._set_parts(num_rows, sum(numbers)), sum(numbers))
        struct.dx, struct.gradients = address(dx), address(parts)
        struct.sizes = ctypes.addressof(size_array)
        call("network_backward", struct)
        total = parts[0] if len(parts) == 1 else parts.sum(dim=0)
        return [None if self.x is None else dx, *functions.cut(total, self.parameters)]

    def _set_parts(self, num_rows: int, num_gradients: int = 0) -> int:
        """Set the numbers of threads and parts, and return the number of parts."""
        frames = self.struct.frames
        parts = num_parts(num_rows, frames.width, num_gradients)
        frames.threads, frames.parts, frames.gradient_stride = num_threads(), parts, num_gradients
        return parts

    def _buffer(self, count: int) -> int | None:
        self.buffers.append(functions.empty(count))
        return address(self.buffers[-1])


class _NetworkFunction(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, network: CompiledNetwork, x: Tensor | None, *parameters: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.network = network
        outputs = network.forward(keep=True)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(out for out in outputs if out.dtype == torch.int64))
        ctx.save_for_backward(*outputs, *parameters, *network.buffers)
        network.buffers = []  # so that torch frees them after the backward pass
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # torch checks that none was changed or freed
        return None, *ctx.network.backward(saved[0], gradients)


class _LocalThreads(threading.local):
    count: int | None = None


_local = _LocalThreads()


def num_threads() -> int:
    """Return the number of threads for compiled blocks in this thread; torch's by default."""
    return torch.get_num_threads() if _local.count is None else _local.count


@contextmanager
def threads_at_work(count: int) -> Iterator[None]:
    """Set the number of threads for compiled blocks in this thread, within the context."""
    before, _local.count = _local.count, count
    try:
        yield
    finally:
        _local.count = before


def num_parts(rows: int, width: int, num_gradients: int = 0) -> int:
    """Return the number of parts to split a batch into, as a function of sizes only.

    Args:
        rows: R.
        width: d_model.
        num_gradients: number of parameters, as each part has a copy of their gradients; 0 without
            gradients.

    Returns:
        1 or an even number, to balance two threads.
    """
    # Starting small parts and adding their gradients would take longer than they save.
    most = rows * width**2 // LEAST_COST
    if num_gradients:
        most = min(most, 8 * rows * width // num_gradients)
    return max(1, 2 * (min(most, MOST_PARTS) // 2))
