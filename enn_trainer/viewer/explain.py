"""Explanations of decisions: attention between entities, and the influence of each entity."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from enn_trainer.experience.frame_memory import check_frame_memory, rogue_nets
from enn_trainer.experience.players import AgentPlayer, Decisions, in_pieces
from enn_trainer.policy import PPOAgent
from enn_trainer.runtime.execution import ONE_LANE
from entity_env.actions import ActionName, EntityID
from entity_env.errors import short_repr
from entity_env.ragged import Indices
from entity_env.spaces import GLOBAL, ActionSpace
from rogue_net.distributions import ActionDistribution
from rogue_net.ragged import (
    ActionSubset,
    Bools,
    EntityBatch,
    RaggedTensor,
    restrict_action,
    to_device,
)

Float32: TypeAlias = npt.NDArray[np.float32]

MOST_ENTITIES = 32
"""Maximal number of entities to compute the influence of, unless more are named."""


class Influence(NamedTuple):
    """Changes of probabilities and value if an entity were not in the frame.

    Attributes:
        entities: (E,) int64, the positions in the frame of the entities, each removed alone.
        choice: per action (E, A) float32 in [0, 1], the total variation distance between the
            probabilities of an actor with and without the entity. If the actor could select the
            entity, those with it are of the other choices, normalised; the distance is 1 if the
            entity had all of the probability. NaN if the entity is the actor itself or its only
            legal choice, and for kinds of actions whose choices cannot be listed.
        value: (E,) float32, the value with the entity minus the value without it.
    """

    entities: Indices
    choice: dict[ActionName, Float32]
    value: Float32


class ExplainedAction(NamedTuple):
    """Probabilities of all choices of an action in one frame.

    Attributes:
        actors: (A,) ids of the actors, as in `Explanation.entities`; `__global__` if the action is
            global.
        choices: (K,) labels, or ids of the entities that may be selected; empty for kinds of
            actions with neither.
        probs: (A, K) float32, 0 where not allowed; None if the choices cannot be listed.
        entropies: (A,) float32.
    """

    actors: list[EntityID]
    choices: list[EntityID]
    probs: Float32 | None
    entropies: Float32


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
    attention: Float32 | None
    influence: Influence


def explain(
    agent: PPOAgent,
    batch: EntityBatch,
    ids: Sequence[EntityID],
    action_space: Mapping[ActionName, ActionSpace],
    entities: Sequence[EntityID] | None = None,
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

    Raises:
        ValueError: the frame has no entity with one of these ids.
    """
    # Decisions and attention.
    with torch.inference_mode():
        decisions = AgentPlayer(agent, None).choose(batch, np.zeros(1, np.int64), 0)
    weights = attention_of(agent, batch)
    attention = None if weights is None else weights[0]

    # Entities to remove.
    if entities is not None:
        positions = {one: i for i, one in enumerate(ids)}
        if unknown := [one for one in entities if one not in positions]:
            raise ValueError(f"entities: expected ids of the frame, got {short_repr(unknown)}")
        removed = np.array([positions[one] for one in entities], dtype=np.int64)
    elif attention is None:
        removed = np.arange(min(len(ids), MOST_ENTITIES))
    else:
        removed = most_attended(attention, len(ids), MOST_ENTITIES)

    # Names of actors and choices.
    names, actions = [*ids, GLOBAL], {}
    for name, action in batch.actions.items():
        choices: list[EntityID] = [*action_space[name].labels]
        if action.actees is not None:
            choices = [names[i] for i in action.actees.values.tolist()]
        table = _probabilities(decisions.distributions.get(name))
        actions[name] = ExplainedAction(
            [names[i] for i in action.actors.values.tolist()],
            choices,
            None if table is None else _float32(table),
            _float32(decisions.entropies[name].values),
        )
    changes = influence(agent, batch, decisions, 0, removed)
    return Explanation([*ids], actions, decisions.values.item(), attention, changes)


def attention_of(agent: PPOAgent, batch: EntityBatch) -> list[Float32] | None:
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

    def of_piece(some: EntityBatch, _: slice) -> list[Float32]:
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
    ends = counts.cumsum(axis=0)
    starts, shown = ends - counts, [types.index(name) for name in known if name in types]
    for i, weights in enumerate(frames):
        order = np.concatenate([np.arange(starts[k, i], ends[k, i]) for k in shown])
        n = ends[-1, i]
        frames[i] = np.full((*weights.shape[:2], n, n), np.nan, dtype=np.float32)
        frames[i][..., order[:, None], order] = weights
    return frames


def most_attended(attention: Float32, num_entities: int, count: int) -> Indices:
    """Return the entities of a frame that the others attend to most, in the order of the frame.

    Args:
        attention: (layers, heads, n, n), as `attention_of` returns it.
        num_entities: the entities of the frame, without the global one.
        count: the maximal number of entities to return.

    Returns:
        (min(count, num_entities),) int64, their positions.
    """
    received = np.nan_to_num(attention).mean(axis=(0, 1))
    np.fill_diagonal(received, 0)
    order = np.argsort(-received.sum(axis=0)[:num_entities], kind="stable")
    return np.sort(order[:count])


