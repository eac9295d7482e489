"""Highlights of a replay (its "moments"), and explanations of its frames."""

from collections.abc import Callable, Iterator

import numpy as np

from enn_trainer.base.policy import PPOAgent, device_of, eval_mode
from enn_trainer.evaluation.explain import MAX_ENTITIES, explain_frames, most_probable
from enn_trainer.experience.recall import NO_FRAME_STATES, replay_states
from enn_trainer.viewer.episodes import answers_of, recorded_decisions
from enn_trainer.viewer.replay import Highlight, Replay, ReplayEpisode, Unseen, entity_at, types_of
from entity_env.arrays import BoolArray, Float32Array, IntArray
from entity_env.ragged import exclusive_cumsum, row_indices
from entity_env.spaces import GLOBAL, ObsSpace
from rogue_net.ragged import EntityBatch
from rogue_net.wiring import Wired

MAX_HIGHLIGHTS = 5
"""Maximal number of highlights of each kind."""
MIN_STEPS_APART = 8
"""Minimal distance between two highlights of a kind in an episode; neighbours look alike."""
MIN_SCORE = 0.01
"""Minimal score: difference of probabilities, or error as a share of the range of returns."""
FRAMES_PER_BATCH = 64


def find_highlights(
    replay: Replay, is_agent: Callable[[ReplayEpisode, int], bool] = lambda episode, side: True
) -> list[Highlight]:
    """Return at most five highlights of each kind, some steps apart, by decreasing score.

    The kinds are "value error": largest difference between a value and the discounted return, in
    terminated episodes; "unlikely choice": least probable choice taken; "undecided": largest
    entropy relative to its maximum; "disagreement": largest total variation distance between two
    agents (all three for labels and entities only); and "gone": an entity that is missing in the
    next frame. Sides of a match have separate highlights.

    Args:
        replay: replay with episodes.
        is_agent: True if the first of two agents acts for a side of an episode; disagreements are
            searched there.
    """
    scored_by_kind: dict[str, list[tuple[float, Highlight]]] = {}
    for number, episode in enumerate(replay.episodes):
        is_agent_side = np.array([is_agent(episode, side) for side in range(replay.sides)])
        for score, moment in _scored_highlights(replay, number, episode, is_agent_side):
            scored_by_kind.setdefault(moment.kind, []).append((score, moment))
    return [moment for scored in scored_by_kind.values() for moment in _select(scored)]


def _select(scored: list[tuple[float, Highlight]]) -> list[Highlight]:
    """Select the highlights of one kind and remove neighbours, e.g. of other actions in a frame."""
    selected: list[Highlight] = []
    for _, moment in sorted(scored, key=lambda one: -one[0]):  # stable sort: earlier ones first
        neighbours = [m for m in selected if m.episode == moment.episode]
        is_event = moment.kind == "gone"  # other kinds last for several steps
        if is_event or all(abs(m.step - moment.step) >= MIN_STEPS_APART for m in neighbours):
            selected.append(moment)
        if len(selected) == MAX_HIGHLIGHTS:
            break
    return selected


