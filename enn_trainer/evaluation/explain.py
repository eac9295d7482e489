"""Explanations of decisions: attention between entities, and the influence of each entity."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from enn_trainer.base.policy import PPOAgent, rogue_nets
from enn_trainer.experience.frame_limits import check_frame_memory
from enn_trainer.experience.players import AgentPlayer, Decisions, map_microbatches
from enn_trainer.experience.recall import NO_FRAME_STATES, FrameStates
from enn_trainer.runtime.execution import SINGLE_THREAD
from entity_env.actions import ActionName, EntityID
from entity_env.arrays import Float32Array, IntArray
from entity_env.errors import short_repr
from entity_env.spaces import GLOBAL, ActionSpaces
from rogue_net.actions.parts import has_choice
from rogue_net.ragged import ActionSubset, EntityBatch, actor_pairs, to_device, without

MAX_ENTITIES = 32
"""Maximal number of entities to compute the influence of by default."""


class Influence(NamedTuple):
    """Changes of probabilities and value if an entity were absent.

    Attributes:
        entities: (E,) int64, positions in the frame of the entities; each is removed alone.
        choice: per action (E, A) float32 in [0, 1], total variation distance between an actor's
            probabilities with and without the entity. If the actor could select the entity, its
            probability is removed and the others are normalised; the distance is 1 if the entity
            had all of the probability. For several continuous components it is the maximum over
            components. NaN if the entity is the actor itself or its only legal choice, for
            dependent actions that are not taken in both cases, and for action kinds without this
            distance.
        value: (E,) float32, value with the entity minus value without it.
    """

    entities: IntArray
    choice: dict[ActionName, Float32Array]
    value: Float32Array


class ExplainedAction(NamedTuple):
    """Probabilities of all choices of an action in one frame.

    Attributes:
        actors: (A,) ids of the actors, as in `Explanation.entities`; `__global__` if the action is
            global.
        choices: (K,) labels, ids of selectable entities, or components; empty for action kinds that
            have none of these.
        probs: (A, K) float32, 0 where masked; NaN for actors that do not take a dependent action
            after the most probable choices. None if the choices cannot be enumerated.
        entropies: (A,) float32.
        numbers: (A, K, 4) float32 for continuous components, in place of `probs`: mean, standard
            deviation, and the bounds of the 90% interval, in environment units.
    """

    actors: list[EntityID]
    choices: list[EntityID]
    probs: Float32Array | None
    entropies: Float32Array
    numbers: Float32Array | None = None


class Explanation(NamedTuple):
    """Probabilities and value of an agent in a frame, with attention and influence of its entities.

    Values that are not finite in the network's output are passed through.

    Attributes:
        entities: (n,) ids in the order of the frame, `(type, row)` for types without ids.
        actions: explanation of each action.
        value: predicted return.
        attention: (layers, heads, n, n) float32, weight of entity j for entity i, see
            `attention_of`; (layers, heads, n + 1, n + 1) with the global entity last, if the
            network has one. None for a network without attention.
        influence: influence of the entities.
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
    recall: FrameStates = NO_FRAME_STATES,
) -> Explanation:
    """Explain the decisions of an agent in one frame.

    Args:
        agent: network in evaluation mode; not modified.
        batch: the frame, B = 1.
        ids: (n,) ids of its entities, as `Observation.index_to_id` returns them.
        action_space: action space.
        entities: ids of the entities to compute the influence of; each costs a forward pass. By
            default all; of more than `MAX_ENTITIES`, the ones that receive most attention, or the
            first ones if the network has no attention.
        recall: recurrent state of the agent in this frame.

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
    names, actions = [*ids, GLOBAL], {}
    tables = decisions.shown_on_host(batch.actions, action_space)
    for name, action in batch.actions.items():
        choices: list[EntityID] = [*action_space[name].names]
        if action.actees is not None:
            choices = [names[i] for i in action.actees.values.tolist()]
        actors = [names[i] for i in action.actors.values.tolist()]
        entropies = _float32(decisions.entropies[name].values)
        probs = numbers = None
        if name in tables and action_space[name].components:
            numbers = tables[name].reshape(len(actors), len(choices), 4)
        elif name in tables:
            probs = tables[name].reshape(len(actors), len(choices))
        actions[name] = ExplainedAction(actors, choices, probs, entropies, numbers)
    weights = None if attention is None else attention[0]
    return Explanation([*ids], actions, decisions.values.item(), weights, changes)


def explain_frames(
    agent: PPOAgent,
    batch: EntityBatch,
    action_space: ActionSpaces,
    recall: FrameStates,
    entities: Sequence[IntArray] | None = None,
) -> tuple[Decisions, list[Float32Array] | None, list[Influence]]:
    """Compute the most probable decisions, attention and influence in several frames.

    Args:
        agent: network in evaluation mode; not modified.
        batch: B >= 1 frames, without recurrent state.
        action_space: action space.
        recall: recurrent state of the agent in these frames.
        entities: for each frame int64, positions of the entities to compute the influence of. By
            default the `most_attended`, at most `MAX_ENTITIES`.

    Returns:
        Decisions in all frames; attention of each frame, see `attention_of`; influence in each
        frame.
    """
    attended = recall.attach(batch, np.arange(batch.num_frames))
    decisions = most_probable(agent, attended)
    attention = attention_of(agent, attended)
    if entities is None:
        entities = [
            most_attended(None if attention is None else attention[i], count, MAX_ENTITIES)
            for i, count in enumerate(batch.entities_of_frames().tolist())
        ]
    changes = influence(agent, batch, decisions, entities, recall, action_space)
    return decisions, attention, changes


def most_probable(agent: PPOAgent, batch: EntityBatch) -> Decisions:
    """Return the most probable choices of an agent in B frames, with probabilities and values.

    Args:
        agent: network in evaluation mode; not modified.
        batch: the frames.
    """
    with torch.inference_mode():
        return AgentPlayer(agent, None).choose(batch, np.arange(batch.num_frames), 0)


def attention_of(agent: PPOAgent, batch: EntityBatch) -> list[Float32Array] | None:
    """Compute the attention weights between the entities of each frame, in plain PyTorch.

    Args:
        agent: network in evaluation mode; with a separate value network, the weights are the
            policy's.
        batch: B frames.

    Returns:
        For each frame (layers, heads, n, n) float32: [l, h, i, j] is the weight of entity j for
        entity i, in the order of the frame; the global entity is last, if the network has one. Rows
        sum to 1. Visible entities have weight 0 for hidden ones; hidden entities attend to all,
        which affects only the value. NaN for entities of types unknown to the network. None for a
        network without attention: pooling, no layers, or a custom network.

    Raises:
        InvalidObservation: a frame has too many entities.
    """
    nets = rogue_nets(agent)
    if not nets or nets[0].config.pooling is not None or nets[0].config.n_layer == 0:
        return None
    check_frame_memory(agent, batch, np.arange(batch.num_frames), learning=True)
    network: Any = agent

    def microbatch_attention(some: EntityBatch, _: slice) -> list[Float32Array]:
        return [_float32(weights) for weights in network(some, attention=True).attention]

    with torch.inference_mode():
        pieces = map_microbatches(agent, batch, microbatch_attention, SINGLE_THREAD)
    frames = [weights for piece in pieces for weights in piece]

    # Permute from the network's order of types to the order of the frames.
    network_types = nets[0].embedding.types
    types = [name for name in batch.features if name != GLOBAL or name in network_types]
    if types == network_types:
        return frames
    counts = np.stack([batch.features[name].lengths for name in types])  # (types, B)
    ranks = [network_types.index(name) if name in network_types else -1 for name in types]
    for i, weights in enumerate(frames):
        rank = np.repeat(ranks, counts[:, i])  # (n,), index of each entity's type in the network
        order, n = np.argsort(rank, kind="stable")[(rank < 0).sum() :], len(rank)
        frames[i] = np.full((*weights.shape[:2], n, n), np.nan, dtype=np.float32)
        frames[i][..., order[:, None], order] = weights
    return frames


def most_attended(attention: Float32Array | None, num_entities: int, count: int) -> IntArray:
    """Return the entities of a frame that receive most attention, in the order of the frame.

    Args:
        attention: (layers, heads, n, n), as `attention_of` returns it; None to return the first
            entities.
        num_entities: number of entities of the frame, without the global one.
        count: maximal number of entities to return.

    Returns:
        (min(count, num_entities),) int64, positions.
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
    recall: FrameStates = NO_FRAME_STATES,
    action_space: ActionSpaces | None = None,
) -> list[Influence]:
    """Compute the influence of entities on the decisions in frames, by removing one at a time.

    Args:
        agent: network in evaluation mode; not modified.
        batch: B >= 1 frames, without recurrent state.
        decisions: decisions of the agent in these frames.
        entities: for each frame int64, positions in the frame.
        recall: recurrent state of the agent in these frames, including removed entities.
        action_space: action space; required if actions depend on each other.

    Returns:
        The influence in each frame.

    Raises:
        ValueError: there is no entity at a position.
    """
    counts, removed = np.array([len(positions) for positions in entities]), np.concatenate(entities)
    frames = np.repeat(np.arange(batch.num_frames), counts)
    with torch.inference_mode():
        copies, parts = without(batch, frames, removed, action_space)
        before = decisions.take(frames)
        after = most_probable(agent, recall.attach(copies, frames)) if len(frames) else before
        value = _float32(before.values - after.values)
        choice = {}
        for name, part in parts.items():
            distances = _total_variation(before, after, name, part)
            choice[name] = distances, batch.actions[name].actors.lengths
    return split_influence(counts, removed, choice, value)


