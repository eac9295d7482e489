"""`DenseNet`: a network over padded arrays, in operations that can be exported.

It has the modules of a `RogueNet`, and equal outputs for every size of the padding.
"""

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from entity_env.actions.chains import parents_first
from entity_env.spaces import GLOBAL, ActionName
from rogue_net.actions.dense_action import DenseAction, rows_of
from rogue_net.attention import PaddedContext, attention_mask
from rogue_net.dense_arrays import Arrays, input_arrays, networks, output_arrays
from rogue_net.embedding import EntityEmbedding, TypeEmbedding, module_key
from rogue_net.input_norm import InputNorm
from rogue_net.layout import Bucket, masked_mean
from rogue_net.memory import MEMORY, Memory
from rogue_net.relpos.attention import SparseRows
from rogue_net.relpos.encoding import RelposEncoding
from rogue_net.rogue_net import RogueNet, RogueNetWithValueNet
from rogue_net.transformer import Transformer


@dataclass(frozen=True)
class DenseLayout:
    """Rows of B frames padded to N rows: the entities of each type, then their padding.

    Attributes:
        is_type: (B, n) bool for each type, False for padding.
        is_visible: (B, n) bool for each type, True for visible entities.
    """

    is_type: Sequence[Tensor]
    is_visible: Sequence[Tensor]

    @property
    def is_entity(self) -> Tensor:
        """(B, N) bool, False for padding."""
        return torch.cat([*self.is_type], dim=1)

    def pad(self, x: Tensor) -> Tensor:
        """Reorder rows, type after type, to frame after frame, (B * N, ...)."""
        by_type = torch.split(x, [flags.numel() for flags in self.is_type])
        by_frame = [
            rows.reshape(flags.shape + x.shape[1:])
            for rows, flags in zip(by_type, self.is_type, strict=True)
        ]
        return torch.cat(by_frame, dim=1).flatten(0, 1)

    def rows(self, positions: Tensor) -> Tensor:
        """Return the rows of positions among the entities of frames, (B, n) int64; 0 for -1."""
        counts = self.is_entity.cumsum(dim=1)
        return (counts.unsqueeze(1) <= positions.unsqueeze(2)).sum(dim=2)


class DenseNet(nn.Module):
    """Network over padded arrays.

    Args:
        agent: a network, which is copied.
        without_ids: entity types without recurrent states, as their entities have no ids.
        value_scale: factor of the values, for the units of unscaled rewards.

    Attributes:
        inputs: inputs by name, see `input_arrays`.
        outputs: outputs by name, see `output_arrays`.

    Raises:
        ValueError: an option of the network cannot be exported.
    """

    def __init__(
        self,
        agent: RogueNet | RogueNetWithValueNet,
        without_ids: Sequence[str] = (),
        value_scale: float = 1.0,
    ) -> None:
        super().__init__()
        for net in networks(agent).values():
            _check_memory(net.memory)
        self.agent = copy.deepcopy(agent).eval()
        for module in self.agent.modules():
            if isinstance(module, InputNorm):
                _fix_statistics(module, next(agent.parameters()).dtype)
            if isinstance(module, TypeEmbedding) and module.linear.in_features == 0:
                # Types without numeric features have a column of zeros.
                zeros = torch.zeros_like(module.linear.bias).unsqueeze(1)
                module.linear.weight = nn.Parameter(zeros)
        self.without_ids, self.value_scale = without_ids, value_scale
        self.inputs = input_arrays(agent, without_ids)
        self.outputs = output_arrays(agent, without_ids)

    def forward(self, inputs: Arrays) -> Arrays:
        """Compute the outputs for B frames; see `output_arrays`."""
        outputs: Arrays = {}
        for prefix, net in networks(self.agent).items():
            layout = _layout(net.embedding.types, inputs)
            x, states = _entities(prefix, net, layout, inputs)
            outputs |= states | _decisions(net, x, layout, inputs)
            if "value" in net.regression_sizes:
                values = net.values_of_means(masked_mean(x, layout.is_entity))
                outputs["value"] = values["value"].squeeze(1) * self.value_scale
        return {name: outputs[name] for name in self.outputs}


def _fix_statistics(norm: InputNorm, dtype: torch.dtype) -> None:
    """Replace the computation of mean and standard deviation by its result."""
    mean, std = norm.mean_and_std(dtype)
    fixed = (mean, std) if len(mean) else (mean.new_zeros(1), std.new_ones(1))
    norm.mean_and_std = lambda dtype: fixed  # type: ignore[method-assign]


