"""Moments, attention and influence in the frames of a replay, by asking its agent again."""

from collections.abc import Callable, Mapping

import numpy as np
import torch

from enn_trainer.experience.players import AgentPlayer
from enn_trainer.policy import PPOAgent, device_of, eval_mode
from enn_trainer.viewer.episodes import log_probs_of, probs_of
from enn_trainer.viewer.explain import MOST_ENTITIES, attention_of, influence, most_attended
from enn_trainer.viewer.moments import find_moments
from enn_trainer.viewer.replay import Answers, Episode, Replay, Unseen
from entity_env.ragged import Indices, Ragged
from entity_env.spaces import GLOBAL, ActionName, ActionSpace, ObsSpace
from entity_env.vec.vec_obs import VecObs, take_obs
from rogue_net.ragged import EntityBatch
from rogue_net.wiring import Wired

FRAMES_AT_ONCE = 64


def explain_replay(
    replay: Replay,
    agent: PPOAgent | None,
    beside: PPOAgent | None,
    is_own: Callable[[Episode, int], bool],
    watch: Callable[[float], None] = lambda share: None,
) -> None:
    """Add to the episodes of a replay all that is computed after they were played.

    These are the answers of another agent, what the agents do not see, the moments, and then
    attention and influence.

    Args:
        replay: of episodes alone.
        agent: the network that acts; it is not changed. None if it is not known.
        beside: another network, for the same spaces; it is not changed.
        is_own: True if the agent acts for a side in an episode: only there its attention and
            influence are shown. Without `agent` they are those of `beside`.
        watch: called with the share of frames that are done, from 0 to 1.
    """
    with eval_mode(agent, beside):
        for name, one in ("agent", agent), ("beside", beside):
            if unseen := unseen_by(one, replay.obs_space):
                replay.unseen[name] = unseen
        if beside is not None:
            for episode in replay.episodes:
                episode.beside = answers_of(beside, episode.obs, replay.action_space)
        replay.moments = find_moments(replay)
        if (explained := beside if agent is None else agent) is not None:
            annotate(replay, explained, is_own, watch)


def answers_of(
    agent: PPOAgent, obs: VecObs, action_space: Mapping[ActionName, ActionSpace]
) -> Answers:
    """Return the probabilities and values of an agent in some frames, at least one.

    Args:
        agent: the network, in evaluation mode; it is not changed.
        obs: the frames.
        action_space: their actions.
    """
    pieces, values = [], []
    for first in range(0, len(obs), FRAMES_AT_ONCE):
        frames = np.arange(first, min(first + FRAMES_AT_ONCE, len(obs)))
        batch = _batch(agent, obs, frames)
        with torch.inference_mode():
            decisions = AgentPlayer(agent, None).choose(batch, frames, 0)
        pieces.append(log_probs_of(decisions, batch))
        values.append(decisions.values.float().cpu().numpy())
    log_probs = {name: Ragged.cat([piece[name] for piece in pieces]) for name in pieces[0]}
    return Answers(probs_of(log_probs, obs, action_space), np.concatenate(values))


def unseen_by(agent: PPOAgent | None, obs_space: ObsSpace) -> Unseen:
    """Return the types and columns of a space that an agent of a smaller world does not see."""
    known, network = obs_space, agent
    while isinstance(network, Wired):
        known, network = network.known, network.network
    own = {**known.entities, GLOBAL: known.global_entity}
    unseen: Unseen = []
    shown = {**obs_space.entities, GLOBAL: obs_space.global_entity}
    for i, (name, entity) in enumerate(shown.items()):
        if name not in own:
            unseen.append((i, None))
            continue
        columns = [j for j, one in enumerate(entity.columns) if one not in own[name].columns]
        if columns:
            unseen.append((i, columns))
    return unseen


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
