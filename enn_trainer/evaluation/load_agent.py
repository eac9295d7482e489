"""`load_agent`: load the agent of a checkpoint to act in an environment."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from enn_trainer.base.errors import CheckpointError
from enn_trainer.base.policy import PPOAgent, device_of
from enn_trainer.checkpoints.lookup import SavedRun, read_saved_run
from enn_trainer.checkpoints.model_file import has_metadata
from enn_trainer.checkpoints.weights import load_weights_file
from enn_trainer.evaluation.explain import Explanation, explain
from enn_trainer.experience.memories import PlayerMemory, memory_specs, tracked_types
from enn_trainer.experience.players import AgentPlayer, Decisions
from enn_trainer.experience.recall import NO_FRAME_STATES, FrameStates, states_of_env
from entity_env.actions import Action, EntityID
from entity_env.environment import Environment, Observation
from entity_env.match import Match
from entity_env.plain_state import from_plain, to_plain
from entity_env.seeding import derive_seed
from entity_env.spaces import ActionName, ActionSpace, ObsSpace, Probabilities, Spaces
from entity_env.vec.batching import batch_obs, unbatch_actions
from entity_env.vec.identity import IdentityTracker
from entity_env.vec.vec_obs import VecObs
from rogue_net.ragged import EntityBatch
from rogue_net.space_diff import incompatibilities
from rogue_net.wiring import Wired


class Act(NamedTuple):
    """Decision of an agent in one frame.

    Attributes:
        actions: the frame's actions, with the probabilities of all choices.
        value: predicted return from this frame on; of scaled rewards, if the run scaled them.
    """

    actions: dict[ActionName, Action]
    value: float


class RogueNetAgent:
    """Agent for a single environment, or for several that are stepped together.

    Acting changes neither the network nor any global random number generator. An agent with memory
    keeps its recurrent state between calls of `act` until an episode ends: after an observation
    that is `done`, on `reset`, or with `act(..., first=True)`.

    Args:
        agent: the network, a `torch.nn.Module`.
        deterministic: True to take the most probable choice instead of sampling.
        seed: seed of the sampled choices, which also depend on the number of earlier frames.
        obs_space: observation space; by default the network's attribute.
        action_space: action space; by default the network's attribute.
    """

    def __init__(
        self,
        agent: PPOAgent,
        deterministic: bool = False,
        seed: int = 0,
        obs_space: ObsSpace | None = None,
        action_space: Mapping[ActionName, ActionSpace] | None = None,
    ) -> None:
        network: Any = agent
        self.agent = network.eval()
        self.obs_space: ObsSpace = network.obs_space if obs_space is None else obs_space
        self.action_space: Mapping[ActionName, ActionSpace] = (
            network.action_space if action_space is None else action_space
        )
        self.deterministic = deterministic
        self._seed = derive_seed(seed, "agent")
        self._frames = 0
        self._memory = AgentMemory(self.agent)

    def act(self, observation: Observation, first: bool = False) -> Act:
        """Choose actions for an observation.

        Args:
            observation: observation in the agent's spaces; its `reward` is that of the previous
                step.
            first: True at the start of an episode; resets the recurrent state.

        Raises:
            InvalidObservation: the observation does not match the spaces.
        """
        if first:
            self.reset()
        [act] = self.act_batch([observation])
        return act

    def reset(self) -> None:
        """Reset the recurrent state at the start of an episode; the random numbers continue."""
        self._memory.reset()

    def get_state(self) -> dict[str, Any]:
        """Return the recurrent state and the number of frames as plain data.

        Raises:
            ValueError: the ids of entities are not plain data.
        """
        return {"frames": self._frames, "memory": self._memory.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state returned by `get_state`.

        Raises:
            ValueError: the state is invalid.
        """
        if type(state.get("frames")) is not int or not isinstance(state.get("memory"), Mapping):
            raise ValueError("state: expected what get_state returned")
        self._memory.set_state(state["memory"])
        self._frames = state["frames"]

    def act_batch(self, observations: Sequence[Observation]) -> list[Act]:
        """Choose actions for the observations of several environments in one forward pass.

        Each environment has its own random number stream and recurrent state, by its index; those
        of the first one equal those of `act`. A call counts as one frame, like a call of `act`. If
        the number of environments changes, the recurrent state is reset.

        Args:
            observations: one observation per environment.

        Raises:
            InvalidObservation: an observation does not match the spaces.
        """
        if not observations:
            return []
        obs, batch = self._batch(observations)
        player = AgentPlayer(self.agent, None if self.deterministic else self._seed)
        with torch.inference_mode():
            decisions = self._memory.act(player, observations, obs, batch, self._frames)
        self._frames += 1
        probs: dict[ActionName, Probabilities] = {}
        for name, rows in decisions.chosen.items():
            distribution = decisions.distributions.get(name)
            log_probs = None if distribution is None else distribution.all_log_probs
            if log_probs is None:
                probs[name] = [None] * len(observations)
                continue
            tables = np.split(np.exp(log_probs.float().cpu().numpy()), rows.starts[1:])
            if (actees := obs.action_masks[name].actees) is not None:  # without the padding
                pairs = zip(tables, actees.lengths, strict=True)
                tables = [table[:, :num_actees] for table, num_actees in pairs]
            probs[name] = tables
        chosen = decisions.chosen_on_host()
        actions = unbatch_actions(
            chosen, obs, observations, self.obs_space, self.action_space, probs
        )
        return list(map(Act, actions, decisions.values.tolist()))

    def explain(
        self, observation: Observation, entities: Sequence[EntityID] | None = None
    ) -> Explanation:
        """Explain an observation: probabilities, value, attention, and influence of entities.

        This does not count as a frame: the choices of `act` are unaffected.

        Args:
            observation: observation in the agent's spaces.
            entities: ids, or `(type, row)` for types without ids, of the entities to compute
                the influence of; each costs a forward pass. By default all; of more than 32, the
                32 that receive most attention, or the first ones if the network has no attention.

        Raises:
            InvalidObservation: the observation does not match the spaces, or has too many entities
                for this machine.
            ValueError: there is no entity with one of these ids.
        """
        obs, batch = self._batch([observation])
        ids = observation.index_to_id(self.obs_space)
        recall, batch = self._memory.recall(observation, obs, batch)
        return explain(self.agent, batch, ids, self.action_space, entities, recall)

    def _batch(self, observations: Sequence[Observation]) -> tuple[VecObs, EntityBatch]:
        obs = batch_obs(observations, self.obs_space, self.action_space)
        return obs, EntityBatch.of(obs, device_of(self.agent))


