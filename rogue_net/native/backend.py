"""Interface to the compiled part: networks ask it to compute a batch, and it may decline.

Narrow networks are compiled whole, from the features to decisions and values, in one call (`run`).
Of wide ones embedding and attention are (`embed`), and matrix products stay with torch, which is as
good at them. Both take frames that lie one after the other, without padding.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from entity_env.seeding import mix, mix_ints, uniforms
from rogue_net.attention import Attention, Context
from rogue_net.config import RogueNetConfig
from rogue_net.distributions import CategoricalDistribution, Decision
from rogue_net.embedding import EntityEmbedding, FeaturelessEmbedding, TypeEmbedding, module_key
from rogue_net.heads import ActionHead, CategoricalHead, actor_ranks
from rogue_net.input_norm import CLIP
from rogue_net.layout import Layout, layout_of, visible_rows
from rogue_net.native import functions, library, network
from rogue_net.native.library import fits
from rogue_net.native.packed import Gate, PackedFrames, Tables, TypeRows
from rogue_net.native.pairs import gate_parameters, packed_pairs, tables_of
from rogue_net.ragged import ActionBatch, EntityBatch, Lengths
from rogue_net.relpos_encoding import RelposEncoding
from rogue_net.transformer import Transformer

ROWS_OF_SHAPE = 64
"""Rows are padded to a multiple: on the CPU torch compiles products in bfloat16 for each number of
rows, which takes longer than the products."""


@dataclass(frozen=True)
class Modules:
    """The modules of a network.

    Attributes:
        config: of the network.
        embedding: of entities.
        transformer: its blocks.
        relpos: relative positions; None without.
        heads: by action.
        means: linear functions of the mean over the entities of a frame.
        training: True if something may be dropped.
    """

    config: RogueNetConfig
    embedding: EntityEmbedding
    transformer: Transformer
    relpos: RelposEncoding | None
    heads: Mapping[str, ActionHead]
    means: Sequence[nn.Linear]
    training: bool


class Output(NamedTuple):
    """The output of a compiled network for B frames of R entities.

    Attributes:
        x: (R, d_model), the entities after all blocks.
        layout: of these rows.
        means: (B, size) for each linear function of their means.
        decisions: of the actions whose heads are compiled.
    """

    x: Tensor
    layout: Layout
    means: list[Tensor]
    decisions: dict[str, Decision]


@dataclass(frozen=True)
class PackedContext(Context):
    """Attention over packed frames.

    Attributes:
        frames: the rows of each frame, their visibility and relative positions.
        relpos: the encoding of relative positions; None without.
        tables: the tables of the encoding, whose rows `frames` refers to.
    """

    frames: PackedFrames
    relpos: RelposEncoding | None = None
    tables: Tables | None = None

    @property
    def num_rows(self) -> int:
        """Number of rows, R."""
        return self.frames.num_rows

    def pieces(self) -> "list[Context]":
        """Return the context: compiled code shares rows among threads by itself."""
        return [self]

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


def draw_uniforms(keys: Sequence[int], env: npt.NDArray[np.int64], lengths: Lengths) -> Tensor:
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
    bits = mix(*keys, np.repeat(env, lengths), actor_ranks(lengths))
    return torch.from_numpy(uniforms(bits))


def has_compiled_blocks(config: RogueNetConfig) -> bool:
    """Return whether whole blocks are compiled, on the CPU in float32: faster than bfloat16."""
    is_narrow = config.d_model <= network.WIDEST and fits(config.d_model, config.n_head)
    return is_narrow and config.pooling is None


def run(
    net: Modules,
    batch: EntityBatch,
    *,
    with_heads: bool,
    actions: Mapping[str, Tensor] | None = None,
    uniforms: Mapping[str, Tensor] | None = None,
) -> Output | None:
    """Compute all of a narrow network in one call: embed, attend, decide, and take means.

    Args:
        net: the modules.
        batch: B frames.
        with_heads: also decide the actions whose heads are compiled.
        actions: per action (actors,) int64, choices to evaluate.
        uniforms: per action (actors,) float32 in [0, 1) to sample choices with.

    Returns:
        None if compiled code does not support this network or batch.
    """
    if (
        not has_compiled_blocks(net.config)
        or not _is_supported(net, batch)
        or torch.is_autocast_enabled("cpu")
    ):
        return None
    # Inputs: features, rows and relative positions.
    layout = layout_of(batch, net.embedding.types, is_packed=True)
    inputs = net.embedding.inputs(batch)
    context = _context(net, batch, inputs, layout)
    gate: Gate | None = None if net.relpos is None else gate_parameters(net.relpos)
    # Actions whose heads are compiled.
    heads = {}
    if with_heads:
        heads = {n: head for n, head in net.heads.items() if type(head) in _COMPILED_HEADS}
    choices = [
        _choice(
            head,
            layout,
            batch.actions[name],
            None if actions is None else actions[name],
            None if uniforms is None else uniforms[name],
        )
        for name, head in heads.items()
    ]

    # The network in one call.
    out = network.run(
        network.Network(
            frames=context.frames,
            types=_type_rows(net.embedding, inputs, layout),
            width=net.config.d_model,
            heads=net.config.n_head,
            clip=CLIP,
            gate_kind=None if gate is None else gate.kind,
            num_blocks=net.config.n_layer,
            choices=choices,
            num_means=len(net.means),
        ),
        net.transformer.parameters_in_order(),
        context.tables,
        gate,
        [_linear(head.get_submodule(_COMPILED_HEADS[type(head)])) for head in heads.values()],
        [_linear(linear) for linear in net.means],
    )
    decisions = {
        name: Decision(
            output.chosen,
            output.logprobs,
            output.entropies,
            CategoricalDistribution(output.log_probs),
        )
        for name, output in zip(heads, out.choices, strict=True)
    }
    return Output(out.x, layout, out.means, decisions)


def embed(net: Modules, batch: EntityBatch) -> tuple[Tensor, Layout] | None:
    """Embed entities and run the blocks, with compiled embedding and attention.

    Returns:
        (R, d_model) rows and their layout; None if compiled code does not support it.
    """
    if not _is_supported(net, batch):
        return None
    if net.config.precision == "float32" or has_compiled_blocks(net.config):
        return _embed(net, batch)
    with torch.autocast("cpu", torch.bfloat16):
        return _embed(net, batch)


def _embed(net: Modules, batch: EntityBatch) -> tuple[Tensor, Layout]:
    layout = layout_of(batch, net.embedding.types, net.relpos is not None, is_packed=True)
    inputs = net.embedding.inputs(batch)
    context = _context(net, batch, inputs, layout)
    with torch.autocast("cpu", enabled=False):
        types = _type_rows(net.embedding, inputs, layout)
        x = functions.embed(types, layout.num_rows, net.embedding.d_model, CLIP)
    if torch.is_autocast_enabled("cpu"):
        x = nn.functional.pad(x, (0, 0, 0, -len(x) % ROWS_OF_SHAPE))
    return net.transformer(x, context)[: layout.num_rows], layout


def _is_supported(net: Modules, batch: EntityBatch) -> bool:
    """Return whether compiled attention supports it: float32 on the CPU, no dropout."""
    parameter = net.transformer.first_parameter()
    return (
        parameter is not None
        and parameter.dtype == torch.float32
        and parameter.device.type == "cpu"
        and all(
            rows.values.dtype == torch.float32 and not rows.values.requires_grad
            for rows in batch.features.values()
        )
        and net.config.pooling is None
        and not (net.training and net.config.drops)
        and fits(net.config.d_model, net.config.n_head)
    )


def _context(
    net: Modules, batch: EntityBatch, inputs: Mapping[str, Tensor], layout: Layout
) -> PackedContext:
    assert layout.packed is not None
    visible = visible_rows(batch, net.embedding.types, layout)
    frames = layout.packed if visible is None else replace(layout.packed, visible=visible)
    if net.relpos is None:
        return PackedContext(frames)
    pairs = packed_pairs(net.relpos, inputs, layout)
    return PackedContext(replace(frames, pairs=pairs), net.relpos, tables_of(net.relpos))


def _type_rows(
    embedding: EntityEmbedding, inputs: Mapping[str, Tensor], layout: Layout
) -> list[TypeRows]:
    """Return the entities of each type for compiled functions."""
    places = torch.split(layout.row_of_entity, [len(x) for x in inputs.values()])
    types = []
    for (name, x), to in zip(inputs.items(), places, strict=True):
        of_type = embedding.by_type[module_key(name)]
        assert isinstance(of_type, TypeEmbedding | FeaturelessEmbedding)
        mean = std = None
        if isinstance(of_type, TypeEmbedding):
            mean, std = of_type.norm.mean_and_std(x.dtype)
        types.append(TypeRows(x.contiguous(), mean, std, to, of_type.parameters_in_order()))
    return types


def _choice(
    head: ActionHead,
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
    num_choices = len(_linear(head.get_submodule(_COMPILED_HEADS[type(head)])).bias)
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
    )


def _linear(linear: nn.Module) -> network.Linear:
    assert isinstance(linear, nn.Linear)
    return network.Linear(linear.weight, linear.bias)


_COMPILED_HEADS: dict[type[ActionHead], str] = {CategoricalHead: "project"}
"""The heads that are compiled, and their layer."""
