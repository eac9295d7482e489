"""Agents that act in one environment, loaded from checkpoints."""

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
from enn_trainer.checkpoints.weights import load_weights_file
from enn_trainer.evaluation.explain import Explanation, explain
from enn_trainer.experience.memories import PlayerMemory, remembering_of, tracked_types
from enn_trainer.experience.players import AgentPlayer, Decisions
from enn_trainer.experience.recall import NO_RECALL, Recall, recall_of_one
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
        actions: the actions that the frame offers, with the probabilities of all choices.
        value: the predicted return from here; of scaled rewards, if the run scaled them.
    """

    actions: dict[ActionName, Action]
    value: float


class RogueNetAgent:
    """Agent that acts in one environment.

    Acting changes neither the network nor the state of any random number generator. An agent with
    memory remembers from one call of `act` to the next, until an episode ends: with an observation
    that is `done`, with `reset`, or with `act(..., first=True)`.

    Args:
        agent: the network; a `torch.nn.Module`.
        deterministic: True to take the most probable choice instead of sampling.
        seed: the choices are a function of it, of the number of earlier frames, and of the frame.
        obs_space: observation space, for a network without the attribute that `RogueNet` has.
        action_space: action space, likewise.
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
        """Choose actions for an observation of the spaces that the network was trained for.

        Args:
            observation: the observation; its `reward` is that of the step before.
            first: an episode begins, so that nothing is remembered.

        Raises:
            InvalidObservation: the observation does not match these spaces.
        """
        if first:
            self.reset()
        [act] = self.act_batch([observation])
        return act

    def reset(self) -> None:
        """Forget the running episodes, as others begin; the random numbers go on."""
        self._memory.reset()

    def get_state(self) -> dict[str, Any]:
        """Return what is remembered and the number of frames, as plain data.

        Raises:
            ValueError: the ids of entities are not plain data.
        """
        return {"frames": self._frames, "memory": self._memory.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`.

        Raises:
            ValueError: the state is not one of such an agent.
        """
        if type(state.get("frames")) is not int or not isinstance(state.get("memory"), Mapping):
            raise ValueError("state: expected what get_state returned")
        self._memory.set_state(state["memory"])
        self._frames = state["frames"]

    def act_batch(self, observations: Sequence[Observation]) -> list[Act]:
        """Choose actions for the observations of several environments, in one step.

        Every environment has random numbers and a memory of its own, by its place among them;
        those of the first one are those of `act`. The step counts as one frame, as a call of `act`
        does. With another number of environments, nothing is remembered.

        Args:
            observations: one of each environment.

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
            known = decisions.distributions.get(name)
            log_probs = None if known is None else known.all_log_probs
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

        It does not count as a frame: `act` chooses what it would have chosen before.

        Args:
            observation: of the spaces that the network was trained for.
            entities: ids, or `(type, row)` for types without ids, of the entities to compute the
                influence of, each of which costs a forward pass. Without it all; of more than 32,
                the 32 that are attended to most, or the first ones if there is no attention.

        Raises:
            InvalidObservation: the observation does not match these spaces, or has too many
                entities for this machine.
            ValueError: it has no entity with one of these ids.
        """
        obs, batch = self._batch([observation])
        ids = observation.index_to_id(self.obs_space)
        recall, batch = self._memory.recall(observation, obs, batch)
        return explain(self.agent, batch, ids, self.action_space, entities, recall)

    def _batch(self, observations: Sequence[Observation]) -> tuple[VecObs, EntityBatch]:
        obs = batch_obs(observations, self.obs_space, self.action_space)
        return obs, EntityBatch.of(obs, device_of(self.agent))


class AgentMemory:
    """Memory of an agent that a program gives one observation after the other.

    Args:
        agent: the network.
    """

    def __init__(self, agent: PPOAgent) -> None:
        self._agent, self._types = agent, tracked_types(agent)
        self._memory: PlayerMemory | None = None
        self._tracker = IdentityTracker([], 0)
        self._remembers = any(remembering_of(agent))

    def reset(self) -> None:
        """Forget everything."""
        self._memory = None

    def act(
        self,
        player: AgentPlayer,
        observations: Sequence[Observation],
        obs: VecObs,
        batch: EntityBatch,
        t: int,
    ) -> Decisions:
        """Let a player choose with what was remembered, and remember what it chose.

        Args:
            player: of the agent.
            observations: (n,), one of each environment.
            obs: the same in a batch.
            batch: the same on the device.
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
        player.take_memory(memory)
        decisions = player.act(obs, batch, t)
        # Where the observation is the last of an episode, the next one begins another.
        self._tracker.begin(np.flatnonzero(obs.done).tolist())
        memory.begun = memory.begun | obs.done
        return decisions

    def recall(
        self, observation: Observation, obs: VecObs, batch: EntityBatch
    ) -> tuple[Recall, EntityBatch]:
        """Return what is remembered in the next frame, and it with the numbers of entities.

        Args:
            observation: of the first environment.
            obs: the same in a batch.
            batch: the same on the device.
        """
        if not self._remembers:
            return NO_RECALL, batch
        if self._memory is None:
            self._begin(1)
        assert self._memory is not None
        tracker, memory = copy.deepcopy(self._tracker), copy.copy(self._memory)
        memory.reward = obs.reward.astype(np.float32)
        if self._types:
            tracker.number_one(obs, observation)
            batch = replace(batch, identity=obs.identity)
        return recall_of_one(memory, 0), batch

    def get_state(self) -> dict[str, Any]:
        """Return the states, and the ids that have numbers, as plain data.

        Raises:
            ValueError: an id is not plain data.
        """
        if self._memory is None:
            return {}
        try:
            ids = [
                {name: to_plain([*of_type], f"ids[{name!r}]") for name, of_type in table.items()}
                for table in self._tracker.tables
            ]
        except TypeError as error:
            raise ValueError(f"get_state: {error}") from None
        tensors = {name: x.cpu().numpy() for name, x in self._memory.state_dict().items()}
        return {"ids": ids, "states": {name: _packed(x) for name, x in tensors.items()}}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Go on from a state of `get_state`.

        Raises:
            ValueError: the state is not one of such an agent.
        """
        self._memory = None
        if not state:
            return
        states = {name: torch.from_numpy(_unpacked(x)) for name, x in state["states"].items()}
        self._begin(len(states["begun"]))
        assert self._memory is not None
        self._memory.load_state_dict(states)
        for table, saved in zip(self._tracker.tables, state["ids"], strict=True):
            for name, numbers in table.items():
                numbers.update((one, i) for i, one in enumerate(from_plain(saved[name])))

    def _begin(self, num_envs: int) -> None:
        """Remember nothing of so many environments."""
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
            RUN@best; also of enn_trainer 0.1.16. Or a file of weights for `agent`: `.safetensors`,
            or a state dict written by `torch.save`.
        device: device of the network.
        deterministic: True to take the most probable choice instead of sampling.
        seed: seed of the sampled choices.
        agent: a network of your own with parameters of the saved shapes, which are loaded into it.
        env: the environment to act in. Features, entity types and labels are then matched by name,
            in any order, and those that are new to the agent are ignored; without it, observations
            must be those of the environment that the agent was trained in.

    Raises:
        CheckpointError: there is no valid checkpoint; the file holds something else; or the
            environment has other actions or lacks features that the agent needs.
    """
    # A file of weights.
    path = Path(path)
    network: Any = agent
    if path.is_file():
        lacking = [name for name in ("obs_space", "action_space") if not hasattr(network, name)]
        if lacking:
            got = "none" if network is None else f"one without {' and '.join(lacking)}"
            raise CheckpointError(
                f"{path}: expected agent=, a network that knows its obs_space and action_space, "
                f"beside a file of weights, which has neither; got {got}"
            )
        load_weights_file(path, network)
        return RogueNetAgent(network.to(device), deterministic, seed)

    # A checkpoint.
    saved = read_saved_run(path, agent)
    network = saved.agent.to(device)
    if env is not None:
        wired = network_in_world(saved, Spaces.of(env))
        return RogueNetAgent(wired, deterministic, seed)
    return RogueNetAgent(network, deterministic, seed, saved.obs_space, saved.action_space)


def network_in_world(saved: SavedRun, spaces: Spaces) -> Wired:
    """Return the network of a save for a world that may have more than it was trained with.

    Raises:
        CheckpointError: the world has other actions or lacks features that the network needs.
    """
    if different := incompatibilities(saved.spaces, spaces):
        raise CheckpointError(f"{saved.path} is of another world: {'; '.join(different)}")
    return Wired(
        saved.agent, spaces.obs_space, spaces.action_space, saved.obs_space, saved.action_space
    )


def _packed(x: npt.NDArray[Any]) -> dict[str, Any]:
    """Return an array as plain data."""
    return {"dtype": x.dtype.name, "shape": [*x.shape], "data": x.tobytes()}


def _unpacked(plain: Mapping[str, Any]) -> npt.NDArray[Any]:
    """Return an array that `_packed` made plain."""
    if plain["dtype"] not in ("bool", "int64", "float32"):
        raise ValueError(f"state: expected numbers, got {plain['dtype']!r}")
    return np.frombuffer(plain["data"], plain["dtype"]).reshape(plain["shape"]).copy()
