"""`AgentMemory`: recurrent state of an agent between its calls, by position or by session."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from threading import get_ident
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from enn_trainer.base.policy import PPOAgent, device_of
from enn_trainer.experience.memories import PlayerMemory, StateRows, memory_specs, tracked_types
from enn_trainer.experience.players import AgentPlayer, Decisions
from enn_trainer.experience.recall import NO_FRAME_STATES, FrameStates, states_of_env
from entity_env.environment import Observation
from entity_env.plain_state import from_plain, to_plain
from entity_env.seeding import mix, mix_ints
from entity_env.vec.identity import IdentityTracker, Tables
from entity_env.vec.vec_obs import VecObs
from rogue_net.ragged import EntityBatch

SessionKey: TypeAlias = str | int
"""Name of a session, such as a game, a player or a connection."""


class Session(NamedTuple):
    """Recurrent state of one session before its next frame.

    Attributes:
        draw_key: hash of the session key.
        num_frames: number of earlier frames, from which random numbers are derived.
        begun: True if an episode begins with the next frame.
        numbers: numbers of the ids of entities, by type.
        policy: states of the policy; None before the first frame, or without memory.
        values: likewise, of a separate value network.
    """

    draw_key: int
    num_frames: int
    begun: bool
    numbers: Tables
    policy: StateRows | None = None
    values: StateRows | None = None


class EpisodeStates:
    """Recurrent state and numbers of entities in B running episodes.

    Args:
        agent: the network.
        tables: (B,), numbers of the ids of entities in each episode, by type.
    """

    def __init__(self, agent: PPOAgent, tables: Sequence[Tables]) -> None:
        self._device = device_of(agent)
        self.memory = PlayerMemory(agent, len(tables))
        self.tracker = IdentityTracker(tracked_types(agent), 0)
        self.tracker.tables = [*tables]

    @staticmethod
    def begin(agent: PPOAgent, num_envs: int) -> "EpisodeStates":
        """Return the states before the first frames."""
        return EpisodeStates(agent, IdentityTracker(tracked_types(agent), num_envs).tables)

    @staticmethod
    def join(agent: PPOAgent, sessions: Sequence[Session]) -> "EpisodeStates":
        """Join the states of sessions; the i-th becomes environment i."""
        joined = EpisodeStates(agent, [session.numbers for session in sessions])
        memory = joined.memory
        memory.begun = np.array([session.begun for session in sessions], np.bool_)
        if memory.policy is not None:
            memory.policy = memory.policy.join([s.policy for s in sessions], joined._device)
        if memory.values is not None:
            memory.values = memory.values.join([s.values for s in sessions], joined._device)
        return joined

    def split(self, draw_keys: Sequence[int], num_frames: Sequence[int]) -> list[Session]:
        """Split the states into sessions.

        Args:
            draw_keys: (B,), see `Session`.
            num_frames: (B,), see `Session`.
        """
        memory, count = self.memory, len(self.memory.begun)
        policy, values = (
            [None] * count if table is None else table.split(count)
            for table in (memory.policy, memory.values)
        )
        begun, numbers = memory.begun.tolist(), self.tracker.tables
        fields = zip(draw_keys, num_frames, begun, numbers, policy, values, strict=True)
        return [*map(Session._make, fields)]

    def act(
        self,
        player: AgentPlayer,
        observations: Sequence[Observation],
        obs: VecObs,
        batch: EntityBatch,
        t: int,
    ) -> Decisions:
        """Choose actions with the recurrent state, and update it; see `AgentMemory.act`."""
        memory, tracker = self.memory, self.tracker
        memory.reward = obs.reward.astype(np.float32)
        if tracker.types:
            tracker.number(obs, observations)
            batch = replace(batch, identity=obs.identity)
        player.set_memory(memory)
        decisions = player.act(obs, batch, t)
        # The next observation after the last one of an episode begins a new episode.
        tracker.begin(np.flatnonzero(obs.done).tolist())
        memory.begun = memory.begun | obs.done
        return decisions

    def recall(
        self, observation: Observation, obs: VecObs, batch: EntityBatch
    ) -> tuple[FrameStates, EntityBatch]:
        """Return the state before the next frame of the first environment, without changing it."""
        tracker, memory = copy.deepcopy(self.tracker), copy.copy(self.memory)
        memory.reward = obs.reward.astype(np.float32)
        if tracker.types:
            tracker.number_one(obs, observation)
            batch = replace(batch, identity=obs.identity)
        return states_of_env(memory, 0), batch

    def get_state(self) -> dict[str, Any]:
        """Return recurrent states and the ids of numbered entities as plain data.

        Raises:
            ValueError: an id is not plain data.
        """
        try:
            ids = [
                {name: to_plain([*numbers], f"ids[{name!r}]") for name, numbers in table.items()}
                for table in self.tracker.tables
            ]
        except TypeError as error:
            raise ValueError(f"get_state: {error}") from None
        tensors = {name: x.cpu().numpy() for name, x in self.memory.state_dict().items()}
        return {"ids": ids, "states": {name: _array_to_plain(x) for name, x in tensors.items()}}

    @staticmethod
    def from_state(agent: PPOAgent, state: Mapping[str, Any]) -> "EpisodeStates":
        """Restore a state returned by `get_state`.

        Raises:
            ValueError: the state is invalid.
        """
        arrays = {name: _array_from_plain(x) for name, x in state["states"].items()}
        restored = EpisodeStates.begin(agent, len(arrays["begun"]))
        tensors = {name: torch.from_numpy(x).to(restored._device) for name, x in arrays.items()}
        restored.memory.load_state_dict(tensors)
        for table, saved in zip(restored.tracker.tables, state["ids"], strict=True):
            for name, numbers in table.items():
                numbers.update((one, i) for i, one in enumerate(from_plain(saved[name])))
        return restored


class AgentMemory:
    """Recurrent state of an agent that receives one observation per episode at a time.

    Episodes are identified by their position in a batch, or by session keys.

    Args:
        agent: the network.
    """

    def __init__(self, agent: PPOAgent) -> None:
        self._agent = agent
        self._remembers = any(memory_specs(agent))
        self._positions: EpisodeStates | None = None
        self._thread: int | None = None
        self._sessions: dict[SessionKey, Session] = {}

    @property
    def sessions(self) -> list[SessionKey]:
        """Keys of the sessions with a recurrent state; the one that acted last comes last."""
        return [*self._sessions]

    def reset(self) -> None:
        """Reset the recurrent states of all positions."""
        self._positions = None

    def forget(self, sessions: Iterable[SessionKey]) -> None:
        """Drop the recurrent states of sessions, if they have one."""
        for key in sessions:
            self._sessions.pop(key, None)

    def act(
        self,
        player: AgentPlayer,
        observations: Sequence[Observation],
        obs: VecObs,
        batch: EntityBatch,
        t: int,
        keys: Sequence[SessionKey] | None,
    ) -> Decisions:
        """Choose actions with the recurrent states, and update them.

        Random numbers of a session are a function of its key and the number of its earlier frames.

        Args:
            player: player of the agent.
            observations: (n,), one observation per environment.
            obs: the same observations in a batch.
            batch: the same observations on the device.
            t: number of earlier calls.
            keys: (n,), distinct session keys; None to identify environments by their position.

        Raises:
            RuntimeError: without keys, the episodes began in another thread.
        """
        if not self._remembers:
            return player.act(obs, batch, t)
        if keys is None:
            return self._positions_of(len(obs)).act(player, observations, obs, batch, t)
        sessions = [self._session(key) for key in keys]
        draw_keys = [session.draw_key for session in sessions]
        num_frames = [session.num_frames for session in sessions]
        bits = mix(np.array(draw_keys), np.array(num_frames))
        player.draw_keys = (bits >> np.uint64(1)).astype(np.int64)
        states = EpisodeStates.join(self._agent, sessions)
        decisions = states.act(player, observations, obs, batch, 0)
        sessions = states.split(draw_keys, [n + 1 for n in num_frames])
        self.forget(keys)
        self._sessions.update(zip(keys, sessions, strict=True))
        return decisions

    def _positions_of(self, num_envs: int) -> EpisodeStates:
        """Return the states of positions; new ones if their number has changed.

        Raises:
            RuntimeError: the episodes began in another thread.
        """
        states, thread = self._positions, get_ident()
        is_running = states is not None and not states.memory.begun.all()
        if is_running and self._thread not in (None, thread):
            raise RuntimeError(
                "act: expected the thread in which the episode began, got another one; to act in "
                "several threads, name the episode of each observation: "
                "act_batch(observations, sessions=[...])"
            )
        if states is None or len(states.memory.begun) != num_envs:
            states = self._positions = EpisodeStates.begin(self._agent, num_envs)
        self._thread = thread
        return states

    def recall(
        self,
        observation: Observation,
        obs: VecObs,
        batch: EntityBatch,
        session: SessionKey | None,
    ) -> tuple[FrameStates, EntityBatch]:
        """Return the recurrent state for the next frame, and the frame with entity numbers.

        Args:
            observation: the next observation of the session, or of the first environment.
            obs: the same observation in a batch.
            batch: the same observation on the device.
            session: session key; None for the first position.
        """
        if not self._remembers:
            return NO_FRAME_STATES, batch
        if session is not None:
            states = EpisodeStates.join(self._agent, [self._session(session)])
        else:
            states = self._positions or EpisodeStates.begin(self._agent, 1)
        return states.recall(observation, obs, batch)

    def get_state(self) -> dict[str, Any]:
        """Return the recurrent states of positions and of sessions as plain data.

        Raises:
            ValueError: an id of an entity is not plain data.
        """
        state = {} if self._positions is None else self._positions.get_state()
        if self._sessions:
            num_frames = [session.num_frames for session in self._sessions.values()]
            states = EpisodeStates.join(self._agent, [*self._sessions.values()]).get_state()
            state["sessions"] = {"keys": self.sessions, "num_frames": num_frames, **states}
        return state

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state returned by `get_state`.

        Raises:
            ValueError: the state is invalid.
        """
        positions, sessions = None, dict[SessionKey, Session]()
        if "states" in state:
            positions = EpisodeStates.from_state(self._agent, state)
        if saved := state.get("sessions"):
            keys, states = saved["keys"], EpisodeStates.from_state(self._agent, saved)
            parts = states.split([*map(_draw_key, keys)], saved["num_frames"])
            sessions.update(zip(keys, parts, strict=True))
        self._positions, self._sessions, self._thread = positions, sessions, None

    def _session(self, key: SessionKey) -> Session:
        """Return the state of a session; an empty one for a new session."""
        if (session := self._sessions.get(key)) is not None:
            return session
        [new] = EpisodeStates.begin(self._agent, 1).split([_draw_key(key)], [0])
        return new


