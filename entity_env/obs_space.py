"""Observation spaces: entity types and features, which are known by their names."""

from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from entity_env.errors import InvalidSpace

EntityName: TypeAlias = str
ActionName: TypeAlias = str
EntityID: TypeAlias = Hashable

GLOBAL = "__global__"
"""The name under which the global features travel beside the entity types."""


def check_unique(what: str, names: Iterable[str]) -> None:
    """Raise if a name is given twice.

    Raises:
        InvalidSpace: begins with `what` and lists the names.
    """
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InvalidSpace(f"{what}: every name must be given once, got {twice} more than once")


@dataclass
class Entity:
    """An entity type: the names of its features, in the order of their columns."""

    features: list[str]

    def __post_init__(self) -> None:
        check_unique("Entity.features", self.features)


@dataclass
class ObsSpace:
    """The entity types and features of an environment.

    Attributes:
        global_features: features that belong to no entity, present in every frame.
        entities: the entity types. Their order is the order of the entities in a frame.
    """

    global_features: list[str] = field(default_factory=list)
    entities: dict[EntityName, Entity] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_unique("ObsSpace.global_features", self.global_features)
        if GLOBAL in self.entities:
            raise InvalidSpace(f"ObsSpace.entities: the name {GLOBAL!r} is taken, choose another")
