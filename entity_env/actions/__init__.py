"""Action masks, which are part of observations, and actions, which environments receive."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import numpy as np

from entity_env.arrays import BoolArray, Float32Array, IntArray
from entity_env.errors import InvalidAction, InvalidObservation, did_you_mean

EntityName: TypeAlias = str
ActionName: TypeAlias = str
EntityID: TypeAlias = Hashable
BoolMatrix: TypeAlias = BoolArray | Sequence[Sequence[bool]]


def _conflict_error(mask: object, role: str) -> InvalidObservation:
    ways = f"expected {role}_ids or {role}_types, got both; remove one"
    return InvalidObservation(f"{type(mask).__name__}: {ways}")


class ActionMask:
    """Base class of action masks: the actors of an action in a frame, and their legal choices."""

    entity_fields: ClassVar[tuple[str, ...]] = ()
    """Names of the fields with ids or types of entities."""

    if TYPE_CHECKING:
        # Attributes of some kinds of masks: a bot knows the kinds of its actions.

        @property
        def actor_ids(self) -> Any:
            """Ids of the actors; not of global actions."""

        @property
        def actee_ids(self) -> Any:
            """Ids of the entities that can be selected."""

        @property
        def mask(self) -> Any:
            """bool, True where allowed; None to allow all."""


@dataclass
class CategoricalActionMask(ActionMask):
    """Mask of a categorical action: the actors, and the legal choices of each.

    Attributes:
        actor_ids: ids of the actors; or
        actor_types: all entities of these types act. With neither, all entities act.
        mask: (actors, choices) bool, True where allowed; None to allow all.
    """

    entity_fields = ("actor_ids", "actor_types")
    actor_ids: Sequence[EntityID] | None = None
    actor_types: Sequence[EntityName] | None = None
    mask: BoolMatrix | None = None

    def __post_init__(self) -> None:
        if self.actor_ids is not None and self.actor_types is not None:
            raise _conflict_error(self, "actor")


@dataclass
class GlobalCategoricalActionMask(ActionMask):
    """Mask of a global categorical action.

    Attributes:
        mask: (choices,) bool, True where allowed; None to allow all.
    """

    mask: BoolArray | Sequence[bool] | None = None


@dataclass
class SelectEntityActionMask(ActionMask):
    """Mask of an action that selects entities: the actors, and the actees, which can be selected.

    Attributes:
        actor_ids: ids of the actors; or
        actor_types: all entities of these types act. With neither, all entities act.
        actee_types: all entities of these types can be selected; or
        actee_ids: ids of the actees. With neither, all entities can be selected. Entities that are
            hidden from the policy are dropped; it is an error to name them by id.
        mask: (actors, actees) bool, True where allowed, with columns for hidden actees; None to
            allow all.
    """

    entity_fields = ("actor_ids", "actor_types", "actee_ids", "actee_types")
    actor_ids: Sequence[EntityID] | None = None
    actor_types: Sequence[EntityName] | None = None
    actee_types: Sequence[EntityName] | None = None
    actee_ids: Sequence[EntityID] | None = None
    mask: BoolMatrix | None = None

    def __post_init__(self) -> None:
        if self.actor_ids is not None and self.actor_types is not None:
            raise _conflict_error(self, "actor")
        if self.actee_ids is not None and self.actee_types is not None:
            raise _conflict_error(self, "actee")


Numbers: TypeAlias = Float32Array | Sequence[float]
NumberRows: TypeAlias = Float32Array | Sequence[Sequence[float]]


@dataclass
class ContinuousActionMask(ActionMask):
    """Mask of a continuous action: the actors, and the bounds of each.

    Attributes:
        actor_ids: ids of the actors; or
        actor_types: all entities of these types act. With neither, all entities act.
        low: (actors, components) float32, lower bounds; None for the bounds of the space.
        high: (actors, components) float32, upper bounds; None for the bounds of the space. If both
            bounds are equal, the component has that value.
    """

    entity_fields = ("actor_ids", "actor_types")
    actor_ids: Sequence[EntityID] | None = None
    actor_types: Sequence[EntityName] | None = None
    low: NumberRows | None = None
    high: NumberRows | None = None

    def __post_init__(self) -> None:
        if self.actor_ids is not None and self.actor_types is not None:
            raise _conflict_error(self, "actor")


@dataclass
class GlobalContinuousActionMask(ActionMask):
    """Mask of a global continuous action: its bounds.

    Attributes:
        low: (components,) float32, lower bounds; None for the bounds of the space.
        high: (components,) float32, upper bounds; None for the bounds of the space.
    """

    low: Numbers | None = None
    high: Numbers | None = None


class Action:
    """Base class of actions: the choices of all actors of an action in a frame.

    Attributes:
        probs: float32, the probabilities of all choices; None if they were not requested.
    """

    probs: Float32Array | None

    if TYPE_CHECKING:
        # Attributes of one kind of action each: an environment knows the kinds of its actions.

        @property
        def actors(self) -> Sequence[Any]:
            """Ids of the actors; not of global actions."""

        @property
        def actees(self) -> Sequence[Any]:
            """Ids of the selected entities, one per actor."""

        @property
        def indices(self) -> IntArray:
            """(actors,) int64, the choices of a categorical action."""

        @property
        def labels(self) -> list[str]:
            """Labels of the choices of a categorical action, one per actor."""

        @property
        def index(self) -> int:
            """The choice of a global categorical action."""

        @property
        def label(self) -> str:
            """The label of the choice of a global categorical action."""

        @property
        def values(self) -> Float32Array:
            """float32, (actors, components), or (components,) of a global continuous action."""

        def of(self, name: str) -> Any:
            """Return one component of a continuous action: (actors,) float32, or a number."""

    @property
    def chosen(self) -> Sequence[EntityID]:
        """The label, or the id of the entity, that each actor chose."""
        raise NotImplementedError


@dataclass
class CategoricalAction(Action):
    """The choice of each actor of a categorical action.

    Attributes:
        actors: ids of the actors, in the order of the mask, `(type, row)` for a type without ids.
            Actors without a legal choice are left out.
        indices: (actors,) int64, the choices.
        index_to_label: the labels of the action space.
        probs: (actors, choices) float32, the probabilities of the policy, if requested.
    """

    actors: Sequence[Any]
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
        probs: (actors, actees) float32, if requested.
    """

    actors: Sequence[Any]
    actees: Sequence[Any]
    probs: Float32Array | None = None

    @property
    def chosen(self) -> Sequence[EntityID]:
        """The ids of the selected entities."""
        return self.actees


