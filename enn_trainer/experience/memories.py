"""`Recurrence`: the recurrent state of a player between two frames, and during a rollout."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from enn_trainer.base.errors import ConfigError
from enn_trainer.base.policy import rogue_nets
from enn_trainer.runtime.spans import OFF, Spans
from entity_env.arrays import BoolArray, Float32Array, IntArray
from entity_env.ragged import Ragged, row_indices
from entity_env.vec.vec_obs import VecObs
from rogue_net.memory import MemorySpec, memory_rows
from rogue_net.past import NO_KEYS, Past, RowKeys, RowLinks, link_rows, link_single_frames
from rogue_net.ragged import EntityBatch, to_device

_KEY_FIELDS = RowKeys._fields


def memory_specs(agent: Any) -> tuple[MemorySpec | None, MemorySpec | None]:
    """Return the memory specs of the policy and of a separate value network; None without one."""
    nets = rogue_nets(agent) or [agent]
    specs = [getattr(net, "remembering", None) for net in nets]
    return specs[0], specs[1] if len(specs) > 1 else None


def tracked_types(agent: Any) -> list[str]:
    """Return the entity types that an agent remembers by id."""
    types_by_net = [one.types for one in memory_specs(agent) if one is not None]
    return [*dict.fromkeys(name for types in types_by_net for name in types)]


class StateRows(NamedTuple):
    """Rows of a state table of one environment, in host memory.

    Attributes:
        keys: (4, C) int64, the fields of `RowKeys`.
        states: (C, width) float32.
    """

    keys: IntArray
    states: Float32Array


@dataclass(frozen=True)
class StateTable:
    """Immutable table of the recurrent states of one network in B environments.

    Attributes:
        remembering: memory spec of the network.
        keys: keys of the C rows; the sequence of a row is its environment.
        states: (C, width) float32; None before the first frame.
    """

    remembering: MemorySpec
    keys: RowKeys = NO_KEYS
    states: Tensor | None = None

    def join(self, rows: Sequence[StateRows | None], device: torch.device) -> "StateTable":
        """Return a table of the rows of several environments; None before the first frame."""
        present = [(i, part) for i, part in enumerate(rows) if part is not None]
        if not present:
            return replace(self, keys=NO_KEYS, states=None)
        keys = np.concatenate([part.keys for _, part in present], axis=1)
        lengths = [len(part.states) for _, part in present]
        keys[0] = np.repeat([i for i, _ in present], lengths)
        states = torch.from_numpy(np.concatenate([part.states for _, part in present]))
        return replace(self, keys=RowKeys._make(keys), states=states.to(device))

    def split(self, num_envs: int) -> list[StateRows | None]:
        """Return copies of the rows of each environment; None before the first frame."""
        if self.states is None:
            return [None] * num_envs
        order = np.argsort(self.keys.sequence, kind="stable")
        keys, states = np.stack(self.keys)[:, order], self.states.cpu().numpy()[order]
        ends = np.searchsorted(keys[0], np.arange(num_envs + 1)).tolist()
        return [
            StateRows(keys[:, start:stop].copy(), states[start:stop].copy())
            for start, stop in pairwise(ends)
        ]

    def past_of(
        self, batch: EntityBatch, environments: IntArray, begun: BoolArray, reward: Any
    ) -> tuple[Past, RowLinks, IntArray]:
        """Return the history of frames, their links, and the rows of the table that they read.

        Args:
            batch: a frame of each of n environments, with `identity`.
            environments: (n,) int64.
            begun: (n,) bool, True where an episode begins in that frame.
            reward: (n,) float32, of the previous step.
        """
        keys, table_rows = self.select(environments)
        time = np.zeros(len(environments), np.int64)
        rows = memory_rows(batch, self.remembering)
        links = link_single_frames(rows, begun, keys, self.remembering.keep_absent)
        carried = self.states_of(table_rows, batch)
        return Past.of(rows, links, time, np.where(begun, 0, reward), carried), links, table_rows

    def select(self, environments: IntArray) -> tuple[RowKeys, IntArray]:
        """Return the keys of the rows of some environments, and the positions of these rows.

        Args:
            environments: (n,) int64, with repeats allowed; i is the sequence of the i-th.
        """
        if not len(self.keys.sequence):
            return NO_KEYS, self.keys.sequence
        order = np.argsort(self.keys.sequence, kind="stable")
        sorted_envs = self.keys.sequence[order]
        start, stop = (
            np.searchsorted(sorted_envs, environments, side) for side in ("left", "right")
        )
        table_rows = order[row_indices(start, stop - start)]
        keys = RowKeys(*(column[table_rows] for column in self.keys))
        places = np.repeat(np.arange(len(environments)), stop - start)
        return keys._replace(sequence=places), table_rows

    def states_of(self, rows: IntArray, like: EntityBatch) -> Tensor:
        """Return the states of some rows, (n, width), on the device of `like`."""
        device = next(iter(like.features.values())).values.device
        if self.states is None:
            return torch.zeros(0, 0, device=device)
        return self.states.index_select(0, to_device(rows, self.states.device)).to(device)

    def updated(
        self, environments: IntArray, links: RowLinks, table_rows: IntArray, memory: Tensor
    ) -> "StateTable":
        """Return the table after a frame of some environments.

        Args:
            environments: (n,) int64.
            links: links of the frames, from `past_of`.
            table_rows: rows that they read, from `past_of`.
            memory: (R, width), new states of the rows of the frames.
        """
        pool = memory if self.states is None else torch.cat([memory, self.states[table_rows]])
        states = pool.index_select(0, to_device(links.final, memory.device))
        keys = links.final_keys._replace(sequence=environments[links.final_keys.sequence])
        if self.states is not None and len(table_rows) < len(self.keys.sequence):
            other_rows = np.setdiff1d(np.arange(len(self.keys.sequence)), table_rows)
            columns = zip((column[other_rows] for column in self.keys), keys, strict=True)
            keys = RowKeys(*(np.concatenate(pair) for pair in columns))
            states = torch.cat([self.states[other_rows], states])
        return replace(self, keys=keys, states=states)

    def state_dict(self) -> dict[str, Any]:
        """Return the keys and states as tensors by name; empty before the first frame."""
        rows = torch.from_numpy(np.stack(self.keys).astype(np.int64))
        return {} if self.states is None else {"known": rows, "states": self.states}

    def restored(self, state: Mapping[str, Any]) -> "StateTable":
        """Return the table with the rows of a saved state.

        Raises:
            ValueError: the state is not one of this network.
        """
        if not state:
            return self
        saved_keys, states = state.get("known"), state.get("states")
        if not (isinstance(saved_keys, Tensor) and isinstance(states, Tensor) and states.ndim == 2):
            raise ValueError("expected known and states, two tables")
        if saved_keys.dtype != torch.int64 or saved_keys.shape != (len(_KEY_FIELDS), len(states)):
            raise ValueError(
                f"known: expected {len(_KEY_FIELDS)} rows of int64 of {len(states)} states"
            )
        rows = saved_keys.cpu().numpy()
        if (rows < 0).any() or (rows[1] > len(self.remembering.types)).any():
            raise ValueError("known: expected environments, kinds, numbers and ages")
        if states.dtype != torch.float32 or not states.isfinite().all():
            raise ValueError("states: expected finite numbers of float32")
        width = self.remembering.width
        if width is not None and states.shape[1] != width:
            raise ValueError(f"states: expected a width of {width}, got {states.shape[1]}")
        return replace(self, keys=RowKeys._make(rows), states=states)


class Recurrence:
    """Recurrent state of one agent in B environments. This class is for agents without memory."""

    def after_step(self, obs: VecObs) -> None:
        """Record the rewards and episode ends of a step."""
        return

    def attach(
        self, batch: EntityBatch, environments: IntArray, acts: bool
    ) -> tuple[EntityBatch, "FrameLinks"]:
        """Return frames with the recurrent state before them.

        Args:
            batch: n frames, with `identity`.
            environments: (n,) int64, the environment of each frame. An environment may have
                several frames, such as modified copies, if the state is not advanced by them.
            acts: True for frames to act in, which may be the first of an episode; False for frames
                that continue one.

        Returns:
            The frames, and their links for `advance`.
        """
        return batch, NO_LINKS

    def advance(self, attached: "FrameLinks", memory: Sequence[Tensor | None]) -> None:
        """Update the recurrent state after the choices in some frames.

        Args:
            attached: links of these frames, from `attach`.
            memory: new states, (R, width), of the policy and of the value network.
        """
        return

    def take_choices(
        self, agent: Any, batch: EntityBatch, environments: IntArray, chosen: Mapping[str, Tensor]
    ) -> None:
        """Update the recurrent state after given choices, which the agent need not have made.

        Args:
            agent: the network.
            batch: a frame of each of n environments, with `identity`.
            environments: (n,) int64.
            chosen: per action (actors,) int64.
        """
        return

    def begin_rollout(self, seq_len: int) -> "RolloutRecurrence":
        """Return the storage for the recurrent state during a rollout, before its first step.

        Args:
            seq_len: number of steps of a sequence.
        """
        return RolloutRecurrence()

    def state_dict(self) -> dict[str, Any]:
        """Return the states as tensors by name."""
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the states.

        Raises:
            ValueError: the state has another number of environments.
        """
        return


