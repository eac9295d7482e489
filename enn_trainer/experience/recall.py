"""`Recall`: memory that an agent had in frames that are over, to ask it about them again."""

from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass

import numpy as np
import torch

from enn_trainer.base.policy import PPOAgent, device_of
from enn_trainer.experience.memories import (
    NO_RECURRENCE,
    Memories,
    PlayerMemory,
    Recurrence,
    remembering_of,
)
from entity_env.arrays import IntArray
from entity_env.ragged import Ragged
from entity_env.vec.vec_obs import VecObs
from rogue_net.actions.gaussian_numbers import as_drawn
from rogue_net.ragged import EntityBatch


@dataclass(frozen=True)
class Recall:
    """Memory that an agent had in each of F frames.

    Attributes:
        memory: before choices in these frames.
        environments: (F,) int64, the environment of each frame in `memory`.
    """

    memory: Recurrence
    environments: IntArray

    def attach(self, copies: EntityBatch, frames: IntArray) -> EntityBatch:
        """Return copies of frames, perhaps changed, with what the agent remembered in these.

        Args:
            copies: n frames with `identity`.
            frames: (n,) int64, the frame of each copy.
        """
        return self.memory.attach(copies, self.environments[frames], acts=True)[0]

    def at(self, frames: IntArray) -> "Recall":
        """Return what was remembered in the given frames."""
        return Recall(self.memory, self.environments[frames])


class _NoRecall(Recall):
    """Recall of an agent without memory, in any number of frames."""

    def attach(self, copies: EntityBatch, frames: IntArray) -> EntityBatch:
        return copies

    def at(self, frames: IntArray) -> "Recall":
        return self


NO_RECALL: Recall = _NoRecall(NO_RECURRENCE, np.zeros(0, np.int64))
"""Recall of agents without memory."""


def recall_of_one(memory: Recurrence, environment: int) -> Recall:
    """Return what is remembered in the next frame of one environment."""
    return Recall(memory, np.array([environment]))


@torch.inference_mode()
def recall_episode(
    agent: PPOAgent, obs: VecObs, chosen: Mapping[str, Ragged], sides: int
) -> Recall:
    """Return what an agent remembers in the frames of an episode in which these choices are made.

    Args:
        agent: the network, in evaluation mode; it is not changed.
        obs: F = T * S frames from the beginning of the episode, those of the S sides step by step,
            with `identity`; `reward` is that of the step taken in each.
        chosen: for each action the choices, as `VecEnv.act` takes them.
        sides: S.
    """
    if not any(remembering_of(agent)):
        return NO_RECALL

    # Take the steps again, and keep the memory before each.
    frames, device = np.arange(len(obs)), device_of(agent)
    memory, before = PlayerMemory(agent, sides), list[PlayerMemory]()
    for rows in frames.reshape(-1, sides):
        before.append(copy(memory))
        batch, made = EntityBatch.of(obs.take(rows), device), {}
        for name, of_all in chosen.items():
            given = torch.from_numpy(of_all.take(rows).values).to(device)
            made[name] = as_drawn(given, batch.actions[name])
        memory.take_choices(agent, batch, rows - rows[0], made)
        memory.reward = obs.reward[rows].astype(np.float32)

    # Each frame as an environment of its own.
    joined = PlayerMemory(agent, len(frames))
    joined.begun = np.concatenate([one.begun for one in before])
    joined.reward = np.concatenate([one.reward for one in before])
    for name in ("policy", "values"):
        if getattr(memory, name) is not None:
            setattr(joined, name, Memories.cat([getattr(one, name) for one in before], sides))
    return Recall(joined, frames)