@dataclass
class GlobalCategoricalAction(Action):
    """The choice of a global categorical action.

    Attributes:
        index: the choice.
        label: its label.
        probs: (choices,) float32, if requested.
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
    """The values of each actor of a continuous action.

    Attributes:
        actors: ids of the actors, as in `CategoricalAction`.
        values: (actors, components) float32, within the bounds of each actor.
        names: of the components.
    """

    actors: Sequence[Any]
    values: Float32Array
    names: Sequence[str]
    probs = None

    @property
    def chosen(self) -> Sequence[EntityID]:
        """The values of each actor, as tuples."""
        return list(map(tuple, np.asarray(self.values).tolist()))

    def of(self, name: str) -> Float32Array:
        """Return the values of one component, (actors,) float32.

        Raises:
            InvalidAction: there is no component of this name.
        """
        return np.asarray(self.values)[:, component(self.names, name)]


@dataclass
class GlobalContinuousAction(Action):
    """The values of a global continuous action.

    Attributes:
        values: (components,) float32, within the bounds of the frame.
        names: of the components.
    """

    values: Float32Array
    names: Sequence[str]
    probs = None

    @property
    def chosen(self) -> Sequence[EntityID]:
        """The values, as one tuple."""
        return [tuple(np.asarray(self.values).tolist())]

    def of(self, name: str) -> float:
        """Return the value of one component.

        Raises:
            InvalidAction: there is no component of this name.
        """
        return float(np.asarray(self.values)[component(self.names, name)])


def component(names: Sequence[str], name: str) -> int:
    """Return the column index of a component.

    Raises:
        InvalidAction: there is no component of this name.
    """
    if name not in names:
        hint = did_you_mean(name, names)
        raise InvalidAction(f"of: expected a component among {[*names]}, got {name!r}{hint}")
    return [*names].index(name)
