"""The way back: from the choices for a batch to the actions of each environment."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.actions import (
    Action,
    CategoricalAction,
    CategoricalActionMask,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    SelectEntityAction,
    SelectEntityActionMask,
)
from entity_env.batch import batch_obs
from entity_env.environment import Observation
from entity_env.errors import InvalidAction
from entity_env.ragged import Ragged, exclusive_cumsum, from_ragged_buffer
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
        chosen = from_ragged_buffer(choices[name])
        if not np.array_equal(chosen.lengths, mask.actors.lengths):
            raise InvalidAction(
                f"actions[{name!r}]: expected {mask.actors.lengths.tolist()} choices per "
                f"environment, got {chosen.lengths.tolist()}"
            )
        ends = np.cumsum(chosen.lengths).tolist()
        values, actors = chosen.values.reshape(-1), mask.actors.values
        _refuse_illegal(values, mask, space, name)
        convert = _CONVERTERS[type(space)]
        labels = getattr(space, "index_to_label", [])
        start = 0
        for i, (o, end) in enumerate(zip(obs, ends, strict=True)):
            offered = o.actions.get(name)
            if offered is not None:
                rows = slice(start, end)
                p = None if probs is None else probs[name][i]
                action = convert(o, obs_space, offered, actors[rows], values[rows], labels, p)
                if action is not None:
                    actions[i][name] = action
            start = end
    return actions


def _refuse_illegal(
    choices: Indices, mask: VecActionMask, space: ActionSpace, name: ActionName
) -> None:
    if isinstance(mask, VecSelectEntityActionMask):
        num_choices = np.repeat(mask.actees.lengths, mask.actors.lengths)
    else:
        assert not isinstance(space, SelectEntityActionSpace)
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


def _to_global(
    obs: Observation,
    obs_space: ObsSpace,
    mask: GlobalCategoricalActionMask,
    actors: Indices,
    chosen: Indices,
    labels: list[str],
    probs: npt.NDArray[np.float32] | None,
) -> Action | None:
    if len(chosen) == 0:  # nothing is legal
        return None
    index = int(chosen[0])
    return GlobalCategoricalAction(
        index, labels[index], None if probs is None else probs.reshape(-1)
    )


def _to_categorical(
    obs: Observation,
    obs_space: ObsSpace,
    mask: CategoricalActionMask,
    actors: Indices,
    chosen: Indices,
    labels: list[str],
    probs: npt.NDArray[np.float32] | None,
) -> Action | None:
    return CategoricalAction(_actor_ids(obs, obs_space, mask, actors), chosen, labels, probs)


def _to_select_entity(
    obs: Observation,
    obs_space: ObsSpace,
    mask: SelectEntityActionMask,
    actors: Indices,
    chosen: Indices,
    labels: list[str],
    probs: npt.NDArray[np.float32] | None,
) -> Action | None:
    if len(chosen) == 0:
        return SelectEntityAction([], [], probs)
    actees = _named_ids(obs, obs_space, mask.actee_ids, mask.actee_types)
    selected = list(map(actees.__getitem__, chosen.tolist()))
    return SelectEntityAction(_actor_ids(obs, obs_space, mask, actors), selected, probs)


_CONVERTERS: dict[type, Callable[..., Action | None]] = {
    CategoricalActionSpace: _to_categorical,
    GlobalCategoricalActionSpace: _to_global,
    SelectEntityActionSpace: _to_select_entity,
}


def _actor_ids(
    obs: Observation,
    obs_space: ObsSpace,
    mask: CategoricalActionMask | SelectEntityActionMask,
    actors: Indices,
) -> Sequence[EntityID]:
    named = _named_ids(obs, obs_space, mask.actor_ids, mask.actor_types)
    if len(named) == len(actors):
        return named
    all_ids = obs.index_to_id(obs_space)  # some had nothing legal and were left out
    return [all_ids[i] for i in actors]


def _named_ids(obs: Observation, obs_space: ObsSpace, ids: Any, types: Any) -> Sequence[EntityID]:
    if ids is not None:
        named: Sequence[EntityID] = ids
        return named
    if types is None:
        return obs.index_to_id(obs_space)
    if len(types) == 1:
        return obs.ids_of_type(types[0])
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
        {name: from_ragged_buffer(chosen)[index] for name, chosen in actions.items()},
        batch_obs([last_obs], obs_space, action_spaces),
        [last_obs],
        obs_space,
        action_spaces,
        None if probs is None else {name: [p] for name, p in probs.items()},
    )[0]
