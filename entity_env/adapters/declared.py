"""Names that a world ships for its features and choices."""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Declared:
    """Names that a world ships.

    Attributes:
        features: names of the columns of its tables; empty where it ships none.
        labels: names of its choices; empty where it ships none.
    """

    features: Sequence[str] = ()
    labels: Sequence[str] = ()

    @classmethod
    def of(cls, world: Any) -> "Declared":
        """Ask a world of Gymnasium or PettingZoo, in the ways that are in use."""
        bare = getattr(world, "unwrapped", world)
        return cls(_names(_features(bare)), _names(_labels(bare)))


def _features(world: Any) -> Any:
    """As highway-env does: what its observer shows, or the configuration asks for."""
    observer = getattr(world, "observation_type", None)
    for one in [observer, *_sequence(getattr(observer, "agents_observation_types", ()))]:
        if names := _names(getattr(one, "features", ())):
            return names
    config = getattr(world, "config", None)
    shown = config.get("observation") if isinstance(config, Mapping) else None
    return shown.get("features", ()) if isinstance(shown, Mapping) else ()


def _labels(world: Any) -> Any:
    """As highway-env, the Atari worlds and the worlds with an enumeration of actions do."""
    chooser = getattr(world, "action_type", None)
    for one in [chooser, *_sequence(getattr(chooser, "agents_action_types", ()))]:
        labels = getattr(one, "actions", None)
        if isinstance(labels, Mapping) and list(labels) == list(range(len(labels))):
            return list(labels.values())
    meanings = getattr(world, "get_action_meanings", None)
    if callable(meanings):
        return meanings()
    actions = getattr(world, "actions", None)
    if isinstance(actions, enum.EnumMeta):
        members: list[enum.Enum] = list(actions)
        if [one.value for one in members] == list(range(len(members))):
            return [one.name for one in members]
    return ()


def _sequence(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _names(value: Any) -> list[str]:
    """The value if it is a list of different names, else nothing."""
    names = _sequence(value)
    usable = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    return names if usable else []
