"""Compiled backend of the forward pass; returns None for unsupported networks and batches.

Narrow networks run in a single compiled call, from the features to decisions and values. In wide
ones, embedding and attention are compiled, and matrix products use torch, which is as fast. Frames
are packed: stored one after the other, without padding.
"""

from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn

from entity_env.arrays import IntArray
from entity_env.ragged import row_indices
from entity_env.seeding import mix, mix_ints, uniforms
from rogue_net.actions.distributions import CategoricalDistribution, Decision
from rogue_net.attention import Attention, Context
from rogue_net.config import RogueNetConfig
from rogue_net.layout import Layout, rows_of_types, visible_rows
from rogue_net.memory import MEMORY, Memory, MemoryOutput, MemoryPlaces
from rogue_net.native import functions, library, network
from rogue_net.native.compiled import advice
from rogue_net.native.functions import PackedFrames, TypeRows
from rogue_net.native.library import fits
from rogue_net.native.memory import joined_rows
from rogue_net.native.network import threads_at_work
from rogue_net.native.pairs import packed_pairs
from rogue_net.native.weights import (
    COMPILED_HEADS,
    CompilableNetwork,
    NetworkTensors,
    TypeParameters,
    Weights,
    tensors_of,
)
from rogue_net.ragged import ActionBatch, EntityBatch, lookup, to_device
from rogue_net.relpos.encoding import RelposEncoding
from rogue_net.transformer import Transformer

__all__ = ["RunOutput", "advice", "draw_uniforms", "has_compiled_blocks", "run", "threads_at_work"]

ROWS_OF_SHAPE = 64
"""Rows are padded to a multiple of this: on the CPU, torch compiles bfloat16 products for each
number of rows, which takes longer than the products."""
MAX_CACHED_FRAMES = 512
"""Largest number of frames of a cached packed layout: many environments have the same numbers of
entities in each step, and planning takes a tenth of the time of a small forward pass."""


class RunOutput(NamedTuple):
    """Output of `run`, or of the blocks in torch, for B frames.

    Attributes:
        x: (P, d_model), the entities after all blocks.
        layout: of these rows.
        means: (B, size) for each regression head; None if not computed.
        decisions: by action, of the compiled heads.
        memory: recurrent states; None for a network without memory.
    """

    x: Tensor
    layout: Layout
    means: list[Tensor] | None = None
    decisions: Mapping[str, Decision] = {}
    memory: MemoryOutput | None = None


@dataclass(frozen=True)
class PackedLayout(Layout):
    """Layout of packed frames: rows without padding, frame after frame, and no buckets.

    Attributes:
        frames: the rows of each frame.
    """

    frames: PackedFrames = field(kw_only=True)

    def means(self, x: Tensor) -> Tensor:
        """Return the mean over the entities of each frame."""
        return functions.frame_means(x, self.frames)


@dataclass(frozen=True)
class PackedContext(Context):
    """Attention over packed frames, in one microbatch: compiled code uses its own thread pool.

    Attributes:
        frames: the rows of each frame, their visibility and relative positions.
        relpos: the relative position encoding, or None.
        tables: the tables of relative keys and values that `frames` indexes.
    """

    frames: PackedFrames
    relpos: RelposEncoding | None
    tables: tuple[Tensor | None, Tensor | None]

    def mix(self, attention: Attention, x: Tensor) -> Tensor:
        """Attend within each frame, in float32 also under `torch.autocast`."""
        gate = None if self.relpos is None else self.relpos.gate_of(x)
        return functions.attention(
            attention.query_key_value(x).float(),
            self.frames,
            attention.n_head,
            self.tables,
            None if gate is None else gate.float(),
        )


def draw_uniforms(keys: Sequence[int], env: IntArray, lengths: IntArray) -> Tensor:
    """Return a random number for each actor, as a deterministic function of the arguments.

    Args:
        keys: the seed of the stream.
        env: (B,) int64, the environment of each frame.
        lengths: (B,) int64, the number of actors of each frame.

    Returns:
        (actors,) float32 in [0, 1).
    """
    if library.AVAILABLE:
        return library.draw_uniforms(mix_ints(*keys), env, lengths)
    rank_in_frame = row_indices(np.zeros_like(lengths), lengths)
    bits = mix(*keys, np.repeat(env, lengths), rank_in_frame)
    return torch.from_numpy(uniforms(bits))


def are_of_one_size(first: CompilableNetwork, second: CompilableNetwork) -> bool:
    """Return whether compiled code can run two networks with equal inputs in one call.

    Their settings must be equal; one of them may lack the regression heads.
    """

    def sizes(net: CompilableNetwork) -> dict[str, int]:
        heads: dict[str, Any] = dict(net.regression_heads.items())
        return {name: head.out_features for name, head in heads.items()}

    return (
        first.config == second.config
        and has_compiled_blocks(first.config)
        and (not sizes(first) or not sizes(second) or sizes(first) == sizes(second))
        and (first.relpos is None or first.relpos.norm is None)
        and first.config.memory is None
    )


