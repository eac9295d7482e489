"""What can be observed and done in a world: names, never positions, carry the meaning."""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from entity_env.errors import InvalidSpace

EntityName: TypeAlias = str
ActionName: TypeAlias = str
EntityID: TypeAlias = Hashable

GLOBAL = "__global__"
"""The name under which what belongs to no entity travels beside the entity types."""


def _refuse_duplicates(what: str, names: Iterable[str]) -> None:
    twice = sorted(name for name, count in Counter(names).items() if count > 1)
    if twice:
        raise InvalidSpace(f"{what}: every name must be given once, got {twice} more than once")


@dataclass
class Entity:
    """An entity type: the names of its features, in the order of their columns."""

    features: list[str]

    def __post_init__(self) -> None:
        _refuse_duplicates("Entity.features", self.features)


@dataclass
class ObsSpace:
    """What an environment can show.

    Attributes:
        global_features: features that belong to no entity, present in every frame.
        entities: the entity types. Their order is the order of the entities in a frame.
    """

    global_features: list[str] = field(default_factory=list)
    entities: dict[EntityName, Entity] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _refuse_duplicates("ObsSpace.global_features", self.global_features)
        if GLOBAL in self.entities:
            raise InvalidSpace(f"ObsSpace.entities: the name {GLOBAL!r} is taken, choose another")


@dataclass
class CategoricalActionSpace:
    """Each actor chooses one of several labelled choices."""

    index_to_label: list[str]

    def __post_init__(self) -> None:
        _refuse_duplicates(f"{type(self).__name__}.index_to_label", self.index_to_label)

    def __len__(self) -> int:
        return len(self.index_to_label)


@dataclass
class GlobalCategoricalActionSpace:
    """The frame as a whole chooses one of several labelled choices."""

    index_to_label: list[str]

    def __post_init__(self) -> None:
        _refuse_duplicates(f"{type(self).__name__}.index_to_label", self.index_to_label)

    def __len__(self) -> int:
        return len(self.index_to_label)


@dataclass
class SelectEntityActionSpace:
    """Each actor selects one entity."""


ActionSpace: TypeAlias = (
    CategoricalActionSpace | GlobalCategoricalActionSpace | SelectEntityActionSpace
)


def has_global_entity(obs_space: ObsSpace, action_space: Mapping[ActionName, ActionSpace]) -> bool:
    """Whether frames of these spaces carry a row of global features."""
    return bool(obs_space.global_features) or any(
        isinstance(space, GlobalCategoricalActionSpace) for space in action_space.values()
    )
