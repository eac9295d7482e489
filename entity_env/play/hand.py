"""Choices that a person makes for some of the actors of a step."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from entity_env.actions.chains import is_taken, nothing_of, parents_first, rows_before, takers
from entity_env.arrays import BoolArray
from entity_env.ragged import Ragged
from entity_env.spaces import ActionName, ActionSpace
from entity_env.vec.vec_obs import Choices, VecActionMask, VecObs


class Hand:
    """The choices of a person in B frames, made one after the other.

    Actors are numbered over all frames, in the order of `VecObs.action_masks`. If a choice changes,
    those that depend on it are to be made again.

    Args:
        obs: the frames.
        action_space: the actions.
        taken: per action (actors,) bool, True for the actors that the person decides for.
        others: the choices of all actors, which stand where the person makes none.

    Attributes:
        taken: as given; it may change while choices are made.
        others: as given. Where they depend on a choice of the person that differs, they have to be
            put in anew.
    """

    def __init__(
        self,
        obs: VecObs,
        action_space: Mapping[ActionName, ActionSpace],
        taken: Mapping[ActionName, BoolArray],
        others: Mapping[ActionName, Ragged],
    ) -> None:
        self.taken, self.others = taken, dict(others)
        self._masks, self._space = obs.action_masks, action_space
        self._own = {name: rows.values.copy() for name, rows in others.items()}
        self._is_made = {n: np.zeros(len(own), np.bool_) for n, own in self._own.items()}

    def by_hand(self, action: ActionName) -> BoolArray:
        """Return the actors whose choice is the person's, (actors,) bool."""
        return self.taken[action] & self._is_made[action]

    def choices(self) -> Choices:
        """Return the choices of all actors as `VecEnv.act` takes them."""
        found: Choices = {}
        for name in parents_first(self._space):
            rows, mask, by_hand = self.others[name], self._masks[name], self.by_hand(name)
            values = rows.values.copy()
            values[by_hand] = self._own[name][by_hand]
            if mask.after is not None:
                taken, _ = takers(mask, found[mask.after.action])
                values[~taken] = nothing_of(self._space[name])
            found[name] = Ragged(values, rows.lengths)
        return {name: found[name] for name in self.others}

    def mask(self, action: ActionName, actor: int) -> VecActionMask:
        """Return what an actor may choose now, after its earlier choices.

        Raises:
            ValueError: it does not take this action, which depends on another one.
        """
        mask = self._masks[action]
        is_actor = np.arange(len(mask.actors.values)) == actor
        if mask.after is None:
            return mask.keep(is_actor)
        taken, label = takers(mask, self.choices()[mask.after.action])
        if not taken[actor]:
            raise ValueError(f"expected another choice of {mask.after.action} before it")
        return mask.keep(is_actor, label)

    def choose(self, action: ActionName, actor: int, choice: Any) -> None:
        """Set the choice of an actor, in place of an earlier one.

        Args:
            action: the action.
            actor: its number.
            choice: plain data: an integer, or a list of numbers, one for each component.

        Raises:
            ValueError: the person does not decide for this actor, or it may not choose this.
        """
        where = f"{action}, actor {actor}"
        if not (0 <= actor < len(self.taken.get(action, ())) and self.taken[action][actor]):
            raise ValueError(f"{where}: expected an actor that you choose for")
        try:
            row = self._space[action].choice_of(choice, self.mask(action, actor))
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        if not np.array_equal(row, self._own[action][actor]):
            self._undo_after(action, actor)
        self._own[action][actor], self._is_made[action][actor] = row, True

    def _undo_after(self, action: ActionName, actor: int) -> None:
        """Forget the choices that depend on that of an actor."""
        for name, mask in self._masks.items():
            if mask.after is not None and mask.after.action == action:
                for row in np.flatnonzero(rows_before(mask, self.others[action]) == actor).tolist():
                    self._is_made[name][row] = False
                    self._undo_after(name, row)

    def waiting(self) -> Iterator[tuple[ActionName, int]]:
        """Yield action and number of each actor that can choose now and has not chosen yet."""
        choices, before = self.choices(), dict[ActionName, BoolArray]()
        for name in parents_first(self._space):
            mask = self._masks[name]
            waits, is_blocked = self.taken[name] & ~self._is_made[name], np.zeros(1, np.bool_)
            if mask.after is not None:
                parent = choices[mask.after.action]
                is_blocked = before[mask.after.action][rows_before(mask, parent)]
                waits = waits & ~is_blocked & takers(mask, parent)[0]
            before[name] = waits | is_blocked
            for actor in np.flatnonzero(waits).tolist():
                yield name, actor

    def fill(self) -> tuple[Choices, dict[ActionName, Ragged]]:
        """Return the choices of all actors as `VecEnv.act` takes them, and who made them.

        Returns:
            Per action choices; and bool (actors,) per frame, True for those of the person.
        """
        choices, by_hand = self.choices(), {}
        for name, rows in choices.items():
            by_hand[name] = Ragged(self.by_hand(name) & is_taken(rows.values), rows.lengths)
        return choices, by_hand
