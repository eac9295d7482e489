"""`DenseNet`: a network over padded arrays, in operations that can be exported.

It has the modules of a `RogueNet`, and equal outputs for every size of the padding.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from entity_env.actions.chains import parents_first
from entity_env.spaces import GLOBAL, ActionName, ActionSpace
from rogue_net.actions.dense_action import DenseAction, rows_of
from rogue_net.attention import PaddedContext, attention_mask
from rogue_net.dense_arrays import Arrays, input_arrays, networks, output_arrays
from rogue_net.embedding import TypeEmbedding, module_key
from rogue_net.input_norm import CLIP, InputNorm
from rogue_net.layout import Bucket, masked_mean
from rogue_net.memory import MEMORY, Memory
from rogue_net.relpos.attention import SparseRows
from rogue_net.relpos.cells import Cells
from rogue_net.relpos.encoding import RelposEncoding
from rogue_net.rogue_net import RogueNet, RogueNetWithValueNet
from rogue_net.value_head import TargetNorm


@dataclass(frozen=True)
class DenseLayout:
    """Rows of B frames padded to N rows: the entities of each type, then their padding.

    Attributes:
        sizes: number of rows of each type.
        is_type: (B, rows) bool for each type, False for padding.
    """

    sizes: Sequence[Any]
    is_type: Sequence[Tensor]

    @property
    def num_frames(self) -> Any:
        """B."""
        return self.is_type[0].shape[0]

    @property
    def is_entity(self) -> Tensor:
        """(B, N) bool, False for padding."""
        return torch.cat([*self.is_type], dim=1)

    def pad(self, x: Tensor) -> Tensor:
        """Reorder rows, type after type, to frame after frame, (B * N, ...)."""
        rows = torch.split(x, [self.num_frames * size for size in self.sizes])
        by_frame = [
            part.reshape(self.num_frames, size, *x.shape[1:])
            for part, size in zip(rows, self.sizes, strict=True)
        ]
        return torch.cat(by_frame, dim=1).flatten(0, 1)

    def rows(self, positions: Tensor) -> Tensor:
        """Return the rows of positions among the entities of frames, (B, n) int64; 0 for -1."""
        counts = torch.stack([flags.sum(dim=1) for flags in self.is_type], dim=1)  # (B, types)
        padding = torch.stack([(~flags).sum(dim=1) for flags in self.is_type], dim=1)
        # Entities of a type follow the padding of all earlier types.
        is_behind = positions.unsqueeze(2) >= counts.cumsum(dim=1).unsqueeze(1)
        rows = positions + (is_behind * padding.unsqueeze(1)).sum(dim=2)
        return rows.masked_fill(positions < 0, 0)

    def with_rows(self, is_row: Tensor) -> "DenseLayout":
        """Append another type, (B, n) bool."""
        return DenseLayout([*self.sizes, is_row.shape[1]], [*self.is_type, is_row])


class _Trunk(NamedTuple):
    """Entities after the blocks of a network, (B, N, d_model), and its new recurrent states."""

    x: Tensor
    layout: DenseLayout
    memory: Arrays


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
        agent = copy.deepcopy(agent).eval()
        for module in [*agent.modules()]:
            if isinstance(module, TypeEmbedding) and module.linear.in_features == 0:
                # Types without numeric features have a column of zeros.
                module.linear.weight = nn.Parameter(
                    module.linear.bias.new_zeros(len(module.linear.bias), 1)
                )
            for name, child in module.named_children():
                if isinstance(child, InputNorm):
                    setattr(module, name, FixedNorm(child, next(agent.parameters()).dtype))
        self.agent = agent
        self.without_ids, self.value_scale = without_ids, value_scale
        self.inputs = input_arrays(agent, without_ids)
        self.outputs = output_arrays(agent, without_ids)

    def forward(self, inputs: Arrays) -> Arrays:
        """Compute the outputs for B frames; see `output_arrays`."""
        nets = networks(self.agent)
        trunks = {prefix: self._trunk(prefix, net, inputs) for prefix, net in nets.items()}
        outputs = self._decide(nets[""], trunks[""], inputs)
        for prefix, net in nets.items():
            x, layout, memory = trunks[prefix]
            outputs |= memory
            if "value" in net.regression_sizes:
                pooled = masked_mean(x, layout.is_entity)
                outputs["value"] = (
                    net.values_of_means(pooled)["value"].squeeze(1) * self.value_scale
                )
        return {name: outputs[name] for name in self.outputs}

    def _trunk(self, prefix: str, net: RogueNet, inputs: Arrays) -> _Trunk:
        """Run the blocks of a network; `prefix` is that of its recurrent states."""
        embedding = net.embedding
        layout = _layout(embedding.types, inputs)
        is_visible = [
            flags & inputs[f"visible/{name}"] if name != GLOBAL else flags
            for name, flags in zip(embedding.types, layout.is_type, strict=True)
        ]
        visible = torch.cat(is_visible, dim=1).flatten()
        rows = _numeric_rows(embedding.types, inputs, layout)
        if embedding.translation is not None:
            by_type = dict(zip(embedding.types, is_visible, strict=True))
            reference = by_type[embedding.translation.config.reference_entity].flatten()
            frames = {
                name: torch.arange(layout.num_frames).unsqueeze(1).expand_as(flags).flatten()
                for name, flags in by_type.items()
            }
            rows = embedding.translation(rows, frames, reference, layout.num_frames)
        x = layout.pad(embedding(rows, _label_rows(net, inputs, layout)))
        context = _context(net.relpos, rows, layout, visible)
        for block in net.transformer.blocks:
            x = block(x, context)
        x = x.view(layout.num_frames, sum(layout.sizes), -1)
        if net.memory is None:
            return _Trunk(x, layout, {})
        return self._with_memory(prefix, net, _Trunk(x, layout, {}), rows, is_visible, inputs)

    def _with_memory(
        self,
        prefix: str,
        net: RogueNet,
        before: _Trunk,
        rows: Arrays,
        is_visible: Sequence[Tensor],
        inputs: Arrays,
    ) -> _Trunk:
        """Update the recurrent states, and run the blocks after memory."""
        memory, (x, layout, _) = net.memory, before
        assert memory is not None
        sees_hidden = memory.remembering.sees_hidden
        averaged = layout.is_entity if sees_hidden else torch.cat([*is_visible], dim=1)
        first = dict(zip(["", *memory.types], memory.first_states(), strict=True))
        states: Arrays = {}

        def updated(name: str, rows: Tensor, has_state: Tensor) -> Tensor:
            known = inputs[f"{prefix}known{name}"].unsqueeze(-1)
            last = torch.where(known, inputs[f"{prefix}memory{name}"], first[name[1:]])
            new = memory.cell(rows.flatten(0, -2), last.flatten(0, -2)).view_as(last)
            states[f"next_{prefix}memory{name}"] = new.masked_fill(~has_state.unsqueeze(-1), 0.0)
            states[f"next_{prefix}known{name}"] = has_state
            return states[f"next_{prefix}memory{name}"]

        # Entities become x + W h.
        parts = [*torch.split(x, [*layout.sizes], dim=1)]
        for k, name in enumerate(net.embedding.types):
            if name in memory.types and name not in self.without_ids:
                has_state = layout.is_type[k] if sees_hidden else is_visible[k]
                state = updated(f"/{name}", parts[k], has_state)
                parts[k] = parts[k] + memory.to_entities(state)

        # The state of the frame has a row of its own.
        all_rows, visible = layout, is_visible
        if memory.remembering.frame:
            means = masked_mean(x, averaged)
            if memory.reward is not None:
                reward = inputs["reward"].to(x.dtype)
                means = means + memory.reward((reward.sign() * reward.abs().log1p())[:, None])
            is_row = torch.ones_like(averaged[:, :1])
            parts.append(memory.to_rows(updated("", means, is_row[:, 0])).unsqueeze(1))
            all_rows, visible = layout.with_rows(is_row), [*is_visible, is_row]
            rows = {**rows, MEMORY: parts[-1].flatten(0, 1)[:, :0]}
        x = torch.cat(parts, dim=1).flatten(0, 1)
        context = _context(net.relpos, rows, all_rows, torch.cat([*visible], dim=1).flatten())
        for block in memory.transformer.blocks:
            x = block(x, context)
        x = x.view(layout.num_frames, sum(all_rows.sizes), -1)
        return _Trunk(x[:, : sum(layout.sizes)], layout, states)

    def _decide(self, net: RogueNet, trunk: _Trunk, inputs: Arrays) -> Arrays:
        """Compute the most probable and the sampled choices, and the distributions."""
        actors = _Actors(net.action_space, trunk.layout, inputs)
        best: Arrays = {}
        sampled: Arrays = {}
        outputs: Arrays = {}
        for name in parents_first(net.action_space):
            head: Any = net.action_heads[module_key(name)]
            distribution, is_active = _distribution(head, name, trunk.x, actors, best)
            best[name] = _marked(distribution, distribution.mode(), is_active)
            if net.action_space[name].after is not None:  # after the sampled choice of the parent
                distribution, is_active = _distribution(head, name, trunk.x, actors, sampled)
            draws = distribution.sample(inputs[f"uniforms/{name}"])
            sampled[name] = _marked(distribution, draws, is_active)
            outputs |= {f"best/{name}": best[name], f"sampled/{name}": sampled[name]}
            if net.action_space[name].components:
                for part, values in ("mean", distribution.mean), ("deviation", distribution.std):
                    outputs[f"{part}/{name}"] = values.masked_fill(
                        ~is_active.unsqueeze(2), torch.nan
                    )
            else:
                log_probs = distribution.all_log_probs
                outputs[f"log_probs/{name}"] = log_probs.masked_fill(
                    ~is_active.unsqueeze(2), -torch.inf
                )
        return outputs


class _Actors:
    """Actors of all actions in padded frames.

    Args:
        action_space: the actions.
        layout: of the entities.
        inputs: inputs of the network.

    Attributes:
        positions: (B, A) int64 by action, positions of the actors in their frame, -1 for padding.
    """

    def __init__(
        self, action_space: Mapping[ActionName, ActionSpace], layout: DenseLayout, inputs: Arrays
    ) -> None:
        self.action_space, self._layout, self._inputs = action_space, layout, inputs
        last = layout.is_entity.sum(dim=1, keepdim=True) - 1  # the global entity
        self.positions = {
            name: last if space.is_global else inputs[f"actors/{name}"]
            for name, space in action_space.items()
        }

    def action(self, name: ActionName) -> DenseAction:
        """Return an action; the mask of a dependent one has a dimension for the parent labels."""
        inputs, rows = self._inputs, self._layout.rows(self.positions[name])
        if self.action_space[name].components:
            bounds = torch.stack([inputs[f"low/{name}"], inputs[f"high/{name}"]], dim=2)
            return DenseAction(rows, bounds=bounds)
        mask, actees = inputs[f"mask/{name}"], inputs.get(f"actees/{name}")
        if actees is None:
            return DenseAction(rows, mask)
        is_actee = (actees >= 0).unsqueeze(1)
        is_actee = is_actee.unsqueeze(1) if mask.dim() == 4 else is_actee
        return DenseAction(rows, mask & is_actee, self._layout.rows(actees))

    def parent_choices(self, name: ActionName, chosen: Arrays) -> Tensor:
        """Return the choices of the parent action by the actors of an action, (B, A) int64."""
        parent = self.action_space[name].after
        assert parent is not None
        is_same = self.positions[name].unsqueeze(2) == self.positions[parent].unsqueeze(1)
        return chosen[parent].gather(1, is_same.to(torch.uint8).argmax(dim=2))

    def labels(self, name: ActionName, parent_choices: Tensor) -> tuple[Tensor, Tensor]:
        """Return which actors are active, and the index of their label in `when`, (B, A) each."""
        space = self.action_space[name]
        if not space.when:
            return parent_choices >= 0, torch.zeros_like(parent_choices)
        assert space.after is not None
        labels = self.action_space[space.after].labels
        when = torch.tensor([labels.index(label) for label in space.when])
        is_label = parent_choices.unsqueeze(2) == when
        return is_label.any(dim=2), is_label.to(torch.uint8).argmax(dim=2)


def _distribution(
    head: Any, name: ActionName, x: Tensor, actors: _Actors, chosen: Arrays
) -> tuple[Any, Tensor]:
    """Return the distribution of an action after earlier choices, and its active actors, (B, A)."""
    action, is_active, vectors = actors.action(name), actors.positions[name] >= 0, None
    mask, after = action.mask, actors.action_space[name].after
    if after is not None:
        choices = actors.parent_choices(name, chosen)
        is_chosen, label = actors.labels(name, choices)
        is_active = is_active & is_chosen
        if mask is not None:  # of the label
            index = label[:, :, None, None].expand(-1, -1, 1, mask.shape[3])
            mask = mask.gather(2, index).squeeze(2)
        choices, actees = choices.clamp(min=0), actors.action(after).actees
        if actees is not None:
            choices = rows_of(x, actees.gather(1, choices))
        vectors = head.parent.layer(choices)
    if mask is not None:
        is_active = is_active & mask.any(dim=2)
        mask = mask | ~is_active.unsqueeze(2)
    return head.dense(x, replace(action, mask=mask), vectors), is_active


def _marked(distribution: Any, chosen: Tensor, is_active: Tensor) -> Tensor:
    """Convert choices to actions of the environment; inactive actors have -1 or NaN."""
    if chosen.is_floating_point():
        return distribution.to_env(chosen).masked_fill(~is_active.unsqueeze(2), torch.nan)  # type: ignore[no-any-return]
    return chosen.masked_fill(~is_active, -1)


class FixedNorm(nn.Module):
    """Normalisation by the statistics of an `InputNorm` or `TargetNorm`, as constants.

    Args:
        norm: the statistics.
        dtype: of the inputs.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, norm: InputNorm, dtype: torch.dtype) -> None:
        super().__init__()
        mean, std = norm.mean_and_std(dtype)
        self.is_target = isinstance(norm, TargetNorm)
        self.register_buffer("mean", mean if len(mean) else mean.new_zeros(1))
        self.register_buffer("std", std if len(std) else std.new_ones(1))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise inputs, (n, F) -> (n, F), or convert outputs to the units of the targets."""
        if self.is_target:
            return self.mean + self.std * x
        return ((x - self.mean) / self.std).clamp(-CLIP, CLIP)


class _Vectors(NamedTuple):
    """Relative keys and values of all pairs of entities, (B, N, N, d_head) each."""

    keys: Tensor
    values: Tensor


class _PairVectors:
    """Relative terms of attention, from the vectors of pairs.

    Args:
        encoding: the parameters.
    """

    def __init__(self, encoding: RelposEncoding) -> None:
        self.gate_of = encoding.gate_of

    def scores(self, queries: Tensor, pairs: _Vectors) -> Tensor:
        """Compute the terms of attention scores, (b, H, n, d_head) -> (b, H, n, n)."""
        queries = queries / math.sqrt(queries.shape[3])
        return torch.einsum("bhid,bijd->bhij", queries, pairs.keys)

    def weighted_values(self, attention: Tensor, gate: Tensor | None, pairs: _Vectors) -> Tensor:
        """Compute the terms of the attention output, (b, H, n, n) -> (b, H, n, d_head)."""
        values = pairs.values if gate is None else pairs.values * gate.unsqueeze(1)
        return torch.einsum("bhij,bijd->bhid", attention, values)


def _context(
    relpos: RelposEncoding | None, rows: Arrays, layout: DenseLayout, visible: Tensor
) -> PaddedContext:
    """Return the context of the blocks; `visible` is (B * N,) bool, `rows` are numeric inputs."""
    is_entity, num_frames, num_rows = layout.is_entity, layout.num_frames, sum(layout.sizes)
    # An empty frame attends to its padding, as the softmax over an empty set would be NaN.
    bucket = Bucket(0, num_frames, num_rows, is_entity | ~is_entity.any(dim=1, keepdim=True))
    vectors: Any = None
    pairs: list[Any] | None = None
    if relpos is not None:
        padded: Any = layout
        places = [
            x.reshape(num_frames, num_rows, *x.shape[1:]) for x in relpos.places(rows, padded)
        ]
        query, target = ([x.unsqueeze(axis) for x in places] for axis in (2, 1))
        keys, values = relpos.rows_of_pairs(
            query, target, partial(_table_rows, dtype=relpos.keys.dtype)
        )
        everything = slice(None), slice(None)
        # All layers share the vectors.
        of_keys = keys.vectors(everything, relpos.key_table())
        of_values = values.vectors(everything, relpos.value_table())
        vectors, pairs = _PairVectors(relpos), [_Vectors(of_keys, of_values)]
    # With `weights`, attention is a softmax without branches on sizes.
    masks = [attention_mask(bucket, visible)]
    return PaddedContext([bucket], visible, masks, pairs, vectors, weights=[])


def _table_rows(
    cells: Cells, has_position: Tensor, offsets: Tensor | None, num_cells: int, dtype: torch.dtype
) -> SparseRows:
    """Return the rows of a table, as `make_rows` does for a large one."""
    rows = [corner.masked_fill(~has_position, num_cells) for corner in cells.corners]
    return SparseRows(rows, cells.weights, offsets, dtype)


def _layout(types: Sequence[str], inputs: Arrays) -> DenseLayout:
    """Return the layout of the entities in the inputs."""
    num_frames = next(iter(inputs.values())).shape[0]
    flags = [
        torch.ones(num_frames, 1, dtype=torch.bool)
        if name == GLOBAL
        else torch.arange(inputs[f"visible/{name}"].shape[1]) < inputs[f"count/{name}"].unsqueeze(1)
        for name in types
    ]
    return DenseLayout([one.shape[1] for one in flags], flags)


def _columns(fields: tuple[str, str], name: str, flags: Tensor, inputs: Arrays) -> list[Tensor]:
    """Return the inputs of a type and of the frame, (B, n, columns) each; 0 for padding.

    Args:
        fields: of the inputs of types, and of frames.
        name: of the type.
        flags: (B, n) bool, False for padding.
        inputs: of the network.
    """
    columns = []
    if (own := inputs.get(f"{fields[0]}/{name}")) is not None:
        columns.append(own.masked_fill(~flags.unsqueeze(2), 0))
    if (shared := inputs.get(fields[1])) is not None:
        columns.append(shared.unsqueeze(1).expand(-1, flags.shape[1], -1))
    return columns


def _numeric_rows(types: Sequence[str], inputs: Arrays, layout: DenseLayout) -> Arrays:
    """Return the numeric inputs of each type, (B * n, features); zeros without any."""
    rows = {}
    for name, flags in zip(types, layout.is_type, strict=True):
        columns = _columns(("entities", "global"), name, flags, inputs)
        columns = columns or [torch.zeros_like(flags, dtype=torch.float32).unsqueeze(2)]
        rows[name] = torch.cat(columns, dim=2).flatten(0, 1)
    return rows


def _label_rows(net: RogueNet, inputs: Arrays, layout: DenseLayout) -> Arrays:
    """Return the rows of labels in the label embeddings, (B * n, kinds) int64 by type."""
    flags, rows = dict(zip(net.embedding.types, layout.is_type, strict=True)), {}
    for name in net.embedding.kinds:
        columns = _columns(("kinds", "global_kinds"), name, flags[name], inputs)
        embedding = net.embedding.by_type[module_key(name)]
        assert isinstance(embedding, TypeEmbedding)
        rows[name] = torch.cat(columns, dim=2).flatten(0, 1) + embedding.first_labels
    return rows


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
