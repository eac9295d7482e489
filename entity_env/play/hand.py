"""Actions that a person chooses for some actors of a step."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from entity_env.actions.chains import (
    active_actors,
    has_choice,
    inactive_choice,
    parent_rows,
    parents_first,
)
from entity_env.arrays import BoolArray
from entity_env.ragged import Ragged
from entity_env.spaces import ActionName, ActionSpace
from entity_env.vec.vec_obs import Choices, VecActionMask, VecObs


class Hand:
    """Choices of a person in a batch of B frames, made actor by actor.

    Actors are numbered over all frames, in the order of `VecObs.action_masks`. If a choice changes,
    choices of autoregressive actions that depend on it are discarded.

    Args:
        obs: batch of frames.
        action_space: action spaces.
        controlled: per action (actors,) bool, True for actors controlled by the person.
        defaults: choices of all actors, used where the person makes none.

    Attributes:
        controlled: as the argument; may change between choices.
        defaults: as the argument. Replace it if choices of the person change what it depends on.
    """

    def __init__(
        self,
        obs: VecObs,
        action_space: Mapping[ActionName, ActionSpace],
        controlled: Mapping[ActionName, BoolArray],
        defaults: Mapping[ActionName, Ragged],
    ) -> None:
        self.controlled, self.defaults = controlled, dict(defaults)
        self._masks, self._space = obs.action_masks, action_space
        self._values = {name: rows.values.copy() for name, rows in defaults.items()}
        self._is_made = {n: np.zeros(len(values), np.bool_) for n, values in self._values.items()}

    def by_hand(self, action: ActionName) -> BoolArray:
        """Return which actors have a choice of the person, (actors,) bool."""
        return self.controlled[action] & self._is_made[action]

    def choices(self) -> Choices:
        """Return the choices of all actors, for `VecEnv.act`."""
        choices: Choices = {}
        for name in parents_first(self._space):
            rows, mask, by_hand = self.defaults[name], self._masks[name], self.by_hand(name)
            values = rows.values.copy()
            values[by_hand] = self._values[name][by_hand]
            if mask.after is not None:
                active, _ = active_actors(mask, choices[mask.after.action])
                values[~active] = inactive_choice(self._space[name])
            choices[name] = Ragged(values, rows.lengths)
        return {name: choices[name] for name in self.defaults}

    def mask(self, action: ActionName, actor: int) -> VecActionMask:
        """Return the mask of one actor, given the choices of its parent actions.

        Raises:
            ValueError: the actor is inactive, given its choice of the parent action.
        """
        mask = self._masks[action]
        is_actor = np.arange(len(mask.actors.values)) == actor
        if mask.after is None:
            return mask.keep(is_actor)
        active, label = active_actors(mask, self.choices()[mask.after.action])
        if not active[actor]:
            raise ValueError(f"expected another choice of {mask.after.action} before it")
        return mask.keep(is_actor, label)

    def choose(self, action: ActionName, actor: int, choice: Any) -> None:
        """Set or replace the choice of an actor.

        Args:
            action: name of the action.
            actor: number of the actor.
            choice: plain data: an integer, or a list with a number for each component.

        Raises:
            ValueError: the person does not control the actor, or the choice is not legal.
        """
        where = f"{action}, actor {actor}"
        controlled = self.controlled.get(action, ())
        if not (0 <= actor < len(controlled) and controlled[actor]):
            raise ValueError(f"{where}: expected an actor that you control")
        try:
            row = self._space[action].choice_of(choice, self.mask(action, actor))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if not np.array_equal(row, self._values[action][actor]):
            self._discard_dependent(action, actor)
        self._values[action][actor], self._is_made[action][actor] = row, True

    def _discard_dependent(self, action: ActionName, actor: int) -> None:
        """Discard the choices that depend on the choice of an actor."""
        for name, mask in self._masks.items():
            if mask.after is not None and mask.after.action == action:
                parents = parent_rows(mask, self.defaults[action])
                for row in np.flatnonzero(parents == actor).tolist():
                    self._is_made[name][row] = False
                    self._discard_dependent(name, row)

    def waiting(self) -> Iterator[tuple[ActionName, int]]:
        """Yield the action and number of each active actor without a choice of the person."""
        choices, is_waiting = self.choices(), dict[ActionName, BoolArray]()
        for name in parents_first(self._space):
            mask = self._masks[name]
            waits, is_blocked = self.controlled[name] & ~self._is_made[name], np.zeros(1, np.bool_)
            if mask.after is not None:
                parent = choices[mask.after.action]
                is_blocked = is_waiting[mask.after.action][parent_rows(mask, parent)]
                waits = waits & ~is_blocked & active_actors(mask, parent)[0]
            is_waiting[name] = waits | is_blocked
            for actor in np.flatnonzero(waits).tolist():
                yield name, actor

    def fill(self) -> tuple[Choices, dict[ActionName, Ragged]]:
        """Return the choices of all actors, and which of them the person made.

        Returns:
            Choices for `VecEnv.act`; and per action (actors,) bool, True for choices of the person.
        """
        choices, by_hand = self.choices(), {}
        for name, rows in choices.items():
            by_hand[name] = Ragged(self.by_hand(name) & has_choice(rows.values), rows.lengths)
        return choices, by_hand
