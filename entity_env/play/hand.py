"""Choices that a person makes for some of the actors of a step."""

from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from entity_env.ragged import Ragged, exclusive_cumsum
from entity_env.spaces import ActionName, ActionSpace
from entity_env.vec.vec_obs import VecObs

_NOT_YET = -1


class Hand:
    """The choices of a person in B frames, made one after the other.

    Actors are numbered over all frames, in the order of `VecObs.action_masks`.

    Args:
        obs: the frames.
        action_space: the actions.
        taken: per action (actors,) bool, True for the actors that the person decides for.

    Attributes:
        taken: as given; it may change while choices are made.
    """

    def __init__(
        self,
        obs: VecObs,
        action_space: Mapping[ActionName, ActionSpace],
        taken: Mapping[ActionName, npt.NDArray[np.bool_]],
    ) -> None:
        self.taken = taken
        self._lengths, self._counts, self._legal, self._chosen = {}, {}, {}, {}
        for name, mask in obs.action_masks.items():
            counts = np.asarray(action_space[name].num_choices(mask), dtype=np.int64)
            all_legal = np.ones(int(counts.sum()), np.bool_)
            self._lengths[name], self._counts[name] = mask.actors.lengths, counts
            self._legal[name] = all_legal if mask.mask is None else mask.mask.values.reshape(-1)
            self._chosen[name] = np.full(len(counts), _NOT_YET)

    def legal(self, action: ActionName, actor: int) -> npt.NDArray[np.bool_]:
        """Return which of its choices an actor may take, (choices,) bool."""
        start = exclusive_cumsum(self._counts[action])[actor]
        allowed: npt.NDArray[np.bool_] = self._legal[action][start:][: self._counts[action][actor]]
        return allowed

    def choose(self, action: ActionName, actor: int, choice: int) -> None:
        """Set the choice of an actor, in place of an earlier one.

        Raises:
            ValueError: the person does not decide for this actor, or it may not choose this.
        """
        where = f"{action}, actor {actor}"
        if not (0 <= actor < len(self.taken.get(action, ())) and self.taken[action][actor]):
            raise ValueError(f"{where}: expected an actor that you choose for")
        legal = np.flatnonzero(self.legal(action, actor)).tolist()
        if choice not in legal:
            raise ValueError(f"{where}: expected one of {legal}, got {choice}")
        self._chosen[action][actor] = choice

    def waiting(self) -> Iterator[tuple[ActionName, int]]:
        """Yield action and number of each actor that has no choice yet."""
        for name, taken in self.taken.items():
            for actor in np.flatnonzero(taken & (self._chosen[name] == _NOT_YET)).tolist():
                yield name, actor

    def fill(
        self, others: Mapping[ActionName, Ragged]
    ) -> tuple[dict[ActionName, Ragged], dict[ActionName, Ragged]]:
        """Return the choices of all actors as `VecEnv.act` takes them, and who made them.

        Args:
            others: per action int64 (actors,) per frame, for actors without a choice of the person.

        Returns:
            Per action int64 (actors,) per frame; and bool, True for those of the person.
        """
        actions, by_hand = {}, {}
        for name, lengths in self._lengths.items():
            own = self.taken[name] & (self._chosen[name] != _NOT_YET)
            given = others[name].values if name in others else self._chosen[name]
            actions[name] = Ragged(np.where(own, self._chosen[name], given), lengths)
            by_hand[name] = Ragged(own, lengths)
        return actions, by_hand