def _layout(types: Sequence[str], inputs: Arrays) -> DenseLayout:
    """Return the layout of the entities in the inputs."""
    one = torch.ones(next(iter(inputs.values())).shape[0], 1, dtype=torch.bool)
    is_type, is_visible = [], []
    for name in types:
        visible = one if name == GLOBAL else inputs[f"visible/{name}"]
        count = 1 if name == GLOBAL else inputs[f"count/{name}"].unsqueeze(1)
        is_type.append((torch.arange(visible.shape[1]) < count).expand_as(visible))
        is_visible.append(is_type[-1] & visible)
    return DenseLayout(is_type, is_visible)


def _columns(fields: tuple[str, str], name: str, is_type: Tensor, inputs: Arrays) -> Tensor | None:
    """Return the inputs of a type and of the frame, (B * n, columns); 0 for padding.

    Args:
        fields: names of the inputs of types, and of frames.
        name: name of the type.
        is_type: (B, n) bool, False for padding.
        inputs: inputs of the network.
    """
    columns, shared = inputs.get(f"{fields[0]}/{name}"), inputs.get(fields[1])
    if shared is not None:
        shared = shared.unsqueeze(1).expand(-1, is_type.shape[1], -1)
        columns = shared if columns is None else torch.cat([columns, shared], dim=2)
    if columns is None:
        return None
    return columns.masked_fill(~is_type.unsqueeze(2), 0).flatten(0, 1)


def _rows(embedding: EntityEmbedding, layout: DenseLayout, inputs: Arrays) -> tuple[Arrays, Arrays]:
    """Return the numeric inputs of types, (B * n, features), and rows of labels, (B * n, kinds)."""
    rows, labels = Arrays(), Arrays()
    for name, is_type in zip(embedding.types, layout.is_type, strict=True):
        features = _columns(("entities", "global"), name, is_type, inputs)
        rows[name] = is_type.new_zeros(is_type.numel(), 1).float() if features is None else features
        kinds = _columns(("kinds", "global_kinds"), name, is_type, inputs)
        if kinds is not None:
            by_type: Any = embedding.by_type[module_key(name)]
            labels[name] = kinds + by_type.first_labels
    return rows, labels


def _entities(
    prefix: str, net: RogueNet, layout: DenseLayout, inputs: Arrays
) -> tuple[Tensor, Arrays]:
    """Return the entities after the blocks, (B, N, d_model), and the new recurrent states.

    Args:
        prefix: start of the names of recurrent states.
        net: the network.
        layout: of the entities.
        inputs: inputs of the network.
    """
    embedding = net.embedding
    rows, labels = _rows(embedding, layout, inputs)
    if embedding.translation is not None:
        num_frames = layout.is_entity.shape[0]
        frames = {
            name: torch.arange(num_frames).unsqueeze(1).expand_as(is_type).flatten()
            for name, is_type in zip(embedding.types, layout.is_type, strict=True)
        }
        k = embedding.types.index(embedding.translation.config.reference_entity)
        reference = layout.is_visible[k].flatten()
        rows = embedding.translation(rows, frames, reference, num_frames)
    x = layout.pad(embedding(rows, labels))
    x = _attended(net.transformer, net.relpos, x, rows, layout)
    if net.memory is None:
        return x, {}
    return _with_memory(prefix, net, net.memory, x, rows, layout, inputs)


def _with_memory(
    prefix: str,
    net: RogueNet,
    memory: Memory,
    x: Tensor,
    rows: Arrays,
    layout: DenseLayout,
    inputs: Arrays,
) -> tuple[Tensor, Arrays]:
    """Update the recurrent states, and run the blocks after memory; arguments as `_entities`."""
    has_state = layout.is_type if memory.remembering.sees_hidden else layout.is_visible
    first = dict(zip(["", *memory.types], memory.first_states(), strict=True))
    states: Arrays = {}

    def update(name: str, x: Tensor, is_known: Tensor) -> Tensor:
        was_known = inputs[f"{prefix}known{name}"].unsqueeze(-1)
        last = torch.where(was_known, inputs[f"{prefix}memory{name}"], first[name[1:]])
        state: Tensor = memory.cell(x.flatten(0, -2), last.flatten(0, -2)).view_as(last)
        state = state.masked_fill(~is_known.unsqueeze(-1), 0.0)
        states.update({f"next_{prefix}memory{name}": state, f"next_{prefix}known{name}": is_known})
        return state

    # Entities become x + W h.
    parts = [*torch.split(x, [flags.shape[1] for flags in has_state], dim=1)]
    for k, name in enumerate(net.embedding.types):
        if f"{prefix}memory/{name}" in inputs:
            parts[k] = parts[k] + memory.to_entities(update(f"/{name}", parts[k], has_state[k]))

    # The state of the frame has a row of its own.
    all_rows = layout
    if memory.remembering.frame:
        means = masked_mean(x, torch.cat([*has_state], dim=1))
        rewards = memory.reward_inputs(inputs["reward"]) if "reward" in inputs else None
        means = means if rewards is None else means + rewards
        is_row = torch.ones_like(layout.is_entity[:, :1])
        row = memory.to_rows(update("", means, is_row[:, 0]))
        parts.append(row.unsqueeze(1))
        all_rows = DenseLayout([*layout.is_type, is_row], [*layout.is_visible, is_row])
        rows = {**rows, MEMORY: row[:, :0]}
    merged = torch.cat(parts, dim=1).flatten(0, 1)
    merged = _attended(memory.transformer, net.relpos, merged, rows, all_rows)
    return merged[:, : x.shape[1]], states


