"""Entities and choices in arrays of one size: who has which slot, and whose choice is where."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from entity_env.spaces import (
    ActionName,
    ActionSpace,
    EntityName,
    GlobalCategoricalActionSpace,
    ObsSpace,
)


class Head(NamedTuple):
    """Whose choice an element of the action is.

    Attributes:
        action: the action.
        entity: the type of the actor; None for a global action.
        row: the row of the actor among those of its type.
    """

    action: ActionName
    entity: EntityName | None
    row: int


class PaddedLayout:
    """Slots for entities, and heads for their choices.

    Args:
        obs_space: the types.
        action_space: the actions.
        max_entities: how many slots each type has, or every one.
        actors: per action the types that take it; all of them where it says nothing.

    Attributes:
        max_entities: how many slots each type has, in the order of the types.
        slots: type and row of each slot, in this order; the last one, of no type, is a slot for
            what belongs to no entity.
        num_choices: per action. Those of a select-entity action are the slots but the last.
        heads: whose choice each element of the padded action is.
        head_of: per action (slots,) int64, which head is the choice of a slot; -1 for none.
        mask_starts: (heads + 1,) int64, where the choices of each head begin when those of all
            heads are laid one after the other.

    Raises:
        ValueError: an argument does not fit the spaces, or there is nothing to choose.
    """

    def __init__(
        self,
        obs_space: ObsSpace,
        action_space: Mapping[ActionName, ActionSpace],
        max_entities: Mapping[EntityName, int] | int,
        actors: Mapping[ActionName, Sequence[EntityName]],
    ) -> None:
        self.max_entities = _sizes(max_entities, list(obs_space.entities))
        _refuse_unknown(actors, action_space, list(obs_space.entities))
        self.slots: list[tuple[EntityName | None, int]] = [
            *((name, row) for name, size in self.max_entities.items() for row in range(size)),
            (None, 0),
        ]
        self.num_choices = {
            name: space.mask_columns[0] if space.mask_columns else len(self.slots) - 1
            for name, space in action_space.items()
        }
        self.heads: list[Head] = []
        self.head_of = {
            name: self._add_heads(name, [None])
            if isinstance(space, GlobalCategoricalActionSpace)
            else self._add_heads(name, actors.get(name, list(obs_space.entities)))
            for name, space in action_space.items()
        }
        if not self.heads:
            raise ValueError("env: expected something that can be chosen, got no action or actor")
        sizes = [self.num_choices[head.action] for head in self.heads]
        if 0 in sizes:
            name = self.heads[sizes.index(0)].action
            raise ValueError(f"env: expected at least one choice for {name!r}, got none")
        self.mask_starts = np.cumsum([0, *sizes])

    def _add_heads(
        self, name: ActionName, types: Sequence[EntityName | None]
    ) -> npt.NDArray[np.int64]:
        head_of = np.full(len(self.slots), -1)
        for slot, (entity, row) in enumerate(self.slots):
            if entity in types:
                head_of[slot] = len(self.heads)
                self.heads.append(Head(name, entity, row))
        return head_of


def _sizes(given: Mapping[EntityName, int] | int, types: list[EntityName]) -> dict[EntityName, int]:
    sizes = given if isinstance(given, Mapping) else dict.fromkeys(types, given)
    counts = all(
        isinstance(size, int | np.integer) and not isinstance(size, bool) and size > 0
        for size in sizes.values()
    )
    if sizes.keys() != set(types) or not counts:
        raise ValueError(
            f"max_entities: expected a positive number for each of {types}, got {given!r}"
        )
    return {name: int(sizes[name]) for name in types}


def _refuse_unknown(
    actors: Mapping[ActionName, Sequence[EntityName]],
    action_space: Mapping[ActionName, ActionSpace],
    types: list[EntityName],
) -> None:
    local = [
        name
        for name, space in action_space.items()
        if not isinstance(space, GlobalCategoricalActionSpace)
    ]
    for name, given in actors.items():
        if name not in local or isinstance(given, str) or not set(given) <= set(types):
            raise ValueError(
                f"actors: expected lists of types among {types} for actions among {local}, "
                f"got {name!r}: {given!r}"
            )
