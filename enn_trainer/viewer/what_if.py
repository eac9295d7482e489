"""Answers of an agent to a frame that was changed: other features, hidden or removed entities."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from enn_trainer.base.policy import PPOAgent
from enn_trainer.evaluation.explain import most_probable
from enn_trainer.experience.recall import NO_RECALL, Recall
from enn_trainer.viewer.replay import entity_at, types_of
from entity_env.actions import ActionName
from entity_env.arrays import Float32Array
from entity_env.spaces import GLOBAL, ActionSpaces, ObsSpace
from entity_env.vec.vec_obs import VecObs
from rogue_net.ragged import EntityBatch, without


class Change(NamedTuple):
    """A change of one entity; what is None stays.

    Attributes:
        position: of the entity in the frame; the number of entities for what is global.
        feature: the column of a number to change.
        kind: the column of a kind to change.
        value: the number, or the index of the label.
        visible: False to hide it from the policy.
        removed: True to remove it.
    """

    position: int
    feature: int | None = None
    kind: int | None = None
    value: float = math.nan
    visible: bool = True
    removed: bool = False


class WhatIf(NamedTuple):
    """The answer to a changed frame, in the terms of the real one.

    Attributes:
        value: the predicted return.
        probs: per action, by the position of the actor in the real frame: float32 (choices,), the
            probabilities of the choices of the real frame; NaN for entities that were removed. Of
            numbers what `ActionSpace.shown` returns. Of a dependent action after the most probable
            choices, NaN if it is not taken then. Actors without a legal choice are not in it.
    """

    value: float
    probs: dict[ActionName, dict[int, Float32Array]]


def what_if(
    agent: PPOAgent,
    obs: VecObs,
    obs_space: ObsSpace,
    action_space: ActionSpaces,
    changes: Sequence[Change],
    recall: Recall = NO_RECALL,
) -> WhatIf:
    """Ask an agent about a changed copy of a frame. Masks stay those of the frame.

    Args:
        agent: the network, in evaluation mode; it is not changed.
        obs: the frame alone.
        obs_space: its types and features.
        action_space: the actions.
        changes: of its entities.
        recall: what the agent remembered in the frame.

    Raises:
        ValueError: there is no such entity, feature or label; names the change.
    """
    # Change features and visibility, then remove entities, the last ones first.
    changed = obs.take(np.zeros(1, np.int64))
    for i, change in enumerate(changes):
        try:
            _apply(changed, obs_space, change)
        except ValueError as error:
            raise ValueError(f"changes[{i}]: {error}") from None
    batch = EntityBatch.of(changed)
    num_entities = int(batch.entities_of_frames()[0])
    removed = sorted({change.position for change in changes if change.removed}, reverse=True)
    for position in removed:
        batch, _ = without(batch, 0, np.array([position]), action_space)
    decisions = most_probable(agent, recall.attach(batch, np.zeros(1, np.int64)))

    # From positions of the changed frame to those of the real one.
    left = np.delete(np.arange(num_entities + 1), removed)
    probs: dict[ActionName, dict[int, Float32Array]] = {}
    for name, shown in decisions.shown_on_host(batch.actions, action_space).items():
        action = batch.actions[name]
        actors = left[action.actors.values.numpy()]
        if len(actors) == 0:
            continue
        table = shown.reshape(len(actors), -1)
        actees = obs.action_masks[name].actees
        if actees is not None and action.actees is not None:
            wide = np.full((len(actors), len(actees.values)), np.nan, np.float32)
            wide[:, np.isin(actees.values, left[action.actees.values.numpy()])] = table
            table = wide
        probs[name] = dict(zip(actors.tolist(), table, strict=True))
    return WhatIf(decisions.values.item(), probs)


def _apply(obs: VecObs, obs_space: ObsSpace, change: Change) -> None:
    """Change features and visibility of an entity of a frame, in place.

    Raises:
        ValueError: there is no such entity, feature or label.
    """
    name, row = entity_at(obs, 0, change.position)
    if name not in obs.features or not 0 <= row < obs.features[name].items():
        raise ValueError(f"expected an entity of the frame, got position {change.position}")
    entity = types_of(obs_space)[name]
    if (column := change.feature) is not None:
        if not 0 <= column < len(entity.features):
            raise ValueError(f"expected a feature of {name}, got number {column}")
        if not abs(change.value) <= float(np.finfo(np.float32).max):
            raise ValueError(f"expected a finite number, got {change.value}")
        obs.features[name].values[row, column] = change.value
    if (column := change.kind) is not None:
        if not 0 <= column < len(entity.kinds):
            raise ValueError(f"expected a kind of {name}, got number {column}")
        if change.value not in range(len(labels := entity.kinds[column].labels)):
            raise ValueError(f"expected a label among {labels}, got number {change.value}")
        obs.kinds[name].values[row, column] = change.value
    if name == GLOBAL and (change.removed or not change.visible):
        raise ValueError("expected an entity, as what is global cannot be hidden")
    if not change.visible:
        shown = obs.visibility(name)
        shown.values[row] = False
        obs.visible = {**obs.visible, name: shown}
