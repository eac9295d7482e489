"""`Recurrence`: the recurrent state of a player between two frames, and in those of a rollout."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
from rogue_net.memory import Remembering, memory_rows
from rogue_net.past import NOTHING_KNOWN, Known, Links, MemoryRows, Past, link
from rogue_net.ragged import EntityBatch, to_device

_KNOWN = Known._fields


def remembering_of(agent: Any) -> tuple[Remembering | None, Remembering | None]:
    """Return the rows that an agent remembers, and those of its separate value network."""
    nets = rogue_nets(agent) or [agent]
    both = [getattr(net, "remembering", None) for net in nets]
    return both[0], both[1] if len(both) > 1 else None


def tracked_types(agent: Any) -> list[str]:
    """Return the entity types that an agent remembers by id."""
    both = [one.types for one in remembering_of(agent) if one is not None]
    return [*dict.fromkeys(name for types in both for name in types)]


def _linked(
    batch: EntityBatch,
    remembering: Remembering,
    sequence: IntArray,
    time: IntArray,
    begun: BoolArray,
    known: Known,
) -> tuple[MemoryRows, Links]:
    """Return the rows of frames that remember, and their links; the arguments are `link`'s."""
    rows = memory_rows(batch, remembering)
    return rows, link(rows, sequence, time, begun, known, remembering.keep_absent)


@dataclass(frozen=True)
class Memories:
    """States that one network remembers in B environments between two frames; never changed.

    Attributes:
        remembering: the rows that it remembers.
        known: the C rows that are remembered; the sequence of each is its environment.
        states: (C, width) float32.
    """

    remembering: Remembering
    known: Known = NOTHING_KNOWN
    states: Tensor | None = None

    @staticmethod
    def cat(pieces: Sequence["Memories"], num_envs: int) -> "Memories":
        """Concatenate the environments of several pieces, each of which has so many."""
        columns = [
            piece.known._replace(sequence=piece.known.sequence + k * num_envs)
            for k, piece in enumerate(pieces)
        ]
        known = Known(*(np.concatenate(of_all) for of_all in zip(*columns, strict=True)))
        states = [piece.states for piece in pieces if piece.states is not None]
        return replace(pieces[0], known=known, states=torch.cat(states) if states else None)

    def past_of(
        self, batch: EntityBatch, environments: IntArray, begun: BoolArray, reward: Any
    ) -> tuple[Past, Links, IntArray]:
        """Return the past of frames, their links, and which environments' rows these are from.

        Args:
            batch: a frame of each of n environments, with `identity`.
            environments: (n,) int64.
            begun: (n,) bool, True where an episode begins in that frame.
            reward: (n,) float32, of the step before.
        """
        n = len(environments)
        of_frames, here = self.of_environments(environments)
        nowhen = np.zeros(n, np.int64)
        rows, links = _linked(batch, self.remembering, np.arange(n), nowhen, begun, of_frames)
        carried = self.states_of(here, batch)
        return Past.of(rows, links, nowhen, np.where(begun, 0, reward), carried), links, here

    def of_environments(self, environments: IntArray) -> tuple[Known, IntArray]:
        """Return what is remembered in some environments, by their places, and the rows of it.

        Args:
            environments: (n,) int64; one may be there several times.
        """
        if not len(self.known.sequence):
            return NOTHING_KNOWN, self.known.sequence
        order = np.argsort(self.known.sequence, kind="stable")
        of_rows = self.known.sequence[order]
        start, stop = (np.searchsorted(of_rows, environments, side) for side in ("left", "right"))
        here = order[row_indices(start, stop - start)]
        taken = Known(*(column[here] for column in self.known))
        places = np.repeat(np.arange(len(environments)), stop - start)
        return taken._replace(sequence=places), here

    def states_of(self, rows: IntArray, like: EntityBatch) -> Tensor:
        """Return the states of some of the rows."""
        device = next(iter(like.features.values())).values.device
        if self.states is None:
            return torch.zeros(0, 0, device=device)
        return self.states.index_select(0, to_device(rows, self.states.device)).to(device)

    def after(
        self, environments: IntArray, links: Links, here: IntArray, memory: Tensor
    ) -> "Memories":
        """Return what is remembered after a frame of some environments.

        Args:
            environments: (n,) int64.
            links: of the frames, from `past_of`.
            here: likewise.
            memory: (R, width), the states of the rows of the frames.
        """
        pool = memory if self.states is None else torch.cat([memory, self.states[here]])
        states = pool.index_select(0, to_device(links.left, memory.device))
        known = links.known._replace(sequence=environments[links.known.sequence])
        if self.states is not None and len(here) < len(self.known.sequence):
            others = np.setdiff1d(np.arange(len(self.known.sequence)), here)
            kept = zip((column[others] for column in self.known), known, strict=True)
            known = Known(*(np.concatenate(pair) for pair in kept))
            states = torch.cat([self.states[others], states])
        return replace(self, known=known, states=states)

    def state_dict(self) -> dict[str, Any]:
        """Return the states, and what they are of, as tensors by name."""
        rows = torch.from_numpy(np.stack(self.known).astype(np.int64))
        return {} if self.states is None else {"known": rows, "states": self.states}

    def restored(self, state: Mapping[str, Any]) -> "Memories":
        """Return the memories of a saved state.

        Raises:
            ValueError: the state is not that of memories of this network.
        """
        if not state:
            return self
        known, states = state.get("known"), state.get("states")
        if not (isinstance(known, Tensor) and isinstance(states, Tensor) and states.ndim == 2):
            raise ValueError("expected known and states, two tables")
        if known.dtype != torch.int64 or known.shape != (len(_KNOWN), len(states)):
            raise ValueError(f"known: expected {len(_KNOWN)} rows of int64 of {len(states)} states")
        rows = known.cpu().numpy()
        if (rows < 0).any() or (rows[1] > len(self.remembering.types)).any():
            raise ValueError("known: expected environments, kinds, numbers and ages")
        if states.dtype != torch.float32 or not states.isfinite().all():
            raise ValueError("states: expected finite numbers of float32")
        width = self.remembering.width
        if width is not None and states.shape[1] != width:
            raise ValueError(f"states: expected a width of {width}, got {states.shape[1]}")
        return replace(self, known=Known._make(rows), states=states)


