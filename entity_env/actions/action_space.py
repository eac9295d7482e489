"""`ActionSpace`: the base class of the kinds of actions."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import repeat
from typing import Any, ClassVar, Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.actions import Action, ActionMask, ActionName, EntityID
from entity_env.arrays import BoolArray, Float32Array, IntArray
from entity_env.errors import LONG, InvalidAction, short_repr, unexpected
from entity_env.observation import OMIT_EMPTY, Observation, ObsSpace
from entity_env.ragged import Ragged, as_choices, exclusive_cumsum
from entity_env.vec.frames import Frames
from entity_env.vec.row_checks import check_rows, expect
from entity_env.vec.vec_obs import VecActionMask

IDs: TypeAlias = list[EntityID]
Probabilities: TypeAlias = Sequence[Float32Array | None]
"""The probabilities of all choices of the actors of each frame; None if they are not known."""


class HasLengths(Protocol):
    """Rows of B frames."""

    @property
    def lengths(self) -> IntArray:
        """(B,): number of rows of each frame."""


class Actors(Protocol):
    """Actors of an action in B frames: a `VecActionMask`, or the network's `ActionBatch`."""

    @property
    def actors(self) -> HasLengths:
        """The actors of each frame."""

    @property
    def actees(self) -> HasLengths | None:
        """The entities of each frame that may be selected; None if nothing is."""

    @property
    def bounds(self) -> Any:
        """The bounds of numbers, (actors, 2, components) per frame; None if there are none."""


