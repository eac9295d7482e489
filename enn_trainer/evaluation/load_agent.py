"""`load_agent`: load the agent of a checkpoint to act in an environment."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
import torch

from enn_trainer.base.errors import CheckpointError
from enn_trainer.base.policy import PPOAgent, device_of
from enn_trainer.checkpoints.model_file import has_metadata
from enn_trainer.checkpoints.saved_run import SavedRun, read_saved_run
from enn_trainer.checkpoints.weights import load_weights_file
from enn_trainer.evaluation.agent_memory import AgentMemory, SessionKey, check_sessions
from enn_trainer.evaluation.explain import Explanation, explain
from enn_trainer.experience.players import AgentPlayer
from entity_env.actions import Action, EntityID
from entity_env.environment import Environment, Observation
from entity_env.match import Match
from entity_env.seeding import derive_seed
from entity_env.spaces import ActionName, ActionSpace, ObsSpace, Probabilities, Spaces
from entity_env.vec.batching import batch_obs, unbatch_actions
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
    that is `done`, on `reset`, or with `act(..., first=True)`. `act_batch` keeps one for each
    session by its key.

    Threads may share an agent: its calls run one after the other. Without session keys, an agent
    with memory is limited to the thread in which its episodes began.

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
        self._lock = RLock()

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes to copy or pickle; locks cannot be."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        """Restore the attributes of a copy."""
        vars(self).update(state, _lock=RLock())

    @property
    def sessions(self) -> list[SessionKey]:
        """Keys of the sessions with a recurrent state; the one that acted last comes last."""
        with self._lock:
            return self._memory.sessions

    def act(self, observation: Observation, first: bool = False) -> Act:
        """Choose actions for an observation.

        Args:
            observation: observation in the agent's spaces; its `reward` is that of the previous
                step.
            first: True at the start of an episode; resets the recurrent state.

        Raises:
            InvalidObservation: the observation does not match the spaces.
            RuntimeError: the agent has memory, and the episode began in another thread.
        """
        with self._lock:
            if first:
                self.reset()
            [act] = self.act_batch([observation])
            return act

    def reset(self) -> None:
        """Reset the recurrent state at the start of an episode; the random numbers continue.

        Sessions are unaffected: see `forget`.
        """
        with self._lock:
            self._memory.reset()

    def forget(self, sessions: Iterable[SessionKey]) -> None:
        """Drop the recurrent states of sessions; each then begins again like a new one.

        Args:
            sessions: session keys; those without a recurrent state are ignored.
        """
        with self._lock:
            self._memory.forget(sessions)

    def get_state(self) -> dict[str, Any]:
        """Return recurrent states, also of sessions, and the number of frames as plain data.

        Raises:
            ValueError: the ids of entities are not plain data.
        """
        with self._lock:
            return {"frames": self._frames, "memory": self._memory.get_state()}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Restore a state returned by `get_state`.

        Raises:
            ValueError: the state is invalid.
        """
        if type(state.get("frames")) is not int or not isinstance(state.get("memory"), Mapping):
            raise ValueError("state: expected what get_state returned")
        with self._lock:
            self._memory.set_state(state["memory"])
            self._frames = state["frames"]

    def act_batch(
        self, observations: Sequence[Observation], sessions: Sequence[SessionKey] | None = None
    ) -> list[Act]:
        """Choose actions for the observations of several environments in one forward pass.

        Each environment has its own random number stream and recurrent state, by its index; those
        of the first one equal those of `act`. A call counts as one frame, like a call of `act`. If
        the number of environments changes, the recurrent state is reset.

        With session keys, an agent with memory has a recurrent state and random number stream for
        each session instead. A call may contain any sessions in any order; a new session begins
        with an empty memory. Results do not depend on the other sessions, except by rounding. For
        an agent without memory, session keys are only checked.

        Args:
            observations: one observation per environment.
            sessions: distinct session keys, one per observation; None to identify environments by
                their index.

        Raises:
            InvalidObservation: an observation does not match the spaces; no state has changed.
            ValueError: session keys are repeated, neither `str` nor `int`, or not one for each
                observation.
            RuntimeError: the agent has memory, there are no session keys, and the episodes began in
                another thread.
        """
        if sessions is not None:
            check_sessions(sessions, len(observations))
        if not observations:
            return []
        obs, batch = self._batch(observations)
        player = AgentPlayer(self.agent, None if self.deterministic else self._seed)
        with self._lock, torch.inference_mode():
            decisions = self._memory.act(player, observations, obs, batch, self._frames, sessions)
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
        self,
        observation: Observation,
        entities: Sequence[EntityID] | None = None,
        session: SessionKey | None = None,
    ) -> Explanation:
        """Explain an observation: probabilities, value, attention, and influence of entities.

        This does not count as a frame: the choices of `act` are unaffected.

        Args:
            observation: observation in the agent's spaces.
            entities: ids, or `(type, row)` for types without ids, of the entities to compute
                the influence of; each costs a forward pass. By default all; of more than 32, the
                32 that receive most attention, or the first ones if the network has no attention.
            session: key of the observation's session; None for the first environment.

        Raises:
            InvalidObservation: the observation does not match the spaces, or has too many entities
                for this machine.
            ValueError: there is no entity with one of these ids.
        """
        obs, batch = self._batch([observation])
        ids = observation.index_to_id(self.obs_space)
        with self._lock:
            recall, batch = self._memory.recall(observation, obs, batch, session)
        return explain(self.agent, batch, ids, self.action_space, entities, recall)

    def _batch(self, observations: Sequence[Observation]) -> tuple[VecObs, EntityBatch]:
        obs = batch_obs(observations, self.obs_space, self.action_space)
        return obs, EntityBatch.of(obs, device_of(self.agent))


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
