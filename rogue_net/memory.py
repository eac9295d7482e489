"""Memory of a network: a gated recurrent unit for each remembering row, and what attends to it.

Source of the cell: Cho et al. 2014, arXiv:1406.1078, as `torch.nn.GRUCell` writes it.
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
from rogue_net.actions.parts import is_taken, made
from rogue_net.config import RogueNetConfig
from rogue_net.embedding import module_key
from rogue_net.layout import Layout
from rogue_net.past import FRAME, NEW, NOTHING_KNOWN, MemoryRows, Past, link
from rogue_net.ragged import EntityBatch, RaggedTensor, to_device
from rogue_net.transformer import Transformer

MEMORY = "__memory__"
"""Name of the rows that stand for no entity shown, beside those of entity types."""


class Remembering(NamedTuple):
    """Choice of the rows that a network remembers.

    Attributes:
        types: the entity types.
        frame: True to remember the frame as a whole.
        keep_absent: number of frames for which entities that are not shown are remembered.
        sees_hidden: True for a network that never acts, which sees what is invisible to the policy.
        width: of a state; None if it is not known.
    """

    types: Sequence[str]
    frame: bool
    keep_absent: int
    sees_hidden: bool
    width: int | None = None


def memory_rows(batch: EntityBatch, remembering: Remembering) -> MemoryRows:
    """Return the rows of a batch that remember: frames, and entities with an identity.

    Args:
        batch: frames with `identity`.
        remembering: the rows to choose.
    """
    num_frames = batch.num_frames
    parts = [np.zeros((4, 0), np.int64)]
    if remembering.frame:
        zeros = np.zeros(num_frames, np.int64)
        parts.append(np.stack([np.arange(num_frames), zeros, zeros + FRAME, zeros]))
    for kind, name in enumerate(remembering.types, 1):
        known = batch.identity.get(name)
        if known is None or not len(known.values):
            continue
        of_frame = np.repeat(np.arange(num_frames), known.lengths)
        index = row_indices(np.zeros_like(known.lengths), known.lengths)
        part = np.stack([of_frame, index, np.full_like(index, kind), known.values])
        if name in batch.visible and not remembering.sees_hidden:
            # In a frame either all entities of a type have ids, or none has.
            has_ids = np.repeat(known.lengths > 0, batch.features[name].lengths)
            part = part[:, batch.visible[name].values.cpu().numpy()[has_ids]]
        parts.append(part)
    rows = np.concatenate(parts, axis=1)
    of_frame, index, kind, number = rows[:, np.argsort(rows[0], kind="stable")]
    return MemoryRows(np.bincount(of_frame, minlength=num_frames), index, kind, number)


class MemoryPlaces(NamedTuple):
    """Places of the R rows that remember in a layout of P rows.

    Attributes:
        past: where they come from.
        row: (R,) int64, the row of each entity; P + i for frame i.
    """

    past: Past
    row: IntArray


class Memory(nn.Module):
    """States of the frame and of entities, which a recurrent cell updates in each frame.

    Args:
        config: of the network.
        types: the entity types of the network.
        action_space: actions whose choices may enter the states.
        sees_hidden: True for a network that never acts.

    Attributes:
        config: settings of memory.
        config_of_blocks: of the blocks after it.
        types: the entity types that remember.
        width: of a state.
        remembering: the rows that remember.
        actions: those whose choices enter the states.

    Raises:
        ValueError: a setting names no entity type, or choices of an action cannot enter memory.
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
        named = memory.types or [*types]
        self.types = [name for name in types if name in named] if memory.of_entities else []
        self.remembering = Remembering(
            self.types, memory.of_frame, memory.keep_absent, sees_hidden, self.width
        )
        self.cell = nn.GRUCell(d_model, self.width)
        # Learnt first states, of the frame and of each type.
        self.first_of_frame = nn.Parameter(torch.zeros(1, self.width)) if memory.of_frame else None
        self.first = nn.ParameterDict(
            {module_key(name): nn.Parameter(torch.zeros(1, self.width)) for name in self.types}
        )
        # From states to rows: of entities that are shown, to which it adds nothing at first, and of
        # frames and entities that are absent. Blocks in which all of them attend to each other.
        self.to_entities = nn.Linear(self.width, d_model, bias=False)
        nn.init.zeros_(self.to_entities.weight)
        self.to_rows = nn.Linear(self.width, d_model)
        self.config_of_blocks = replace(config, n_layer=memory.n_layer, memory=None)
        self.transformer = Transformer(self.config_of_blocks, first_block=max(1, config.n_layer))
        # Further inputs.
        self.reward = nn.Linear(1, d_model, bias=False) if "reward" in memory.inputs else None
        self.actions = {**action_space} if "action" in memory.inputs else {}
        self.choices = nn.ModuleDict()
        for name, space in self.actions.items():
            layer = HEADS[type(space)].choice_layer(space, d_model, self.width)
            if layer is None:
                raise ValueError(
                    f"memory.inputs: expected actions whose choices can enter memory, got {name!r}"
                )
            self.choices[module_key(name)] = layer

    def past_of(self, batch: EntityBatch) -> Past:
        """Return the past of a batch; without one nothing was remembered before."""
        if batch.past is not None:
            return batch.past
        rows, frames = memory_rows(batch, self.remembering), np.arange(batch.num_frames)
        nowhen, begun = np.zeros_like(frames), np.ones(len(frames), np.bool_)
        links = link(rows, frames, nowhen, begun, NOTHING_KNOWN, 0)
        carried = self.cell.weight_hh.new_zeros(0, self.width)
        return Past.of(rows, links, nowhen, nowhen.astype(np.float32), carried)

    def rows_in(self, batch: EntityBatch, order: Sequence[str], layout: Layout) -> MemoryPlaces:
        """Return the places of the rows that remember in a layout.

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
        of_kinds = np.stack([starts[k] for k in range(1 + len(self.types))])
        row = layout.first_row[frame] + of_kinds[kind, frame] + past.rank.values
        return MemoryPlaces(past, np.where(kind == FRAME, layout.num_rows + frame, row))

    def inputs(
        self, x: Tensor, layout: Layout, visible: Tensor | None, places: MemoryPlaces
    ) -> Tensor:
        """Return the inputs of the cell, (R, d_model): rows of entities, means of frames.

        Args:
            x: (P, d_model), the entities.
            layout: of these rows.
            visible: (P,) bool, the entities that the policy may know; None for all.
            places: of the rows that remember.
        """
        if self.remembering.frame:
            of_frames, of_rewards = visible_means(x, layout, visible), self.of_rewards(places.past)
            x = torch.cat([x, of_frames if of_rewards is None else of_frames + of_rewards])
        return x.index_select(0, to_device(places.row, x.device))

    def of_rewards(self, past: Past) -> Tensor | None:
        """Return what the last rewards add to the inputs of frames, (B, d_model), if they do."""
        if self.reward is None:
            return None
        reward = to_device(past.reward, self.reward.weight.device).to(self.reward.weight)
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
        """Return what choices add to the states, (R, width); None if they add nothing.

        The vector of a choice is added to its actor, their mean to the frame.

        Args:
            x: (P, d_model), the entities before memory.
            layout: of these rows.
            batch: with the actions.
            places: of the rows that remember.
            chosen: per action (actors,) int64.
        """
        if not self.choices:
            return None
        num_frames, device = batch.num_frames, x.device
        added = x.new_zeros(len(places.row), self.width)
        sums, counts = x.new_zeros(num_frames, self.width), np.zeros(num_frames)
        place_of_row = np.full(layout.num_rows + num_frames, NEW)
        place_of_row[places.row] = np.arange(len(places.row))
        for name, space in self.actions.items():
            layer, action = self.choices[module_key(name)], batch.actions[name]
            frame, head = action.actors.frame_of_row(), HEADS[type(space)]
            vectors = head.choice_vectors(layer, x, layout, action, made(chosen[name]))
            weight = None
            if action.after is not None:  # only of those who take it
                taken = is_taken(chosen[name])
                vectors = vectors.masked_fill(~taken.unsqueeze(1), 0.0)
                weight = taken.cpu().numpy()
            place = place_of_row[layout.rows(action.actors.values, frame).cpu().numpy()]
            has_place = np.flatnonzero(place != NEW)
            own = vectors.index_select(0, to_device(has_place, device))
            added = added.index_add(0, to_device(place[has_place], device), own)
            sums = sums.index_add(0, to_device(frame, device), vectors)
            counts += np.bincount(frame, weight, minlength=num_frames)
        if self.remembering.frame:
            means = sums / to_device(np.maximum(counts, 1), device).to(x)[:, None]
            rows = to_device(place_of_row[layout.num_rows :], device)
            added = added.index_add(0, rows, means)
        return added

    def memory_only_rows(self, remembered: "Remembered", past: Past) -> RaggedTensor:
        """Return the rows that stand for no entity shown: of each frame, and of who is absent."""
        num_first, absent = 1 + len(self.types), past.absent
        parts = [pool_index(past, absent.values, None, num_first)]
        frames, lengths = [np.repeat(np.arange(len(absent)), absent.lengths)], absent.lengths
        if self.remembering.frame:
            # States without the choice in this frame, which is not made yet.
            is_frame = np.flatnonzero(past.kind.values == FRAME)
            parts.append(len(remembered.pool) + is_frame)
            frames.append(np.arange(len(absent)))
            lengths = lengths + 1
        order = np.argsort(np.concatenate(frames), kind="stable")
        index = to_device(np.concatenate(parts)[order], remembered.pool.device)
        states = torch.cat([remembered.pool, remembered.states]).index_select(0, index)
        return RaggedTensor(self.to_rows(states), lengths)

    def first_states(self) -> Tensor:
        """Return the first states by kind, (1 + types, width)."""
        of_frame = self.first_of_frame
        nothing = self.cell.weight_hh.new_zeros(1, self.width)
        return torch.cat([nothing if of_frame is None else of_frame, *self.first.values()])


def visible_means(x: Tensor, layout: Layout, visible: Tensor | None) -> Tensor:
    """Return the mean of the visible entities of each frame, (B, d_model); zero without any."""
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


class Remembered(NamedTuple):
    """States of the rows of a batch that remember.

    Attributes:
        states: (R, width), after the frame.
        pool: (1 + types + C + R, width), first states, those carried, and those of the rows with
            the choices made in them: all that a later row may come from.
    """

    states: Tensor
    pool: Tensor


class MemoryOutput(NamedTuple):
    """Memory of a batch, and what it is from.

    Attributes:
        states: (R, width), of the rows that remember, after the frame.
        places: of these rows.
        x: (P, d_model), the entities before memory.
        layout: of these rows.
    """

    states: Tensor
    places: MemoryPlaces
    x: Tensor
    layout: Layout


def pool_index(past: Past, sources: IntArray, kinds: IntArray | None, num_first: int) -> IntArray:
    """Return the places in the pool of states of sources.

    Args:
        past: whose rows and carried states the sources are of.
        sources: (n,) int64.
        kinds: (n,) int64, of the rows, whose first states new ones have; None if none is new.
        num_first: number of first states.
    """
    num_rows, num_carried = len(past.source.values), len(past.carried)
    is_carried = sources >= num_rows
    of_rows = num_first + np.where(is_carried, sources - num_rows, num_carried + sources)
    return of_rows if kinds is None else np.where(sources == NEW, kinds, of_rows)


class _Sequences(torch.autograd.Function):
    """States of all rows, level after level.

    Matrix products of the inputs and of all gradients are taken for all levels at once; the states
    are in one tensor, of which each level reads and writes rows.
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
            ctx: keeps what the gradients need.
            gates_in: (R, 3 * width), W_i x + b_i.
            added: (R, width), added to the state of each row once its frame is over, or None.
            before: (N, width), the states from before.
            weight: (3 * width, width), W_h.
            bias: (3 * width,), b_h.
            source: (R,) int64, the place of the last state of each row in the pool.
            levels: the rows of each level.

        Returns:
            (R, width), the states; and (N + R, width), the pool.
        """
        num_rows, width, n = len(gates_in), weight.shape[1], len(before)
        pool = torch.cat([before, before.new_empty(num_rows, width)])
        states = gates_in.new_empty(num_rows, width)
        keeps = any(ctx.needs_input_grad)
        kept = gates_in.new_empty(5, num_rows, width) if keeps else None
        for rows in levels:
            is_all = len(rows) == num_rows
            last = pool.index_select(0, source if is_all else source.index_select(0, rows))
            # r = s(W_ir x + W_hr h), z = s(W_iz x + W_hz h), n = tanh(W_in x + r W_hn h)
            of_input = gates_in if is_all else gates_in.index_select(0, rows)
            in_r, in_z, in_n = of_input.chunk(3, dim=1)
            of_last = torch.addmm(bias, last, weight.t())
            last_r, last_z, last_n = of_last.chunk(3, dim=1)
            r, z = (in_r + last_r).sigmoid(), (in_z + last_z).sigmoid()
            new = (in_n + r * last_n).tanh()
            # h' = (1 - z) n + z h
            state = torch.lerp(new, last, z)
            if is_all:
                states = state
                pool[n:] = state if added is None else state + added
                if kept is not None:
                    torch.stack([last, r, z, new, last_n], out=kept)
                continue
            states.index_copy_(0, rows, state)
            to_pool = state if added is None else state + added.index_select(0, rows)
            pool.index_copy_(0, rows + n, to_pool)
            if kept is not None:
                kept.index_copy_(1, rows, torch.stack([last, r, z, new, last_n]))
        if kept is not None:
            ctx.save_for_backward(kept, weight, source, *levels)
            ctx.has_added, ctx.num_before = added is not None, n
        return states, pool

    @staticmethod
    def backward(ctx: Any, d_states: Tensor, d_pool: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients, from the last level to the first."""
        kept, weight, source, *levels = ctx.saved_tensors
        n, d_pool = ctx.num_before, d_pool.clone()
        num_rows, width = d_states.shape
        d_in, d_last_n = d_states.new_empty(num_rows, 3 * width), torch.empty_like(d_states)
        for rows in reversed(levels):
            last, r, z, new, last_n = kept.index_select(1, rows)
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
        return d_in, d_added, d_pool[:n], d_hidden.t() @ kept[0], d_hidden.sum(dim=0), None, None


def remember(memory: Memory, x: Tensor, added: Tensor | None, past: Past) -> Remembered:
    """Return the states of the rows that remember.

    Args:
        memory: its parameters.
        x: (R, d_model), the inputs of the rows.
        added: (R, width), the choices made in each row's frame; None for none.
        past: where the rows come from.
    """
    cell, first, device = memory.cell, memory.first_states(), x.device
    before = torch.cat([first, past.carried.to(first)]) if len(past.carried) else first
    source = pool_index(past, past.source.values, past.kind.values, len(first))
    gates_in = torch.addmm(cell.bias_ih, x, cell.weight_ih.t())
    index, levels = to_device(source, device), [to_device(rows, device) for rows in past.levels]
    states, pool = _Sequences.apply(  # type: ignore[no-untyped-call]
        gates_in, added, before, cell.weight_hh, cell.bias_hh, index, levels
    )
    return Remembered(states, pool)
