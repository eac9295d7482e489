"""Agents that act in one environment, loaded from checkpoints."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from enn_trainer.checkpoints.lookup import SavedRun, read_saved_run
from enn_trainer.checkpoints.migrate.space_diff import incompatibilities
from enn_trainer.checkpoints.weights import load_weights_file
from enn_trainer.errors import CheckpointError
from enn_trainer.experience.players import AgentPlayer
from enn_trainer.policy import PPOAgent, device_of
from enn_trainer.viewer.explain import Explanation, explain
from entity_env.actions import Action, EntityID
from entity_env.environment import Environment, Observation
from entity_env.match import Match
from entity_env.seeding import derive_seed
from entity_env.spaces import ActionName, ActionSpace, ObsSpace, Probabilities
from entity_env.vec.batching import batch_obs, unbatch_actions
from entity_env.vec.vec_obs import VecObs
from rogue_net.ragged import EntityBatch
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

    Acting changes neither the network nor the state of any random number generator.

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

    def act(self, observation: Observation) -> Act:
        """Choose actions for an observation of the spaces that the network was trained for.

        Raises:
            InvalidObservation: the observation does not match these spaces.
        """
        [act] = self.act_batch([observation])
        return act

    def act_batch(self, observations: Sequence[Observation]) -> list[Act]:
        """Choose actions for the observations of several environments, in one step.

        Every environment has random numbers of its own, by its place among them; those of the
        first one are the numbers of `act`. The step counts as one frame, as a call of `act` does.

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
            decisions = player.act(obs, batch, self._frames)
        self._frames += 1
        probs: dict[ActionName, Probabilities] = {}
        for name, rows in decisions.chosen.items():
            known = decisions.distributions.get(name)
            log_probs = None if known is None else known.all_log_probs
            if log_probs is None:
                probs[name] = [None] * len(observations)
                continue
            tables = np.split(log_probs.exp().cpu().numpy(), rows.starts[1:])
            if (actees := obs.action_masks[name].actees) is not None:  # without the padding
                pairs = zip(tables, actees.lengths, strict=True)
                tables = [table[:, :num_actees] for table, num_actees in pairs]
            probs[name] = tables
        chosen, spaces = decisions.chosen_on_host(), (self.obs_space, self.action_space)
        actions = unbatch_actions(chosen, obs, observations, *spaces, probs)
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
        _, batch = self._batch([observation])
        ids = observation.index_to_id(self.obs_space)
        return explain(self.agent, batch, ids, self.action_space, entities)

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
        wired = network_in_world(saved, env.obs_space(), env.action_space())
        return RogueNetAgent(wired, deterministic, seed)
    return RogueNetAgent(network, deterministic, seed, saved.obs_space, saved.action_space)


def network_in_world(
    saved: SavedRun, obs_space: ObsSpace, action_space: Mapping[ActionName, ActionSpace]
) -> Wired:
    """Return the network of a save for a world that may have more than it was trained with.

    Raises:
        CheckpointError: the world has other actions or lacks features that the network needs.
    """
    known = saved.obs_space, saved.action_space
    if different := incompatibilities(*known, obs_space, action_space):
        raise CheckpointError(f"{saved.path} is of another world: {'; '.join(different)}")
    return Wired(saved.agent, obs_space, action_space, *known)