class Recurrence:
    """Recurrent state of one agent in B environments; here of an agent without one."""

    def after_step(self, obs: VecObs) -> None:
        """Take the rewards and ends of a step."""
        return

    def attach(
        self, batch: EntityBatch, environments: IntArray, acts: bool
    ) -> tuple[EntityBatch, "Attached"]:
        """Return frames with the recurrent state before them.

        Args:
            batch: n frames, with `identity`.
            environments: (n,) int64, of each frame. Several frames, such as changed copies of one,
                may be of one environment if the state does not advance with them.
            acts: True for frames to act in, of which some may be the first of an episode; False
                for others, which go on.

        Returns:
            The frames; and what `advance` takes after the choices in them.
        """
        return batch, NO_LINKS

    def advance(self, attached: "Attached", memory: Sequence[Tensor | None]) -> None:
        """Take the states after choices.

        Args:
            attached: of the frames in which they were made.
            memory: (R, width) of the policy, and of the value network.
        """
        return

    def take_choices(
        self, agent: Any, batch: EntityBatch, environments: IntArray, chosen: Mapping[str, Tensor]
    ) -> None:
        """Advance by choices that need not be the agent's own.

        Args:
            agent: the network.
            batch: a frame of each of n environments, with `identity`.
            environments: (n,) int64.
            chosen: per action (actors,) int64.
        """
        return

    def of_rollout(self, seq_len: int) -> "RolloutRecurrence":
        """Return the recurrent state of a rollout, before its first step.

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
            ValueError: they are not those of as many environments.
        """
        return


NO_RECURRENCE = Recurrence()
"""Recurrent state of agents without one."""