def split_influence(
    counts: IntArray,
    entities: IntArray,
    choice: Mapping[ActionName, tuple[Float32Array, IntArray]],
    value: Float32Array,
) -> list[Influence]:
    """Split the flat influence of F >= 1 frames by frame.

    Args:
        counts: (F,) int64, number of entities per frame.
        entities: flat int64, positions, frame after frame.
        choice: per action flat float32 distances, and (F,) int64 number of actors per frame.
        value: flat float32 differences of values.
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
        whole: decisions in the complete frames.
        changed: decisions in the E frames of `without`.
        name: name of the action.
        part: the action in these frames.
    """
    size = len(part.actors)
    distance = np.full(size, np.nan, np.float32)
    if name not in whole.distributions or name not in changed.distributions:
        return distance
    before, after = whole.distributions[name], changed.distributions[name]
    retained = to_device(np.flatnonzero(part.actors), whole.values.device)
    choices = whole.chosen[name].values.index_select(0, retained), changed.chosen[name].values
    has_both = (has_choice(choices[0]) & has_choice(choices[1])).cpu().numpy()
    if before.all_log_probs is None:
        distance[part.actors] = _float32(before.take(retained).total_variation(after))
    else:
        rows = before.to_rows(part.whole).values, after.to_rows(part.action).values
        # Remaining choices, and the actor of each.
        if part.actees is None:
            actor = np.repeat(np.arange(size), rows[0].shape[1])
            is_left = part.actors[actor]
        else:
            actor, is_left = actor_pairs(part.whole)[0], part.pairs
        actor = actor[is_left]
        p, q = (np.exp(_float32(log_probs).reshape(-1)) for log_probs in rows)
        # 1/2 sum_k |p_k / sum_j p_j - q_k| over all remaining choices k
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