def _scored_highlights(
    replay: Replay, number: int, episode: ReplayEpisode, is_agent_side: BoolArray
) -> Iterator[tuple[float, Highlight]]:
    """Yield candidates of an episode with scores, which are comparable within a kind."""
    sides, min_distance = replay.sides, MIN_STEPS_APART * replay.sides

    # Values and returns.
    returns = returns_of(episode, sides, replay.discount)
    errors = np.abs(episode.answers.values - returns)
    value_range = np.ptp(returns[np.isfinite(returns)]) if np.isfinite(returns).any() else 0.0
    min_error = max(MIN_SCORE * float(value_range), 1e-6)
    for frame in _largest(errors, np.arange(len(errors)), min_error, min_distance):
        text = f"value {episode.answers.values[frame]:.3g}, then a return of {returns[frame]:.3g}"
        moment = Highlight("value error", number, *divmod(frame, sides), None, text)
        yield float(errors[frame]), moment

    # Choices.
    for name, space in replay.action_space.items():
        if name not in episode.answers.probs or space.components:
            continue
        # (actors,) frame and index of the first probability; (P,) actor of each probability.
        mask = episode.obs.action_masks[name]
        frames = np.repeat(np.arange(len(mask.actors)), mask.actors.lengths)
        counts = np.asarray(space.num_choices(mask))
        actor, first = np.repeat(np.arange(len(counts)), counts), exclusive_cumsum(counts)
        probs = episode.answers.probs[name].values.reshape(-1)
        chosen_probs = probs[first + episode.chosen[name].values.clip(min=0)]
        share = _entropy_shares(probs, actor, len(counts))
        kinds = {"unlikely choice": 1 - chosen_probs, "undecided": share}
        if episode.beside is not None and name in episode.beside.probs:
            other = episode.beside.probs[name].values.reshape(-1)
            distance = np.bincount(actor, np.abs(probs - other), len(counts)) / 2
            kinds["disagreement"] = np.where(is_agent_side[frames % replay.sides], distance, 0)
        for kind, scores in kinds.items():
            for a in _largest(scores, frames, MIN_SCORE, min_distance):
                frame, position = int(frames[a]), int(mask.actors.values[a])
                if kind == "unlikely choice":
                    choice, actees = int(episode.chosen[name].values[a]), mask.actees
                    if actees is None:
                        choice_text = space.labels[choice]
                    else:
                        choice_text = describe(episode, frame, actees[frame].values[choice])
                    text = f"= {choice_text}, with probability {chosen_probs[a]:.2g}"
                elif kind == "undecided":
                    text = f"at {share[a]:.0%} of the largest entropy"
                else:
                    text = f"differs by {scores[a]:.0%}"
                text = f"{describe(episode, frame, position)}: {name} {text}"
                step, side = divmod(frame, sides)
                yield float(scores[a]), Highlight(kind, number, step, side, position, text)

    # Entities that are missing in the next frame of the same side, by absolute reward.
    for frame, position in _removed_entities(episode, sides):
        text = f"{describe(episode, frame, position)} is gone after this step"
        moment = Highlight("gone", number, *divmod(frame, sides), position, text)
        yield abs(float(episode.obs.reward[frame])), moment


def returns_of(episode: ReplayEpisode, sides: int, discount: float) -> Float32Array:
    """Compute the discounted return from each frame on, (F,) float32.

    NaN, because unknown, if the episode did not terminate or lacks steps.
    """
    rewards = episode.obs.reward.reshape(-1, sides).astype(np.float64)
    returns, future = np.empty_like(rewards), np.zeros(sides)
    if not episode.terminated or episode.steps is not None:
        future[:] = np.nan
    for t in reversed(range(len(rewards))):
        returns[t] = future = rewards[t] + discount * future
    return returns.reshape(-1).astype(np.float32)


