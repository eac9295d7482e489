"""What may be done now (masks, from the environment) and what was chosen (actions, to it)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.errors import InvalidObservation
from entity_env.spaces import EntityID, EntityName

BoolMatrix: TypeAlias = npt.NDArray[np.bool_] | Sequence[Sequence[bool]]


def _both(mask: object, ids: str, types: str) -> InvalidObservation:
    return InvalidObservation(
        f"{type(mask).__name__}: expected {ids} or {types}, got both; leave one out"
    )


@dataclass
class CategoricalActionMask:
    """Which entities take a categorical action now, and which choices each of them has.

    Attributes:
        actor_ids: the actors by id; or
        actor_types: every entity of these types acts. With neither, every entity acts.
        mask: (actors, choices) bool, True where allowed; without it everything is.
    """

    actor_ids: Sequence[EntityID] | None = None
    actor_types: Sequence[EntityName] | None = None
    mask: BoolMatrix | None = None

    def __post_init__(self) -> None:
        if self.actor_ids is not None and self.actor_types is not None:
            raise _both(self, "actor_ids", "actor_types")


@dataclass
class GlobalCategoricalActionMask:
    """A global action can be taken now.

    Attributes:
        mask: (choices,) bool, True where allowed; without it everything is.
    """

    mask: npt.NDArray[np.bool_] | Sequence[bool] | None = None


@dataclass
class SelectEntityActionMask:
    """Which entities select another one now, and which ones they may select.

    Attributes:
        actor_ids: the actors by id; or
        actor_types: every entity of these types acts. With neither, every entity acts.
        actee_types: every entity of these types may be selected; or
        actee_ids: the actees by id. With neither, every entity may be selected.
        mask: (actors, actees) bool, True where that actor may select that actee.
    """

    actor_ids: Sequence[EntityID] | None = None
    actor_types: Sequence[EntityName] | None = None
    actee_types: Sequence[EntityName] | None = None
    actee_ids: Sequence[EntityID] | None = None
    mask: BoolMatrix | None = None

    def __post_init__(self) -> None:
        if self.actor_ids is not None and self.actor_types is not None:
            raise _both(self, "actor_ids", "actor_types")
        if self.actee_ids is not None and self.actee_types is not None:
            raise _both(self, "actee_ids", "actee_types")


ActionMask: TypeAlias = CategoricalActionMask | SelectEntityActionMask | GlobalCategoricalActionMask


@dataclass
class CategoricalAction:
    """What each actor of a categorical action chose.

    Attributes:
        actors: ids of the actors, in the order the mask named them. An entity of a type without
            ids is referred to by `(type, row)`. Actors with nothing legal are left out.
        indices: (actors,) int64, the choices.
        index_to_label: the labels of the action space.
        probs: (actors, choices) float32, the policy's probabilities, when it was asked for them.
    """

    actors: Sequence[EntityID]
    indices: npt.NDArray[np.int64]
    index_to_label: list[str]
    probs: npt.NDArray[np.float32] | None = None

    @property
    def labels(self) -> list[str]:
        """The labels of the choices, one per actor."""
        return list(map(self.index_to_label.__getitem__, np.asarray(self.indices).tolist()))


@dataclass
class SelectEntityAction:
    """What each actor of a select-entity action selected.

    Attributes:
        actors: ids of the actors, as in `CategoricalAction`.
        actees: ids of the selected entities, one per actor.
        probs: (actors, actees that may be selected) float32, when the policy was asked for them.
    """

    actors: Sequence[EntityID]
    actees: Sequence[EntityID]
    probs: npt.NDArray[np.float32] | None = None


@dataclass
class GlobalCategoricalAction:
    """The choice of the whole frame.

    Attributes:
        index: the choice.
        label: its label.
        probs: (choices,) float32, when the policy was asked for them.
    """

    index: int
    label: str
    probs: npt.NDArray[np.float32] | None = None


Action: TypeAlias = CategoricalAction | SelectEntityAction | GlobalCategoricalAction
