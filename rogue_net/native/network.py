"""A narrow network over packed frames, compiled as one node of torch's graph.

For small batches, the overhead of torch and Python around each operation exceeds its computation.
This computes the same as `embedding.py`, `transformer.py`, `layout.py` and `heads.py`. Blocks are
computed in parts, which threads share.
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
from rogue_net.native.functions import Call, PackedFrames, TypeRows, contiguous
from rogue_net.native.library import (
    Head,
    address,
    addresses_of,
    array_of,
    call,
    uninitialised,
)

WIDEST = 64
"""Largest d_model; wider blocks are left to torch, whose matrix products are as fast."""


LEAST_COST = 2**16
"""Smallest cost of a part, rows * d_model**2: 64 rows of 32 take longer than to start a thread."""
MOST_PARTS = 16


class ChoiceInput(NamedTuple):
    """Actors of an action, each with one of several labelled choices.

    Attributes:
        rows: (actors,) int64, the row of each actor among all entities.
        mask: (actors, choices) bool, the legal choices; None if all are.
        given: (actors,) int64, choices to evaluate; None to choose.
        uniforms: (actors,) float32 in [0, 1), to sample with; None for the most probable choices.
        num_choices: the number of labels.
    """

    rows: Tensor
    mask: Tensor | None
    given: Tensor | None
    uniforms: Tensor | None
    num_choices: int


class Weights:
    """Parameters and statistics of a network, in the order of `blocks.h`.

    Args:
        parameters: tables of relative keys and values; weight and bias of the gate of all blocks;
            of each block weight and bias of: norm_1, query_key_value, project, norm_2, and both
            layers of the perceptron; those of each type; weight and bias from an entity to the
            logits of each action, then of each linear function of the means.
        statistics: mean and standard deviation of the features of each type.
    """

    def __init__(
        self, parameters: Sequence[Tensor | None], statistics: Sequence[Tensor | None]
    ) -> None:
        self.parameters = [contiguous(x) for x in parameters]
        self.addresses = addresses_of(self.parameters)
        self.statistics = [contiguous(x) for x in statistics]
        self.addresses_of_statistics = addresses_of(self.statistics)


@dataclass
class Network:
    """`Network` of `blocks.h` and the memory to which its pointers refer, which must live as long.

    Outputs are not kept here: in torch's graph they refer back to this object.

    Attributes:
        frames: the rows of each frame.
        types: the entities; together they have every row.
        config: sizes and settings.
        choices: the actions.
        sizes_of_means: the number of outputs of each linear function of the means.
        weights: of the network; or of several without gradients.
        first_frame: (networks + 1,) int64, from which frame to which each network computes.
        x: (R, d_model), the entities, if they are embedded already: there are no types then.
    """

    frames: PackedFrames
    types: Sequence[TypeRows]
    config: RogueNetConfig
    choices: Sequence[ChoiceInput]
    sizes_of_means: Sequence[int]
    weights: Sequence[Weights]
    first_frame: IntArray | None = None
    x: Tensor | None = None

    def __post_init__(self) -> None:
        config, relpos = self.config, self.config.relpos_encoding
        self.parameters = self.weights[0].parameters
        types = array_of(library.Embedding, [functions.rows_of_type(one) for one in self.types])
        addresses = np.concatenate([one.addresses for one in self.weights])
        statistics = np.concatenate([one.addresses_of_statistics for one in self.weights])
        of_frames = Call(self.frames, config.d_model, config.n_head, config.n_layer)
        frames = of_frames.frames
        frames.gate_kind = library.GATES.index(relpos and relpos.value_gate)
        frames.num_networks, frames.num_parameters = len(self.weights), len(self.parameters)
        frames.first_frame = address(self.first_frame)
        self.heads = (Head * len(self.choices))()
        self.means = (Head * len(self.sizes_of_means))()
        self.struct = library.Network(
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
        self._alive = types, addresses, statistics, of_frames
        self.kept: list[Tensor] = []

    def run(self) -> Sequence[Tensor]:
        """Compute the network, as one node of torch's graph or, without gradients, none.

        Returns:
            (R, d_model), the entities after all blocks, or as many as come out of them; (B, size)
            for each linear function of the means, NaN of a network without it; and for each action
            log-probabilities (actors, choices), -inf where not allowed, those of the chosen ones
            (actors,), entropies (actors,), and choices (actors,) int64 if they were not given.
        """
        if len(self.weights) > 1 or not torch.is_grad_enabled():
            return self.forward(keep=False)
        # The entities are an argument, as the gradient goes on through them.
        given, self.x = self.x, None if self.x is None else self.x.detach()
        outputs: Sequence[Tensor] = _Node.apply(self, given, *self.parameters)  # type: ignore[no-untyped-call]
        return outputs

    def forward(self, keep: bool) -> list[Tensor]:
        """Return all outputs: the entities, the means, and those of each choice.

        Args:
            keep: True to keep the activations for the backward pass.
        """
        struct = self.struct
        # Memory of the entities, the pooled frames and the activations.
        width, rows = self.config.d_model, self.frames.num_rows
        num_frames = len(self.frames.lengths)
        # Blocks write where they read; the last one elsewhere, if not all rows come out.
        if self.x is None:
            x = functions.empty(rows, width)
        else:
            x = (
                self.x
                if self.frames.kept is not None and self.config.n_layer == 1
                else self.x.clone()
            )
        struct.x = address(x)
        output, kept_start = x, self.frames.kept_start
        if kept_start is not None:
            output = functions.empty(int(kept_start[-1]), width)
            struct.kept = address(output)
        self._set_parts(rows)
        if self.sizes_of_means:
            struct.pooled = self._keep(num_frames * width)
        with_features = sum(len(one.x) for one in self.types if one.mean is not None)
        struct.embedded = self._keep(with_features * (width + 2))
        struct.made = self._keep(library.numbers_for_backward(struct.frames)) if keep else None
        # Heads.
        outputs = [output]
        kinds = library.LINEAR_HEAD, library.CHOICE_HEAD
        for i, size in enumerate(self.sizes_of_means):
            said = functions.empty(num_frames, size)
            if len(self.weights) > 1:
                said.fill_(math.nan)
            outputs.append(said)
            self.means[i] = Head(kinds[0], num_frames, size, num_frames, said=address(said))
        for i, choice in enumerate(self.choices):
            n, size = len(choice.rows), choice.num_choices
            log_probs = functions.empty(n, size)
            log_prob, entropy = functions.empty(n), functions.empty(n)
            outputs += [log_probs, log_prob, entropy]
            chosen = None
            if choice.given is None:
                chosen = uninitialised(choice.rows.shape, torch.int64)
                outputs.append(chosen)
            self.heads[i] = Head(
                kind=kinds[1],
                rows=n,
                width=size,
                x_rows=len(output),
                from_rows=address(choice.rows),
                mask=address(choice.mask),
                said=address(log_probs),
                given=address(choice.given),
                uniforms=address(choice.uniforms),
                chosen=address(chosen),
                logprobs=address(log_prob),
                entropies=address(entropy),
            )
        call("network_forward", struct)
        return outputs

    def backward(self, x: Tensor, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients of the entities, if they are given, and of the parameters.

        Args:
            x: the first output.
            gradients: the gradients of all outputs.
        """
        # Gradients of the outputs.
        dx, *doutputs = map(contiguous, gradients)
        dx = torch.zeros_like(x) if dx is None else dx.clone()
        num_rows, struct = self.frames.num_rows, self.struct
        if self.frames.kept is not None:
            struct.dkept, dkept = address(dx), dx
            dx = functions.empty(num_rows, dkept.shape[1])
        left = iter(doutputs)
        for head in self.means:
            head.dsaid = address(next(left))
        for choice, head in zip(self.choices, self.heads, strict=True):
            head.dsaid, head.dlogprobs, head.dentropies = (address(next(left)) for _ in range(3))
            if choice.given is None:
                next(left)
        # Gradients of the parameters, of each part of the work; their sum.
        numbers = functions.sizes(self.parameters)
        of_parameters = array_of(ctypes.c_int64, numbers)
        parts = torch.zeros(self._set_parts(num_rows, sum(numbers)), sum(numbers))
        struct.dx, struct.gradients = address(dx), address(parts)
        struct.sizes = ctypes.addressof(of_parameters)
        call("network_backward", struct)
        total = parts[0] if len(parts) == 1 else parts.sum(dim=0)
        return [None if self.x is None else dx, *functions.cut(total, self.parameters)]

    def _set_parts(self, num_rows: int, num_gradients: int = 0) -> int:
        """Set the number of threads and of parts of the work, and return that of parts."""
        frames = self.struct.frames
        parts = num_parts(num_rows, frames.width, num_gradients)
        frames.threads, frames.parts, frames.gradient_stride = num_threads(), parts, num_gradients
        return parts

    def _keep(self, count: int) -> int | None:
        self.kept.append(functions.empty(count))
        return address(self.kept[-1])