def describe(episode: ReplayEpisode, frame: int, position: int) -> str:
    """Format an entity as its type and printed id, or as its type and index within the type."""
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
    """Compute each actor's entropy relative to log(number of legal choices), (size,) float32.

    Args:
        probs: (P,) float32.
        actor: (P,) int64, index of the actor of each probability.
        size: number of actors.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        terms = np.where(probs > 0, -probs * np.log(probs), 0)
        entropy = np.bincount(actor, terms, size)
        legal = np.bincount(actor, probs > 0, size)
        shares = np.where(legal > 1, entropy / np.log(legal), 0)
    return shares.astype(np.float32)


def _largest(
    scores: Float32Array, frames: IntArray, threshold: float, min_distance: int
) -> list[int]:
    """Return the indices of the largest scores above a threshold in frames `min_distance` apart."""
    remaining = np.nan_to_num(scores, nan=-np.inf, posinf=np.inf)
    selected: list[int] = []
    while len(selected) < MAX_HIGHLIGHTS and len(remaining):
        best = int(remaining.argmax())
        if not remaining[best] > threshold:
            break
        selected.append(best)
        remaining[np.abs(frames - frames[best]) < min_distance] = -np.inf
    return selected


def _removed_entities(episode: ReplayEpisode, sides: int) -> Iterator[tuple[int, int]]:
    """Yield frame and position of entities that are missing in the next frame."""
    obs, offset = episode.obs, np.zeros(len(episode.obs), np.int64)
    for name, rows in obs.features.items():
        if (identity := obs.identity.get(name)) is not None:
            frame = np.repeat(np.arange(len(obs)), identity.lengths)
            position = row_indices(offset, identity.lengths)
            size = identity.values.max(initial=0) + 1
            key = frame * size + identity.values
            is_removed = ~np.isin(key + sides * size, key) & (frame < len(obs) - sides)
            yield from zip(frame[is_removed].tolist(), position[is_removed].tolist(), strict=True)
        offset = offset + rows.lengths


def explain_replay(
    replay: Replay,
    agent: PPOAgent | None,
    other_agent: PPOAgent | None,
    is_agent: Callable[[ReplayEpisode, int], bool],
    watch: Callable[[float], None] = lambda share: None,
) -> None:
    """Complete the episodes of a replay after they were played.

    Adds the outputs of a second agent, features the agents do not see, highlights, attention and
    influence. An agent with memory is evaluated with its recurrent state after the earlier frames
    and choices of the episode, so episodes have to be complete from their first step on.

    Args:
        replay: replay with episodes.
        agent: network that acts; not modified. None if unknown.
        other_agent: second network for the same spaces; not modified.
        is_agent: True if the agent acts for a side of an episode; only those sides get attention,
            influence and disagreements. Without `agent`, `other_agent` is explained.
        watch: progress callback with the finished share, from 0 to 1.
    """
    with eval_mode(agent, other_agent):
        for name, policy in ("agent", agent), ("beside", other_agent):
            if unseen := unseen_by(policy, replay.obs_space):
                replay.unseen[name] = unseen
        if other_agent is not None:
            for episode in replay.episodes:
                recall = replay_states(other_agent, episode.obs, episode.chosen, replay.sides)
                batch = EntityBatch.of(episode.obs, device_of(other_agent))
                batch = recall.attach(batch, np.arange(batch.num_frames))
                decisions = most_probable(other_agent, batch)
                recorded = recorded_decisions(episode.obs, batch, decisions)
                episode.beside = answers_of(recorded, replay.action_space)
        replay.moments = find_highlights(replay, is_agent)
        explained = other_agent if agent is None else agent
        if explained is not None:
            annotate(replay, explained, is_agent, watch)


def unseen_by(agent: PPOAgent | None, obs_space: ObsSpace) -> Unseen:
    """Return the types and columns of a space that an agent of a smaller space does not see."""
    visible, network = obs_space, agent
    while isinstance(network, Wired):
        visible, network = network.net_space, network.network
    types, unseen = types_of(visible), Unseen()
    for i, (name, entity) in enumerate(types_of(obs_space).items()):
        columns = None
        if name in types:
            columns = [j for j, one in enumerate(entity.columns) if one not in types[name].columns]
        if columns != []:
            unseen.append((i, columns))
    return unseen


def annotate(
    replay: Replay,
    agent: PPOAgent,
    is_agent: Callable[[ReplayEpisode, int], bool],
    watch: Callable[[float], None] = lambda share: None,
) -> None:
    """Add attention and influence to the frames of a replay.

    Frames with at most `MAX_ENTITIES` entities get both. Larger frames get them only at highlights,
    with the influence of the entities that receive most attention.

    Args:
        replay: replay with highlights.
        agent: network in evaluation mode; not modified.
        is_agent: True if the agent acts for a side of an episode.
        watch: progress callback with the finished share, from 0 to 1.
    """
    # Batches of frames; frames with many entities alone, because each entity needs a copy.
    batches = []
    for number, episode in enumerate(replay.episodes):
        lengths = [rows.lengths for name, rows in episode.obs.features.items() if name != GLOBAL]
        counts: IntArray = np.sum([np.zeros(len(episode.obs), np.int64), *lengths], axis=0)
        all_frames, is_small = np.arange(len(counts)), counts <= MAX_ENTITIES
        is_moment = np.isin(all_frames, [*replay.highlight_frames(number)])
        is_agent_side = np.array([is_agent(episode, side) for side in range(replay.sides)])
        is_explained = is_agent_side[all_frames % replay.sides] & (is_small | is_moment)
        small, large = is_explained & is_small, is_explained & ~is_small
        for selected, size in (small, FRAMES_PER_BATCH), (large, 1):
            frames = np.flatnonzero(selected)
            batches += [(episode, frames[i : i + size]) for i in range(0, len(frames), size)]

    # Attention and influence.
    recall, last = NO_FRAME_STATES, None
    for done, (episode, frames) in enumerate(batches):
        watch(done / len(batches))
        if episode is not last:
            recall = replay_states(agent, episode.obs, episode.chosen, replay.sides)
            last = episode
        batch = EntityBatch.of(episode.obs.take(frames), device_of(agent))
        recalled = recall.at(frames)
        _, attention, influence = explain_frames(agent, batch, replay.action_space, recalled)
        if attention is not None:
            episode.attention |= dict(zip(frames.tolist(), attention, strict=True))
        episode.influence |= dict(zip(frames.tolist(), influence, strict=True))
