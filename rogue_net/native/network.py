"""A narrow network over packed frames, compiled as one node of torch's graph.

For small batches, the overhead of torch and Python around each operation exceeds its computation.
This computes the same as `embedding.py`, `transformer.py`, `pooling.py` and `heads.py`.
"""

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rogue_net.native import library, packed
from rogue_net.native.library import (
    CHOICE_HEAD,
    GATES,
    LINEAR_HEAD,
    Embedding,
    Head,
    address,
    array_of,
    call,
    numbers_for_backward,
)
from rogue_net.native.packed import (
    Call,
    Gate,
    PackedFrames,
    Tables,
    TypeRows,
    contiguous,
    cut,
    rows_of_type,
    sizes,
)

WIDEST = 64
"""Largest d_model; wider blocks are left to torch, whose matrix products are as fast."""


class Linear(NamedTuple):
    """Weight (out, in) and bias (out,)."""

    weight: Tensor
    bias: Tensor


class ChoiceInput(NamedTuple):
    """Actors of an action, each with one of several labelled choices.

    Attributes:
        rows: (actors,) int64, the row of each actor among all entities.
        mask: (actors, choices) bool, the legal choices; None if all are.
        given: (actors,) int64, choices to evaluate; None to choose.
        uniforms: (actors,) float32 in [0, 1), to sample with; None for the most probable choices.
    """

    rows: Tensor
    mask: Tensor | None
    given: Tensor | None
    uniforms: Tensor | None


class ChoiceOutput(NamedTuple):
    """Output of a head for the actors of an action.

    Attributes:
        log_probs: (actors, choices), -inf where not allowed.
        logprobs: (actors,), of the chosen ones.
        entropies: (actors,).
        chosen: (actors,) int64.
    """

    log_probs: Tensor
    logprobs: Tensor
    entropies: Tensor
    chosen: Tensor


class NetworkOutput(NamedTuple):
    """Output of a network for B frames of R entities.

    Attributes:
        x: (R, d_model), the entities after all blocks.
        means: (B, size) for each linear function of their means.
        choices: for each action.
    """

    x: Tensor
    means: list[Tensor]
    choices: list[ChoiceOutput]


@dataclass(frozen=True)
class Network:
    """A network without the parameters that have gradients, and the frames of its input.

    Attributes:
        frames: the rows of each frame.
        types: the entities; together they have every row.
        width: d_model.
        heads: of attention.
        clip: of normalised features.
        gate_kind: see `Gate`; None without gate.
        num_blocks: the number of blocks.
        choices: the actions.
        num_means: the number of linear functions of the means.
    """

    frames: PackedFrames
    types: Sequence[TypeRows]
    width: int
    heads: int
    clip: float
    gate_kind: str | None
    num_blocks: int
    choices: Sequence[ChoiceInput] = ()
    num_means: int = 0


def run(
    network: Network,
    blocks: Sequence[Tensor],
    tables: Tables | None,
    gate: Gate | None,
    choices: Sequence[Linear],
    means: Sequence[Linear],
) -> NetworkOutput:
    """Compute a network for frames.

    Args:
        network: the network and the frames.
        blocks: of each block weight and bias of: norm_1, query_key_value, project, norm_2, and
            both layers of the perceptron.
        tables: of the frames' pairs.
        gate: of all blocks.
        choices: from an entity to the logits of each action.
        means: from the mean over the entities of a frame to the regression outputs.
    """
    parameters: list[Tensor | None] = [
        *((None, None) if tables is None else tables),
        *((None, None) if gate is None else gate[1:]),
        *blocks,
        *(parameter for one in network.types for parameter in one.parameters),
        *(parameter for one in (*choices, *means) for parameter in one),
    ]
    # One node of torch's graph, or none without gradients.
    if torch.is_grad_enabled():
        outputs = _Network.apply(network, *parameters)  # type: ignore[no-untyped-call]
    else:
        outputs = _Compiled(network, parameters).forward(keep=False)
    left = iter(outputs)
    x, of_means = next(left), [next(left) for _ in means]
    outputs_of_choices = []
    for one in network.choices:
        log_probs, logprobs, entropies = (next(left) for _ in range(3))
        chosen = next(left) if one.given is None else one.given
        outputs_of_choices.append(ChoiceOutput(log_probs, logprobs, entropies, chosen))
    return NetworkOutput(x, of_means, outputs_of_choices)