NO_RECURRENCE = Recurrence()
"""Recurrent state of agents without memory."""


def recurrence_of(agent: Any, padding: BoolArray, spans: Spans = OFF) -> Recurrence:
    """Return the recurrent state of an agent before its first frames.

    Args:
        agent: the network.
        padding: (B,) bool, True where the current frame is between two episodes.
        spans: timers.
    """
    if not any(memory_specs(agent)):
        return NO_RECURRENCE
    memory = PlayerMemory(agent, len(padding), spans)
    memory.padding = padding
    return memory


class PlayerMemory(Recurrence):
    """Recurrent state of one agent in B environments.

    After `act` the states are up to date. The states of an episode that ends are reset by the next
    `act` only, so that its final observation is evaluated with them.

    Args:
        agent: the network.
        num_envs: B.
        spans: timers.

    Attributes:
        policy: state table of the policy network; None if it has no memory.
        values: state table of a separate value network; None if it has no memory.
        begun: (B,) bool, True where an episode begins with the next choice.
        reward: (B,) float32, of the last step.
        padding: (B,) bool, True where the current frame is between two episodes. It is not saved,
            as a resumed player gets it with its first frames.
    """

    def __init__(self, agent: Any, num_envs: int, spans: Spans = OFF) -> None:
        policy, values = memory_specs(agent)
        self.spans = spans
        self.policy = None if policy is None else StateTable(policy)
        self.values = None if values is None else StateTable(values)
        self.begun = np.ones(num_envs, np.bool_)
        self.reward = np.zeros(num_envs, np.float32)
        self.padding = np.zeros(num_envs, np.bool_)

    def after_step(self, obs: VecObs) -> None:
        """Record the rewards and episode ends of a step."""
        self.begun, self.reward = obs.done | self.padding, obs.reward.astype(np.float32)
        self.padding = obs.is_padding

    def attach(
        self, batch: EntityBatch, environments: IntArray, acts: bool
    ) -> tuple[EntityBatch, "FrameLinks"]:
        """Return frames with the recurrent state before them."""
        with self.spans.span("memory"):
            begun = self.begun[environments] & acts
            parts: list[Any] = []
            for table in (self.policy, self.values):
                parts.append(
                    None
                    if table is None
                    else table.past_of(batch, environments, begun, self.reward[environments])
                )
            policy, values = (None if part is None else part[0] for part in parts)
            past = replace(policy or _no_past(batch.num_frames), value_past=values)
            return replace(batch, past=past), FrameLinks(environments, parts)

    def advance(self, attached: "FrameLinks", memory: Sequence[Tensor | None]) -> None:
        """Update the recurrent state after the choices in some frames."""
        with self.spans.span("memory"):
            tables = []
            for table, part, states in zip(
                (self.policy, self.values), attached.parts, memory, strict=True
            ):
                if table is not None and part is not None and states is not None:
                    _, links, table_rows = part
                    table = table.updated(attached.environments, links, table_rows, states)
                tables.append(table)
            self.policy, self.values = tables
            self.begun = self.begun.copy()
            self.begun[attached.environments] = False

    def begin_rollout(self, seq_len: int) -> "RolloutRecurrence":
        """Return the storage for the recurrent state during a rollout, before its first step."""
        return RolloutMemory(seq_len, self.spans)

    def take_choices(
        self, agent: Any, batch: EntityBatch, environments: IntArray, chosen: Mapping[str, Tensor]
    ) -> None:
        """Update the recurrent state after given choices."""
        batch, attached = self.attach(batch, environments, acts=True)
        out = agent(batch, actions=chosen)
        self.advance(attached, [out.memory, out.memory_of_values])

    def state_dict(self) -> dict[str, Any]:
        """Return the states as tensors by name."""
        state: dict[str, Any] = {
            "begun": torch.from_numpy(self.begun.copy()),
            "reward": torch.from_numpy(self.reward.copy()),
        }
        for name, table in (("policy", self.policy), ("values", self.values)):
            if table is not None:
                state |= {f"{name}/{key}": x for key, x in table.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the states.

        Raises:
            ValueError: the state has another number of environments.
        """
        begun, reward = state.get("begun"), state.get("reward")
        shape = (len(self.begun),)
        for name, tensor, dtype in (
            ("begun", begun, torch.bool),
            ("reward", reward, torch.float32),
        ):
            if not isinstance(tensor, Tensor) or (tensor.dtype, tensor.shape) != (dtype, shape):
                raise ValueError(f"{name}: expected {dtype} of {shape[0]} environments")
        assert isinstance(begun, Tensor)
        assert isinstance(reward, Tensor)
        self.begun, self.reward = begun.cpu().numpy(), reward.cpu().numpy()
        for name in ("policy", "values"):
            table = getattr(self, name)
            saved = {
                key.removeprefix(f"{name}/"): x
                for key, x in state.items()
                if key.startswith(f"{name}/")
            }
            if table is not None:
                setattr(self, name, table.restored(saved))


@dataclass(frozen=True)
class FrameLinks:
    """Links of the rows of n frames, by which the recurrent state is updated after them.

    Attributes:
        environments: (n,) int64, the environment of each frame.
        parts: results of `StateTable.past_of` for the policy and the value network, or None.
    """

    environments: IntArray
    parts: Sequence[Any]


NO_LINKS = FrameLinks(np.zeros(0, np.int64), ())


def _no_past(num_frames: int) -> Past:
    """Return an empty history."""
    no_rows = Ragged(np.zeros(0, np.int64), np.zeros(num_frames, np.int64))
    level, reward = np.zeros(num_frames, np.int64), np.zeros(num_frames, np.float32)
    return Past(no_rows, no_rows, no_rows, no_rows, level, reward, torch.zeros(0, 0))


class RolloutRecurrence:
    """Recurrent state during a rollout. This class is for agents without memory."""

    def add(self, memory: Any, learnt: IntArray) -> None:
        """Store the state before a step.

        Args:
            memory: recurrent state of the learner, which created this storage.
            learnt: (B,) int64, the environments to train on in this step.
        """
        return

    def attach(self, batch: EntityBatch) -> EntityBatch:
        """Return all T * B frames, ordered by step, with the state before them."""
        return batch


class RolloutMemory(RolloutRecurrence):
    """Recurrent state at the starts of the sequences of a rollout.

    Args:
        seq_len: number of steps of a sequence.
        spans: timers.
    """

    def __init__(self, seq_len: int, spans: Spans = OFF) -> None:
        self.seq_len, self._spans = seq_len, spans
        self._begun: list[BoolArray] = []
        self._reward: list[Float32Array] = []
        self._starts: list[tuple[IntArray, StateTable | None, StateTable | None]] = []

    def add(self, memory: PlayerMemory, learnt: IntArray) -> None:
        """Store the state before a step."""
        if len(self._begun) % self.seq_len == 0:
            self._starts.append((learnt, memory.policy, memory.values))
        begun = memory.begun[learnt]
        self._begun.append(begun)
        self._reward.append(np.where(begun, 0, memory.reward[learnt]).astype(np.float32))

    def attach(self, batch: EntityBatch) -> EntityBatch:
        """Return all frames with their history."""
        with self._spans.span("memory"):
            return replace(batch, past=self.past(batch), identity={})

    def past(self, batch: EntityBatch) -> Past:
        """Return the history of all T * B frames, ordered by step."""
        steps, num_envs = len(self._begun), len(self._begun[0])
        step = np.repeat(np.arange(steps), num_envs)
        sequence = step // self.seq_len * num_envs + np.tile(np.arange(num_envs), steps)
        time = step % self.seq_len
        begun, reward = np.concatenate(self._begun), np.concatenate(self._reward)
        learnt_envs, *tables_by_net = zip(*self._starts, strict=True)
        frames = SequenceFrames(batch, sequence, time, begun, reward)
        pasts: list[Past | None] = []
        for tables in tables_by_net:
            if tables[0] is None:
                pasts.append(None)
                continue
            keys, states = [NO_KEYS], []
            for k, (learnt, table) in enumerate(zip(learnt_envs, tables, strict=True)):
                start_keys, table_rows = table.select(learnt)
                keys.append(start_keys._replace(sequence=start_keys.sequence + k * num_envs))
                if table.states is not None:
                    states.append(table.states_of(table_rows, batch))
            joined_keys = RowKeys(*(np.concatenate(columns) for columns in zip(*keys, strict=True)))
            pasts.append(frames.past(tables[0].remembering, joined_keys, states))
        policy, values = pasts
        return replace(policy or _no_past(batch.num_frames), value_past=values)


class SequenceFrames(NamedTuple):
    """Frames of training sequences.

    Attributes:
        batch: F frames, with `identity`.
        sequence: (F,) int64, the sequence of each frame.
        time: (F,) int64, 0, 1, ... in the sequence.
        begun: (F,) bool, True where an episode begins.
        reward: (F,) float32, of the previous step; 0 where an episode begins.
    """

    batch: EntityBatch
    sequence: IntArray
    time: IntArray
    begun: BoolArray
    reward: Float32Array

    def past(
        self, spec: MemorySpec, keys: RowKeys = NO_KEYS, states: Sequence[Tensor] = ()
    ) -> Past:
        """Return the history of the frames.

        Args:
            spec: memory spec of a network.
            keys: keys of the rows in memory before the first frames; none by default.
            states: their states, to be concatenated.
        """
        batch = self.batch
        rows = memory_rows(batch, spec)
        links = link_rows(rows, self.sequence, self.time, self.begun, keys, spec.keep_absent)
        device = next(iter(batch.features.values())).values.device
        carried = torch.cat([*states]) if states else torch.zeros(0, 0, device=device)
        return Past.of(rows, links, self.time, self.reward, carried)


def recorded_past(agent: Any, batch: EntityBatch, lengths: IntArray, reward: Float32Array) -> Past:
    """Return the history of recorded sequences; each starts with an empty memory.

    Args:
        agent: the network.
        batch: F frames, sequence after sequence, with `identity`.
        lengths: (sequences,) int64, frames of each.
        reward: (F,) float32, of the previous step; 0 where an episode begins.
    """
    time = row_indices(np.zeros_like(lengths), lengths)
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    frames = SequenceFrames(batch, sequence, time, time == 0, reward)
    policy, values = (None if r is None else frames.past(r) for r in memory_specs(agent))
    return replace(policy or _no_past(batch.num_frames), value_past=values)


def sequences(steps: int, num_envs: int, seq_len: int) -> list[IntArray]:
    """Return the frames of each sequence of a rollout, in the order of steps.

    Args:
        steps: T.
        num_envs: B; frame t * B + b is step t of environment b.
        seq_len: steps of a sequence; the last one may have fewer.
    """
    frames = np.arange(steps * num_envs).reshape(steps, num_envs)
    return [
        frames[start : start + seq_len, env]
        for start in range(0, steps, seq_len)
        for env in range(num_envs)
    ]


def check_identity(agent: Any, obs: VecObs) -> list[str]:
    """Return the entity types that get no memory, because the first frames have no ids of them.

    Raises:
        ConfigError: no entity has an id, or no entity of a type in `net.memory.types` has one.
    """
    missing: dict[str, None] = {}
    for section, net in zip(("net", "vf_net"), rogue_nets(agent), strict=False):
        if (memory := net.memory) is None or not memory.types:
            continue
        present = [name for name in memory.types if len(obs.features[name].values)]
        without_ids = [n for n in present if not len(obs.identity.get(n, _NO_ROWS).values)]
        if named := [name for name in memory.config.types if name in without_ids]:
            raise ConfigError(
                f"{section}.memory.types: expected types with ids in observations, got "
                f"{', '.join(named)}; set Observation.ids, or leave these types out"
            )
        if memory.config.of == "entity" and len(without_ids) == len(present):
            raise ConfigError(
                f'{section}.memory.of="entity": expected entities with ids in the first frames, '
                f"got none of {', '.join(memory.types)}; set Observation.ids, or use "
                'net.memory.of="frame"'
            )
        missing |= dict.fromkeys(without_ids)
    return [*missing]


_NO_ROWS = Ragged(np.zeros(0, np.int64), np.zeros(0, np.int64))


def cat_states(by_microbatch: Sequence[Sequence[Tensor | None]]) -> list[Tensor | None]:
    """Concatenate the new states of microbatches, of the policy and of the value network."""
    joined: list[Tensor | None] = []
    for parts in zip(*by_microbatch, strict=True):
        tensors = [states for states in parts if states is not None]
        joined.append(torch.cat(tensors) if tensors else None)
    return joined
