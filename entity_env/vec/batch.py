"""Batching of the observations of many environments.

Batching costs a few array operations per entity type and action and a little Python per frame,
never Python per entity. Ids are arbitrary objects: each frame's are put into one set, which shows
that they are unique, and they are looked up, in a dict, only where an action names its entities by
id.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
import numpy.typing as npt

from entity_env.environment import Observation, as_flag
from entity_env.errors import InvalidObservation
from entity_env.ragged import Ragged
from entity_env.spaces import GLOBAL, ActionName, ActionSpace, ObsSpace, has_global_entity
from entity_env.vec.features import as_numbers, batch_entities, given_names
from entity_env.vec.frames import Frames
from entity_env.vec.vec_env import Metric, VecObs

LAST = "last observation of a truncated episode"
"""Prefix of messages about that observation."""


def batch_obs(
    obs: Sequence[Observation],
    obs_space: ObsSpace,
    action_space: Mapping[ActionName, ActionSpace],
    outcomes: Sequence[Observation] | None = None,
) -> VecObs:
    """Batch the observations of B environments.

    Args:
        obs: B observations: entities, masks and visibility.
        obs_space: the types and features they show.
        action_space: the actions they may offer.
        outcomes: B observations whose reward, flags and metrics count, where an episode ended
            and `obs` already shows the next one; without it, `obs`.

    Raises:
        InvalidObservation: an observation, the one at `env_index`, contradicts the spaces.
    """
    # Features, visibility and ids of the frames that are shown.
    outcomes = obs if outcomes is None else outcomes
    features, visible = batch_entities(
        obs, obs_space, with_globals=has_global_entity(obs_space, action_space)
    )
    frames = Frames(obs, list(obs_space.entities), features, visible)
    frames.check_ids()
    # Rewards, flags and metrics of the step that was taken.
    given_names([o.actions for o in obs], action_space, "actions: expected some of")
    env_metrics = _env_metrics(outcomes)
    reward = as_numbers([o.reward for o in outcomes], range(len(obs)), "reward")
    truncated = _flags([o.truncated for o in outcomes], "truncated")
    terminated = _flags([o.terminated for o in outcomes], "terminated")
    return VecObs(
        features=features,
        visible=visible,
        action_masks={name: space.batch_mask(frames, name) for name, space in action_space.items()},
        reward=reward.astype(np.float32),
        done=terminated | truncated,
        metrics={name: Metric.of(values.values) for name, values in env_metrics.items()},
        truncated=truncated,
        final=_batch_final(outcomes, truncated, obs_space, GLOBAL in features),
        env_metrics=env_metrics,
    )


def _flags(values: Sequence[Any], name: str) -> npt.NDArray[np.bool_]:
    """Return one flag of each environment, (B,)."""
    if set(map(type, values)) != {bool}:  # an attribute that was set after the constructor
        for i, value in enumerate(values):
            try:
                as_flag(value, name)
            except InvalidObservation as error:
                error.env_index = i
                raise
    return np.array(values, dtype=np.bool_)


def _batch_final(
    outcomes: Sequence[Observation],
    truncated: npt.NDArray[np.bool_],
    obs_space: ObsSpace,
    with_globals: bool,
) -> VecObs | None:
    cut_off = np.flatnonzero(truncated)
    if len(cut_off) == 0:
        return None
    try:
        features, visible = batch_entities([outcomes[i] for i in cut_off], obs_space, with_globals)
    except InvalidObservation as error:
        error.env_index = int(cut_off[error.env_index or 0])
        error.args = (f"{LAST}: {error.args[0]}",)
        raise
    n, ended = len(cut_off), np.ones(len(cut_off), dtype=np.bool_)
    return VecObs(features, visible, {}, np.zeros(n, np.float32), ended, {}, truncated=ended)


def _env_metrics(outcomes: Sequence[Observation]) -> dict[str, Ragged]:
    env_metrics = {}
    for name in dict.fromkeys(chain.from_iterable(o.metrics for o in outcomes)):
        given = [name in o.metrics for o in outcomes]
        values = as_numbers(
            [o.metrics[name] for o in outcomes if name in o.metrics],
            np.flatnonzero(given).tolist(),
            f"metrics[{name!r}]",
        )
        env_metrics[name] = Ragged(values, np.array(given, dtype=np.int64))
    return env_metrics