def has_compiled_blocks(config: RogueNetConfig) -> bool:
    """Return whether whole blocks are compiled for the CPU, in float32, faster than bfloat16."""
    is_narrow = config.d_model <= network.WIDEST and fits(config.d_model, config.n_head)
    return is_narrow and config.pooling is None


def run(
    net: CompilableNetwork,
    batch: EntityBatch,
    *,
    with_heads: bool = False,
    with_means: bool = True,
    actions: Mapping[str, Tensor] | None = None,
    uniforms: Mapping[str, Tensor] | None = None,
    other_nets: Sequence[CompilableNetwork] = (),
    num_frames: Sequence[int] = (),
) -> RunOutput | None:
    """Run the compiled parts of a network: at least all blocks.

    Args:
        net: the network.
        batch: B frames.
        with_heads: also run the compiled action heads.
        with_means: also run the regression heads.
        actions: per action (actors,) int64, choices to evaluate.
        uniforms: per action (actors,) float32 in [0, 1) to sample choices with.
        other_nets: more networks that pass `are_of_one_size`, to run without gradients. Weights
            that require no gradients are cached, so they must never change.
        num_frames: the number of consecutive frames of each network, with `other_nets`.

    Returns:
        The output, with NaN for means of networks without regression heads; None if compiled code
        does not support this network or batch.
    """
    if not (_is_plain_input(batch) and all(_is_supported(one) for one in (net, *other_nets))):
        return None
    # Inputs: features, rows and relative positions.
    types = net.embedding.types
    layout = packed_layout(
        {name: batch.features[name].lengths for name in types},
        batch.features[types[0]].values.device,
    )
    inputs = net.embedding.inputs(batch)
    context = packed_context(net.relpos, inputs, visible_rows(batch, types, layout), layout)
    tensors = tensors_of(net)
    rows = _type_rows(tensors.types(), inputs, net.embedding.label_rows(batch), layout)
    # Narrow networks in a single call, wide ones layer by layer.
    is_whole = has_compiled_blocks(net.config)
    if is_whole and not torch.is_autocast_enabled("cpu"):
        choices = _choices(net, layout, batch, actions, uniforms) if with_heads else {}
        nets = [net, *other_nets]
        return _run_whole(nets, tensors, num_frames, layout, context, rows, choices, with_means)
    if other_nets:
        return None
    if is_whole or net.config.precision == "float32":
        return RunOutput(_run_in_parts(net, context, rows), layout)
    with torch.autocast("cpu", torch.bfloat16):
        return RunOutput(_run_in_parts(net, context, rows), layout)


def packed_context(
    relpos: RelposEncoding | None,
    inputs: Mapping[str, Tensor],
    visible: Tensor | None,
    layout: PackedLayout,
) -> PackedContext:
    """Create the context of packed frames.

    Args:
        relpos: the relative position encoding, or None.
        inputs: (n, features) for each type of the layout.
        visible: (R,) bool, the visible rows; None if all are.
        layout: of the rows.
    """
    pairs = None if relpos is None else packed_pairs(relpos, inputs, layout, layout.frames)
    frames = layout.frames.with_inputs(visible, pairs)
    return PackedContext(frames, relpos, _tables(relpos))


def _is_plain_input(batch: EntityBatch) -> bool:
    """Return whether all features are float32 and require no gradient."""
    return all(
        rows.values.dtype == torch.float32 and not rows.values.requires_grad
        for rows in batch.features.values()
    )


def _is_supported(net: CompilableNetwork) -> bool:
    """Return whether compiled attention supports a network: float32 on the CPU, no dropout."""
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
    nets: Sequence[CompilableNetwork],
    tensors: NetworkTensors,
    num_frames: Sequence[int],
    layout: PackedLayout,
    context: PackedContext,
    types: list[TypeRows],
    choices: Mapping[str, network.ChoiceInput],
    with_means: bool,
) -> RunOutput:
    """Run a narrow network, or several in separate frames, in a single compiled call."""
    net = max(nets, key=lambda one: len(one.regression_heads))
    linears: dict[str, Any] = dict(net.regression_heads.items()) if with_means else {}
    weights = [tensors.weights(nets[0], types, context.tables, choices, linears)]
    for other_net in nets[1:]:
        entry = _WEIGHTS_CACHE.get(other_net)
        if entry is None or len(entry.parameters) != len(weights[0].parameters):
            other, tables = tensors_of(other_net), _tables(other_net.relpos)
            entry = other.weights(other_net, other.types(), tables, choices, linears)
            if not any(p.requires_grad for p in entry.parameters if p is not None):
                _WEIGHTS_CACHE[other_net] = entry
        weights.append(entry)
    means = [linear.out_features for linear in linears.values()]
    first_frame = functions.starts(np.array(num_frames, np.int64)) if len(nets) > 1 else None
    compiled = network.CompiledNetwork(
        context.frames, types, net.config, [*choices.values()], means, weights, first_frame
    )
    # Outputs.
    outputs = iter(compiled.run())
    x, mean_outputs = next(outputs), [next(outputs) for _ in means]
    decisions = _decisions(outputs, choices)
    return RunOutput(x, layout, mean_outputs if with_means else None, decisions)


