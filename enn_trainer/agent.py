"""`PPOAgent`, the protocol of networks that can be trained, and `RogueNetAgent`, which acts."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from enn_trainer.frame_memory import check_frame_memory
from entity_env.actions import Action
from entity_env.environment import Observation
from entity_env.ragged import Ragged
from entity_env.seeding import derive_seed, key_of
from entity_env.spaces import ActionName, ActionSpace, ObsSpace
from entity_env.vec.batch import batch_obs
from entity_env.vec.unbatch import unbatch_actions
from rogue_net.native import backend
from rogue_net.ragged import ActionBatch, EntityBatch
from rogue_net.rogue_net import NetOutput


@runtime_checkable
class PPOAgent(Protocol):
    """Network for `train(agent=...)`: a `torch.nn.Module` with the interface of `RogueNet`.

    `enn_trainer.check_agent` tests if a network is one.
    """

    def __call__(
        self,
        batch: EntityBatch,
        actions: Mapping[str, Tensor] | None = None,
        uniforms: Mapping[str, Tensor] | None = None,
    ) -> NetOutput:
        """Evaluate `actions`, or sample with `uniforms`, or take the most probable actions."""

    def values(self, batch: EntityBatch) -> dict[str, Tensor]:
        """Return the output of the value head alone: {"value": (B, 1)}."""

    def update_input_stats(self, batch: EntityBatch) -> None:
        """Update the input statistics with a rollout, if the network has any."""


def draw_uniforms(
    actions: Mapping[str, ActionBatch], seed: int, env: npt.NDArray[np.int64], frame: int
) -> dict[str, Tensor]:
    """Draw the random numbers to sample actions with; a function of the arguments alone.

    Args:
        actions: the actors of B frames.
        seed: seed of the run and the purpose.
        env: (B,) int64, the index of the environment of each frame.
        frame: a number that earlier frames of the environments did not have.

    Returns:
        Per action (actors,) float32 in [0, 1); (actors, num_draws) where a choice takes several.
    """
    draws = {}
    for name, action in actions.items():
        keys, lengths = (seed, frame, key_of(name)), action.actors.lengths
        drawn = backend.draw_uniforms(keys, env, lengths)
        if action.num_draws > 1:
            further = [(*keys, k) for k in range(1, action.num_draws)]
            others = [backend.draw_uniforms(one, env, lengths) for one in further]
            drawn = torch.stack([drawn, *others], dim=1)
        draws[name] = drawn.to(action.actors.values.device, non_blocking=True)
    return draws


def chosen_on_host(out: NetOutput, batch: EntityBatch) -> dict[str, Ragged]:
    """Return the choices of a network in the form that `VecEnv.act` takes."""
    return {
        name: Ragged(chosen.cpu().numpy(), batch.actions[name].actors.lengths)
        for name, chosen in out.actions.items()
    }


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
        obs = batch_obs([observation], self.obs_space, self.action_space)
        device = next(self.agent.parameters(), torch.empty(0)).device
        batch = EntityBatch.of(obs, device)
        first = np.zeros(1, dtype=np.int64)
        check_frame_memory(self.agent, batch, first, learning=False)
        draws = None
        if not self.deterministic:
            draws = draw_uniforms(batch.actions, self._seed, first, self._frames)
        self._frames += 1
        with torch.inference_mode():
            out = self.agent(batch, uniforms=draws)
        actions = unbatch_actions(
            chosen_on_host(out, batch),
            obs,
            [observation],
            self.obs_space,
            self.action_space,
            {
                name: [out.log_probs[name].exp().cpu().numpy() if name in out.log_probs else None]
                for name in out.actions
            },
        )[0]
        return Act(actions, out.values["value"].item() if "value" in out.values else float("nan"))
