"""Explanations of decisions: attention between entities, and the influence of each entity."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from enn_trainer.base.policy import PPOAgent, rogue_nets
from enn_trainer.experience.frame_limits import check_frame_memory
from enn_trainer.experience.players import AgentPlayer, Decisions, in_pieces
from enn_trainer.experience.recall import NO_RECALL, Recall
from enn_trainer.runtime.execution import ONE_LANE
from entity_env.actions import ActionName, EntityID
from entity_env.arrays import Float32Array, IntArray
from entity_env.errors import short_repr
from entity_env.spaces import GLOBAL, ActionSpaces
from rogue_net.actions.parts import is_taken
from rogue_net.ragged import ActionSubset, EntityBatch, actor_pairs, to_device, without

MOST_ENTITIES = 32
"""Maximal number of entities to compute the influence of, unless more are named."""


class Influence(NamedTuple):
    """Changes of probabilities and value if an entity were not in the frame.

    Attributes:
        entities: (E,) int64, the positions in the frame of the entities, each removed alone.
        choice: per action (E, A) float32 in [0, 1], the total variation distance between the
            probabilities of an actor with and without the entity. If the actor could select the
            entity, those with it are of the other choices, normalised; the distance is 1 if the
            entity had all of the probability. Of several numbers it is that of the one that changes
            most. NaN if the entity is the actor itself or its only legal choice, for a dependent
            action that is not taken in both, and for kinds of actions without such distances.
        value: (E,) float32, the value with the entity minus the value without it.
    """

    entities: IntArray
    choice: dict[ActionName, Float32Array]
    value: Float32Array


class ExplainedAction(NamedTuple):
    """Probabilities of all choices of an action in one frame.

    Attributes:
        actors: (A,) ids of the actors, as in `Explanation.entities`; `__global__` if the action is
            global.
        choices: (K,) labels, ids of the entities that may be selected, or components; empty for
            kinds of actions with none of these.
        probs: (A, K) float32, 0 where not allowed; NaN for actors who would not take a dependent
            action, after their most probable choices. None if the choices cannot be listed.
        entropies: (A,) float32.
        numbers: (A, K, 4) float32 of components in place of `probs`: mean, deviation, and the ends
            of the 90% range, in units of the environment.
    """

    actors: list[EntityID]
    choices: list[EntityID]
    probs: Float32Array | None
    entropies: Float32Array
    numbers: Float32Array | None = None


class Explanation(NamedTuple):
    """Probabilities and value that an agent has in a frame, and the entities that they depend on.

    Numbers that are not finite in the network's output are not finite here.

    Attributes:
        entities: (n,) ids in the order of the frame, `(type, row)` for types without ids.
        actions: of each action.
        value: the predicted return.
        attention: (layers, heads, n, n) float32, the weight of entity j for entity i, see
            `attention_of`; (layers, heads, n + 1, n + 1) with the global entity last, if the
            network has one. None for a network without attention.
        influence: of the entities, see `Influence`.
    """

    entities: list[EntityID]
    actions: dict[ActionName, ExplainedAction]
    value: float
    attention: Float32Array | None
    influence: Influence


def explain(
    agent: PPOAgent,
    batch: EntityBatch,
    ids: Sequence[EntityID],
    action_space: ActionSpaces,
    entities: Sequence[EntityID] | None = None,
    recall: Recall = NO_RECALL,
) -> Explanation:
    """Explain the decisions of an agent in one frame.

    Args:
        agent: the network, in evaluation mode; it is not changed.
        batch: the frame alone.
        ids: (n,) the ids of its entities, as `Observation.index_to_id` returns them.
        action_space: the actions.
        entities: ids of those to compute the influence of, each of which costs a forward pass.
            Without it all, of more than `MOST_ENTITIES` those that are attended to most, or the
            first ones if the network has no attention.
        recall: what the agent remembered in this frame.

    Raises:
        ValueError: the frame has no entity with one of these ids.
    """
    # Entities to remove.
    removed = None
    if entities is not None:
        if unknown := [entity for entity in entities if entity not in ids]:
            raise ValueError(f"entities: expected ids of the frame, got {short_repr(unknown)}")
        removed = [np.array([ids.index(entity) for entity in entities], dtype=np.int64)]
    decisions, attention, [changes] = explain_frames(agent, batch, action_space, recall, removed)

    # Names of actors and choices.
    names, actions, shown = [*ids, GLOBAL], {}, decisions.shown_on_host(batch.actions, action_space)
    for name, action in batch.actions.items():
        choices: list[EntityID] = [*action_space[name].names]
        if action.actees is not None:
            choices = [names[i] for i in action.actees.values.tolist()]
        actors = [names[i] for i in action.actors.values.tolist()]
        entropies = _float32(decisions.entropies[name].values)
        probs = numbers = None
        if name in shown and action_space[name].components:
            numbers = shown[name].reshape(len(actors), len(choices), 4)
        elif name in shown:
            probs = shown[name].reshape(len(actors), len(choices))
        actions[name] = ExplainedAction(actors, choices, probs, entropies, numbers)
    weights = None if attention is None else attention[0]
    return Explanation([*ids], actions, decisions.values.item(), weights, changes)


def explain_frames(
    agent: PPOAgent,
    batch: EntityBatch,
    action_space: ActionSpaces,
    recall: Recall,
    entities: Sequence[IntArray] | None = None,
) -> tuple[Decisions, list[Float32Array] | None, list[Influence]]:
    """Compute the most probable decisions, attention and influence in several frames.

    Args:
        agent: the network, in evaluation mode; it is not changed.
        batch: B frames, at least one, without a past.
        action_space: the actions.
        recall: what the agent remembered in these frames.
        entities: for each frame int64, positions of entities to compute the influence of. Without
            it the `most_attended`, at most `MOST_ENTITIES`.

    Returns:
        Decisions in all frames; the weights of each frame, see `attention_of`; and its influence.
    """
    attended = recall.attach(batch, np.arange(batch.num_frames))
    decisions = most_probable(agent, attended)
    attention = attention_of(agent, attended)
    if entities is None:
        entities = [
            most_attended(None if attention is None else attention[i], count, MOST_ENTITIES)
            for i, count in enumerate(batch.entities_of_frames().tolist())
        ]
    changes = influence(agent, batch, decisions, entities, recall, action_space)
    return decisions, attention, changes


def most_probable(agent: PPOAgent, batch: EntityBatch) -> Decisions:
    """Return the most probable choices of an agent in B frames, with its probabilities and values.

    Args:
        agent: the network, in evaluation mode; it is not changed.
        batch: the frames.
    """
    with torch.inference_mode():
        return AgentPlayer(agent, None).choose(batch, np.arange(batch.num_frames), 0)


def attention_of(agent: PPOAgent, batch: EntityBatch) -> list[Float32Array] | None:
    """Compute the attention weights between the entities of each frame, in torch alone.

    Args:
        agent: the network, in evaluation mode; of one with a value network of its own, the weights
            are those of the policy.
        batch: B frames.

    Returns:
        For each frame (layers, heads, n, n) float32: [l, h, i, j] is the weight of entity j for
        entity i, in the order of the frame; the last one is the global entity, if the network has
        one. Rows sum to 1. Visible entities have a weight of 0 for hidden ones; hidden ones attend
        to all, which only the value depends on. NaN for entities of types that the network does
        not know. None for a network without attention: of pooling, without layers, or a user's own.

    Raises:
        InvalidObservation: a frame has too many entities.
    """
    nets = rogue_nets(agent)
    if not nets or nets[0].config.pooling is not None or nets[0].config.n_layer == 0:
        return None
    check_frame_memory(agent, batch, np.arange(batch.num_frames), learning=True)
    network: Any = agent

    def of_piece(some: EntityBatch, _: slice) -> list[Float32Array]:
        return [_float32(weights) for weights in network(some, attention=True).attention]

    with torch.inference_mode():
        pieces = in_pieces(agent, batch, of_piece, ONE_LANE)
    frames = [weights for piece in pieces for weights in piece]

    # From the network's order of types to that of the frames.
    known = nets[0].embedding.types
    types = [name for name in batch.features if name != GLOBAL or name in known]
    if types == known:
        return frames
    counts = np.stack([batch.features[name].lengths for name in types])  # (types, B)
    ranks = [known.index(name) if name in known else -1 for name in types]
    for i, weights in enumerate(frames):
        rank = np.repeat(ranks, counts[:, i])  # of each entity's type in the network
        order, n = np.argsort(rank, kind="stable")[(rank < 0).sum() :], len(rank)
        frames[i] = np.full((*weights.shape[:2], n, n), np.nan, dtype=np.float32)
        frames[i][..., order[:, None], order] = weights
    return frames


def most_attended(attention: Float32Array | None, num_entities: int, count: int) -> IntArray:
    """Return the entities of a frame that the others attend to most, in the order of the frame.

    Args:
        attention: (layers, heads, n, n), as `attention_of` returns it; None to return the first
            entities.
        num_entities: the entities of the frame, without the global one.
        count: the maximal number of entities to return.

    Returns:
        (min(count, num_entities),) int64, their positions.
    """
    if attention is None:
        return np.arange(min(count, num_entities))
    received = np.nan_to_num(attention).mean(axis=(0, 1))
    np.fill_diagonal(received, 0)
    order = np.argsort(-received.sum(axis=0)[:num_entities], kind="stable")
    return np.sort(order[:count])


def influence(
    agent: PPOAgent,
    batch: EntityBatch,
    decisions: Decisions,
    entities: Sequence[IntArray],
    recall: Recall = NO_RECALL,
    action_space: ActionSpaces | None = None,
) -> list[Influence]:
    """Compute the influence of entities on the decisions in frames, by removing each of them.

    Args:
        agent: the network, in evaluation mode; it is not changed.
        batch: B frames, at least one, without a past.
        decisions: of the agent in these frames.
        entities: for each frame int64, positions in the frame.
        recall: what the agent remembered in these frames, also of who is removed.
        action_space: the actions; needed where some depend on others.

    Returns:
        The influence in each frame.

    Raises:
        ValueError: there is no entity at a position.
    """
    counts, removed = np.array([len(of_frame) for of_frame in entities]), np.concatenate(entities)
    frames = np.repeat(np.arange(batch.num_frames), counts)
    with torch.inference_mode():
        copies, parts = without(batch, frames, removed, action_space)
        whole = decisions.take(frames)
        changed = most_probable(agent, recall.attach(copies, frames)) if len(frames) else whole
        value = _float32(whole.values - changed.values)
        choice = {}
        for name, part in parts.items():
            distances = _total_variation(whole, changed, name, part)
            choice[name] = distances, batch.actions[name].actors.lengths
    return split_influence(counts, removed, choice, value)


def split_influence(
    counts: IntArray,
    entities: IntArray,
    choice: Mapping[ActionName, tuple[Float32Array, IntArray]],
    value: Float32Array,
) -> list[Influence]:
    """Return the influence in each of F frames, at least one, from the numbers of all of them.

    Args:
        counts: (F,) int64, the number of entities of each frame.
        entities: flat int64, frame after frame.
        choice: per action flat float32, and the number of actors of each frame, (F,) int64.
        value: flat float32.
    """
    ends = np.cumsum(counts)[:-1]
    pieces = zip(np.split(entities, ends), np.split(value, ends), strict=True)
    frames = [Influence(removed, {}, change) for removed, change in pieces]
    for name, (cells, num_actors) in choice.items():
        tables = np.split(cells, np.cumsum(counts * num_actors)[:-1])
        for frame, table, count in zip(frames, tables, num_actors, strict=True):
            frame.choice[name] = table.reshape(len(frame.entities), count)
    return frames


def _total_variation(
    whole: Decisions, changed: Decisions, name: ActionName, part: ActionSubset
) -> Float32Array:
    """Compute the total variation distances of `Influence` for all actors of E copies, flat.

    Args:
        whole: decisions in the whole frames.
        changed: decisions in the E frames of `without`.
        name: the action.
        part: the action of these frames.
    """
    size = len(part.actors)
    distance = np.full(size, np.nan, np.float32)
    if name not in whole.distributions or name not in changed.distributions:
        return distance
    before, after = whole.distributions[name], changed.distributions[name]
    left = to_device(np.flatnonzero(part.actors), whole.values.device)
    choices = whole.chosen[name].values.index_select(0, left), changed.chosen[name].values
    has_both = (is_taken(choices[0]) & is_taken(choices[1])).cpu().numpy()
    if before.all_log_probs is None:
        distance[part.actors] = _float32(before.take(left).total_variation(after))
    else:
        rows = before.to_rows(part.whole).values, after.to_rows(part.action).values
        # The choices that are left, and the actors that have them.
        if part.actees is None:
            actor = np.repeat(np.arange(size), rows[0].shape[1])
            is_left = part.actors[actor]
        else:
            actor, is_left = actor_pairs(part.whole)[0], part.pairs
        actor = actor[is_left]
        p, q = (np.exp(_float32(log_probs).reshape(-1)) for log_probs in rows)
        # 1/2 sum_k |p_k / sum_j p_j - q_k| over all k but the entity
        total = np.bincount(actor, p := p[is_left], size)
        with np.errstate(invalid="ignore"):
            distance[:] = np.bincount(actor, np.abs(p / total[actor] - q), size) / 2
        distance[total == 0] = 1
        distance[~part.actors] = np.nan
    distance[np.flatnonzero(part.actors)[~has_both]] = np.nan
    return distance


def _float32(x: Tensor) -> Float32Array:
    array: Float32Array = x.float().cpu().numpy()
    return array