def _decisions(
    outputs: Iterator[Tensor], choices: Mapping[str, network.ChoiceInput]
) -> dict[str, Decision]:
    """Return the decisions in the remaining outputs of a compiled network."""
    decisions = {}
    for name, choice in choices.items():
        log_probs, log_prob, entropy = next(outputs), next(outputs), next(outputs)
        chosen = next(outputs) if choice.chosen is None else choice.chosen
        decisions[name] = Decision(chosen, log_prob, entropy, CategoricalDistribution(log_probs))
    return decisions


def run_memory(
    net: CompilableNetwork,
    memory: Memory,
    before: RunOutput,
    batch: EntityBatch,
    places: MemoryPlaces,
    visible: Tensor | None,
    added: Tensor | None,
    *,
    with_heads: bool = False,
    with_means: bool = True,
    actions: Mapping[str, Tensor] | None = None,
    uniforms: Mapping[str, Tensor] | None = None,
) -> RunOutput:
    """Run memory, the blocks after it, and the compiled heads.

    Args:
        net: the network.
        memory: memory of this network.
        before: result of `run`.
        batch: B frames.
        places: of the recurrent rows.
        visible: (P,) bool, the visible entities; None if all are.
        added: (R, width), terms of the choices in the frames; None without.
        with_heads: as in `run`.
        with_means: as in `run`.
        actions: as in `run`.
        uniforms: as in `run`.
    """
    layout, has_frame_state = before.layout, memory.remembering.frame
    assert isinstance(layout, PackedLayout)
    # Memory, and the rows of the blocks after it.
    averaged = None if memory.remembering.sees_hidden else visible
    with torch.autocast("cpu", enabled=False):
        x, rewards = before.x.float(), to_device(places.past.reward, before.x.device)
        reward_inputs = memory.reward_inputs(rewards) if has_frame_state else None
        rows, states = joined_rows(memory, x, layout.frames, places, averaged, reward_inputs, added)
    num_extra = places.past.absent.lengths + (1 if has_frame_state else 0)
    frames = PackedFrames(layout.lengths + num_extra, output_lengths=layout.lengths)
    if visible is not None:
        all_visible = torch.ones(frames.num_rows, dtype=torch.bool)
        frames = replace(frames, visible=all_visible.index_copy_(0, frames.output_rows, visible))
    if net.relpos is not None:
        lengths = {name: batch.features[name].lengths for name in net.embedding.types}
        inputs = {**net.embedding.inputs(batch), MEMORY: rows.new_zeros(int(num_extra.sum()), 0)}
        packed = packed_layout({**lengths, MEMORY: num_extra}, rows.device)
        frames = replace(frames, pairs=packed_pairs(net.relpos, inputs, packed, packed.frames))
    context = PackedContext(frames, net.relpos, _tables(net.relpos))
    output = MemoryOutput(states, places, before.x, layout)
    # Blocks and heads.
    transformer, config = memory.transformer, memory.block_config
    is_whole = has_compiled_blocks(config)
    if is_whole and not torch.is_autocast_enabled("cpu"):
        choices = _choices(net, layout, batch, actions, uniforms) if with_heads else {}
        linears: dict[str, Any] = dict(net.regression_heads.items()) if with_means else {}
        weights = tensors_of(net).weights(net, [], context.tables, choices, linears, transformer)
        sizes = [linear.out_features for linear in linears.values()]
        compiled = network.CompiledNetwork(
            frames, [], config, [*choices.values()], sizes, [weights], x=rows
        )
        outputs = iter(compiled.run())
        x, means = next(outputs), [next(outputs) for _ in sizes]
        decisions = _decisions(outputs, choices)
        return RunOutput(x, layout, means if with_means else None, decisions, output)
    is_half = not is_whole and config.precision == "bfloat16"
    with torch.autocast("cpu", torch.bfloat16) if is_half else nullcontext():
        x = in_rows_of_shape(transformer, rows, context, frames.output_rows)
    return RunOutput(x, layout, memory=output)


