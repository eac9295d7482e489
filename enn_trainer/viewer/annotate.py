"""Moments, attention and influence in the frames of a replay, by asking its agent again."""

from collections.abc import Callable

import numpy as np

from enn_trainer.experience.recall import NO_RECALL, recall_episode
from enn_trainer.policy import PPOAgent, device_of, eval_mode
from enn_trainer.viewer.episodes import answers_of, recorded
from enn_trainer.viewer.explain import (
    MOST_ENTITIES,
    attention_of,
    influence,
    most_attended,
    most_probable,
)
from enn_trainer.viewer.moments import find_moments
from enn_trainer.viewer.replay import Episode, Replay, Unseen, types_of
from entity_env.ragged import Indices
from entity_env.spaces import GLOBAL, ObsSpace
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

    An agent with memory answers in each frame with what it remembers from the episode's earlier
    ones and the choices made in them, so these have to be there from the first one on.

    Args:
        replay: of episodes alone.
        agent: the network that acts; it is not changed. None if it is not known.
        beside: another network, for the same spaces; it is not changed.
        is_own: True if the agent acts for a side in an episode: only there its attention and
            influence are shown, and disagreements with the other agent found. Without `agent` they
            are those of `beside`.
        watch: called with the share of frames that are done, from 0 to 1.
    """
    with eval_mode(agent, beside):
        for name, one in ("agent", agent), ("beside", beside):
            if unseen := unseen_by(one, replay.obs_space):
                replay.unseen[name] = unseen
        if beside is not None:
            for episode in replay.episodes:
                recall = recall_episode(beside, episode.obs, episode.chosen, replay.sides)
                batch = EntityBatch.of(episode.obs, device_of(beside))
                batch = recall.attach(batch, np.arange(batch.num_frames))
                known = recorded(episode.obs, batch, most_probable(beside, batch))
                episode.beside = answers_of(known, replay.action_space)
        replay.moments = find_moments(replay, is_own)
        explained = beside if agent is None else agent
        if explained is not None:
            annotate(replay, explained, is_own, watch)


def unseen_by(agent: PPOAgent | None, obs_space: ObsSpace) -> Unseen:
    """Return the types and columns of a space that an agent of a smaller world does not see."""
    known, network = obs_space, agent
    while isinstance(network, Wired):
        known, network = network.known, network.network
    own, unseen = types_of(known), Unseen()
    for i, (name, entity) in enumerate(types_of(obs_space).items()):
        columns = None
        if name in own:
            columns = [j for j, one in enumerate(entity.columns) if one not in own[name].columns]
        if columns != []:
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
    # Frames to explain at once: few of those with many entities, which are copied for each.
    pieces = []
    for number, episode in enumerate(replay.episodes):
        lengths = [rows.lengths for name, rows in episode.obs.features.items() if name != GLOBAL]
        counts: Indices = np.sum([np.zeros(len(episode.obs), np.int64), *lengths], axis=0)
        all_frames, is_small = np.arange(len(counts)), counts <= MOST_ENTITIES
        is_moment = np.isin(all_frames, [*replay.moment_frames(number)])
        own = np.array([is_own(episode, side) for side in range(replay.sides)])
        shown = own[all_frames % replay.sides] & (is_small | is_moment)
        for chosen, at_once in (shown & is_small, FRAMES_AT_ONCE), (shown & ~is_small, 1):
            frames = np.flatnonzero(chosen)
            pieces += [(episode, frames[i : i + at_once]) for i in range(0, len(frames), at_once)]

    # Attention and influence.
    recall, recalled = NO_RECALL, None
    for done, (episode, frames) in enumerate(pieces):
        watch(done / len(pieces))
        if recalled is not episode:
            recall = recall_episode(agent, episode.obs, episode.chosen, replay.sides)
            recalled = episode
        batch = EntityBatch.of(episode.obs.take(frames), device_of(agent))
        in_frames = recall.at(frames)
        remembering = in_frames.attach(batch, np.arange(len(frames)))
        decisions = most_probable(agent, remembering)
        attention = attention_of(agent, remembering)
        if attention is not None:
            episode.attention |= dict(zip(frames.tolist(), attention, strict=True))
        entities = [
            most_attended(None if attention is None else attention[i], count, MOST_ENTITIES)
            for i, count in enumerate(batch.entities_of_frames().tolist())
        ]
        found = influence(agent, batch, decisions, entities, in_frames, replay.action_space)
        episode.influence |= dict(zip(frames.tolist(), found, strict=True))