def influence(
    agent: PPOAgent, batch: EntityBatch, decisions: Decisions, frame: int, entities: Indices
) -> Influence:
    """Compute the influence of entities on the decisions in a frame, by removing each of them.

    Args:
        agent: the network, in evaluation mode; it is not changed.
        batch: B frames.
        decisions: of the agent in these frames.
        frame: the index of the frame.
        entities: (E,) int64, positions in the frame.

    Raises:
        ValueError: there is no entity at a position.
    """
    with torch.inference_mode():
        own = decisions.take(np.array([frame]))
        if len(entities) == 0:
            choice = {n: np.zeros((0, len(c.values)), np.float32) for n, c in own.chosen.items()}
            return Influence(entities, choice, np.zeros(0, np.float32))
        frames, parts = without(batch, frame, entities)
        changed = AgentPlayer(agent, None).choose(frames, np.full(len(entities), frame), 0)
        choice = {
            name: _float32(
                _total_variation(
                    own.distributions.get(name), changed.distributions.get(name), part, entities
                )
            )
            for name, part in parts.items()
        }
        return Influence(entities, choice, _float32(own.values - changed.values))


def without(
    batch: EntityBatch, frame: int, entities: Indices
) -> tuple[EntityBatch, dict[ActionName, ActionSubset]]:
    """Return copies of a frame, each without one of its entities.

    Actors that have no legal choice without the entity are left out.

    Args:
        batch: B frames.
        frame: the index of the frame.
        entities: (E,) int64, positions in the frame.

    Returns:
        E frames; and their actions as parts of those of E copies of the whole frame.

    Raises:
        ValueError: there is no entity at a position.
    """
    num_entities = int(batch.entities_of_frames()[frame])
    if unknown := [i for i in entities.tolist() if not 0 <= i < num_entities]:
        expected = f"positions from 0 to {num_entities - 1}"
        raise ValueError(f"entities: expected {expected}, got {short_repr(unknown)}")
    copies = batch.take(np.full(len(entities), frame))

    # Rows of each type.
    kept: dict[str, Bools] = {}
    start = 0
    for name, rows in copies.features.items():
        count = int(rows.lengths[0])
        kept[name] = np.ones(len(rows.values), dtype=np.bool_)
        if name != GLOBAL:
            kept[name] = (np.arange(start, start + count) != entities[:, None]).reshape(-1)
            start += count

    # Actions, with the positions that actors and actees have then.
    def moved(positions: RaggedTensor) -> RaggedTensor:
        removed = np.repeat(entities, positions.lengths)
        behind = positions.values > to_device(removed, positions.values.device)
        return replace(positions, values=positions.values - behind.long())

    parts, actions = {}, {}
    for name, action in copies.actions.items():
        actees = None if action.actees is None else _others(action.actees, entities)
        part = restrict_action(action, _others(action.actors, entities), actees)
        left, parts[name] = part.action, part
        moved_actees = None if left.actees is None else moved(left.actees)
        actions[name] = replace(left, actors=moved(left.actors), actees=moved_actees)
    return replace(
        copies,
        features={name: rows.keep(kept[name]) for name, rows in copies.features.items()},
        visible={name: rows.keep(kept[name]) for name, rows in copies.visible.items()},
        kinds={name: rows.keep(kept[name]) for name, rows in copies.kinds.items()},
        actions=actions,
    ), parts


def _others(positions: RaggedTensor, entities: Indices) -> Bools:
    """Return the positions that are not the entity of their frame, (rows,) bool."""
    others: Bools = positions.values.cpu().numpy() != np.repeat(entities, positions.lengths)
    return others


def _total_variation(
    own: ActionDistribution | None,
    changed: ActionDistribution | None,
    part: ActionSubset,
    entities: Indices,
) -> Tensor:
    """Compute the total variation distances of `Influence`, (E, A).

    Args:
        own: of the A actors of the frame.
        changed: of those that are left in each of the E frames of `without`.
        part: the action of these frames.
        entities: (E,) int64, positions in the frame.
    """
    is_left = torch.from_numpy(part.actors).view(len(entities), -1)
    table = _probabilities(own)
    wide = None if changed is None else _probabilities(changed.widened(part))
    if table is None or wide is None or is_left.numel() == 0:
        return torch.full(is_left.shape, torch.nan)
    q = wide.view(*is_left.shape, -1)  # (E, A, K)
    p = table[:, : q.shape[2]].expand_as(q)
    if part.whole.actees is not None:
        is_entity = to_device(~_others(part.whole.actees, entities), p.device)
        p = p.masked_fill(is_entity.view(len(entities), 1, -1), 0)
    # 1/2 sum_k |p_k / sum_j p_j - q_k| over all k but the entity
    total = p.sum(dim=-1, keepdim=True)
    distance = (p / total - q).abs().sum(dim=-1) / 2
    distance = distance.masked_fill(total.squeeze(-1) == 0, 1)
    return distance.cpu().masked_fill(~is_left, torch.nan)


def _probabilities(distribution: ActionDistribution | None) -> Tensor | None:
    """Return the probabilities of all choices, (A, choices), where they can be listed."""
    log_probs = None if distribution is None else distribution.all_log_probs
    return None if log_probs is None else log_probs.exp()


def _float32(x: Tensor) -> Float32:
    array: Float32 = x.float().cpu().numpy()
    return array
