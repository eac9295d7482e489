"""All of a narrow network over packed frames, as one node of torch's graph.

Of small batches, what torch and Python do around each operation takes longer than what it computes.
What is computed here is what `embedding.py`, `transformer.py`, `pooling.py` and `heads.py` do.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rogue_net.native.functions import add_embedding_gradients, embed_rows
from rogue_net.native.library import (
    CHOICE_HEAD,
    LINEAR_HEAD,
    Head,
    address,
    call,
    numbers_for_backward,
)
from rogue_net.native.packed import (
    Call,
    Gate,
    PackedFrames,
    Tables,
    TypeRows,
    addresses,
    contiguous,
    cut,
    sizes,
)

PARAMETERS_OF_BLOCK = 12
WIDEST = 64
"""Up to this d_model; the matrix products of wider blocks are torch's, which are as good."""


class Linear(NamedTuple):
    """Weight (out, in) and bias (out,)."""

    weight: Tensor
    bias: Tensor


class Choice(NamedTuple):
    """An action: one of several choices for each actor.

    Attributes:
        rows: (actors,) int64, which row of all each actor is.
        mask: (actors, choices) bool, what may be chosen; None where everything may.
        given: (actors,) int64, what was chosen; None to choose now.
        uniforms: (actors,) float32 in [0, 1), to draw with; None to take the most probable.
    """

    rows: Tensor
    mask: Tensor | None
    given: Tensor | None
    uniforms: Tensor | None


class Said(NamedTuple):
    """What is said about an action.

    Attributes:
        log_probs: (actors, choices), -inf where not allowed.
        logprobs: (actors,), of what is chosen.
        entropies: (actors,).
        chosen: (actors,) int64.
    """

    log_probs: Tensor
    logprobs: Tensor
    entropies: Tensor
    chosen: Tensor


class Out(NamedTuple):
    """What a network says about B frames of R entities.

    Attributes:
        x: (R, d_model), the entities after all blocks.
        means: (B, size) for each linear function of their means.
        choices: for each action.
    """

    x: Tensor
    means: list[Tensor]
    choices: list[Said]


@dataclass(frozen=True)
class Network:
    """A network, without the parameters that have gradients, and frames to go through it.

    Attributes:
        frames: which rows make a frame.
        types: the entities; together they have every row.
        width: d_model.
        heads: of attention.
        clip: of normalised features.
        gate_kind: see `Gate`; None without gate.
        num_blocks: how many.
        choices: the actions.
        num_means: how many linear functions of the means.
    """

    frames: PackedFrames
    types: Sequence[TypeRows]
    width: int
    heads: int
    clip: float
    gate_kind: str | None
    num_blocks: int
    choices: Sequence[Choice] = ()
    num_means: int = 0


def run(
    network: Network,
    blocks: Sequence[Tensor],
    tables: Tables | None,
    gate: Gate | None,
    choices: Sequence[Linear],
    means: Sequence[Linear],
) -> Out:
    """Let frames go through a network.

    Args:
        network: both.
        blocks: of each block weight and bias of: norm_1, query_key_value, project, norm_2, and
            both layers of the perceptron.
        tables: of the frames' pairs.
        gate: of all blocks.
        choices: from an entity to the logits of each action.
        means: from the mean over the entities of a frame to what is said about it.
    """
    parameters: list[Tensor | None] = [
        *((None, None) if tables is None else tables),
        *((None, None) if gate is None else gate[1:]),
        *blocks,
        *(parameter for one in network.types for parameter in one.parameters),
        *(parameter for one in (*choices, *means) for parameter in one),
    ]
    if torch.is_grad_enabled():
        outputs = _Network.apply(network, *parameters)  # type: ignore[no-untyped-call]
    else:
        outputs, _ = _forward(network, parameters, keep=False)
    left = iter(outputs)
    x, of_means = next(left), [next(left) for _ in means]
    said = []
    for one in network.choices:
        log_probs, logprobs, entropies = (next(left) for _ in range(3))
        chosen = next(left) if one.given is None else one.given
        said.append(Said(log_probs, logprobs, entropies, chosen))
    return Out(x, of_means, said)