def _attended(
    transformer: Transformer,
    relpos: RelposEncoding | None,
    x: Tensor,
    rows: Arrays,
    layout: DenseLayout,
) -> Tensor:
    """Run blocks, (B * N, d_model) -> (B, N, d_model); `rows` are the numeric inputs of types."""
    is_entity, visible = layout.is_entity, torch.cat([*layout.is_visible], dim=1).flatten()
    # An empty frame attends to its padding, as the softmax over an empty set would be NaN.
    is_target = is_entity | ~is_entity.any(dim=1, keepdim=True)
    bucket = Bucket(0, is_entity.shape[0], is_entity.shape[1], is_target)
    pairs: Any = None if relpos is None else _PairVectors.of(relpos, rows, layout)
    # With `weights`, attention is a softmax without branches on sizes.
    masks = [attention_mask(bucket, visible)]
    context = PaddedContext([bucket], visible, masks, [pairs], pairs, weights=[])
    for block in transformer.blocks:
        x = block(x, context)
    return x.reshape(is_entity.shape + x.shape[1:])


@dataclass(frozen=True)
class _PairVectors:
    """Relative terms of attention, from vectors of all pairs that all layers share.

    Attributes:
        encoding: the parameters.
        keys: (B, N, N, d_head), relative keys of pairs.
        values: (B, N, N, d_head), relative values.
    """

    encoding: RelposEncoding
    keys: Tensor
    values: Tensor

    @staticmethod
    def of(relpos: RelposEncoding, rows: Arrays, layout: Any) -> "_PairVectors":
        """Compute the vectors from the numeric inputs of types."""
        shape = layout.is_entity.shape
        places = [x.reshape(shape + x.shape[1:]) for x in relpos.places(rows, layout)]
        keys, values = relpos.rows_of_pairs(
            [x.unsqueeze(2) for x in places],
            [x.unsqueeze(1) for x in places],
            lambda cells, has_position, offsets, num_cells: SparseRows(
                [corner.masked_fill(~has_position, num_cells) for corner in cells.corners],
                cells.weights,
                offsets,
                relpos.keys.dtype,
            ),
        )
        piece = slice(None), slice(None)
        tables = relpos.key_table(), relpos.value_table()
        return _PairVectors(
            relpos, keys.vectors(piece, tables[0]), values.vectors(piece, tables[1])
        )

    def gate_of(self, x: Tensor) -> Tensor | None:
        """Compute the gate of each entity's relative values, (..., d_model) -> (..., d_head)."""
        return self.encoding.gate_of(x)

    def scores(self, queries: Tensor, pairs: object) -> Tensor:
        """Compute the terms of attention scores, (B, H, N, d_head) -> (B, H, N, N)."""
        queries = queries / math.sqrt(queries.shape[3])
        return torch.einsum("bhid,bijd->bhij", queries, self.keys)

    def weighted_values(self, attention: Tensor, gate: Tensor | None, pairs: object) -> Tensor:
        """Compute the terms of the attention output, (B, H, N, N) -> (B, H, N, d_head)."""
        values = self.values if gate is None else self.values * gate.unsqueeze(1)
        return torch.einsum("bhij,bijd->bhid", attention, values)


