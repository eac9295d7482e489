"""Outputs of an agent for an edited frame: changed features, hidden or removed entities."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from enn_trainer.base.policy import PPOAgent
from enn_trainer.evaluation.explain import most_probable
from enn_trainer.experience.recall import NO_FRAME_STATES, FrameStates
from enn_trainer.viewer.replay import entity_at, types_of
from entity_env.actions import ActionName
from entity_env.arrays import Float32Array
from entity_env.spaces import GLOBAL, ActionSpaces, ObsSpace
from entity_env.vec.vec_obs import VecObs
from rogue_net.ragged import EntityBatch, without


class FeatureChange(NamedTuple):
    """Change of one entity; fields that are None stay unchanged.

    Attributes:
        position: position of the entity in the frame; the number of entities for global features.
        feature: column of the numerical feature to change.
        kind: column of the categorical feature to change.
        value: new number, or index of the label.
        visible: False to hide the entity from the policy.
        removed: True to remove the entity.
    """

    position: int
    feature: int | None = None
    kind: int | None = None
    value: float = math.nan
    visible: bool = True
    removed: bool = False


class WhatIf(NamedTuple):
    """Outputs of an agent for an edited frame, indexed by the original frame.

    Attributes:
        value: predicted return.
        probs: per action, by position of the actor in the original frame: float32 (choices,),
            probabilities of the original frame's choices; NaN for removed entities. For continuous
            actions, the result of `ActionSpace.shown`. Dependent actions follow the most probable
            choices, NaN if they are not taken. Actors without a legal choice are omitted.
    """

    value: float
    probs: dict[ActionName, dict[int, Float32Array]]


def what_if(
    agent: PPOAgent,
    obs: VecObs,
    obs_space: ObsSpace,
    action_space: ActionSpaces,
    changes: Sequence[FeatureChange],
    recall: FrameStates = NO_FRAME_STATES,
) -> WhatIf:
    """Evaluate an agent on an edited copy of a frame. Action masks are not changed.

    Args:
        agent: network in evaluation mode; not modified.
        obs: the frame, B = 1.
        obs_space: its observation space.
        action_space: action space.
        changes: changes of its entities.
        recall: recurrent state of the agent in the frame.

    Raises:
        ValueError: there is no such entity, feature or label; the message names the change.
    """
    # Change features and visibility, then remove entities in descending order.
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

    # Map positions of the edited frame to the original frame.
    remaining = np.delete(np.arange(num_entities + 1), removed)
    probs: dict[ActionName, dict[int, Float32Array]] = {}
    for name, probabilities in decisions.shown_on_host(batch.actions, action_space).items():
        action = batch.actions[name]
        actors = remaining[action.actors.values.numpy()]
        if len(actors) == 0:
            continue
        table = probabilities.reshape(len(actors), -1)
        actees = obs.action_masks[name].actees
        if actees is not None and action.actees is not None:
            full_table = np.full((len(actors), len(actees.values)), np.nan, np.float32)
            full_table[:, np.isin(actees.values, remaining[action.actees.values.numpy()])] = table
            table = full_table
        probs[name] = dict(zip(actors.tolist(), table, strict=True))
    return WhatIf(decisions.values.item(), probs)


def _apply(obs: VecObs, obs_space: ObsSpace, change: FeatureChange) -> None:
    """Change features and visibility of an entity in place.

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
            raise ValueError(f"expected a categorical feature of {name}, got number {column}")
        if change.value not in range(len(labels := entity.kinds[column].labels)):
            raise ValueError(f"expected a label among {labels}, got number {change.value}")
        obs.kinds[name].values[row, column] = change.value
    if name == GLOBAL and (change.removed or not change.visible):
        raise ValueError(
            "expected an entity, got the global features, which cannot be hidden or removed"
        )
    if not change.visible:
        visibility = obs.visibility(name)
        visibility.values[row] = False
        obs.visible = {**obs.visible, name: visibility}
