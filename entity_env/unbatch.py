"""The way back: from the choices for a batch to the actions of each environment."""

from collections.abc import Callable, Mapping, Sequence
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.actions import (
    Action,
    CategoricalAction,
    GlobalCategoricalAction,
    SelectEntityAction,
)
from entity_env.batch import batch_obs
from entity_env.environment import Observation
from entity_env.errors import InvalidAction
from entity_env.features import all_none
from entity_env.frames import is_same_everywhere
from entity_env.masks import NOBODY_CHOOSES, NOBODY_SELECTS
from entity_env.ragged import Ragged, as_choices, exclusive_cumsum
from entity_env.spaces import (
    ActionName,
    ActionSpace,
    CategoricalActionSpace,
    EntityID,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
)
from entity_env.vec_env import VecActionMask, VecObs, VecSelectEntityActionMask

Indices = npt.NDArray[np.int64]


def unbatch_actions(
    choices: Mapping[ActionName, Ragged],
    batch: VecObs,
    obs: Sequence[Observation],
    obs_space: ObsSpace,
    action_space: Mapping[ActionName, ActionSpace],
    probs: Mapping[ActionName, Sequence[npt.NDArray[np.float32]]] | None = None,
) -> list[dict[ActionName, Action]]:
    """The way back: what was chosen for each environment, in terms of its own ids and labels.

    Args:
        choices: int64 (actors,) per frame for every action, as `VecEnv.act` takes them.
        batch: the batch that the choices were made for.
        obs: the observations that `batch` was made from.
        obs_space: their space.
        action_space: their actions.
        probs: per action and frame, the probabilities to attach.

    Returns:
        For each environment the actions that its frame offered. A global action with nothing
        legal is left out; an action none of whose actors could do anything has no actors.

    Raises:
        InvalidAction: the choices do not fit the actors of the batch, or are not allowed.
    """
    actions: list[dict[ActionName, Action]] = [{} for _ in obs]
    for name, space in action_space.items():
        if name not in choices:
            raise InvalidAction(f"actions: expected {list(action_space)}, got {list(choices)}")
        mask = batch.action_masks[name]
        chosen = as_choices(choices[name])
        if not np.array_equal(chosen.lengths, mask.actors.lengths):
            raise InvalidAction(
                f"actions[{name!r}]: expected {mask.actors.lengths.tolist()} choices per "
                f"environment, got {chosen.lengths.tolist()}"
            )
        _refuse_illegal(chosen.values, mask, space, name)
        given = [None] * len(obs) if probs is None else probs[name]
        convert = _CONVERTERS[type(space)]
        convert(actions, obs, obs_space, name, space, mask.actors, chosen, given)
    return actions


def _refuse_illegal(
    choices: Indices, mask: VecActionMask, space: ActionSpace, name: ActionName
) -> None:
    if isinstance(mask, VecSelectEntityActionMask):
        num_choices = np.repeat(mask.actees.lengths, mask.actors.lengths)
    else:
        assert not isinstance(space, SelectEntityActionSpace)
        if mask.mask is None and _all_between(choices, 0, len(space)):
            return
        num_choices = np.full(len(choices), len(space))
    legal: npt.NDArray[np.bool_] = (choices >= 0) & (choices < num_choices)
    if mask.mask is not None and legal.all():
        legal = mask.mask.values.reshape(-1)[exclusive_cumsum(num_choices) + choices]
    if not legal.all():
        row = int(np.flatnonzero(~legal)[0])
        env_index = int(np.searchsorted(np.cumsum(mask.actors.lengths), row, side="right"))
        raise InvalidAction(
            f"actions[{name!r}]: choice {choices[row]} in environment {env_index}, by the entity "
            f"at position {mask.actors.values[row]}, is not allowed"
        )


def _all_between(choices: Indices, low: int, high: int) -> bool:
    return len(choices) == 0 or bool(
        np.minimum.reduce(choices) >= low and np.maximum.reduce(choices) < high
    )


def _to_global(
    actions: list[dict[ActionName, Action]],
    obs: Sequence[Observation],
    obs_space: ObsSpace,
    name: ActionName,
    space: GlobalCategoricalActionSpace,
    actors: Ragged,
    chosen: Ragged,
    probs: Sequence[Any],
) -> None:
    """Add the action to those of the frames in which anything was legal."""
    indices, labels = chosen.values.tolist(), space.index_to_label
    can_act = actors.lengths.tolist()
    frames = compress(zip(actions, probs, strict=True), can_act)
    for (taken, p), index in zip(frames, indices, strict=True):
        p = None if p is None else p.reshape(-1)
        taken[name] = GlobalCategoricalAction(index, labels[index], p)