def _decisions(net: RogueNet, x: Tensor, layout: DenseLayout, inputs: Arrays) -> Arrays:
    """Compute the most probable and the sampled choices, and the distributions."""
    outputs: Arrays = {}
    for name in parents_first(net.action_space):
        space = net.action_space[name]
        for field in ("best", "sampled"):
            if field == "best" or space.after is not None:
                after = outputs.get(f"{field}/{space.after}")
                distribution, is_active = _distribution(net, name, x, layout, inputs, after)
                is_inactive = ~is_active.unsqueeze(2)
            is_best = field == "best"
            choices = (
                distribution.mode() if is_best else distribution.sample(inputs[f"uniforms/{name}"])
            )
            outputs[f"{field}/{name}"] = (
                distribution.to_env(choices).masked_fill(is_inactive, torch.nan)
                if space.components
                else choices.masked_fill(~is_active, -1)
            )
        if space.components:
            outputs[f"mean/{name}"] = distribution.mean.masked_fill(is_inactive, torch.nan)
            outputs[f"deviation/{name}"] = distribution.std.masked_fill(is_inactive, torch.nan)
        else:
            log_probs = distribution.all_log_probs.masked_fill(is_inactive, -torch.inf)
            outputs[f"log_probs/{name}"] = log_probs
    return outputs


def _distribution(
    net: RogueNet,
    name: ActionName,
    x: Tensor,
    layout: DenseLayout,
    inputs: Arrays,
    parent_choices: Tensor | None,
) -> tuple[Any, Tensor]:
    """Return the distribution of an action and its active actors, (B, A) bool.

    Args:
        net: the network.
        name: name of the action.
        x: (B, N, d_model), the entities.
        layout: of the entities.
        inputs: inputs of the network.
        parent_choices: (B, parent actors) int64, choices of the parent action; None without one.
    """
    positions = _positions(name, layout, inputs)
    is_active, vectors = positions >= 0, None
    mask, actees = inputs.get(f"mask/{name}"), inputs.get(f"actees/{name}")
    if parent_choices is not None:
        is_label, vectors = _after_parent(net, name, x, layout, inputs, parent_choices)
        is_active = is_active & is_label.any(dim=2)
        if mask is not None:
            index = is_label.to(torch.uint8).argmax(dim=2)[:, :, None, None]
            mask = mask.gather(2, index.expand(-1, -1, 1, mask.shape[3])).squeeze(2)
    if mask is not None and actees is not None:
        mask = mask & (actees >= 0).unsqueeze(1)
        actees = layout.rows(actees)
    if mask is not None:
        is_active = is_active & mask.any(dim=2)
        mask = mask | ~is_active.unsqueeze(2)
    low, high = inputs.get(f"low/{name}"), inputs.get(f"high/{name}")
    bounds = None if low is None or high is None else torch.stack([low, high], dim=2)
    action = DenseAction(layout.rows(positions), mask, actees, bounds)
    head: Any = net.action_heads[module_key(name)]
    return head.dense(x, action, vectors), is_active


def _positions(name: ActionName, layout: DenseLayout, inputs: Arrays) -> Tensor:
    """Return the positions of actors in their frame, (B, A) int64, -1 for padding."""
    last = layout.is_entity.sum(dim=1, keepdim=True) - 1  # the global entity
    return inputs.get(f"actors/{name}", last)


def _after_parent(
    net: RogueNet,
    name: ActionName,
    x: Tensor,
    layout: DenseLayout,
    inputs: Arrays,
    parent_choices: Tensor,
) -> tuple[Tensor, Tensor]:
    """Look up the choices of the parent action by the actors; arguments as `_distribution`.

    Returns:
        (B, A, labels) bool, True for the label in `when` that was chosen, or of any choice without
        labels; and (B, A, d_model), the embeddings of the choices.
    """
    after, when = net.action_space[name].after, net.action_space[name].when
    assert after is not None
    positions, parents = (_positions(one, layout, inputs) for one in (name, after))
    is_same = positions.unsqueeze(2) == parents.unsqueeze(1)
    choices = parent_choices.gather(1, is_same.to(torch.uint8).argmax(dim=2))
    is_label = choices.unsqueeze(2) >= 0
    if when:
        labels = net.action_space[after].labels
        is_label = choices.unsqueeze(2) == torch.tensor([labels.index(label) for label in when])
    choices, actees = choices.clamp(min=0), inputs.get(f"actees/{after}")
    if actees is not None:
        choices = rows_of(x, layout.rows(actees).gather(1, choices))
    head: Any = net.action_heads[module_key(name)]
    return is_label, head.parent.layer(choices)


def _check_memory(memory: Memory | None) -> None:
    """Raise ValueError if recurrent states cannot be exported."""
    if memory is None:
        return
    if memory.types and memory.config.keep_absent > 0:
        raise ValueError(
            f"net.memory.keep_absent: expected 0 to export states of entities, got "
            f"{memory.config.keep_absent}; train with net.memory.keep_absent=0, or of=frame"
        )
    if memory.actions:
        raise ValueError(
            "net.memory.inputs: expected none but reward to export, got action; train without it"
        )
