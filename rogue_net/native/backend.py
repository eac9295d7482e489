"""Interface to the compiled part: networks ask it to compute a batch, and it may decline.

Narrow networks are compiled whole, from the features to decisions and values, in one call. Of wide
ones embedding and attention are, and matrix products stay with torch, which is as good at them.
Both take frames that lie one after the other, without padding.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import attrgetter
from typing import Any, NamedTuple, Protocol
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from entity_env.arrays import IntArray
from entity_env.ragged import row_indices
from entity_env.seeding import mix, mix_ints, uniforms
from entity_env.spaces import ActionSpace
from rogue_net.actions.distributions import CategoricalDistribution, Decision
from rogue_net.actions.heads import CategoricalHead
from rogue_net.attention import Attention, Context
from rogue_net.config import RogueNetConfig
from rogue_net.embedding import EntityEmbedding, FeaturelessEmbedding, TypeEmbedding, module_key
from rogue_net.layout import Layout, rows_of_types, visible_rows
from rogue_net.memory import MEMORY, Memory, MemoryOutput, MemoryPlaces
from rogue_net.native import functions, library, network
from rogue_net.native.compiled import advice
from rogue_net.native.functions import PackedFrames, TypeRows
from rogue_net.native.library import fits
from rogue_net.native.memory import joined_rows
from rogue_net.native.network import threads_at_work
from rogue_net.native.pairs import packed_pairs
from rogue_net.ragged import ActionBatch, EntityBatch, of_action, to_device
from rogue_net.relpos.encoding import RelposEncoding
from rogue_net.transformer import Transformer

__all__ = ["Output", "advice", "draw_uniforms", "has_compiled_blocks", "run", "threads_at_work"]

ROWS_OF_SHAPE = 64
"""Rows are padded to a multiple: on the CPU torch compiles products in bfloat16 for each number of
rows, which takes longer than the products."""
_COMPILED_HEADS: dict[type[Any], Callable[[Any], nn.Linear]] = {
    CategoricalHead: attrgetter("project")
}
"""The heads that are compiled, and their layer."""
MOST_REMEMBERED = 512
"""Most frames of a packed layout that is cached: many environments show as many entities in each
step, and planning takes a tenth of the time to act in few frames."""


class Network(Protocol):
    """A network that may be compiled: `RogueNet`.

    Attributes:
        config: of the network.
        embedding: of entities.
        relpos: relative positions; None without.
        transformer: the blocks, up to those after memory.
        memory: None without.
        action_space: the actions.
        action_heads: of these actions, in their order.
        regression_heads: linear functions of the mean over the entities of a frame.
        training: True if something may be dropped.
    """

    config: RogueNetConfig
    embedding: EntityEmbedding
    relpos: RelposEncoding | None
    transformer: Transformer
    memory: Memory | None
    action_space: dict[str, ActionSpace]
    action_heads: nn.ModuleDict
    regression_heads: nn.ModuleDict
    training: bool


class Output(NamedTuple):
    """The output of a network for B frames.

    Attributes:
        x: (P, d_model), the entities after all blocks.
        layout: of these rows.
        means: (B, size) for each regression head; None if they were not computed.
        decisions: of the actions that were decided.
        remembered: memory; None of a network without.
    """

    x: Tensor
    layout: Layout
    means: list[Tensor] | None = None
    decisions: Mapping[str, Decision] = {}
    remembered: MemoryOutput | None = None


class _OfType(NamedTuple):
    """Statistics and parameters of the embedding of a type, see `TypeRows`."""

    mean: Tensor | None
    std: Tensor | None
    parameters: Sequence[Tensor]


@dataclass(frozen=True)
class PackedLayout(Layout):
    """Rows without padding, frame after frame; they are in no buckets.

    Attributes:
        frames: the rows of each frame.
    """

    frames: PackedFrames = field(kw_only=True)

    def means(self, x: Tensor) -> Tensor:
        """Return the mean over the entities of each frame."""
        return functions.frame_means(x, self.frames)


@dataclass(frozen=True)
class PackedContext(Context):
    """Attention over packed frames, in one piece: compiled code shares rows among threads itself.

    Attributes:
        frames: the rows of each frame, their visibility and relative positions.
        relpos: the encoding of relative positions; None without.
        tables: the tables of relative keys and values, whose rows `frames` refers to.
    """

    frames: PackedFrames
    relpos: RelposEncoding | None
    tables: tuple[Tensor | None, Tensor | None]

    def mix(self, attention: Attention, x: Tensor) -> Tensor:
        """Attend in float32, whatever `torch.autocast` makes of the linear layers."""
        gate = None if self.relpos is None else self.relpos.gate_of(x)
        return functions.attention(
            attention.query_key_value(x).float(),
            self.frames,
            attention.n_head,
            self.tables,
            None if gate is None else gate.float(),
        )


def draw_uniforms(keys: Sequence[int], env: IntArray, lengths: IntArray) -> Tensor:
    """Return a random number for each actor, a function of the arguments alone.

    Args:
        keys: different for each purpose.
        env: (B,) int64, the environment of each frame.
        lengths: (B,) int64, the actors of each frame.

    Returns:
        (actors,) float32 in [0, 1).
    """
    if library.AVAILABLE:
        return library.draw_uniforms(mix_ints(*keys), env, lengths)
    rank_in_frame = row_indices(np.zeros_like(lengths), lengths)
    bits = mix(*keys, np.repeat(env, lengths), rank_in_frame)
    return torch.from_numpy(uniforms(bits))


def are_of_one_size(one: Network, other: Network) -> bool:
    """Return whether compiled code may compute two networks in one call.

    Their inputs and settings must be the same; one may have no regression heads.
    """

    def sizes(net: Network) -> dict[str, int]:
        heads: dict[str, Any] = dict(net.regression_heads.items())
        return {name: head.out_features for name, head in heads.items()}

    return (
        one.config == other.config
        and has_compiled_blocks(one.config)
        and (not sizes(one) or not sizes(other) or sizes(one) == sizes(other))
        and (one.relpos is None or one.relpos.norm is None)
        and one.config.memory is None
    )


def has_compiled_blocks(config: RogueNetConfig) -> bool:
    """Return whether whole blocks are compiled, on the CPU in float32: faster than bfloat16."""
    is_narrow = config.d_model <= network.WIDEST and fits(config.d_model, config.n_head)
    return is_narrow and config.pooling is None


def run(
    net: Network,
    batch: EntityBatch,
    *,
    with_heads: bool = False,
    with_means: bool = True,
    actions: Mapping[str, Tensor] | None = None,
    uniforms: Mapping[str, Tensor] | None = None,
    others: Sequence[Network] = (),
    num_frames: Sequence[int] = (),
) -> Output | None:
    """Compute as much of a network as is compiled: at least the entities after all blocks.

    Args:
        net: the network.
        batch: B frames.
        with_heads: also decide the actions whose heads are compiled.
        with_means: also compute the regression heads.
        actions: per action (actors,) int64, choices to evaluate.
        uniforms: per action (actors,) float32 in [0, 1) to sample choices with.
        others: further networks for which `are_of_one_size`, to compute without gradients. Those
            whose parameters need none must never change: they are prepared once.
        num_frames: the number of consecutive frames of each network, if there are others.

    Returns:
        None if compiled code does not support this network or batch. The means are NaN in frames
        of networks without regression heads.
    """
    if not (_takes(batch) and all(_is_supported(one) for one in (net, *others))):
        return None
    # Inputs: features, rows and relative positions.
    types = net.embedding.types
    layout = packed_layout(
        {name: batch.features[name].lengths for name in types},
        batch.features[types[0]].values.device,
    )
    inputs = net.embedding.inputs(batch)
    context = packed_context(net.relpos, inputs, visible_rows(batch, types, layout), layout)
    rows = _type_rows(net.embedding, inputs, net.embedding.label_rows(batch), layout)
    # Narrow networks whole, wide ones in parts.
    is_whole = has_compiled_blocks(net.config)
    if is_whole and not torch.is_autocast_enabled("cpu"):
        choices = _choices(net, layout, batch, actions, uniforms) if with_heads else {}
        nets = [net, *others]
        return _run_whole(nets, num_frames, layout, context, rows, choices, with_means)
    if others:
        return None
    if is_whole or net.config.precision == "float32":
        return Output(_run_in_parts(net, context, rows), layout)
    with torch.autocast("cpu", torch.bfloat16):
        return Output(_run_in_parts(net, context, rows), layout)


def packed_context(
    relpos: RelposEncoding | None,
    inputs: Mapping[str, Tensor],
    visible: Tensor | None,
    layout: PackedLayout,
) -> PackedContext:
    """Return the context of the rows of a layout.

    Args:
        relpos: relative positions; None without.
        inputs: (n, features) for each type of the layout.
        visible: (R,) bool, the visible rows; None if all are.
        layout: of the rows.
    """
    pairs = None if relpos is None else packed_pairs(relpos, inputs, layout, layout.frames)
    frames = replace(layout.frames, visible=visible, pairs=pairs)
    return PackedContext(frames, relpos, _tables(relpos))


def _takes(batch: EntityBatch) -> bool:
    """Return whether compiled code takes these features: float32 without a gradient."""
    return all(
        rows.values.dtype == torch.float32 and not rows.values.requires_grad
        for rows in batch.features.values()
    )


def _is_supported(net: Network) -> bool:
    """Return whether compiled attention supports it: float32 on the CPU, no dropout."""
    parameter, memory = net.transformer.first_parameter(), net.memory
    return (
        parameter is not None
        and parameter.dtype == torch.float32
        and parameter.device.type == "cpu"
        and net.config.pooling is None
        and not (net.training and net.config.drops)
        and fits(net.config.d_model, net.config.n_head)
        and (memory is None or memory.width % library.VECTOR == 0)
    )


def _run_whole(
    nets: Sequence[Network],
    num_frames: Sequence[int],
    layout: PackedLayout,
    context: PackedContext,
    types: list[TypeRows],
    choices: Mapping[str, network.ChoiceInput],
    with_means: bool,
) -> Output:
    """Compute a narrow network, or several in frames of their own, in one call."""
    net = max(nets, key=lambda one: len(one.regression_heads))
    linears: dict[str, Any] = dict(net.regression_heads.items()) if with_means else {}
    weights = [_weights(nets[0], types, context.tables, choices, linears)]
    for other in nets[1:]:
        kept = _OF_OTHERS.get(other)
        if kept is None or len(kept.parameters) != len(weights[0].parameters):
            of_other, tables = _of_types(other.embedding), _tables(other.relpos)
            kept = _weights(other, of_other, tables, choices, linears)
            if not any(p.requires_grad for p in kept.parameters if p is not None):
                _OF_OTHERS[other] = kept
        weights.append(kept)
    means = [linear.out_features for linear in linears.values()]
    first_frame = functions.starts(np.array(num_frames, np.int64)) if len(nets) > 1 else None
    compiled = network.Network(
        context.frames, types, net.config, [*choices.values()], means, weights, first_frame
    )
    # Outputs.
    left = iter(compiled.run())
    x, said = next(left), [next(left) for _ in means]
    decisions = _decisions(left, choices)
    return Output(x, layout, said if with_means else None, decisions)


def _decisions(
    left: Iterator[Tensor], choices: Mapping[str, network.ChoiceInput]
) -> dict[str, Decision]:
    """Return the decisions in the outputs of a compiled network that are left."""
    decisions = {}
    for name, choice in choices.items():
        log_probs, log_prob, entropy = next(left), next(left), next(left)
        chosen = next(left) if choice.given is None else choice.given
        decisions[name] = Decision(chosen, log_prob, entropy, CategoricalDistribution(log_probs))
    return decisions


def run_memory(
    net: Network,
    memory: Memory,
    before: Output,
    batch: EntityBatch,
    places: MemoryPlaces,
    visible: Tensor | None,
    added: Tensor | None,
    *,
    with_heads: bool = False,
    with_means: bool = True,
    actions: Mapping[str, Tensor] | None = None,
    uniforms: Mapping[str, Tensor] | None = None,
) -> Output:
    """Compute memory, the blocks after it, and as much of the heads as is compiled.

    Args:
        net: the network.
        memory: of this network.
        before: result of `run`.
        batch: B frames.
        places: of the rows that remember.
        visible: (P,) bool, the visible entities; None if all are.
        added: (R, width), the choices made in the frames; None for none.
        with_heads: as in `run`, like the others.
        with_means: also compute the regression heads.
        actions: choices to evaluate.
        uniforms: to sample choices with.
    """
    layout, of_frame = before.layout, memory.remembering.frame
    assert isinstance(layout, PackedLayout)
    # Memory, and the rows of the blocks after it.
    known = None if memory.remembering.sees_hidden else visible
    with torch.autocast("cpu", enabled=False):
        of_frames = memory.of_rewards(places.past) if of_frame else None
        x = before.x.float()
        rows, states = joined_rows(memory, x, layout.frames, places, known, of_frames, added)
    further = places.past.absent.lengths + (1 if of_frame else 0)
    frames = PackedFrames(layout.lengths + further, kept=layout.lengths)
    if visible is not None:
        of_all = torch.ones(frames.num_rows, dtype=torch.bool)
        frames = replace(frames, visible=of_all.index_copy_(0, frames.kept_rows, visible))
    if net.relpos is not None:
        lengths = {name: batch.features[name].lengths for name in net.embedding.types}
        inputs = {**net.embedding.inputs(batch), MEMORY: rows.new_zeros(int(further.sum()), 0)}
        joined = packed_layout({**lengths, MEMORY: further}, rows.device)
        frames = replace(frames, pairs=packed_pairs(net.relpos, inputs, joined, joined.frames))
    context = PackedContext(frames, net.relpos, _tables(net.relpos))
    output = MemoryOutput(states, places, before.x, layout)
    # Blocks and heads.
    transformer, config = memory.transformer, memory.config_of_blocks
    is_whole = has_compiled_blocks(config)
    if is_whole and not torch.is_autocast_enabled("cpu"):
        choices = _choices(net, layout, batch, actions, uniforms) if with_heads else {}
        linears: dict[str, Any] = dict(net.regression_heads.items()) if with_means else {}
        weights = _weights(net, [], context.tables, choices, linears, transformer)
        sizes = [linear.out_features for linear in linears.values()]
        compiled = network.Network(
            frames, [], config, [*choices.values()], sizes, [weights], x=rows
        )
        left = iter(compiled.run())
        x, means = next(left), [next(left) for _ in sizes]
        decisions = _decisions(left, choices)
        return Output(x, layout, means if with_means else None, decisions, output)
    is_half = not is_whole and config.precision == "bfloat16"
    with torch.autocast("cpu", torch.bfloat16) if is_half else nullcontext():
        x = in_rows_of_shape(transformer, rows, context, frames.kept_rows)
    return Output(x, layout, remembered=output)


def _choices(
    net: Network,
    layout: PackedLayout,
    batch: EntityBatch,
    actions: Mapping[str, Tensor] | None,
    uniforms: Mapping[str, Tensor] | None,
) -> dict[str, network.ChoiceInput]:
    """Return the actions whose heads are compiled."""
    return {
        name: _choice(
            _COMPILED_HEADS[type(head)](head).out_features,
            layout,
            batch.actions[name],
            of_action(actions, name),
            of_action(uniforms, name),
        )
        for name, head in zip(net.action_space, net.action_heads.values(), strict=True)
        if type(head) in _COMPILED_HEADS and net.action_space[name].after is None
    }


_OF_OTHERS: MutableMapping[Any, network.Weights] = WeakKeyDictionary()
"""The weights of networks that do not change, with places for the regression heads of others."""


def _tables(relpos: RelposEncoding | None) -> tuple[Tensor | None, Tensor | None]:
    """Return the tables of relative keys and values."""
    return (None, None) if relpos is None else (relpos.key_table(), relpos.value_table())


def _weights(
    net: Network,
    of_types: Sequence[_OfType | TypeRows],
    tables: Sequence[Tensor | None],
    actions: Iterable[str],
    means: Iterable[str],
    blocks: Transformer | None = None,
) -> network.Weights:
    """Return the weights of a network with compiled heads of some actions and of some means.

    They are those of other blocks than the first ones, if these are given.
    Where the network has no such regression head, its weight and bias are None.
    """
    gate = None if net.relpos is None else net.relpos.gate
    heads = [net.action_heads[module_key(name)] for name in actions]
    linears: list[Any] = [_COMPILED_HEADS[type(head)](head) for head in heads]
    of_means = dict(net.regression_heads.items())
    linears += [of_means.get(name) for name in means]
    parameters = [
        *tables,
        *((None, None) if gate is None else (gate.weight, gate.bias)),
        *(blocks or net.transformer).parameters_in_order(),
        *(parameter for one in of_types for parameter in one.parameters),
        *(x for one in linears for x in ((None, None) if one is None else (one.weight, one.bias))),
    ]
    return network.Weights(parameters, [x for one in of_types for x in (one.mean, one.std)])


def _run_in_parts(net: Network, context: PackedContext, types: list[TypeRows]) -> Tensor:
    """Embed entities and run the blocks, with compiled embedding and attention."""
    with torch.autocast("cpu", enabled=False):
        num_rows = context.frames.num_rows
        x = functions.embed(types, num_rows, net.embedding.d_model)
    return in_rows_of_shape(net.transformer, x, context)


def in_rows_of_shape(
    transformer: Transformer, x: Tensor, context: PackedContext, kept: Tensor | None = None
) -> Tensor:
    """Run blocks, with rows padded to multiples of `ROWS_OF_SHAPE` where that is faster.

    Args:
        transformer: the blocks.
        x: (R, d_model).
        context: of these rows.
        kept: (n,) int64, the rows that come out; None for all.
    """
    num_rows = len(x) if kept is None else len(kept)
    if torch.is_autocast_enabled("cpu"):
        x = nn.functional.pad(x, (0, 0, 0, -len(x) % ROWS_OF_SHAPE))
        if kept is not None:
            kept = nn.functional.pad(kept, (0, -len(kept) % ROWS_OF_SHAPE))
    return transformer(x, context, kept)[:num_rows]  # type: ignore[no-any-return]


def packed_layout(type_lengths: Mapping[str, IntArray], device: torch.device) -> PackedLayout:
    """Return the rows of a batch without any padding.

    Args:
        type_lengths: (B,) entities per frame for each type, in the order of the types.
        device: where the index tensors go.
    """
    lengths = [np.ascontiguousarray(one, dtype=np.int64) for one in type_lengths.values()]
    plan = _plan if len(lengths[0]) <= MOST_REMEMBERED else _plan.__wrapped__
    return plan(b"".join([one.data for one in lengths]), len(lengths), device)


@lru_cache(maxsize=8)
def _plan(lengths: bytes, num_types: int, device: torch.device) -> PackedLayout:
    counts = np.frombuffer(lengths, dtype=np.int64).reshape(num_types, -1)  # (types, B)
    frames = PackedFrames(counts.sum(axis=0))
    first_row = frames.row_start[:-1]
    with torch.inference_mode(False):  # autograd cannot use tensors of that mode later
        row_of_entity = to_device(rows_of_types(first_row, counts), device)
        frame_order = to_device(np.flatnonzero(frames.lengths), device)
    return PackedLayout(
        frames.lengths,
        len(row_of_entity),
        [],
        row_of_entity,
        first_row,
        frame_order,
        is_in_order=num_types == 1,
        frames=frames,
    )


def _of_types(embedding: EntityEmbedding) -> list[_OfType]:
    """Return statistics and parameters of each type."""
    found = []
    for name in embedding.types:
        of_type = embedding.by_type[module_key(name)]
        assert isinstance(of_type, TypeEmbedding | FeaturelessEmbedding)
        mean = std = None
        if isinstance(of_type, TypeEmbedding):
            mean, std = of_type.norm.mean_and_std(torch.float32)
        found.append(_OfType(mean, std, of_type.parameters_in_order()))
    return found


def _type_rows(
    embedding: EntityEmbedding,
    inputs: Mapping[str, Tensor],
    label_rows: Mapping[str, Tensor],
    layout: Layout,
) -> list[TypeRows]:
    """Return the entities of each type for compiled functions."""
    places = torch.split(layout.row_of_entity, [len(x) for x in inputs.values()])
    return [
        TypeRows(x.contiguous(), label_rows.get(name), one.mean, one.std, to, one.parameters)
        for (name, x), one, to in zip(inputs.items(), _of_types(embedding), places, strict=True)
    ]


def _choice(
    num_choices: int,
    layout: Layout,
    action: ActionBatch,
    given: Tensor | None,
    uniforms: Tensor | None,
) -> network.ChoiceInput:
    """Return an action for compiled functions.

    Raises:
        ValueError: the mask, the actions or the uniforms are not of as many actors.
    """
    num_actors = len(action.actors.values)
    mask = None if action.mask is None else action.mask.values.bool().contiguous()
    expected = {
        "mask": (mask, (num_actors, num_choices)),
        "actions": (given, (num_actors,)),
        "uniforms": (uniforms, (num_actors,)),
    }
    for name, (x, shape) in expected.items():
        if x is not None and x.shape != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {tuple(x.shape)}")
    return network.ChoiceInput(
        rows=layout.rows(action.actors.values, action.actors.frame_of_row()).contiguous(),
        mask=mask,
        given=None if given is None else given.to(torch.int64).contiguous(),
        uniforms=None if uniforms is None else uniforms.float().contiguous(),
        num_choices=num_choices,
    )
