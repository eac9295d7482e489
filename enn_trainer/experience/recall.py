"""`FrameStates`: the recurrent state of an agent in past frames, to evaluate it there again."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch

from enn_trainer.base.policy import PPOAgent, device_of
from enn_trainer.experience.memories import (
    NO_RECURRENCE,
    PlayerMemory,
    Recurrence,
    memory_specs,
)
from entity_env.arrays import IntArray
from entity_env.ragged import Ragged
from entity_env.vec.vec_obs import VecObs
from rogue_net.actions.gaussian_numbers import unsquash
from rogue_net.ragged import EntityBatch


@dataclass(frozen=True)
class FrameStates:
    """Recurrent state of an agent in each of F frames.

    Attributes:
        memory: the recurrent state before the choices in these frames.
        environments: (F,) int64, the environment of each frame in `memory`.
    """

    memory: Recurrence
    environments: IntArray

    def attach(self, copies: EntityBatch, frames: IntArray) -> EntityBatch:
        """Return copies of frames, which may be modified, with the recurrent state of these frames.

        Args:
            copies: n frames with `identity`.
            frames: (n,) int64, the frame of each copy.
        """
        return self.memory.attach(copies, self.environments[frames], acts=True)[0]

    def at(self, frames: IntArray) -> "FrameStates":
        """Return the states at some of the frames."""
        return FrameStates(self.memory, self.environments[frames])


class _NoFrameStates(FrameStates):
    """States of an agent without memory, in any number of frames."""

    def attach(self, copies: EntityBatch, frames: IntArray) -> EntityBatch:
        return copies

    def at(self, frames: IntArray) -> "FrameStates":
        return self


NO_FRAME_STATES: FrameStates = _NoFrameStates(NO_RECURRENCE, np.zeros(0, np.int64))
"""States of agents without memory."""


def states_of_env(memory: Recurrence, environment: int) -> FrameStates:
    """Return the recurrent state in the next frame of one environment."""
    return FrameStates(memory, np.array([environment]))


@torch.inference_mode()
def replay_states(
    agent: PPOAgent, obs: VecObs, chosen: Mapping[str, Ragged], sides: int
) -> FrameStates:
    """Return the recurrent state of an agent in each frame of an episode with given choices.

    Args:
        agent: the network, in evaluation mode; it is not changed.
        obs: F = T * S frames from the beginning of the episode, step t of side s at t * S + s, with
            `identity`; `reward` is the reward of the step from each frame.
        chosen: for each action the choices, as `VecEnv.act` takes them.
        sides: S.
    """
    if not any(memory_specs(agent)):
        return NO_FRAME_STATES

    # Repeat the steps, and store the recurrent state before each.
    frames, device = np.arange(len(obs)), device_of(agent)
    memory, before = PlayerMemory(agent, sides), list[PlayerMemory]()
    for rows in frames.reshape(-1, sides):
        before.append(copy(memory))
        batch, draws = EntityBatch.of(obs.take(rows), device), {}
        for name, choices in chosen.items():
            values = torch.from_numpy(choices.take(rows).values).to(device)
            draws[name] = unsquash(values, batch.actions[name])
        memory.take_choices(agent, batch, rows - rows[0], draws)
        memory.reward = obs.reward[rows].astype(np.float32)

    # Treat each frame as a separate environment.
    joined = PlayerMemory(agent, len(frames))
    joined.begun = np.concatenate([one.begun for one in before])
    joined.reward = np.concatenate([one.reward for one in before])
    for name in ("policy", "values"):
        if (table := getattr(memory, name)) is not None:
            rows = [part for one in before for part in getattr(one, name).split(sides)]
            setattr(joined, name, table.join(rows, device))
    return FrameStates(joined, frames)
