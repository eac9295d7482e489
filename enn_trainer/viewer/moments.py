"""Moments of a replay, the frames that are worth seeing first; and explanations of its frames."""

from collections.abc import Callable, Iterator

import numpy as np

from enn_trainer.base.policy import PPOAgent, device_of, eval_mode
from enn_trainer.evaluation.explain import MOST_ENTITIES, explain_frames, most_probable
from enn_trainer.experience.recall import NO_RECALL, recall_episode
from enn_trainer.viewer.episodes import answers_of, recorded
from enn_trainer.viewer.replay import Episode, Moment, Replay, Unseen, entity_at, types_of
from entity_env.arrays import BoolArray, Float32Array, IntArray
from entity_env.ragged import exclusive_cumsum, row_indices
from entity_env.spaces import GLOBAL, ObsSpace
from rogue_net.ragged import EntityBatch
from rogue_net.wiring import Wired

MOST = 5
"""Moments of each kind."""
STEPS_APART = 8
"""Least distance between two moments of a kind in an episode, as neighbours show the same."""
LEAST_TOLD = 0.01
"""Least difference of probabilities, and share of the range of returns, that is worth a moment."""
FRAMES_AT_ONCE = 64


def find_moments(
    replay: Replay, is_own: Callable[[Episode, int], bool] = lambda episode, side: True
) -> list[Moment]:
    """Return at most five moments of each kind, some steps apart, the most remarkable ones first.

    The kinds are "value error", the greatest difference between a value and the discounted return
    that followed, where an episode ended by itself; "unlikely choice", the least probable choice
    taken; "undecided", the greatest entropy as a share of its maximum; "disagreement", the greatest
    total variation between the probabilities of two agents, all three of labels and entities; and
    "gone", an entity that the next frame does not have. A side of a match has moments of its own.

    Args:
        replay: of episodes.
        is_own: True if the first of two agents acts for a side in an episode; they disagree there.
    """
    found: dict[str, list[tuple[float, Moment]]] = {}
    for number, episode in enumerate(replay.episodes):
        own = np.array([is_own(episode, side) for side in range(replay.sides)])
        for score, moment in _moments_of(replay, number, episode, own):
            found.setdefault(moment.kind, []).append((score, moment))
    return [moment for scored in found.values() for moment in _best(scored)]


def _best(scored: list[tuple[float, Moment]]) -> list[Moment]:
    """Return the moments of one kind to keep; those of several actions may be neighbours."""
    kept: list[Moment] = []
    for _, moment in sorted(scored, key=lambda one: -one[0]):  # stable: earlier ones first
        near = [m for m in kept if m.episode == moment.episode]
        is_event = moment.kind == "gone"  # others are states, which last
        if is_event or all(abs(m.step - moment.step) >= STEPS_APART for m in near):
            kept.append(moment)
        if len(kept) == MOST:
            break
    return kept


def _moments_of(
    replay: Replay, number: int, episode: Episode, own: BoolArray
) -> Iterator[tuple[float, Moment]]:
    """Yield the moments of an episode, with scores that are compared within a kind."""
    sides, apart = replay.sides, STEPS_APART * replay.sides

    # Values and returns.
    returns = returns_of(episode, sides, replay.discount)
    errors = np.abs(episode.answers.values - returns)
    extent = np.ptp(returns[np.isfinite(returns)]) if np.isfinite(returns).any() else 0.0
    least = max(LEAST_TOLD * float(extent), 1e-6)
    for frame in _largest(errors, np.arange(len(errors)), least, apart):
        text = f"value {episode.answers.values[frame]:.3g}, then a return of {returns[frame]:.3g}"
        moment = Moment("value error", number, *divmod(frame, sides), None, text)
        yield float(errors[frame]), moment

    # Choices.
    for name, space in replay.action_space.items():
        if name not in episode.answers.probs or space.components:
            continue
        # The frame of each actor, the index of its first probability, and the actor of each one.
        mask = episode.obs.action_masks[name]
        frames = np.repeat(np.arange(len(mask.actors)), mask.actors.lengths)
        counts = np.asarray(space.num_choices(mask))
        actor, first = np.repeat(np.arange(len(counts)), counts), exclusive_cumsum(counts)
        probs = episode.answers.probs[name].values.reshape(-1)
        taken = probs[first + episode.chosen[name].values.clip(min=0)]
        share = _entropy_shares(probs, actor, len(counts))
        kinds = {"unlikely choice": 1 - taken, "undecided": share}
        if episode.beside is not None and name in episode.beside.probs:
            other = episode.beside.probs[name].values.reshape(-1)
            distance = np.bincount(actor, np.abs(probs - other), len(counts)) / 2
            kinds["disagreement"] = np.where(own[frames % replay.sides], distance, 0)
        for kind, scores in kinds.items():
            for a in _largest(scores, frames, LEAST_TOLD, apart):
                frame, position = int(frames[a]), int(mask.actors.values[a])
                if kind == "unlikely choice":
                    choice, actees = int(episode.chosen[name].values[a]), mask.actees
                    if actees is None:
                        shown = space.labels[choice]
                    else:
                        shown = describe(episode, frame, actees[frame].values[choice])
                    text = f"= {shown}, with probability {taken[a]:.2g}"
                elif kind == "undecided":
                    text = f"at {share[a]:.0%} of the largest entropy"
                else:
                    text = f"differs by {scores[a]:.0%}"
                text = f"{describe(episode, frame, position)}: {name} {text}"
                step, side = divmod(frame, sides)
                yield float(scores[a]), Moment(kind, number, step, side, position, text)

    # Entities that the next frame of the same side does not have, by the size of the reward.
    for frame, position in _gone(episode, sides):
        text = f"{describe(episode, frame, position)} is gone after this step"
        moment = Moment("gone", number, *divmod(frame, sides), position, text)
        yield abs(float(episode.obs.reward[frame])), moment


