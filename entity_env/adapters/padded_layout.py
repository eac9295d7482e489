"""`PaddedLayout`: assignment of entities and actors to elements of fixed-size arrays."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from entity_env.arrays import Float32Array, IntArray
from entity_env.spaces import ActionName, ActionSpace, EntityName, ObsSpace


class PaddedChoice(NamedTuple):
    """Action and actor of one choice of the padded action."""

    action: ActionName
    entity: EntityName | None  # type of the actor; None for a global action
    row: int  # index of the actor within its type


class PaddedNumber(NamedTuple):
    """Action, actor and component of one number of the padded action."""

    action: ActionName
    entity: EntityName | None  # as in `PaddedChoice`
    row: int
    component: str


class PaddedLayout:
    """Slots of entities in padded arrays, and elements of the padded action for their actions.

    Args:
        obs_space: observation space.
        action_space: action spaces.
        max_entities: number of slots, per type or for every type.
        actors: acting types of each action; by default all types.

    Attributes:
        max_entities: number of slots of each type, in the order of the types.
        slots: type and row of each slot, in this order; the last slot has no type and is for global
            features and actions.
        num_choices: per action, the number of labels, or of slots that may be selected.
        heads: action and actor of each choice of the padded action.
        numbers: action, actor and component of each number of the padded action.
        bounds: (2, numbers) float32, lower and upper bound of each number.
        head_of: per action (slots,) int64, index of the choice or the first number of a slot; -1
            for none.
        mask_starts: (heads + 1,) int64, start of each head in the concatenated action mask.

    Raises:
        ValueError: an argument does not fit the spaces, or no action has a choice.
    """

    def __init__(
        self,
        obs_space: ObsSpace,
        action_space: Mapping[ActionName, ActionSpace],
        max_entities: Mapping[EntityName, int] | int,
        actors: Mapping[ActionName, Sequence[EntityName]],
    ) -> None:
        # Validate the acting types of each action.
        types = list(obs_space.entities)
        local = [name for name, space in action_space.items() if not space.is_global]
        for name, allowed in actors.items():
            if name not in local or isinstance(allowed, str) or not set(allowed) <= set(types):
                raise ValueError(
                    f"actors: expected lists of types among {types} for actions among {local}, "
                    f"got {name!r}: {allowed!r}"
                )

        # Create the slots of each type, and one for global features and actions.
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

        # Create a choice, or numbers, for each slot that may act.
        self.num_choices: dict[ActionName, int] = {}
        self.heads: list[PaddedChoice] = []
        self.numbers: list[PaddedNumber] = []
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
                    self.numbers += [PaddedNumber(name, entity, row, c) for c in space.components]
                    bounds += space.bounds_by_name().values()
                else:
                    self.head_of[name][slot] = len(self.heads)
                    self.heads.append(PaddedChoice(name, entity, row))
        self.bounds: Float32Array = np.array(bounds, np.float32).reshape(-1, 2).T
        if not self.heads and not self.numbers:
            raise ValueError("env: expected at least one action with actors, got none")
        counts = [self.num_choices[head.action] for head in self.heads]
        if 0 in counts:
            name = self.heads[counts.index(0)].action
            raise ValueError(f"env: expected at least one choice for {name!r}, got none")
        self.mask_starts = np.cumsum([0, *counts])