@dataclass
class ActionSpace(ABC):
    """Base class of the kinds of actions.

    A new kind is a class in `ACTION_SPACES`, and a head for it in `rogue_net.actions.heads.HEADS`.
    It is a dataclass whose fields are lists of names or plain numbers and text.

    Attributes:
        after: the action that each actor takes before this one, which depends on it; None for an
            action of its own.
        when: the labels of that action with which this one is taken; empty for all of them.
    """

    after: ActionName | None = field(
        default=None, kw_only=True, repr=False, metadata={OMIT_EMPTY: True}
    )
    when: list[str] = field(
        default_factory=list, kw_only=True, repr=False, metadata={OMIT_EMPTY: True}
    )

    kind: ClassVar[str]
    """The kind in messages."""
    mask_type: ClassVar[type[ActionMask]]
    action_type: ClassVar[type[Action]] = Action
    batch_mask_type: ClassVar[type[VecActionMask]]
    is_global: ClassVar[bool] = False
    """True if no entity takes the action: its actor is the global entity of the frame."""
    choice_dtype: ClassVar[type[np.generic]] = np.int64
    """The dtype of choices, as `VecEnv.act` takes them."""

    def __post_init__(self) -> None:
        self.when = [] if self.when is None else [str.__str__(label) for label in self.when]

    def plain(self) -> dict[str, Any]:
        """Return the fields, without those of dependent actions if it depends on none."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        empty = {f.name for f in fields(self) if OMIT_EMPTY in f.metadata and not values[f.name]}
        return {name: value for name, value in values.items() if name not in empty}

    @property
    def labels_of_mask(self) -> int:
        """The number of labels before this action that its batched masks tell apart."""
        return max(1, len(self.when))

    @property
    def labels(self) -> list[str]:
        """The names of the choices; empty if they have none."""
        return []

    @property
    def components(self) -> list[str]:
        """The names of the numbers that an actor chooses; empty if it chooses among a list."""
        return []

    @property
    def names(self) -> list[str]:
        """The labels or components, which are the identity of choices in networks and saves."""
        return self.labels or self.components

    def bounds_by_name(self) -> dict[str, tuple[float, float]]:
        """Return the smallest and largest number of each component; empty without components."""
        return {}

    @property
    def choice_columns(self) -> tuple[int, ...]:
        """The shape of an actor's choice: `()`, or `(components,)`."""
        return ()

    @property
    @abstractmethod
    def mask_columns(self) -> tuple[int, ...]:
        """The shape of a row of batched masks: `(choices,)`, or `()` with one row per pair."""

    @abstractmethod
    def num_choices(self, action: Actors) -> IntArray:
        """Return the number of choices of each actor, also illegal ones, (actors,) int64."""

    def num_parameters(self, action: Actors) -> IntArray:
        """Return the number of parameters of each actor's distribution, (actors,) int64.

        Recordings keep that many logits; by default one per choice.
        """
        return self.num_choices(action)

    @abstractmethod
    def batch_mask(self, frames: Frames, name: ActionName) -> VecActionMask:
        """Batch the masks of B frames, without actors that cannot do anything.

        Args:
            frames: B frames.
            name: of the action.

        Raises:
            InvalidObservation: a mask contradicts the space, or names what its frame does not show.
        """

    @abstractmethod
    def decode(
        self,
        name: ActionName,
        choices: Ragged,
        mask: VecActionMask,
        obs: Sequence[Observation],
        obs_space: ObsSpace,
        probs: Probabilities,
    ) -> Iterator[Action | None]:
        """Yield the action of each environment, in terms of its own ids and labels.

        Args:
            name: of the action.
            choices: int64 (actors,) per frame.
            mask: that the choices were made for.
            obs: the B observations that it was made from. Where episodes were resumed, their masks
                only name entities, and are missing for kinds without `entity_fields`.
            obs_space: their space.
            probs: to attach to the actions.

        Yields:
            None for a frame that does not offer the action.
        """

    def encode(
        self,
        name: ActionName,
        actions: Sequence[Action | None],
        mask: VecActionMask,
        obs: Sequence[Observation],
        obs_space: ObsSpace,
    ) -> Ragged:
        """Return the choices of the action of each environment: the inverse of `decode`.

        Ids and labels count, so that an action may list its actors and labels in any order.

        Args:
            name: of the action.
            actions: B actions, None for frames without actors.
            mask: that the actions were made for.
            obs: the B observations that it was made from.
            obs_space: their space.

        Returns:
            int64 (actors,) per frame, all legal.

        Raises:
            InvalidAction: an action, that of frame `env_index`, is not one legal choice of each
                actor.
        """
        named = self._actors_and_choices(name, mask, obs, obs_space)
        frames = zip(actions, named, self._allowed(mask), strict=True)
        chosen: list[int] = []
        for i, (action, (actors, choices), legal) in enumerate(frames):
            try:
                given = self._chosen_by(action, actors)
                for actor, row in zip(actors, legal, strict=True):
                    index = {choices[k]: k for k in np.flatnonzero(row).tolist()}
                    if given[actor] not in index:
                        who = "" if self.is_global else f", actor {actor!r}"
                        expected, got = short_repr([*index], LONG), short_repr(given[actor])
                        raise InvalidAction(f"{who}: expected one of {expected}, got {got}")
                    chosen.append(index[given[actor]])
            except InvalidAction as error:
                located = InvalidAction(f"actions[{name!r}]{error}")
                located.env_index = i
                raise located from None
        return Ragged(np.array(chosen, dtype=np.int64), mask.actors.lengths)

    def check_mask(self, mask: VecActionMask, what: str, exact: bool) -> None:
        """Raise if the legal choices of a batched mask do not fit its actors.

        Args:
            mask: of B frames, whose actors fit.
            what: the field, for messages.
            exact: arrays have the dtypes of new frames, and every actor has a choice.

        Raises:
            InvalidObservation: with the field and what was expected.
        """
        lengths = mask.mask_lengths()
        if exact and mask.after is not None:
            rows, at = mask.after.rows, f"{what}.after.rows"
            check_rows(rows, at, np.int64, (), len(lengths), exact)
            same = np.array_equal(rows.lengths, mask.actors.lengths)
            expect(same, at, f"{mask.actors.lengths.tolist()} rows", rows.lengths)
        if mask.mask is not None:
            at = f"{what}.mask"
            check_rows(mask.mask, at, np.bool_, self.mask_columns, len(lengths), exact)
            same = np.array_equal(mask.mask.lengths, lengths)
            expect(same, at, f"{lengths.tolist()} rows", mask.mask.lengths)
        if exact:
            num_choices = self.num_choices(mask)
            expect((num_choices > 0).all(), what, "something to choose", num_choices)
            legal = mask.legal_by_label().any(axis=1)
            expect(legal.all(), what, "a choice each", legal)

    def as_choices(self, value: Any) -> Ragged:
        """Return choices that `VecEnv.act` takes, a `Ragged` or a buffer of entity-gym."""
        return as_choices(value)

    def illegal_choice(
        self, choices: npt.NDArray[Any], mask: VecActionMask
    ) -> tuple[int, str] | None:
        """Return the first actor whose choice is forbidden or does not exist, and this choice.

        Args:
            choices: (actors,) int64, or (actors, components) float32.
            mask: of the same actors.
        """
        num_choices = self.num_choices(mask)
        legal: BoolArray = (choices >= 0) & (choices < num_choices)
        if mask.mask is not None and legal.all():
            legal = mask.mask.values.reshape(-1)[exclusive_cumsum(num_choices) + choices]
        if legal.all():
            return None
        row = int(np.flatnonzero(~legal)[0])
        return row, f"choice {choices[row]}"

    # -- Choices of people, and what they are shown ------------------------------------------------

    def typed(self, words: Sequence[str]) -> Any:
        """Return the choice that a person typed: its number, counted from 1.

        Args:
            words: one, or one for each component.

        Raises:
            ValueError: they are no choice; the message begins with "expected".
        """
        if len(words) != 1 or not words[0].isdecimal():
            raise ValueError(f"expected the number of a choice, got {short_repr(' '.join(words))}")
        return int(words[0]) - 1

    def choice_of(self, value: Any, mask: VecActionMask) -> Any:
        """Return the choice of one actor as batches have it.

        Args:
            value: plain data: an integer, or a list of numbers, one for each component.
            mask: of this actor alone, which depends on nothing.

        Raises:
            ValueError: it is not legal; the message begins with what is expected.
        """
        num_choices = int(self.num_choices(mask)[0])
        allowed = np.ones(num_choices) if mask.mask is None else mask.mask.values.reshape(-1)
        legal = np.flatnonzero(allowed).tolist()
        if type(value) is not int or value not in legal:
            raise ValueError(f"expected one of {legal}, got {short_repr(value)}")
        return value

    def text_of(self, choice: Any, names: Sequence[str]) -> str:
        """Return a choice as people read it.

        Args:
            choice: of one actor, as batches have it.
            names: of all choices; not used for numbers.
        """
        name: str = names[choice]
        return name

    def shown(
        self, parameters: npt.NDArray[Any], action: Actors, chosen: npt.NDArray[Any]
    ) -> Float32Array | None:
        """Return what people see of the distributions of actors: the probabilities of choices.

        Args:
            parameters: log-probabilities, or logits, of all choices, as recordings have them;
                -inf where not allowed. Log-probabilities are only exponentiated.
            action: the actors.
            chosen: the choice of each.

        Returns:
            float32, as many as parameters; NaN for actors who do not take a dependent action. None
            if the parameters are not those of a list of choices.
        """
        counts = np.asarray(self.num_choices(action))
        flat, starts = parameters.astype(np.float32).reshape(-1), exclusive_cumsum(counts)
        if len(flat) != counts.sum():
            return None
        is_empty = np.repeat(chosen < 0, counts)
        flat = np.where(is_empty, -np.log(np.repeat(counts, counts)), flat).astype(np.float32)
        probs = np.exp(flat)
        if len(counts) and not np.allclose(np.add.reduceat(probs, starts), 1, atol=1e-3):
            probs = np.exp(flat - np.repeat(np.maximum.reduceat(flat, starts), counts))
            probs /= np.repeat(np.add.reduceat(probs, starts), counts)
        probs[is_empty] = np.nan
        shown: Float32Array = probs.reshape(parameters.shape)
        return shown

    def certain(self, chosen: Ragged, mask: VecActionMask) -> Probabilities:
        """Return probabilities of 1 for choices, of all actors of each frame; None for numbers."""
        of_frames = zip(
            chosen.of_frames(), np.split(self.num_choices(mask), chosen.starts[1:]), strict=True
        )
        return [np.eye(max(counts, default=0), dtype=np.float32)[of] for of, counts in of_frames]

    # ----------------------------------------------------------------------------------------------

    def first_choices(self, mask: VecActionMask) -> Ragged:
        """Return the first legal choice of each actor of a valid mask."""
        chosen = np.zeros(len(mask.actors.values), dtype=np.int64)
        if mask.mask is not None and len(chosen):
            firsts = exclusive_cumsum(self.num_choices(mask))
            allowed = np.flatnonzero(mask.mask.values.reshape(-1))
            chosen = allowed[np.searchsorted(allowed, firsts)] - firsts
        return Ragged(chosen, mask.actors.lengths)

    def random_choices(self, mask: VecActionMask, rng: np.random.Generator) -> Ragged:
        """Return uniformly random legal choices."""
        num_choices = self.num_choices(mask)
        everything = np.ones(int(num_choices.sum()), dtype=np.bool_)
        legal = everything if mask.mask is None else mask.mask.values.reshape(-1)
        of_actors = zip(exclusive_cumsum(num_choices), num_choices, strict=True)
        chosen = [rng.choice(np.flatnonzero(legal[start : start + n])) for start, n in of_actors]
        return Ragged(np.array(chosen, dtype=np.int64), mask.actors.lengths)

    def unbatch_mask(
        self, mask: VecActionMask, ids: Sequence[Sequence[EntityID]]
    ) -> list[ActionMask | None]:
        """Return the mask of each frame: its actors by id, and all that is allowed.

        Args:
            mask: of B frames.
            ids: of the entities of each frame, in their order, and of the global actor.

        Returns:
            None for frames in which nobody acts.
        """
        nobody = Ragged.empty(mask.actors.values, len(ids))
        actees = (nobody if mask.actees is None else mask.actees).of_frames()
        frames = zip(ids, mask.actors.of_frames(), actees, self._allowed(mask), strict=True)
        return [
            self._mask([of[k] for k in actors], [of[k] for k in selectable], flags)
            if len(actors)
            else None
            for of, actors, selectable, flags in frames
        ]

    def _mask(self, actors: IDs, actees: IDs, allowed: BoolArray) -> ActionMask:
        """Return the mask of a frame, of (actors, choices) flags."""
        return self.mask_type()

    def _actors_and_choices(
        self, name: ActionName, mask: VecActionMask, obs: Sequence[Observation], obs_space: ObsSpace
    ) -> Iterable[tuple[Sequence[EntityID], Sequence[EntityID]]]:
        """Yield the actors of each frame, by default their positions, and what they choose among.

        Actions of a kind that does not name its actors list them in this order.
        """
        return zip(map(np.ndarray.tolist, mask.actors.of_frames()), repeat(self.labels))

    def _allowed(self, mask: VecActionMask) -> Iterator[BoolArray]:
        """Yield the flags of each frame, (actors, choices) or (actors, labels, choices)."""
        flags = mask.full_mask(self.mask_columns).of_frames()
        for actors, of_frame in zip(mask.actors.lengths.tolist(), flags, strict=True):
            choices = of_frame.size // max(1, actors * mask.labels)
            shape = (actors, choices) if mask.labels == 1 else (actors, mask.labels, choices)
            yield of_frame.reshape(shape)

    def _chosen_by(
        self, action: Action | None, actors: Sequence[EntityID]
    ) -> Mapping[EntityID, EntityID]:
        """Return the label or id that each actor of an action chose.

        Raises:
            InvalidAction: it is no such action, or not of exactly these actors.
        """
        expected = f"a {self.action_type.__name__}"
        if not self.is_global:
            expected += f" of the actors {short_repr([*actors], LONG)}"
        if not actors:
            expected = "no action, as nobody can act"
            if action is None:
                return {}
        if not isinstance(action, self.action_type):
            got = "none" if action is None else type(action).__name__
            raise InvalidAction(f": expected {expected}, got {got}")
        acting = getattr(action, "actors", actors)
        try:
            chosen = dict(zip(acting, action.chosen, strict=True))
            if len(chosen) == len(acting) and chosen.keys() == set(actors):
                return chosen
            got = f"that of {short_repr([*acting], LONG)}"
        except (TypeError, ValueError, IndexError) as error:
            got = f"{short_repr(action)} ({error})"
        raise InvalidAction(f": expected {expected}, got {got}")

    def renamed(self, labels: Mapping[str, str]) -> Self:
        """Return the space with other names for its labels, which are the keys.

        Raises:
            InvalidSpace: two labels would have one name.
        """
        return self

    def random_mask(self, actors: IDs, actees: IDs, rng: np.random.Generator) -> ActionMask:
        """Return a random mask, for checks of networks.

        Args:
            actors: the ids of some entities of a frame.
            actees: likewise.
            rng: the source of randomness.
        """
        return self.mask_type()

    def _mask_shape(self, actors: IDs, choices: int) -> tuple[int, ...]:
        """Return the shape of a frame's mask: (actors, choices), or (actors, labels, choices)."""
        labels = self.labels_of_mask
        return (len(actors), choices) if labels == 1 else (len(actors), labels, choices)

    def _masks_of(self, frames: Frames, name: ActionName, absent: ActionMask | None) -> list[Any]:
        """Return the mask of each frame, `absent` where the action is not offered."""
        masks = [o.actions.get(name) for o in frames.obs]
        if set(map(type, masks)) == {self.mask_type}:
            return masks
        for i, mask in enumerate(masks):
            if mask is not None and not isinstance(mask, self.mask_type):
                expected, got = f"a {self.mask_type.__name__}", type(mask).__name__
                raise unexpected(i, f"actions[{name!r}]", expected, got)
        return [absent if mask is None else mask for mask in masks]
