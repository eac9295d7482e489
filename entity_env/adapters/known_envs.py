"""Facts about published environments: names of features and choices, resets that keep state."""

import enum
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

_KEEP_STATE = {"knights_archers_zombies_v11", "ForagingEnv"}
"""Environments whose `reset` keeps something of the episode before.

The clock of the zombies, and the places of the players, on which no other one begins.
"""


class EnvNames(NamedTuple):
    """Names that an environment has for the columns of its tables and for its choices, if any."""

    features: Sequence[str] = ()
    labels: Sequence[str] = ()


def names_of(env: Any) -> EnvNames:
    """Return the names in attributes that environments of Gymnasium and PettingZoo have."""
    bare = getattr(env, "unwrapped", env)
    return EnvNames(_features(bare), _labels(bare))


def keeps_state(env: Any) -> bool:
    """Return whether the `reset` of an environment is known to keep state."""
    metadata = getattr(env, "metadata", None) or {}
    bare = getattr(env, "unwrapped", env)
    return not _KEEP_STATE.isdisjoint({metadata.get("name"), type(bare).__name__})


def _features(env: Any) -> list[str]:
    # highway-env: those of the observer, or of the configuration.
    observer = getattr(env, "observation_type", None)
    for one in [observer, *_sequence(getattr(observer, "agents_observation_types", ()))]:
        if names := _names(getattr(one, "features", ())):
            return names
    config = getattr(env, "config", None)
    observation = config.get("observation") if isinstance(config, Mapping) else None
    return _names(observation.get("features")) if isinstance(observation, Mapping) else []


def _labels(env: Any) -> list[str]:
    # highway-env: a dictionary of labels by number.
    action_type = getattr(env, "action_type", None)
    for one in [action_type, *_sequence(getattr(action_type, "agents_action_types", ()))]:
        labels = getattr(one, "actions", None)
        if isinstance(labels, Mapping) and list(labels) == list(range(len(labels))):
            return _names(list(labels.values()))
    # Atari.
    meanings = getattr(env, "get_action_meanings", None)
    if callable(meanings):
        return _names(meanings())
    # Minigrid and others: an enumeration.
    actions = getattr(env, "actions", None)
    if isinstance(actions, enum.EnumMeta):
        members: list[enum.Enum] = list(actions)
        if [one.value for one in members] == list(range(len(members))):
            return [one.name for one in members]
    return []


def _sequence(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _names(value: Any) -> list[str]:
    """Return a value that is a list of different names, [] for any other."""
    names = _sequence(value)
    usable = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    return names if usable else []