def _to_categorical(
    actions: list[dict[ActionName, Action]],
    obs: Sequence[Observation],
    obs_space: ObsSpace,
    name: ActionName,
    space: CategoricalActionSpace,
    actors: Ragged,
    chosen: Ragged,
    probs: Sequence[Any],
) -> None:
    masks = [o.actions.get(name, NOBODY_CHOOSES) for o in obs]
    ids = _actor_ids(obs, obs_space, masks, actors)
    labels = space.index_to_label
    choices = _arrays_of(chosen)
    for taken, mask, who, what, p in zip(actions, masks, ids, choices, probs, strict=True):
        if mask is not NOBODY_CHOOSES:
            taken[name] = CategoricalAction(who, what, labels, p)


def _to_select_entity(
    actions: list[dict[ActionName, Action]],
    obs: Sequence[Observation],
    obs_space: ObsSpace,
    name: ActionName,
    space: SelectEntityActionSpace,
    actors: Ragged,
    chosen: Ragged,
    probs: Sequence[Any],
) -> None:
    masks: list[Any] = [o.actions.get(name, NOBODY_SELECTS) for o in obs]
    ids = _actor_ids(obs, obs_space, masks, actors)
    actees = _named_ids(
        obs, obs_space, [m.actee_ids for m in masks], [m.actee_types for m in masks]
    )
    choices, ends = chosen.values.tolist(), np.cumsum(chosen.lengths).tolist()
    starts = [0, *ends]
    for taken, mask, who, whom, start, end, p in zip(
        actions, masks, ids, actees, starts, ends, probs, strict=False
    ):
        if mask is not NOBODY_SELECTS:
            selected = list(map(whom.__getitem__, choices[start:end]))
            taken[name] = SelectEntityAction(who, selected, p)


_CONVERTERS: dict[type, Callable[..., None]] = {
    CategoricalActionSpace: _to_categorical,
    GlobalCategoricalActionSpace: _to_global,
    SelectEntityActionSpace: _to_select_entity,
}


def _arrays_of(rows: Ragged) -> Sequence[Indices]:
    """The values of each frame, views of all of them."""
    n = rows.lengths[0]
    if (rows.lengths == n).all():
        return list(rows.values.reshape(-1, n)) if n else [rows.values] * len(rows)
    ends = np.cumsum(rows.lengths).tolist()
    return [rows.values[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _actor_ids(
    obs: Sequence[Observation], obs_space: ObsSpace, masks: Sequence[Any], actors: Ragged
) -> list[Sequence[EntityID]]:
    """Per frame the ids of the actors, without those who had nothing legal and were left out."""
    named = _named_ids(obs, obs_space, [m.actor_ids for m in masks], [m.actor_types for m in masks])
    counts = actors.lengths.tolist()
    if list(map(len, named)) != counts:
        for i, count in enumerate(counts):
            if len(named[i]) != count:
                all_ids = obs[i].index_to_id(obs_space)
                named[i] = [all_ids[k] for k in actors[i].values]
    return named


def _named_ids(
    obs: Sequence[Observation], obs_space: ObsSpace, ids: Sequence[Any], types: Sequence[Any]
) -> list[Sequence[EntityID]]:
    """Per frame the ids of the entities that a mask names by id, by type or not at all."""
    if all_none(ids) and is_same_everywhere(types):
        named = list(obs_space.entities) if types[0] is None else types[0]
        if len(named) == 1:  # so it is in most worlds
            name = named[0]
            given = [o.ids.get(name) for o in obs]
            of_type = [
                o.ids_of_type(name) if i is None else i for o, i in zip(obs, given, strict=True)
            ]
            return of_type if types[0] is not None else [list(i) for i in of_type]
    return [_named_in_frame(o, obs_space, i, t) for o, i, t in zip(obs, ids, types, strict=True)]


def _named_in_frame(
    obs: Observation, obs_space: ObsSpace, ids: Any, types: Any
) -> Sequence[EntityID]:
    if ids is not None:
        named: Sequence[EntityID] = ids
        return named
    if types is None:
        return obs.index_to_id(obs_space)
    return [entity_id for name in types for entity_id in obs.ids_of_type(name)]


def action_index_to_actions(
    obs_space: ObsSpace,
    action_spaces: Mapping[ActionName, ActionSpace],
    actions: Mapping[ActionName, Ragged],
    last_obs: Observation,
    index: int = 0,
    probs: Mapping[ActionName, npt.NDArray[np.float32]] | None = None,
) -> dict[ActionName, Action]:
    """The actions of one environment: frame `index` of `actions`, chosen for `last_obs`."""
    return unbatch_actions(
        {name: as_choices(chosen)[index] for name, chosen in actions.items()},
        batch_obs([last_obs], obs_space, action_spaces),
        [last_obs],
        obs_space,
        action_spaces,
        None if probs is None else {name: [p] for name, p in probs.items()},
    )[0]