class _Node(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, network: Network, x: Tensor | None, *parameters: Tensor | None
    ) -> tuple[Tensor, ...]:
        ctx.network = network
        outputs = network.forward(keep=True)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(out for out in outputs if out.dtype == torch.int64))
        ctx.save_for_backward(*outputs, *parameters, *network.kept)
        network.kept = []  # so that torch frees them after the backward pass
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # torch checks that none was changed or freed since
        return None, *ctx.network.backward(saved[0], gradients)


class _Own(threading.local):
    count: int | None = None


_own = _Own()


def num_threads() -> int:
    """Return the number of threads of the calling thread's blocks, by default that of torch."""
    return torch.get_num_threads() if _own.count is None else _own.count


@contextmanager
def threads_at_work(count: int) -> Iterator[None]:
    """Set the number of threads of compiled blocks in the calling thread, in the context."""
    before, _own.count = _own.count, count
    try:
        yield
    finally:
        _own.count = before


def num_parts(rows: int, width: int, num_gradients: int = 0) -> int:
    """Return the number of parts of the rows of a batch, a function of these numbers alone.

    Args:
        rows: R.
        width: d_model.
        num_gradients: elements of the gradient of all parameters, of which every part has its own;
            0 without gradients.

    Returns:
        1 or an even number, so that two threads have as much to do.
    """
    # Many small parts would take longer to start, and to add up their gradients, than they save.
    most = rows * width**2 // LEAST_COST
    if num_gradients:
        most = min(most, 8 * rows * width // num_gradients)
    return max(1, 2 * (min(most, MOST_PARTS) // 2))