class _Parameters(NamedTuple):
    """Those of a network, or where their gradients are, by where they belong."""

    keys: Any
    values: Any
    gate_weight: Any
    gate_bias: Any
    blocks: list[Any]
    types: list[list[Any]]
    choices: list[Linear]
    means: list[Linear]


def _grouped(network: Network, flat: Iterable[Any]) -> _Parameters:
    left = iter(flat)

    def some(count: int) -> list[Any]:
        return [next(left) for _ in range(count)]

    keys, values, gate_weight, gate_bias = some(4)
    return _Parameters(
        keys=keys,
        values=values,
        gate_weight=gate_weight,
        gate_bias=gate_bias,
        blocks=some(PARAMETERS_OF_BLOCK * network.num_blocks),
        types=[some(len(one.parameters)) for one in network.types],
        choices=[Linear(*some(2)) for _ in network.choices],
        means=[Linear(*some(2)) for _ in range(network.num_means)],
    )


class _Made(NamedTuple):
    """What the backward pass needs: numbers of the blocks, of each type, and the means."""

    blocks: Tensor | None
    types: list[Tensor | None]
    pooled: Tensor | None


def _forward(
    network: Network, flat: Sequence[Tensor | None], keep: bool
) -> tuple[list[Tensor], _Made]:
    p = _grouped(network, map(contiguous, flat))
    x = p.blocks[0].new_empty(network.frames.num_rows, network.width)
    of_types = embed_rows(network.types, network.clip, x)
    of_call = _call(network, p)
    of_call.set_parts(network.frames.num_rows)
    of_blocks = x.new_empty(numbers_for_backward(of_call.frames)) if keep else None
    call("blocks_forward", of_call.frames, p.blocks, x, of_blocks)
    outputs, pooled = [x], None
    if p.means:
        pooled = x.new_empty(len(network.frames.lengths), network.width)
        call("frame_means", of_call.frames, x, pooled)
    for linear in p.means:
        assert pooled is not None
        said = x.new_empty(len(pooled), len(linear.bias))
        call("head_forward", _mean_head(linear, said), network.width, pooled)
        outputs.append(said)
    for choice, linear in zip(network.choices, p.choices, strict=True):
        num_actors = len(choice.rows)
        said = x.new_empty(num_actors, len(linear.bias))
        of_choice = [said, x.new_empty(num_actors), x.new_empty(num_actors)]
        if choice.given is None:
            of_choice.append(torch.empty_like(choice.rows))
        head = _choice_head(choice, linear, network.frames.num_rows, of_choice)
        call("head_forward", head, network.width, x)
        outputs += of_choice
    return outputs, _Made(of_blocks, of_types, pooled)


class _Network(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, network: Network, *flat: Tensor | None) -> tuple[Tensor, ...]:
        outputs, made = _forward(network, flat, keep=True)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*(out for out in outputs if out.dtype == torch.int64))
        ctx.save_for_backward(*flat, *outputs, made.blocks, *made.types, made.pooled)
        ctx.rest = network, len(flat), len(outputs)
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        network, num_parameters, num_outputs = ctx.rest
        saved = iter(ctx.saved_tensors)
        flat = [next(saved) for _ in range(num_parameters)]
        outputs = [next(saved) for _ in range(num_outputs)]
        made = _Made(next(saved), [next(saved) for _ in network.types], next(saved))
        p, x = _grouped(network, map(contiguous, flat)), outputs[0]
        of_call, numbers = _call(network, p), sizes(flat)
        parts = torch.zeros(of_call.set_parts(len(x), sum(numbers)), sum(numbers))
        g = _grouped(network, addresses(parts, flat))
        dx, *dsaid = map(contiguous, gradients)
        dx = torch.zeros_like(x) if dx is None else dx.clone()
        _heads_backward(network, p, g, outputs, dsaid, made.pooled, of_call, dx)
        of_call.set_table_gradients(g.keys, g.values)
        of_call.set(gate_weight_grad=g.gate_weight, gate_bias_grad=g.gate_bias)
        call("blocks_backward", of_call.frames, p.blocks, g.blocks, made.blocks, dx)
        add_embedding_gradients(network.types, made.types, g.types, network.clip, dx)
        total = parts[0] if len(parts) == 1 else parts.sum(dim=0)
        return None, *cut(total, flat)


