"""Action masks, which observations contain, and actions, which environments receive."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

import numpy as np

from entity_env.arrays import BoolArray, Float32Array, IntArray
from entity_env.errors import InvalidAction, InvalidObservation, did_you_mean

EntityName: TypeAlias = str
ActionName: TypeAlias = str
EntityID: TypeAlias = Hashable
BoolMatrix: TypeAlias = BoolArray | Sequence[Sequence[bool]]


def _two_ways_error(mask: object, role: str) -> InvalidObservation:
    ways = f"expected {role}_ids or {role}_types, got both; leave one out"
    return InvalidObservation(f"{type(mask).__name__}: {ways}")


class ActionMask:
    """Base class of masks: the actors of an action in a frame, and the choices of each."""

    entity_fields: ClassVar[tuple[str, ...]] = ()
    """The fields that name entities, by id or by type."""


@dataclass
class CategoricalActionMask(ActionMask):
    """The entities that take a categorical action now, and the choices of each of them.

    Attributes:
        actor_ids: the actors by id; or
        actor_types: every entity of these types acts. With neither, every entity acts.
        mask: (actors, choices) bool, True where allowed; everything is allowed without it.
    """

    entity_fields = ("actor_ids", "actor_types")
    actor_ids: Sequence[EntityID] | None = None
    actor_types: Sequence[EntityName] | None = None
    mask: BoolMatrix | None = None

    def __post_init__(self) -> None:
        if self.actor_ids is not None and self.actor_types is not None:
            raise _two_ways_error(self, "actor")


@dataclass
class GlobalCategoricalActionMask(ActionMask):
    """The choices of a global action, which can be taken now.

    Attributes:
        mask: (choices,) bool, True where allowed; everything is allowed without it.
    """

    mask: BoolArray | Sequence[bool] | None = None


@dataclass
class SelectEntityActionMask(ActionMask):
    """The entities that select another one now, and the ones that they may select.

    Attributes:
        actor_ids: the actors by id; or
        actor_types: every entity of these types acts. With neither, every entity acts.
        actee_types: every entity of these types may be selected; or
        actee_ids: the actees by id. With neither, every entity may be selected. Entities that are
            hidden from the policy are left out, and are an error if they are named by id.
        mask: (actors, actees) bool, True where that actor may select that actee; it has columns of
            hidden actees, too.
    """

    entity_fields = ("actor_ids", "actor_types", "actee_ids", "actee_types")
    actor_ids: Sequence[EntityID] | None = None
    actor_types: Sequence[EntityName] | None = None
    actee_types: Sequence[EntityName] | None = None
    actee_ids: Sequence[EntityID] | None = None
    mask: BoolMatrix | None = None

    def __post_init__(self) -> None:
        if self.actor_ids is not None and self.actor_types is not None:
            raise _two_ways_error(self, "actor")
        if self.actee_ids is not None and self.actee_types is not None:
            raise _two_ways_error(self, "actee")


Numbers: TypeAlias = Float32Array | Sequence[float]
NumberRows: TypeAlias = Float32Array | Sequence[Sequence[float]]


@dataclass
class ContinuousActionMask(ActionMask):
    """The entities that choose numbers now, and the bounds of each of them.

    Attributes:
        actor_ids: the actors by id; or
        actor_types: every entity of these types acts. With neither, every entity acts.
        low: (actors, components) float32, the smallest numbers; those of the space without it.
        high: (actors, components) float32, the largest numbers. A component whose bounds are equal
            has that value.
    """

    entity_fields = ("actor_ids", "actor_types")
    actor_ids: Sequence[EntityID] | None = None
    actor_types: Sequence[EntityName] | None = None
    low: NumberRows | None = None
    high: NumberRows | None = None

    def __post_init__(self) -> None:
        if self.actor_ids is not None and self.actor_types is not None:
            raise _two_ways_error(self, "actor")


@dataclass
class GlobalContinuousActionMask(ActionMask):
    """The bounds of the numbers of a global action, which can be taken now.

    Attributes:
        low: (components,) float32, the smallest numbers; those of the space without it.
        high: (components,) float32, the largest numbers.
    """

    low: Numbers | None = None
    high: Numbers | None = None


class Action:
    """Base class of actions: the choices of all actors of an action in a frame.

    Attributes:
        probs: float32, the probabilities of all choices; None if they are not known.
    """

    probs: Float32Array | None

    @property
    def chosen(self) -> Sequence[EntityID]:
        """The label, or the id of the entity, that each actor chose."""
        raise NotImplementedError


@dataclass
class CategoricalAction(Action):
    """The choice of each actor of a categorical action.

    Attributes:
        actors: ids of the actors, in the order the mask named them. An entity of a type without
            ids is referred to by `(type, row)`. Actors with nothing legal are left out.
        indices: (actors,) int64, the choices.
        index_to_label: the labels of the action space.
        probs: (actors, choices) float32, the policy's probabilities, if they were requested.
    """

    actors: Sequence[EntityID]
    indices: IntArray
    index_to_label: list[str]
    probs: Float32Array | None = None

    @property
    def labels(self) -> list[str]:
        """The labels of the choices, one per actor."""
        return list(map(self.index_to_label.__getitem__, np.asarray(self.indices).tolist()))

    @property
    def chosen(self) -> list[str]:
        """The labels of the choices."""
        return self.labels


@dataclass
class SelectEntityAction(Action):
    """The entity that each actor of a select-entity action selected.

    Attributes:
        actors: ids of the actors, as in `CategoricalAction`.
        actees: ids of the selected entities, one per actor.
        probs: (actors, actees that may be selected) float32, if they were requested.
    """

    actors: Sequence[EntityID]
    actees: Sequence[EntityID]
    probs: Float32Array | None = None

    @property
    def chosen(self) -> Sequence[EntityID]:
        """The ids of the selected entities."""
        return self.actees


@dataclass
class GlobalCategoricalAction(Action):
    """The choice of the whole frame.

    Attributes:
        index: the choice.
        label: its label.
        probs: (choices,) float32, if they were requested.
    """

    index: int
    label: str
    probs: Float32Array | None = None

    @property
    def chosen(self) -> list[str]:
        """The label of the choice."""
        return [self.label]


@dataclass
class ContinuousAction(Action):
    """The numbers that each actor of an action chose.

    Attributes:
        actors: ids of the actors, as in `CategoricalAction`.
        values: (actors, components) float32, within the bounds of each actor.
        names: of the components.
    """

    actors: Sequence[EntityID]
    values: Float32Array
    names: Sequence[str]
    probs = None

    @property
    def chosen(self) -> Sequence[EntityID]:
        """The numbers of each actor, as tuples."""
        return list(map(tuple, np.asarray(self.values).tolist()))

    def of(self, name: str) -> Float32Array:
        """Return the numbers of one component, (actors,) float32.

        Raises:
            InvalidAction: there is no component of this name.
        """
        return np.asarray(self.values)[:, component(self.names, name)]


@dataclass
class GlobalContinuousAction(Action):
    """The numbers that the frame as a whole chose.

    Attributes:
        values: (components,) float32, within the bounds of the frame.
        names: of the components.
    """

    values: Float32Array
    names: Sequence[str]
    probs = None

    @property
    def chosen(self) -> Sequence[EntityID]:
        """The numbers, as one tuple."""
        return [tuple(np.asarray(self.values).tolist())]

    def of(self, name: str) -> float:
        """Return the number of one component.

        Raises:
            InvalidAction: there is no component of this name.
        """
        return float(np.asarray(self.values)[component(self.names, name)])


def component(names: Sequence[str], name: str) -> int:
    """Return the column of a component.

    Raises:
        InvalidAction: there is no component of this name.
    """
    if name not in names:
        hint = did_you_mean(name, names)
        raise InvalidAction(f"of: expected a component among {[*names]}, got {name!r}{hint}")
    return [*names].index(name)
