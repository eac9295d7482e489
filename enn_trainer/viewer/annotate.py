"""Moments, attention and influence in the frames of a replay, by asking its agent again."""

from collections.abc import Callable

import numpy as np
import torch

from enn_trainer.experience.players import AgentPlayer
from enn_trainer.policy import PPOAgent, device_of
from enn_trainer.viewer.explain import MOST_ENTITIES, attention_of, influence, most_attended
from enn_trainer.viewer.moments import find_moments
from enn_trainer.viewer.replay import Episode, Replay
from entity_env.ragged import Indices
from entity_env.spaces import GLOBAL
from entity_env.vec.vec_obs import VecObs, take_obs
from rogue_net.ragged import EntityBatch

FRAMES_AT_ONCE = 64


def explain_replay(
    replay: Replay,
    agent: PPOAgent,
    is_own: Callable[[Episode, int], bool],
    watch: Callable[[float], None] = lambda share: None,
) -> None:
    """Add moments to a replay of some episodes, and then attention and influence.

    Args:
        replay: without moments.
        agent: the network that acts, in evaluation mode; it is not changed.
        is_own: True if the agent acts for a side in an episode.
        watch: called with the share of frames that are done, from 0 to 1.
    """
    replay.moments = find_moments(replay)
    annotate(replay, agent, is_own, watch)


def annotate(
    replay: Replay,
    agent: PPOAgent,
    is_own: Callable[[Episode, int], bool],
    watch: Callable[[float], None] = lambda share: None,
) -> None:
    """Add attention and influence to the frames of a replay.

    All frames with at most `MOST_ENTITIES` entities have both. Of others the moments have them, and
    the influence is that of the entities that are attended to most.

    Args:
        replay: with its moments.
        agent: the network, in evaluation mode; it is not changed.
        is_own: True if the agent acts for a side in an episode.
        watch: called with the share of frames that are done, from 0 to 1.
    """
    pieces = []
    for number, episode in enumerate(replay.episodes):
        lengths = [rows.lengths for name, rows in episode.obs.features.items() if name != GLOBAL]
        counts: Indices = np.sum([np.zeros(len(episode.obs), np.int64), *lengths], axis=0)
        shown = counts <= MOST_ENTITIES
        for moment in replay.moments:
            if moment.episode == number:
                shown[moment.step * replay.sides + moment.side] = True
        sides = [side for side in range(replay.sides) if is_own(episode, side)]
        frames = np.flatnonzero(shown & np.isin(np.arange(len(counts)) % replay.sides, sides))
        for first in range(0, len(frames), FRAMES_AT_ONCE):
            pieces.append((episode, frames[first : first + FRAMES_AT_ONCE], counts))
    for done, (episode, frames, counts) in enumerate(pieces):
        watch(done / len(pieces))
        _explain(episode, agent, frames, counts)


def _explain(episode: Episode, agent: PPOAgent, frames: Indices, counts: Indices) -> None:
    """Add attention and influence to some frames of an episode."""
    batch = _batch(agent, episode.obs, frames)
    with torch.inference_mode():
        decisions = AgentPlayer(agent, None).choose(batch, np.arange(len(frames)), 0)
    attention = attention_of(agent, batch)
    for i, frame in enumerate(frames.tolist()):
        entities = np.arange(counts[frame])
        if attention is not None:
            episode.attention[frame] = attention[i]
            entities = most_attended(attention[i], int(counts[frame]), MOST_ENTITIES)
        found = influence(agent, batch, decisions, i, entities[:MOST_ENTITIES])
        episode.influence[frame] = found


def _batch(agent: PPOAgent, obs: VecObs, frames: Indices) -> EntityBatch:
    """Return some frames on the device of an agent."""
    return EntityBatch.of(take_obs(obs, frames), device_of(agent))
