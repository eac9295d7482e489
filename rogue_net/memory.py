"""Recurrent state of a network: a gated recurrent unit per row, and attention to the states.

Source of the cell: Cho et al. 2014, arXiv:1406.1078, with the gates of `torch.nn.GRUCell`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from entity_env.arrays import IntArray
from entity_env.ragged import row_indices
from entity_env.spaces import ActionSpace
from rogue_net.actions.heads import HEADS
from rogue_net.actions.parts import has_choice, zero_inactive
from rogue_net.config import RogueNetConfig
from rogue_net.embedding import module_key
from rogue_net.layout import Layout
from rogue_net.past import FRAME, NEW, NO_KEYS, MemoryRows, Past, link_single_frames
from rogue_net.ragged import EntityBatch, RaggedTensor, to_device
from rogue_net.transformer import Transformer

MEMORY = "__memory__"
"""Pseudo entity type of the rows of frame states and of absent entities."""


class MemorySpec(NamedTuple):
    """Specification of the recurrent states of a network.

    Attributes:
        types: the entity types with states.
        frame: True if the frame as a whole has a state.
        keep_absent: number of frames for which entities that are not observed are retained.
        sees_hidden: True for a value network, with entities that are invisible to the policy.
        width: of a state; None if unknown.
    """

    types: Sequence[str]
    frame: bool
    keep_absent: int
    sees_hidden: bool
    width: int | None = None


def memory_rows(batch: EntityBatch, spec: MemorySpec) -> MemoryRows:
    """Return the recurrent rows of a batch: frames, and entities with an identity.

    Args:
        batch: frames with `identity`.
        spec: the rows to select.
    """
    num_frames = batch.num_frames
    parts = [np.zeros((4, 0), np.int64)]
    if spec.frame:
        zeros = np.zeros(num_frames, np.int64)
        parts.append(np.stack([np.arange(num_frames), zeros, zeros + FRAME, zeros]))
    for kind, name in enumerate(spec.types, 1):
        ids = batch.identity.get(name)
        if ids is None or not len(ids.values):
            continue
        frame = np.repeat(np.arange(num_frames), ids.lengths)
        index = row_indices(np.zeros_like(ids.lengths), ids.lengths)
        part = np.stack([frame, index, np.full_like(index, kind), ids.values])
        if name in batch.visible and not spec.sees_hidden:
            # In each frame, either all entities of a type have ids or none does.
            has_ids = np.repeat(ids.lengths > 0, batch.features[name].lengths)
            part = part[:, batch.visible[name].values.cpu().numpy()[has_ids]]
        parts.append(part)
    rows = np.concatenate(parts, axis=1)
    frame, index, kind, number = rows[:, np.argsort(rows[0], kind="stable")]
    return MemoryRows(np.bincount(frame, minlength=num_frames), index, kind, number)


class MemoryPlaces(NamedTuple):
    """Positions of the R recurrent rows in a layout of P rows.

    Attributes:
        past: links to their previous rows.
        row: (R,) int64, the row of each entity; P + i for frame i.
    """

    past: Past
    row: IntArray


class Memory(nn.Module):
    """Recurrent states of the frame and of entities, updated once per frame.

    Args:
        config: settings of the network.
        types: the entity types of the network.
        action_space: actions that may enter the states.
        sees_hidden: True for a network that never acts.

    Attributes:
        config: settings of memory.
        block_config: settings of the blocks after memory.
        types: the entity types with states.
        width: of a state.
        remembering: specification of the states.
        actions: the actions that enter the states.

    Raises:
        ValueError: `memory.types` has an unknown entity type, or choices of an action cannot enter
            memory.
    """

    def __init__(
        self,
        config: RogueNetConfig,
        types: Sequence[str],
        action_space: Mapping[str, ActionSpace],
        sees_hidden: bool = False,
    ) -> None:
        super().__init__()
        assert config.memory is not None
        self.config = memory = config.memory
        if unknown := [name for name in memory.types if name not in types]:
            raise ValueError(
                f"memory.types: expected entity types, which are {[*types]}, got {unknown}"
            )
        d_model, self.width = config.d_model, memory.d_memory or config.d_model
        selected = memory.types or [*types]
        has_frame = memory.has_frame_state
        self.types = [n for n in types if n in selected] if memory.has_entity_states else []
        self.remembering = MemorySpec(
            self.types, has_frame, memory.keep_absent, sees_hidden, self.width
        )
        self.cell = nn.GRUCell(d_model, self.width)
        # Learnt initial states, of the frame and of each type.
        self.first_of_frame = nn.Parameter(torch.zeros(1, self.width)) if has_frame else None
        self.first = nn.ParameterDict(
            {module_key(name): nn.Parameter(torch.zeros(1, self.width)) for name in self.types}
        )
        # From states to rows: added to observed entities, zero at first; and rows of their own for
        # frames and absent entities. All rows attend to each other in the blocks after memory.
        self.to_entities = nn.Linear(self.width, d_model, bias=False)
        nn.init.zeros_(self.to_entities.weight)
        self.to_rows = nn.Linear(self.width, d_model)
        self.block_config = replace(config, n_layer=memory.n_layer, memory=None)
        self.transformer = Transformer(self.block_config, first_block=max(1, config.n_layer))
        # Additional inputs.
        self.reward = nn.Linear(1, d_model, bias=False) if "reward" in memory.inputs else None
        self.actions = {**action_space} if "action" in memory.inputs else {}
        self.choices = nn.ModuleDict()
        for name, space in self.actions.items():
            layer = HEADS[type(space)].choice_layer(space, d_model, self.width)
            if layer is None:
                raise ValueError(
                    f"memory.inputs: expected actions with a choice layer, got {name!r}"
                )
            self.choices[module_key(name)] = layer

    def past_of(self, batch: EntityBatch) -> Past:
        """Return the past of a batch; by default, all frames begin an episode."""
        if batch.past is not None:
            return batch.past
        rows, time = memory_rows(batch, self.remembering), np.zeros(batch.num_frames, np.int64)
        links = link_single_frames(rows, time == 0, NO_KEYS, 0)
        carried = self.cell.weight_hh.new_zeros(0, self.width)
        return Past.of(rows, links, time, time.astype(np.float32), carried)

    def rows_in(self, batch: EntityBatch, order: Sequence[str], layout: Layout) -> MemoryPlaces:
        """Locate the recurrent rows in a layout.

        Args:
            batch: with a past.
            order: the types in the order of the entities of a frame.
            layout: of the entities.
        """
        past = self.past_of(batch)
        kind, frame = past.kind.values, np.repeat(np.arange(batch.num_frames), past.kind.lengths)
        starts = {FRAME: np.zeros(batch.num_frames, np.int64)}
        start = starts[FRAME]
        for name in order:
            if name in self.types:
                starts[1 + self.types.index(name)] = start
            start = start + batch.features[name].lengths
        first_position = np.stack([starts[k] for k in range(1 + len(self.types))])
        row = layout.first_row[frame] + first_position[kind, frame] + past.rank.values
        return MemoryPlaces(past, np.where(kind == FRAME, layout.num_rows + frame, row))

    def inputs(
        self, x: Tensor, layout: Layout, visible: Tensor | None, places: MemoryPlaces
    ) -> Tensor:
        """Return the inputs of the cell, (R, d_model): embedded entities, and means of frames.

        Args:
            x: (P, d_model), the entities.
            layout: of these rows.
            visible: (P,) bool, the entities that enter the means; None for all.
            places: of the recurrent rows.
        """
        if self.remembering.frame:
            frame_means = visible_means(x, layout, visible)
            added = self.reward_inputs(to_device(places.past.reward, x.device))
            x = torch.cat([x, frame_means if added is None else frame_means + added])  # (P + B, d)
        return x.index_select(0, to_device(places.row, x.device))

    def reward_inputs(self, rewards: Tensor) -> Tensor | None:
        """Project last rewards (B,) to inputs of frames (B, d_model); None if they are not used."""
        if self.reward is None:
            return None
        reward = rewards.to(self.reward.weight)
        # symlog(r) = sign(r) log(1 + |r|)
        rows: Tensor = self.reward((reward.sign() * reward.abs().log1p())[:, None])
        return rows

    def choice_inputs(
        self,
        x: Tensor,
        layout: Layout,
        batch: EntityBatch,
        places: MemoryPlaces,
        chosen: Mapping[str, Tensor],
    ) -> Tensor | None:
        """Embed choices as terms of the states, (R, width); None if they are not an input.

        The vector of a choice is added to the state of its actor, and the mean of all vectors to
        the state of the frame.

        Args:
            x: (P, d_model), the entities before memory.
            layout: of these rows.
            batch: with the actions.
            places: of the recurrent rows.
            chosen: per action (actors,) int64.
        """
        if not self.choices:
            return None
        num_frames, device = batch.num_frames, x.device
        added = x.new_zeros(len(places.row), self.width)
        sums, counts = x.new_zeros(num_frames, self.width), np.zeros(num_frames)
        recurrent_index = np.full(layout.num_rows + num_frames, NEW)
        recurrent_index[places.row] = np.arange(len(places.row))
        for name, space in self.actions.items():
            layer, action = self.choices[module_key(name)], batch.actions[name]
            frame, head = action.actors.frame_of_row(), HEADS[type(space)]
            vectors = head.choice_vectors(layer, x, layout, action, zero_inactive(chosen[name]))
            weight = None
            if action.after is not None:  # active actors only
                active = has_choice(chosen[name])
                vectors = vectors.masked_fill(~active.unsqueeze(1), 0.0)
                weight = active.cpu().numpy()
            index = recurrent_index[layout.rows(action.actors.values, frame).cpu().numpy()]
            has_state = np.flatnonzero(index != NEW)
            state_vectors = vectors.index_select(0, to_device(has_state, device))
            added = added.index_add(0, to_device(index[has_state], device), state_vectors)
            sums = sums.index_add(0, to_device(frame, device), vectors)
            counts += np.bincount(frame, weight, minlength=num_frames)
        # mean over the choices of a frame: sum_i v_i / max(1, n)
        if self.remembering.frame:
            means = sums / to_device(np.maximum(counts, 1), device).to(x)[:, None]
            rows = to_device(recurrent_index[layout.num_rows :], device)
            added = added.index_add(0, rows, means)
        return added

    def extra_rows(self, memory_states: "MemoryStates", past: Past) -> RaggedTensor:
        """Return rows for the states of frames and of absent entities, (n, d_model) per frame."""
        num_first, absent = 1 + len(self.types), past.absent
        parts = [pool_index(past, absent.values, None, num_first)]
        frames, lengths = [np.repeat(np.arange(len(absent)), absent.lengths)], absent.lengths
        if self.remembering.frame:
            # States without the choice of this frame, which follows.
            is_frame = np.flatnonzero(past.kind.values == FRAME)
            parts.append(len(memory_states.pool) + is_frame)
            frames.append(np.arange(len(absent)))
            lengths = lengths + 1
        order = np.argsort(np.concatenate(frames), kind="stable")
        index = to_device(np.concatenate(parts)[order], memory_states.pool.device)
        states = torch.cat([memory_states.pool, memory_states.states]).index_select(0, index)
        return RaggedTensor(self.to_rows(states), lengths)

    def first_states(self) -> Tensor:
        """Return the initial states by kind, (1 + types, width)."""
        frame_state = self.first_of_frame
        zeros = self.cell.weight_hh.new_zeros(1, self.width)
        return torch.cat([zeros if frame_state is None else frame_state, *self.first.values()])


def visible_means(x: Tensor, layout: Layout, visible: Tensor | None) -> Tensor:
    """Return the mean over the visible entities of each frame, (B, d_model); zero without any."""
    # mean = sum_i m_i x_i / max(1, sum_i m_i)
    if visible is None:
        return layout.means(x)
    frames = np.repeat(np.arange(len(layout.lengths)), layout.lengths)
    rows = to_device(row_indices(layout.first_row, layout.lengths), x.device)
    weights = visible.index_select(0, rows).to(x)[:, None]
    index = to_device(frames, x.device)
    sums = x.new_zeros(len(layout.lengths), x.shape[1])
    sums = sums.index_add(0, index, weights * x.index_select(0, rows))
    counts = x.new_zeros(len(layout.lengths), 1).index_add(0, index, weights)
    return sums / counts.clamp(min=1)


class MemoryStates(NamedTuple):
    """States of the recurrent rows of a batch.

    Attributes:
        states: (R, width), after the frame.
        pool: (1 + types + C + R, width), the possible previous states of a row: initial states,
            states carried over, and `states` plus the terms of the choices.
    """

    states: Tensor
    pool: Tensor


class MemoryOutput(NamedTuple):
    """States of a batch, and the entities that they were computed from.

    Attributes:
        states: (R, width), of the recurrent rows, after the frame.
        places: of these rows.
        x: (P, d_model), the entities before memory.
        layout: of these rows.
    """

    states: Tensor
    places: MemoryPlaces
    x: Tensor
    layout: Layout


def pool_index(past: Past, sources: IntArray, kinds: IntArray | None, num_first: int) -> IntArray:
    """Return the indices of previous rows in the pool of states, (n,) int64.

    Args:
        past: the links that the sources belong to.
        sources: (n,) int64.
        kinds: (n,) int64, of the rows, to look up the initial states of new ones; None if no
            source is `NEW`.
        num_first: number of initial states.
    """
    num_rows, num_carried = len(past.source.values), len(past.carried)
    is_carried = sources >= num_rows
    index = num_first + np.where(is_carried, sources - num_rows, num_carried + sources)
    return index if kinds is None else np.where(sources == NEW, kinds, index)


class _GRUSequence(torch.autograd.Function):
    """Gated recurrent unit over the rows of all sequences, level after level.

    Matrix products of the inputs and of all gradients are computed for all levels at once; each
    level reads and writes rows of one tensor of states.
    """

    @staticmethod
    def forward(
        ctx: Any,
        gates_in: Tensor,
        added: Tensor | None,
        before: Tensor,
        weight: Tensor,
        bias: Tensor,
        source: Tensor,
        levels: Sequence[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """Compute the states.

        Args:
            ctx: context of the backward pass.
            gates_in: (R, 3 * width), W_i x + b_i.
            added: (R, width), added to the state of each row after its frame, or None.
            before: (N, width), initial states and states carried over.
            weight: (3 * width, width), W_h.
            bias: (3 * width,), b_h.
            source: (R,) int64, the index of the previous state of each row in the pool.
            levels: the rows of each level.

        Returns:
            (R, width), the states; and (N + R, width), the pool.
        """
        num_rows, width, n = len(gates_in), weight.shape[1], len(before)
        pool = torch.cat([before, before.new_empty(num_rows, width)])
        states = gates_in.new_empty(num_rows, width)
        keeps = any(ctx.needs_input_grad)
        saved = gates_in.new_empty(5, num_rows, width) if keeps else None
        for rows in levels:
            is_all = len(rows) == num_rows
            last = pool.index_select(0, source if is_all else source.index_select(0, rows))
            # r = s(W_ir x + W_hr h), z = s(W_iz x + W_hz h), n = tanh(W_in x + r W_hn h)
            input_gates = gates_in if is_all else gates_in.index_select(0, rows)
            in_r, in_z, in_n = input_gates.chunk(3, dim=1)
            hidden_gates = torch.addmm(bias, last, weight.t())
            last_r, last_z, last_n = hidden_gates.chunk(3, dim=1)
            r, z = (in_r + last_r).sigmoid(), (in_z + last_z).sigmoid()
            new = (in_n + r * last_n).tanh()
            # h' = (1 - z) n + z h
            state = torch.lerp(new, last, z)
            if is_all:
                states = state
                pool[n:] = state if added is None else state + added
                if saved is not None:
                    torch.stack([last, r, z, new, last_n], out=saved)
                continue
            states.index_copy_(0, rows, state)
            to_pool = state if added is None else state + added.index_select(0, rows)
            pool.index_copy_(0, rows + n, to_pool)
            if saved is not None:
                saved.index_copy_(1, rows, torch.stack([last, r, z, new, last_n]))
        if saved is not None:
            ctx.save_for_backward(saved, weight, source, *levels)
            ctx.has_added, ctx.num_before = added is not None, n
        return states, pool

    @staticmethod
    def backward(ctx: Any, d_states: Tensor, d_pool: Tensor) -> tuple[Tensor | None, ...]:
        """Propagate the gradients from the last level to the first."""
        saved, weight, source, *levels = ctx.saved_tensors
        n, d_pool = ctx.num_before, d_pool.clone()
        num_rows, width = d_states.shape
        d_in, d_last_n = d_states.new_empty(num_rows, 3 * width), torch.empty_like(d_states)
        for rows in reversed(levels):
            last, r, z, new, last_n = saved.index_select(1, rows)
            # dL/dn = d (1 - z) (1 - n^2), dL/dr = dL/dn hn r (1 - r), dL/dz = d (h - n) z (1 - z),
            # dL/dh = d z + W_h^T [dL/dr, dL/dz, dL/dn r], where hn = W_hn h + b_hn
            d = d_states.index_select(0, rows) + d_pool.index_select(0, rows + n)
            d_new = d * (1 - z) * (1 - new * new)
            d_r = d_new * last_n * r * (1 - r)
            d_z = d * (last - new) * z * (1 - z)
            d_n = d_new * r
            d_in.index_copy_(0, rows, torch.cat([d_r, d_z, d_new], dim=1))
            d_last_n.index_copy_(0, rows, d_n)
            d_last = d * z + torch.cat([d_r, d_z, d_n], dim=1) @ weight
            d_pool.index_add_(0, source.index_select(0, rows), d_last)
        d_hidden = torch.cat([d_in[:, : 2 * width], d_last_n], dim=1)
        d_added = d_pool[n:] if ctx.has_added else None
        return d_in, d_added, d_pool[:n], d_hidden.t() @ saved[0], d_hidden.sum(dim=0), None, None


def update_states(memory: Memory, x: Tensor, added: Tensor | None, past: Past) -> MemoryStates:
    """Update the states of the recurrent rows.

    Args:
        memory: the parameters.
        x: (R, d_model), the inputs of the rows.
        added: (R, width), terms of the choices in each row's frame; None without.
        past: links to the previous rows.
    """
    cell, first, device = memory.cell, memory.first_states(), x.device
    before = torch.cat([first, past.carried.to(first)]) if len(past.carried) else first
    source = pool_index(past, past.source.values, past.kind.values, len(first))
    gates_in = torch.addmm(cell.bias_ih, x, cell.weight_ih.t())
    index, levels = to_device(source, device), [to_device(rows, device) for rows in past.levels]
    states, pool = _GRUSequence.apply(  # type: ignore[no-untyped-call]
        gates_in, added, before, cell.weight_hh, cell.bias_hh, index, levels
    )
    return MemoryStates(states, pool)
