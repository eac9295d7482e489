"""`PaddedLayout`: the slots of entities in arrays of one size, and their parts of an action."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from entity_env.arrays import Float32Array, IntArray
from entity_env.spaces import ActionName, ActionSpace, EntityName, ObsSpace


class Head(NamedTuple):
    """The action and the actor of one element of the padded action."""

    action: ActionName
    entity: EntityName | None  # the type of the actor; None for a global action
    row: int  # of the actor among those of its type


class NumberHead(NamedTuple):
    """The action, the actor and the component of one number of the padded action."""

    action: ActionName
    entity: EntityName | None  # as in `Head`
    row: int
    component: str


class PaddedLayout:
    """Slots for entities, and elements of the action for their choices.

    Args:
        obs_space: the types.
        action_space: the actions.
        max_entities: the number of slots of each type, or of every type.
        actors: per action the types that take it; all of them for actions that are left out.

    Attributes:
        max_entities: the number of slots of each type, in the order of the types.
        slots: type and row of each slot, in this order; the last one, of no type, is the slot of
            global features and actions.
        num_choices: per action, the number of labels, or of slots that may be selected.
        heads: the actor of each choice of the padded action.
        numbers: the actor and component of each number of the padded action.
        bounds: (2, numbers) float32, the smallest and largest value of each number.
        head_of: per action (slots,) int64, the choice or the first number of a slot; -1 for none.
        mask_starts: (heads + 1,) int64, the start of each head in the concatenation of the labels
            or slots that all heads choose among.

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
        # Types, and the actions that entities of these types take.
        types = list(obs_space.entities)
        local = [name for name, space in action_space.items() if not space.is_global]
        for name, given in actors.items():
            if name not in local or isinstance(given, str) or not set(given) <= set(types):
                raise ValueError(
                    f"actors: expected lists of types among {types} for actions among {local}, "
                    f"got {name!r}: {given!r}"
                )

        # A slot for each entity, and one for the frame as a whole.
        sizes = max_entities
        if not isinstance(sizes, Mapping):
            sizes = dict.fromkeys(types, sizes)
        if sizes.keys() != set(types) or not all(
            isinstance(size, int | np.integer) and not isinstance(size, bool) and size > 0
            for size in sizes.values()
        ):
            raise ValueError(
                f"max_entities: expected a positive number for each of {types}, got "
                f"{max_entities!r}"
            )
        self.max_entities = {name: int(sizes[name]) for name in types}
        self.slots: list[tuple[EntityName | None, int]] = [
            *((name, row) for name, size in self.max_entities.items() for row in range(size)),
            (None, 0),
        ]

        # A choice, or numbers, for each slot that may act.
        self.num_choices: dict[ActionName, int] = {}
        self.heads: list[Head] = []
        self.numbers: list[NumberHead] = []
        self.head_of: dict[ActionName, IntArray] = {}
        bounds: list[tuple[float, float]] = []
        for name, space in action_space.items():
            self.num_choices[name], *_ = *space.mask_columns, len(self.slots) - 1
            actor_types = [None] if space.is_global else actors.get(name, types)
            self.head_of[name] = np.full(len(self.slots), -1)
            for slot, (entity, row) in enumerate(self.slots):
                if entity not in actor_types:
                    continue
                if space.components:
                    self.head_of[name][slot] = len(self.numbers)
                    self.numbers += [NumberHead(name, entity, row, c) for c in space.components]
                    bounds += space.bounds_by_name().values()
                else:
                    self.head_of[name][slot] = len(self.heads)
                    self.heads.append(Head(name, entity, row))
        self.bounds: Float32Array = np.array(bounds, np.float32).reshape(-1, 2).T
        if not self.heads and not self.numbers:
            raise ValueError("env: expected something that can be chosen, got no action or actor")
        counts = [self.num_choices[head.action] for head in self.heads]
        if 0 in counts:
            name = self.heads[counts.index(0)].action
            raise ValueError(f"env: expected at least one choice for {name!r}, got none")
        self.mask_starts = np.cumsum([0, *counts])