class _Compiled:
    """`Network` of `blocks.h` and the memory to which its pointers refer, which must live as long.

    Outputs are not kept here: in torch's graph they refer back to this object.
    """

    def __init__(self, network: Network, flat: Sequence[Tensor | None]) -> None:
        self.network = network
        self.flat = [contiguous(x) for x in flat]
        self.types = array_of(Embedding, [rows_of_type(one) for one in network.types])
        self.choices = (Head * len(network.choices))()
        self.means = (Head * network.num_means)()
        self.addresses = array_of(ctypes.c_void_p, [address(x) for x in self.flat])
        self.of_frames = Call(network.frames, network.width, network.heads, network.num_blocks)
        self.of_frames.frames.gate_kind = GATES.index(network.gate_kind)
        self.struct = library.Network(
            frames=self.of_frames.frames,
            num_types=len(self.types),
            num_choices=len(self.choices),
            num_means=len(self.means),
            types=ctypes.addressof(self.types),
            choices=ctypes.addressof(self.choices),
            means=ctypes.addressof(self.means),
            num_parameters=len(self.flat),
            parameters=ctypes.addressof(self.addresses),
            clip=network.clip,
        )
        self.of_frames.frames = self.struct.frames  # the same memory
        self.kept: list[Tensor] = []

    def forward(self, keep: bool) -> list[Tensor]:
        """Return all outputs: the entities, the means, and those of each choice.

        Args:
            keep: True to keep the activations for the backward pass.
        """
        network, struct = self.network, self.struct
        # Memory of the entities, the pooled frames and the activations.
        rows, frames = network.frames.num_rows, len(network.frames.lengths)
        x = packed.empty(rows, network.width)
        struct.x = x.data_ptr()
        self.of_frames.set_parts(rows)
        if network.num_means:
            struct.pooled = self._keep(frames * network.width)
        with_features = sum(len(one.x) for one in network.types if one.mean is not None)
        struct.embedded = self._keep(with_features * (network.width + 2))
        struct.made = self._keep(numbers_for_backward(struct.frames)) if keep else None
        # Heads: the last parameters are their weights and biases, those of choices first.
        num_choices = len(network.choices)
        of_heads = self.flat[len(self.flat) - 2 * (num_choices + network.num_means) :]
        widths = [len(bias) for bias in of_heads[1::2] if bias is not None]
        outputs = [x]
        for i, width in enumerate(widths[num_choices:]):
            outputs.append(packed.empty(frames, width))
            self.means[i] = Head(LINEAR_HEAD, frames, width, frames, said=address(outputs[-1]))
        for i, choice in enumerate(network.choices):
            of_choice = _empty_outputs(choice, widths[i])
            self.choices[i] = _choice_head(choice, rows, of_choice)
            outputs += of_choice if choice.given is None else of_choice[:3]
        call("network_forward", struct)
        return outputs

    def backward(self, x: Tensor, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Return the gradients of the parameters.

        Args:
            x: the first output.
            gradients: the gradients of all outputs.
        """
        # Gradients of the outputs.
        dx, *doutputs = map(contiguous, gradients)
        dx = torch.zeros_like(x) if dx is None else dx.clone()
        left = iter(doutputs)
        for head in self.means:
            head.dsaid = address(next(left))
        for choice, head in zip(self.network.choices, self.choices, strict=True):
            head.dsaid, head.dlogprobs, head.dentropies = (address(next(left)) for _ in range(3))
            if choice.given is None:
                next(left)
        # Gradients of the parameters, of each part of the work; their sum.
        numbers = sizes(self.flat)
        of_parameters = array_of(ctypes.c_int64, numbers)
        parts = torch.zeros(self.of_frames.set_parts(len(x), sum(numbers)), sum(numbers))
        struct = self.struct
        struct.dx, struct.gradients = dx.data_ptr(), parts.data_ptr()
        struct.sizes = ctypes.addressof(of_parameters)
        call("network_backward", struct)
        total = parts[0] if len(parts) == 1 else parts.sum(dim=0)
        return cut(total, self.flat)

    def _keep(self, count: int) -> int:
        self.kept.append(packed.empty(count))
        return self.kept[-1].data_ptr()


class _Network(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, network: Network, *flat: Tensor | None) -> tuple[Tensor, ...]:
        ctx.compiled = _Compiled(network, flat)
        outputs = ctx.compiled.forward(keep=True)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(out for out in outputs if out.dtype == torch.int64))
        ctx.save_for_backward(*outputs, *flat, *ctx.compiled.kept)
        ctx.compiled.kept = []  # so that torch frees them after the backward pass
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = ctx.saved_tensors  # torch checks that none was changed or freed since
        return None, *ctx.compiled.backward(saved[0], gradients)


def _empty_outputs(choice: ChoiceInput, num_choices: int) -> list[Tensor]:
    """Return memory for log-probabilities, those of chosen choices, entropies and choices."""
    n = len(choice.rows)
    chosen = torch.empty_like(choice.rows) if choice.given is None else choice.given
    return [packed.empty(n, num_choices), packed.empty(n), packed.empty(n), chosen]


def _choice_head(choice: ChoiceInput, x_rows: int, outputs: Sequence[Tensor]) -> Head:
    log_probs, logprobs, entropies, chosen = outputs
    return Head(
        kind=CHOICE_HEAD,
        rows=len(log_probs),
        width=log_probs.shape[1],
        x_rows=x_rows,
        from_rows=address(choice.rows),
        mask=address(choice.mask),
        said=address(log_probs),
        given=address(choice.given),
        uniforms=address(choice.uniforms),
        chosen=address(chosen) if choice.given is None else None,
        logprobs=address(logprobs),
        entropies=address(entropies),
    )