def _choices(
    net: CompilableNetwork,
    layout: PackedLayout,
    batch: EntityBatch,
    actions: Mapping[str, Tensor] | None,
    uniforms: Mapping[str, Tensor] | None,
) -> dict[str, network.ChoiceInput]:
    """Return the inputs of the compiled action heads, by action."""
    return {
        name: _choice(
            COMPILED_HEADS[type(head)](head).out_features,
            layout,
            batch.actions[name],
            lookup(actions, name),
            lookup(uniforms, name),
        )
        for name, head in zip(net.action_space, net.action_heads.values(), strict=True)
        if type(head) in COMPILED_HEADS and net.action_space[name].after is None
    }


_WEIGHTS_CACHE: MutableMapping[Any, Weights] = WeakKeyDictionary()
"""Weights of frozen networks, padded to the regression heads of the first network of a call."""


def _tables(relpos: RelposEncoding | None) -> tuple[Tensor | None, Tensor | None]:
    """Return the tables of relative keys and values, or None."""
    return (None, None) if relpos is None else (relpos.key_table(), relpos.value_table())


def _run_in_parts(net: CompilableNetwork, context: PackedContext, types: list[TypeRows]) -> Tensor:
    """Embed entities and run the blocks, with compiled embedding and attention: (R, d_model)."""
    with torch.autocast("cpu", enabled=False):
        num_rows = context.frames.num_rows
        x = functions.embed(types, num_rows, net.embedding.d_model)
    return in_rows_of_shape(net.transformer, x, context)


def in_rows_of_shape(
    transformer: Transformer, x: Tensor, context: PackedContext, output_rows: Tensor | None = None
) -> Tensor:
    """Run blocks, with rows padded to multiples of `ROWS_OF_SHAPE` under autocast.

    Args:
        transformer: the blocks.
        x: (R, d_model).
        context: of these rows.
        output_rows: (n,) int64, the rows of the result; None for all.

    Returns:
        (n, d_model).
    """
    num_rows = len(x) if output_rows is None else len(output_rows)
    if torch.is_autocast_enabled("cpu"):
        x = nn.functional.pad(x, (0, 0, 0, -len(x) % ROWS_OF_SHAPE))
        if output_rows is not None:
            output_rows = nn.functional.pad(output_rows, (0, -len(output_rows) % ROWS_OF_SHAPE))
    return transformer(x, context, output_rows)[:num_rows]  # type: ignore[no-any-return]


def packed_layout(type_lengths: Mapping[str, IntArray], device: torch.device) -> PackedLayout:
    """Plan the rows of a batch without padding.

    Args:
        type_lengths: (B,) entities per frame for each type, in the order of the types.
        device: where the index tensors go.
    """
    lengths = [np.ascontiguousarray(one, dtype=np.int64) for one in type_lengths.values()]
    plan = _plan if len(lengths[0]) <= MAX_CACHED_FRAMES else _plan.__wrapped__
    return plan(b"".join([one.data for one in lengths]), len(lengths), device)


@lru_cache(maxsize=8)
def _plan(lengths: bytes, num_types: int, device: torch.device) -> PackedLayout:
    counts = np.frombuffer(lengths, dtype=np.int64).reshape(num_types, -1)  # (types, B)
    frames = PackedFrames(counts.sum(axis=0))
    first_row = frames.row_start[:-1]
    with torch.inference_mode(False):  # autograd cannot use inference tensors later
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


def _type_rows(
    parameters: Sequence[TypeParameters],
    inputs: Mapping[str, Tensor],
    label_rows: Mapping[str, Tensor],
    layout: Layout,
) -> list[TypeRows]:
    """Return the entities of each type as inputs of compiled functions."""
    places = torch.split(layout.row_of_entity, [len(x) for x in inputs.values()])
    return [
        TypeRows(x.contiguous(), label_rows.get(name), one.mean, one.std, to, one.parameters)
        for (name, x), one, to in zip(inputs.items(), parameters, places, strict=True)
    ]


def _choice(
    num_choices: int,
    layout: Layout,
    action: ActionBatch,
    chosen: Tensor | None,
    uniforms: Tensor | None,
) -> network.ChoiceInput:
    """Return the inputs of the compiled head of an action.

    Raises:
        ValueError: the mask, the actions or the uniforms have a wrong shape.
    """
    num_actors = len(action.actors.values)
    mask = None if action.mask is None else action.mask.values.bool().contiguous()
    expected = {
        "mask": (mask, (num_actors, num_choices)),
        "actions": (chosen, (num_actors,)),
        "uniforms": (uniforms, (num_actors,)),
    }
    for name, (x, shape) in expected.items():
        if x is not None and x.shape != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {tuple(x.shape)}")
    return network.ChoiceInput(
        rows=layout.rows(action.actors.values, action.actors.frame_of_row()).contiguous(),
        mask=mask,
        chosen=None if chosen is None else chosen.to(torch.int64).contiguous(),
        uniforms=None if uniforms is None else uniforms.float().contiguous(),
        num_choices=num_choices,
    )