def _heads_backward(
    network: Network,
    p: _Parameters,
    g: _Parameters,
    outputs: Sequence[Tensor],
    dsaid: Sequence[Tensor | None],
    pooled: Tensor | None,
    of_call: Call,
    dx: Tensor,
) -> None:
    """Add the gradients of what is said, all but `x`, to that of `x` and of the parameters."""
    said, given = iter(outputs[1:]), iter(dsaid)
    dpooled = None
    for linear, gradient in zip(p.means, g.means, strict=True):
        of_mean, dmean = next(said), next(given)
        if dmean is not None:
            assert pooled is not None
            dpooled = torch.zeros_like(pooled) if dpooled is None else dpooled
            head = _mean_head(linear, of_mean)
            _set_gradients(head, gradient, dsaid=dmean)
            call("head_backward", head, network.width, pooled, dpooled)
    if dpooled is not None:
        call("frame_means_backward", of_call.frames, dpooled, dx)
    for choice, linear, gradient in zip(network.choices, p.choices, g.choices, strict=True):
        count = 4 if choice.given is None else 3
        of_choice = [next(said) for _ in range(count)]
        dchoice = [next(given) for _ in range(count)]
        if any(one is not None for one in dchoice):
            head = _choice_head(choice, linear, network.frames.num_rows, of_choice)
            dsaid_of, dlogprobs, dentropies = dchoice[:3]
            _set_gradients(
                head, gradient, dsaid=dsaid_of, dlogprobs=dlogprobs, dentropies=dentropies
            )
            call("head_backward", head, network.width, outputs[0], dx)


def _call(network: Network, p: _Parameters) -> Call:
    of_call = Call(network.frames, network.width, network.heads, network.num_blocks)
    of_call.set_tables(p.keys, p.values)
    of_call.set_gate(network.gate_kind, p.gate_weight, p.gate_bias)
    return of_call


def _mean_head(linear: Linear, said: Tensor) -> Head:
    return Head(
        kind=LINEAR_HEAD,
        rows=len(said),
        width=said.shape[1],
        x_rows=len(said),
        weight=address(linear.weight),
        bias=address(linear.bias),
        said=address(said),
    )


def _choice_head(choice: Choice, linear: Linear, x_rows: int, said: Sequence[Tensor]) -> Head:
    log_probs, logprobs, entropies, *chosen = said
    mask = None if choice.mask is None else choice.mask.view(torch.uint8)
    return Head(
        kind=CHOICE_HEAD,
        rows=len(log_probs),
        width=log_probs.shape[1],
        x_rows=x_rows,
        from_rows=address(choice.rows),
        mask=address(mask),
        weight=address(linear.weight),
        bias=address(linear.bias),
        said=address(log_probs),
        given=address(choice.given),
        uniforms=address(choice.uniforms),
        chosen=address(chosen[0]) if chosen else None,
        logprobs=address(logprobs),
        entropies=address(entropies),
    )


def _set_gradients(head: Head, own: Linear, **gradients: Tensor | None) -> None:
    head.weight_grad, head.bias_grad = address(own.weight), address(own.bias)
    for name, gradient in gradients.items():
        setattr(head, name, address(gradient))
