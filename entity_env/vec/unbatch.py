"""Conversion of the choices for a batch to the actions of each environment."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from entity_env.actions import Action
from entity_env.environment import Observation
from entity_env.errors import InvalidAction
from entity_env.ragged import Ragged, as_choices, exclusive_cumsum
from entity_env.spaces import ActionName, ActionSpace, ObsSpace, Probabilities
from entity_env.vec.batch import batch_obs
from entity_env.vec.vec_env import VecActionMask, VecObs

Indices = npt.NDArray[np.int64]


def unbatch_actions(
    choices: Mapping[ActionName, Ragged],
    batch: VecObs,
    obs: Sequence[Observation],
    obs_space: ObsSpace,
    action_space: Mapping[ActionName, ActionSpace],
    probs: Mapping[ActionName, Probabilities] | None = None,
) -> list[dict[ActionName, Action]]:
    """Return the actions of each environment, in terms of its own ids and labels.

    Args:
        choices: int64 (actors,) per frame for every action, as `VecEnv.act` takes them.
        batch: the batch that the choices were made for.
        obs: the observations that `batch` was made from.
        obs_space: their space.
        action_space: their actions.
        probs: per action and frame, the probabilities to attach.

    Returns:
        For each environment the actions that its frame offered. A global action with nothing
        legal is left out; an action without a legal choice for any actor has no actors.

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
        _check_legal(chosen.values, mask, space, name)
        given: Probabilities = [None] * len(obs) if probs is None else probs[name]
        decoded = space.decode(name, chosen, mask, obs, obs_space, given)
        for taken, action in zip(actions, decoded, strict=True):
            if action is not None:
                taken[name] = action
    return actions


def _check_legal(
    choices: Indices, mask: VecActionMask, space: ActionSpace, name: ActionName
) -> None:
    """Raise if an actor made a choice that it does not have, or that its mask forbids."""
    num_choices = space.num_choices(mask)
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


def action_index_to_actions(
    obs_space: ObsSpace,
    action_spaces: Mapping[ActionName, ActionSpace],
    actions: Mapping[ActionName, Ragged],
    last_obs: Observation,
    index: int = 0,
    probs: Mapping[ActionName, npt.NDArray[np.float32]] | None = None,
) -> dict[ActionName, Action]:
    """Return the actions in frame `index` of `actions`, which were chosen for `last_obs`."""
    return unbatch_actions(
        {name: as_choices(chosen)[index] for name, chosen in actions.items()},
        batch_obs([last_obs], obs_space, action_spaces),
        [last_obs],
        obs_space,
        action_spaces,
        None if probs is None else {name: [p] for name, p in probs.items()},
    )[0]
