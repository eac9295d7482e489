"""A frame for a person: what there is to see, and what there is to choose."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.actions import Action, CategoricalAction, SelectEntityAction
from entity_env.batch import batch_obs
from entity_env.environment import Observation
from entity_env.features import batch_entities
from entity_env.spaces import (
    GLOBAL,
    ActionName,
    ActionSpace,
    EntityID,
    EntityName,
    ObsSpace,
    SelectEntityActionSpace,
)
from entity_env.typed_choices import Choice, Question
from entity_env.vec_env import VecActionMask, VecSelectEntityActionMask


def table(obs: Observation, obs_space: ObsSpace) -> str:
    """The globals and the visible entities of a frame, type after type."""
    features, visible = batch_entities([obs], obs_space, with_globals=True)
    lines = []
    if obs_space.global_features:
        names = obs_space.global_features
        lines.append(f"globals: {_details(names, features[GLOBAL].values[0])}")
    for name in obs_space.entities:
        entities = _entities(obs, obs_space, name, features[name].values)
        flags = [True] * len(entities) if name not in visible else visible[name].values
        seen = [one for one, is_seen in zip(entities, flags, strict=True) if is_seen]
        lines.append(f"{name}: {len(seen) or 'none'}")
        lines += [f"  {one.name}  {one.details}".rstrip() for one in seen]
    return "\n".join(lines)


@dataclass(frozen=True)
class Turn:
    """Who takes one action in a frame.

    Attributes:
        questions: one for each actor.
        options: all choices: labels, or ids of entities.
        probs: (actors, options) float32, how probable an agent finds them; None without one, if
            there is somebody to choose.
    """

    questions: list[Question]
    options: Sequence[EntityID]
    probs: npt.NDArray[np.float32] | None

    def indices_of(self, action: Any) -> list[int]:
        """An action of an agent, as `VecEnv.act` takes it."""
        if action is None:
            return []
        said: Sequence[EntityID]
        if isinstance(action, SelectEntityAction):
            said = action.actees
        else:
            said = action.labels if isinstance(action, CategoricalAction) else [action.label]
        return [self.options.index(one) for one in said]

    def in_words(self, indices: Sequence[int]) -> str:
        """What the actors chose."""
        named = [
            choice.name
            for question, index in zip(self.questions, indices, strict=True)
            for choice in question.choices
            if choice.index == index
        ]
        return f"{self.questions[0].action} {', '.join(named)}" if named else ""


def turns_of(
    obs: Observation,
    obs_space: ObsSpace,
    action_space: Mapping[ActionName, ActionSpace],
    advice: Mapping[ActionName, Action] | None = None,
) -> dict[ActionName, Turn]:
    """What there is to choose in a frame, for every action.

    Args:
        obs: the frame.
        obs_space: its space.
        action_space: its actions.
        advice: what an agent would do, with the probabilities of all choices.
    """
    batch = batch_obs([obs], obs_space, action_space)
    names = [
        entity
        for name in obs_space.entities
        for entity in _entities(obs, obs_space, name, batch.features[name].values)
    ]
    ids = obs.index_to_id(obs_space)
    return {
        name: _turn(name, space, batch.action_masks[name], names, ids, (advice or {}).get(name))
        for name, space in action_space.items()
    }


def _turn(
    name: ActionName,
    space: Any,
    mask: VecActionMask,
    names: list[Choice],
    ids: list[EntityID],
    advised: Any,
) -> Turn:
    actors = mask.actors.values.tolist()
    if isinstance(mask, VecSelectEntityActionMask):
        actees = mask.actees.values.tolist()
        named, options = [names[i] for i in actees], [ids[i] for i in actees]
    else:
        assert not isinstance(space, SelectEntityActionSpace)
        named = [Choice(i, label, label) for i, label in enumerate(space.index_to_label)]
        options = list(space.index_to_label)
    shape = len(actors), len(options)
    legal = np.ones(shape, np.bool_) if mask.mask is None else mask.mask.values.reshape(shape)
    given = np.zeros(0) if not actors else None if advised is None else advised.probs
    probs = None if given is None else np.asarray(given, dtype=np.float32).reshape(shape)
    questions = []
    for row, actor in enumerate(actors):
        who = names[actor] if actor < len(names) else None  # None: the frame as a whole
        choices = [
            replace(c, index=i, prob=None if probs is None else float(probs[row, i]))
            for i, c in enumerate(named)
            if legal[row, i]
        ]
        actor_text = "" if who is None else f"{who.name} ({who.details})".removesuffix(" ()")
        illegal = [c.name for i, c in enumerate(named) if not legal[row, i]]
        questions.append(Question(name, actor_text, choices, illegal))
    return Turn(questions, options, probs)


def _entities(
    obs: Observation, obs_space: ObsSpace, name: EntityName, rows: npt.NDArray[np.float32]
) -> list[Choice]:
    """The entities of a type, with names and features."""
    entities = []
    for row, (entity_id, values) in enumerate(zip(obs.ids_of_type(name), rows, strict=True)):
        has_id = entity_id != (name, row)
        full = f"{name} {entity_id if has_id else row}"
        details = _details(obs_space.entities[name].features, values)
        entities.append(Choice(row, full, str(entity_id) if has_id else full, details))
    return entities


def _details(features: Sequence[str], values: npt.NDArray[np.float32]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in zip(features, values, strict=True))