def check_sessions(sessions: Sequence[SessionKey], num_observations: int) -> None:
    """Check the session keys of a batch.

    Raises:
        ValueError: a key is not a string or an integer, or is repeated; or there is not one key
            for each observation.
    """
    if len(sessions) != num_observations:
        raise ValueError(
            f"sessions: expected {num_observations} keys, one for each observation, got "
            f"{len(sessions)}"
        )
    for key in sessions:
        if type(key) not in (str, int):
            raise ValueError(
                f"sessions: expected str or int, got {type(key).__name__} {key!r}; pass str(key)"
            )
    if len({*sessions}) < num_observations:
        repeated = next(key for i, key in enumerate(sessions) if key in sessions[:i])
        raise ValueError(
            f"sessions: expected distinct keys, got {repeated!r} twice; pass one observation of "
            "a session per call"
        )


def _draw_key(key: SessionKey) -> int:
    """Hash a session key to 63 bits; 1 and "1" differ."""
    return mix_ints(*repr(key).encode()) >> 1


def _array_to_plain(x: npt.NDArray[Any]) -> dict[str, Any]:
    """Convert an array to plain data."""
    return {"dtype": x.dtype.name, "shape": [*x.shape], "data": x.tobytes()}


def _array_from_plain(packed: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Convert the result of `_array_to_plain` back to an array."""
    if packed["dtype"] not in ("bool", "int64", "float32"):
        raise ValueError(f"state: expected numbers, got {packed['dtype']!r}")
    return np.frombuffer(packed["data"], packed["dtype"]).reshape(packed["shape"]).copy()