def recurrence_of(agent: Any, padding: BoolArray, spans: Spans = OFF) -> Recurrence:
    """Return the recurrent state of an agent before its first frames.

    Args:
        agent: the network.
        padding: (B,) bool, the environments whose current frame is between two episodes.
        spans: timers.
    """
    if not any(remembering_of(agent)):
        return NO_RECURRENCE
    memory = PlayerMemory(agent, len(padding), spans)
    memory.padding = padding
    return memory


class PlayerMemory(Recurrence):
    """Memory of the player of one agent, in B environments.

    Between `act` and the next `act` the states are those after the choices; episodes that end in
    between begin anew with the next choice, so that last observations are judged with their own.

    Args:
        agent: the network.
        num_envs: B.
        spans: timers.

    Attributes:
        policy: memories of the network that acts; None without.
        values: memories of a separate value network; None without.
        begun: (B,) bool, the environments in which an episode begins with the next choice.
        reward: (B,) float32, of the last step.
        padding: (B,) bool, those whose current frame is between two episodes. It is not saved, as
            the frames that a player goes on with have it.
    """

    def __init__(self, agent: Any, num_envs: int, spans: Spans = OFF) -> None:
        policy, values = remembering_of(agent)
        self.spans = spans
        self.policy = None if policy is None else Memories(policy)
        self.values = None if values is None else Memories(values)
        self.begun = np.ones(num_envs, np.bool_)
        self.reward = np.zeros(num_envs, np.float32)
        self.padding = np.zeros(num_envs, np.bool_)

    def after_step(self, obs: VecObs) -> None:
        """Take the rewards and ends of a step."""
        self.begun, self.reward = obs.done | self.padding, obs.reward.astype(np.float32)
        self.padding = obs.is_padding

    def attach(
        self, batch: EntityBatch, environments: IntArray, acts: bool
    ) -> tuple[EntityBatch, "Attached"]:
        """Return frames with what is remembered of them."""
        with self.spans.span("memory"):
            begun = self.begun[environments] & acts
            parts: list[Any] = []
            for memories in (self.policy, self.values):
                parts.append(
                    None
                    if memories is None
                    else memories.past_of(batch, environments, begun, self.reward[environments])
                )
            policy, values = (None if part is None else part[0] for part in parts)
            past = replace(policy or _no_past(batch.num_frames), of_values=values)
            return replace(batch, past=past), Attached(environments, parts)

    def advance(self, attached: "Attached", memory: Sequence[Tensor | None]) -> None:
        """Take the states after choices."""
        with self.spans.span("memory"):
            both = []
            for memories, part, states in zip(
                (self.policy, self.values), attached.parts, memory, strict=True
            ):
                if memories is not None and part is not None and states is not None:
                    _, links, here = part
                    memories = memories.after(attached.environments, links, here, states)
                both.append(memories)
            self.policy, self.values = both
            self.begun = self.begun.copy()
            self.begun[attached.environments] = False

    def of_rollout(self, seq_len: int) -> "RolloutRecurrence":
        """Return the memory of a rollout, before its first step."""
        return RolloutMemory(seq_len, self.spans)

    def take_choices(
        self, agent: Any, batch: EntityBatch, environments: IntArray, chosen: Mapping[str, Tensor]
    ) -> None:
        """Advance by choices that need not be the agent's own."""
        batch, attached = self.attach(batch, environments, acts=True)
        out = agent(batch, actions=chosen)
        self.advance(attached, [out.memory, out.memory_of_values])

    def state_dict(self) -> dict[str, Any]:
        """Return the states as tensors by name."""
        state: dict[str, Any] = {
            "begun": torch.from_numpy(self.begun.copy()),
            "reward": torch.from_numpy(self.reward.copy()),
        }
        for name, memories in (("policy", self.policy), ("values", self.values)):
            if memories is not None:
                state |= {f"{name}/{key}": x for key, x in memories.state_dict().items()}
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the states.

        Raises:
            ValueError: they are not those of as many environments.
        """
        begun, reward = state.get("begun"), state.get("reward")
        shape = (len(self.begun),)
        for name, found, dtype in (("begun", begun, torch.bool), ("reward", reward, torch.float32)):
            if not isinstance(found, Tensor) or (found.dtype, found.shape) != (dtype, shape):
                raise ValueError(f"{name}: expected {dtype} of {shape[0]} environments")
        assert isinstance(begun, Tensor)
        assert isinstance(reward, Tensor)
        self.begun, self.reward = begun.cpu().numpy(), reward.cpu().numpy()
        for name in ("policy", "values"):
            memories = getattr(self, name)
            saved = {
                key.removeprefix(f"{name}/"): x
                for key, x in state.items()
                if key.startswith(f"{name}/")
            }
            if memories is not None:
                setattr(self, name, memories.restored(saved))


@dataclass(frozen=True)
class Attached:
    """Links of the rows of frames, to remember these afterwards.

    Attributes:
        environments: (n,) int64, of the frames.
        parts: of the policy and of the value network, results of `Memories.past_of`, or None.
    """

    environments: IntArray
    parts: Sequence[Any]


NO_LINKS = Attached(np.zeros(0, np.int64), ())


def _no_past(num_frames: int) -> Past:
    """Return the past of frames of which nothing is remembered."""
    nobody = Ragged(np.zeros(0, np.int64), np.zeros(num_frames, np.int64))
    level, reward = np.zeros(num_frames, np.int64), np.zeros(num_frames, np.float32)
    return Past(nobody, nobody, nobody, nobody, level, reward, torch.zeros(0, 0))


class RolloutRecurrence:
    """Recurrent state in the frames of a rollout; here of an agent without one."""

    def add(self, memory: Any, learnt: IntArray) -> None:
        """Take the state before a step.

        Args:
            memory: of the learner, which made this by `of_rollout`.
            learnt: (B,) int64, the environments that are learnt from in this step.
        """
        return

    def attach(self, batch: EntityBatch) -> EntityBatch:
        """Return all frames, T * B, step after step, with the state before them."""
        return batch


class RolloutMemory(RolloutRecurrence):
    """Memory at the starts of the sequences of a rollout.

    Args:
        seq_len: number of steps of a sequence.
        spans: timers.
    """

    def __init__(self, seq_len: int, spans: Spans = OFF) -> None:
        self.seq_len, self._spans = seq_len, spans
        self._begun: list[BoolArray] = []
        self._reward: list[Float32Array] = []
        self._starts: list[tuple[IntArray, Memories | None, Memories | None]] = []

    def add(self, memory: PlayerMemory, learnt: IntArray) -> None:
        """Take the memory before a step."""
        if len(self._begun) % self.seq_len == 0:
            self._starts.append((learnt, memory.policy, memory.values))
        begun = memory.begun[learnt]
        self._begun.append(begun)
        self._reward.append(np.where(begun, 0, memory.reward[learnt]).astype(np.float32))

    def attach(self, batch: EntityBatch) -> EntityBatch:
        """Return all frames with their past."""
        with self._spans.span("memory"):
            return replace(batch, past=self.past(batch), identity={})

    def past(self, batch: EntityBatch) -> Past:
        """Return the past of all frames, T * B, step after step."""
        steps, num_envs = len(self._begun), len(self._begun[0])
        step = np.repeat(np.arange(steps), num_envs)
        sequence = step // self.seq_len * num_envs + np.tile(np.arange(num_envs), steps)
        time = step % self.seq_len
        begun, reward = np.concatenate(self._begun), np.concatenate(self._reward)
        columns, *both = zip(*self._starts, strict=True)
        frames = SequenceFrames(batch, sequence, time, begun, reward)
        pasts: list[Past | None] = []
        for of_starts in both:
            if of_starts[0] is None:
                pasts.append(None)
                continue
            known, states = [NOTHING_KNOWN], []
            for k, (learnt, memories) in enumerate(zip(columns, of_starts, strict=True)):
                of_start, here = memories.of_environments(learnt)
                known.append(of_start._replace(sequence=of_start.sequence + k * num_envs))
                if memories.states is not None:
                    states.append(memories.states_of(here, batch))
            joined = Known(*(np.concatenate(of_all) for of_all in zip(*known, strict=True)))
            pasts.append(frames.past(of_starts[0].remembering, joined, states))
        policy, values = pasts
        return replace(policy or _no_past(batch.num_frames), of_values=values)


class SequenceFrames(NamedTuple):
    """Frames of sequences that are learnt from.

    Attributes:
        batch: F frames, with `identity`.
        sequence: (F,) int64, the sequence of each frame.
        time: (F,) int64, 0, 1, ... in the sequence.
        begun: (F,) bool, True where an episode begins.
        reward: (F,) float32, of the step before; 0 as an episode begins.
    """

    batch: EntityBatch
    sequence: IntArray
    time: IntArray
    begun: BoolArray
    reward: Float32Array

    def past(
        self, remembering: Remembering, known: Known = NOTHING_KNOWN, states: Sequence[Tensor] = ()
    ) -> Past:
        """Return the past of the frames.

        Args:
            remembering: the rows that a network remembers.
            known: what it remembers before the first frames; nothing by default.
            states: of that, in pieces.
        """
        batch = self.batch
        rows, links = _linked(batch, remembering, self.sequence, self.time, self.begun, known)
        device = next(iter(batch.features.values())).values.device
        carried = torch.cat([*states]) if states else torch.zeros(0, 0, device=device)
        return Past.of(rows, links, self.time, self.reward, carried)


def past_of_recorded(
    agent: Any, batch: EntityBatch, lengths: IntArray, reward: Float32Array
) -> Past:
    """Return the past of recorded sequences, before which nothing is remembered.

    Args:
        agent: the network.
        batch: F frames, sequence after sequence, with `identity`.
        lengths: (sequences,) int64, frames of each.
        reward: (F,) float32, of the step before; 0 as an episode begins.
    """
    time = row_indices(np.zeros_like(lengths), lengths)
    sequence = np.repeat(np.arange(len(lengths)), lengths)
    frames = SequenceFrames(batch, sequence, time, time == 0, reward)
    policy, values = (None if r is None else frames.past(r) for r in remembering_of(agent))
    return replace(policy or _no_past(batch.num_frames), of_values=values)


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
    """Return the types without ids in the first frames, of those that are remembered if they have.

    Raises:
        ConfigError: nobody that is to be remembered has an id, or a type that settings name.
    """
    without: dict[str, None] = {}
    for section, net in zip(("net", "vf_net"), rogue_nets(agent), strict=False):
        if (memory := net.memory) is None or not memory.types:
            continue
        shown = [name for name in memory.types if len(obs.features[name].values)]
        lacking = [n for n in shown if not len(obs.identity.get(n, _NOBODY).values)]
        if named := [name for name in memory.config.types if name in lacking]:
            raise ConfigError(
                f"{section}.memory.types: expected types whose entities have ids in observations, "
                f"got {', '.join(named)}; give Observation.ids, or leave them out"
            )
        if memory.config.of == "entity" and len(lacking) == len(shown):
            raise ConfigError(
                f'{section}.memory.of="entity": expected entities with ids in the first frames, '
                f"got none of {', '.join(memory.types)}; give Observation.ids, or remember the "
                'frame (of="frame")'
            )
        without |= dict.fromkeys(lacking)
    return [*without]


_NOBODY = Ragged(np.zeros(0, np.int64), np.zeros(0, np.int64))


def cat_states(pieces: Sequence[Sequence[Tensor | None]]) -> list[Tensor | None]:
    """Concatenate the states of frames of several pieces, of the policy and of the values."""
    joined: list[Tensor | None] = []
    for of_pieces in zip(*pieces, strict=True):
        some = [states for states in of_pieces if states is not None]
        joined.append(torch.cat(some) if some else None)
    return joined