def returns_of(episode: Episode, sides: int, discount: float) -> Float32Array:
    """Return the discounted sum of rewards from each frame on, (F,).

    NaN where the episode did not end by itself, or lacks steps, as the return is not known then.
    """
    rewards = episode.obs.reward.reshape(-1, sides).astype(np.float64)
    returns, rest = np.empty_like(rewards), np.zeros(sides)
    if not episode.terminated or episode.steps is not None:
        rest[:] = np.nan
    for t in reversed(range(len(rewards))):
        returns[t] = rest = rewards[t] + discount * rest
    return returns.reshape(-1).astype(np.float32)


def describe(episode: Episode, frame: int, position: int) -> str:
    """Return the type of an entity and its printed id, or its place among those of its type."""
    name, place = entity_at(episode.obs, frame, position)
    if name == GLOBAL:  # the actor of global actions
        return "the frame"
    identity = episode.obs.identity.get(name)
    if identity is None or identity.lengths[frame] == 0:
        return f"{name} {place}"
    number = int(identity.values[identity.starts[frame] + place])
    names = episode.names[frame % len(episode.names)] if episode.names else {}
    return f"{name} {names.get(name, {}).get(number, number)}"


def _entropy_shares(probs: Float32Array, actor: IntArray, size: int) -> Float32Array:
    """Return the entropy of each actor over the logarithm of its number of legal choices, (size,).

    Args:
        probs: (P,) float32.
        actor: (P,) int64, the actor that each probability belongs to.
        size: the number of actors.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(probs > 0, -probs * np.log(probs), 0)
        entropy = np.bincount(actor, terms, size)
        legal = np.bincount(actor, probs > 0, size)
        shares = np.where(legal > 1, entropy / np.log(legal), 0)
    return shares.astype(np.float32)


def _largest(scores: Float32Array, frames: IntArray, least: float, apart: int) -> list[int]:
    """Return the indices of the largest scores above `least`, whose frames are `apart`."""
    left = np.nan_to_num(scores, nan=-np.inf, posinf=np.inf)
    kept: list[int] = []
    while len(kept) < MOST and len(left):
        best = int(left.argmax())
        if not left[best] > least:
            break
        kept.append(best)
        left[np.abs(frames - frames[best]) < apart] = -np.inf
    return kept


def _gone(episode: Episode, sides: int) -> Iterator[tuple[int, int]]:
    """Yield frame and position of entities that the next frame does not have."""
    obs, offset = episode.obs, np.zeros(len(episode.obs), np.int64)
    for name, rows in obs.features.items():
        if (identity := obs.identity.get(name)) is not None:
            frame = np.repeat(np.arange(len(obs)), identity.lengths)
            position = row_indices(offset, identity.lengths)
            size = identity.values.max(initial=0) + 1
            key = frame * size + identity.values
            lost = ~np.isin(key + sides * size, key) & (frame < len(obs) - sides)
            yield from zip(frame[lost].tolist(), position[lost].tolist(), strict=True)
        offset = offset + rows.lengths


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
        counts: IntArray = np.sum([np.zeros(len(episode.obs), np.int64), *lengths], axis=0)
        all_frames, is_small = np.arange(len(counts)), counts <= MOST_ENTITIES
        is_moment = np.isin(all_frames, [*replay.moment_frames(number)])
        own = np.array([is_own(episode, side) for side in range(replay.sides)])
        shown = own[all_frames % replay.sides] & (is_small | is_moment)
        for chosen, at_once in (shown & is_small, FRAMES_AT_ONCE), (shown & ~is_small, 1):
            frames = np.flatnonzero(chosen)
            pieces += [(episode, frames[i : i + at_once]) for i in range(0, len(frames), at_once)]

    # Attention and influence.
    recall, last = NO_RECALL, None
    for done, (episode, frames) in enumerate(pieces):
        watch(done / len(pieces))
        if episode is not last:
            recall = recall_episode(agent, episode.obs, episode.chosen, replay.sides)
            last = episode
        batch = EntityBatch.of(episode.obs.take(frames), device_of(agent))
        recalled = recall.at(frames)
        _, attention, influence = explain_frames(agent, batch, replay.action_space, recalled)
        if attention is not None:
            episode.attention |= dict(zip(frames.tolist(), attention, strict=True))
        episode.influence |= dict(zip(frames.tolist(), influence, strict=True))