class AgentMemory:
    """Recurrent state of an agent that receives one observation at a time.

    Args:
        agent: the network.
    """

    def __init__(self, agent: PPOAgent) -> None:
        self._agent, self._types = agent, tracked_types(agent)
        self._memory: PlayerMemory | None = None
        self._tracker = IdentityTracker([], 0)
        self._remembers = any(memory_specs(agent))

    def reset(self) -> None:
        """Reset the recurrent state."""
        self._memory = None

    def act(
        self,
        player: AgentPlayer,
        observations: Sequence[Observation],
        obs: VecObs,
        batch: EntityBatch,
        t: int,
    ) -> Decisions:
        """Choose actions with the recurrent state, and update it.

        Args:
            player: player of the agent.
            observations: (n,), one observation per environment.
            obs: the same observations in a batch.
            batch: the same observations on the device.
            t: number of earlier frames.
        """
        if not self._remembers:
            return player.act(obs, batch, t)
        if self._memory is None or len(self._memory.begun) != len(obs):
            self._begin(len(obs))
        memory = self._memory
        assert memory is not None
        memory.reward = obs.reward.astype(np.float32)
        if self._types:
            self._tracker.number(obs, observations)
            batch = replace(batch, identity=obs.identity)
        player.set_memory(memory)
        decisions = player.act(obs, batch, t)
        # The next observation after the last one of an episode begins a new episode.
        self._tracker.begin(np.flatnonzero(obs.done).tolist())
        memory.begun = memory.begun | obs.done
        return decisions

    def recall(
        self, observation: Observation, obs: VecObs, batch: EntityBatch
    ) -> tuple[FrameStates, EntityBatch]:
        """Return the recurrent state for the next frame, and the frame with entity numbers.

        Args:
            observation: observation of the first environment.
            obs: the same observation in a batch.
            batch: the same observation on the device.
        """
        if not self._remembers:
            return NO_FRAME_STATES, batch
        if self._memory is None:
            self._begin(1)
        assert self._memory is not None
        tracker, memory = copy.deepcopy(self._tracker), copy.copy(self._memory)
        memory.reward = obs.reward.astype(np.float32)
        if self._types:
            tracker.number_one(obs, observation)
            batch = replace(batch, identity=obs.identity)
        return states_of_env(memory, 0), batch

    def get_state(self) -> dict[str, Any]:
        """Return recurrent states and the ids of numbered entities as plain data.

        Raises:
            ValueError: an id is not plain data.
        """
        if self._memory is None:
            return {}
        try:
            ids = [
                {name: to_plain([*numbers], f"ids[{name!r}]") for name, numbers in table.items()}
                for table in self._tracker.tables
            ]
        except TypeError as error:
            raise ValueError(f"get_state: {error}") from None
        tensors = {name: x.cpu().numpy() for name, x in self._memory.state_dict().items()}
        return {"ids": ids, "states": {name: _array_to_plain(x) for name, x in tensors.items()}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state returned by `get_state`.

        Raises:
            ValueError: the state is invalid.
        """
        self._memory = None
        if not state:
            return
        states = {n: torch.from_numpy(_array_from_plain(x)) for n, x in state["states"].items()}
        self._begin(len(states["begun"]))
        assert self._memory is not None
        self._memory.load_state_dict(states)
        for table, saved in zip(self._tracker.tables, state["ids"], strict=True):
            for name, numbers in table.items():
                numbers.update((one, i) for i, one in enumerate(from_plain(saved[name])))

    def _begin(self, num_envs: int) -> None:
        """Initialise the recurrent state of `num_envs` environments."""
        self._memory = PlayerMemory(self._agent, num_envs)
        self._tracker = IdentityTracker(self._types, num_envs)


def load_agent(
    path: str | Path,
    device: str | torch.device = "cpu",
    deterministic: bool = False,
    seed: int = 0,
    agent: PPOAgent | None = None,
    env: Environment | Match | None = None,
) -> RogueNetAgent:
    """Load the agent of a checkpoint, ready to act.

    Only the configuration, the spaces and the weights are read.

    Args:
        path: a checkpoint, or the folder of a run, for its newest valid checkpoint, or RUN@STEP,
            RUN@best; also of enn_trainer 0.1.16. Or `model.safetensors` of `enn export`. Or a file
            of weights for `agent`: `.safetensors`, or a state dict written by `torch.save`.
        device: device of the network.
        deterministic: True to take the most probable choice instead of sampling.
        seed: seed of the sampled choices.
        agent: custom network with parameters of the saved shapes; the weights are loaded into it.
        env: environment to act in. Features, entity types and labels are matched by name in any
            order, and those unknown to the agent are ignored. By default observations must be those
            of the training environment.

    Raises:
        CheckpointError: there is no valid checkpoint; the file has other contents; or the
            environment has other actions or lacks features that the agent needs.
    """
    # A file of weights.
    path = Path(path)
    network: Any = agent
    if path.is_file() and not has_metadata(path):
        missing = [name for name in ("obs_space", "action_space") if not hasattr(network, name)]
        if missing:
            got = "none" if network is None else f"one without {' and '.join(missing)}"
            raise CheckpointError(
                f"{path}: a file of weights has no spaces; expected agent=, a network with the "
                f"attributes obs_space and action_space, got {got}"
            )
        load_weights_file(path, network)
        return RogueNetAgent(network.to(device), deterministic, seed)

    # A checkpoint, or a file with configuration and spaces.
    saved = read_saved_run(path, agent)
    network = saved.agent.to(device)
    if env is not None:
        wired = adapt_network(saved, Spaces.of(env))
        return RogueNetAgent(wired, deterministic, seed)
    return RogueNetAgent(network, deterministic, seed, saved.obs_space, saved.action_space)


def adapt_network(saved: SavedRun, spaces: Spaces) -> Wired:
    """Adapt the network of a checkpoint to an environment with possibly more features.

    Raises:
        CheckpointError: the environment has other actions or lacks features that the network needs.
    """
    if diffs := incompatibilities(saved.spaces, spaces):
        raise CheckpointError(f"{saved.path} does not fit the environment: {'; '.join(diffs)}")
    return Wired(
        saved.agent, spaces.obs_space, spaces.action_space, saved.obs_space, saved.action_space
    )


def _array_to_plain(x: npt.NDArray[Any]) -> dict[str, Any]:
    """Convert an array to plain data."""
    return {"dtype": x.dtype.name, "shape": [*x.shape], "data": x.tobytes()}


def _array_from_plain(packed: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Convert the result of `_array_to_plain` back to an array."""
    if packed["dtype"] not in ("bool", "int64", "float32"):
        raise ValueError(f"state: expected numbers, got {packed['dtype']!r}")
    return np.frombuffer(packed["data"], packed["dtype"]).reshape(packed["shape"]).copy()
