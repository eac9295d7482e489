"""`ActionSpace`: the base class of action spaces."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.actions import Action, ActionMask, ActionName, EntityID
from entity_env.arrays import BoolArray, Float32Array, FloatArray, IntArray
from entity_env.errors import LONG, InvalidAction, short_repr, unexpected
from entity_env.observation import OMIT_EMPTY, Observation, ObsSpace
from entity_env.ragged import Ragged, as_choices, exclusive_cumsum
from entity_env.vec.frames import Frames
from entity_env.vec.row_checks import check_rows, expect
from entity_env.vec.vec_obs import VecActionMask

IDs: TypeAlias = list[EntityID]
Probabilities: TypeAlias = Sequence[Float32Array | None]
"""Per frame, the probabilities of all choices of its actors; None if they are unknown."""


class HasLengths(Protocol):
    """Rows of B frames."""

    @property
    def lengths(self) -> IntArray:
        """(B,) int64, number of rows of each frame."""


class Actors(Protocol):
    """Actors of an action in B frames: a `VecActionMask`, or the network's `ActionBatch`."""

    @property
    def actors(self) -> HasLengths:
        """The actors of each frame."""

    @property
    def actees(self) -> HasLengths | None:
        """The entities of each frame that can be selected; None if the action selects none."""

    @property
    def bounds(self) -> Any:
        """The bounds of continuous actions, (actors, 2, components) per frame; else None."""


@dataclass
class ActionSpace(ABC):
    """Base class of action spaces, for one kind of actions each.

    To add a kind, register a class in `ACTION_SPACES`, and a head in
    `rogue_net.actions.heads.HEADS`. The class is a dataclass; its fields are lists of names, or
    plain numbers and text.

    Attributes:
        after: the parent action, which each actor chooses before this one; None for an independent
            action.
        when: labels of the parent action after which this one is active; empty for all.
    """

    if TYPE_CHECKING:
        # Members of spaces with labels or components.

        @property
        def index_to_label(self) -> list[str]:
            """The labels of a categorical action."""

        def __len__(self) -> int:
            """Return the number of labels or components."""

    after: ActionName | None = field(
        default=None, kw_only=True, repr=False, metadata={OMIT_EMPTY: True}
    )
    when: list[str] = field(
        default_factory=list, kw_only=True, repr=False, metadata={OMIT_EMPTY: True}
    )

    kind: ClassVar[str]
    """Name of the kind of actions in messages."""
    mask_type: ClassVar[type[ActionMask]]
    action_type: ClassVar[type[Action]] = Action
    batch_mask_type: ClassVar[type[VecActionMask]]
    is_global: ClassVar[bool] = False
    """True if the actor is the global entity of the frame."""
    choice_dtype: ClassVar[type[np.generic]] = np.int64
    """The dtype of choices, as `VecEnv.act` takes them."""

    def __post_init__(self) -> None:
        self.when = [] if self.when is None else [str.__str__(label) for label in self.when]

    def plain(self) -> dict[str, Any]:
        """Return the fields as plain data, without `after` and `when` if empty."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        empty = {f.name for f in fields(self) if OMIT_EMPTY in f.metadata and not values[f.name]}
        return {name: value for name, value in values.items() if name not in empty}

    @property
    def labels_of_mask(self) -> int:
        """The number of labels of the parent action that batched masks distinguish."""
        return max(1, len(self.when))

    @property
    def labels(self) -> list[str]:
        """The labels of the choices; empty if they have none."""
        return []

    @property
    def components(self) -> list[str]:
        """The names of the components of a continuous action; empty for discrete choices."""
        return []

    @property
    def names(self) -> list[str]:
        """The labels or components, which identify choices in networks and checkpoints."""
        return self.labels or self.components

    def bounds_by_name(self) -> dict[str, tuple[float, float]]:
        """Return the lower and upper bound of each component; empty without components."""
        return {}

    def initial_value(self, component: str) -> float:
        """Return the initial mean of a component of a continuous action, between its bounds.

        Raises:
            KeyError: there is no such component.
        """
        raise KeyError(component)

    def initial_means(self) -> FloatArray:
        """Return the initial mean of each component before the sigmoid, (components,) float64."""
        return np.zeros(0)

    @property
    def choice_columns(self) -> tuple[int, ...]:
        """The shape of the choice of one actor: `()`, or `(components,)`."""
        return ()

    @property
    @abstractmethod
    def mask_columns(self) -> tuple[int, ...]:
        """The shape of a row of batched masks: `(choices,)`, or `()` with one row per pair."""

    @abstractmethod
    def num_choices(self, action: Actors) -> IntArray:
        """Return the number of choices of each actor, including illegal ones, (actors,) int64."""

    def num_parameters(self, action: Actors) -> IntArray:
        """Return the number of distribution parameters of each actor, (actors,) int64.

        By default one logit per choice. Recordings store the parameters.
        """
        return self.num_choices(action)

    @abstractmethod
    def batch_mask(self, frames: Frames, name: ActionName) -> VecActionMask:
        """Batch the masks of B frames, and drop actors without a legal choice.

        Args:
            frames: B frames.
            name: of the action.

        Raises:
            InvalidObservation: a mask violates the space, or names missing or hidden entities.
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
        """Convert choices to the action of each environment, with its ids and labels.

        Args:
            name: of the action.
            choices: int64 (actors,) per frame.
            mask: the batched mask of the choices.
            obs: the B observations of the mask. In resumed episodes their masks have only the
                `entity_fields`, and are missing for classes without any.
            obs_space: of the observations.
            probs: to attach to the actions.

        Yields:
            The action; None for a frame in which it is not available.
        """

    def encode(
        self,
        name: ActionName,
        actions: Sequence[Action | None],
        mask: VecActionMask,
        obs: Sequence[Observation],
        obs_space: ObsSpace,
    ) -> Ragged:
        """Convert the actions of environments to choices: the inverse of `decode`.

        Actors and choices are matched by id and label, and can be in any order.

        Args:
            name: of the action.
            actions: B actions, None for frames without actors.
            mask: the batched mask of the actions.
            obs: the B observations of the mask.
            obs_space: of the observations.

        Returns:
            int64 (actors,) per frame, all legal.

        Raises:
            InvalidAction: the action of frame `env_index` is not one legal choice per actor.
        """
        actors_and_choices = self._actors_and_choices(name, mask, obs, obs_space)
        frames = zip(actions, actors_and_choices, self._allowed(mask), strict=True)
        chosen: list[int] = []
        for i, (action, (actors, choices), legal) in enumerate(frames):
            try:
                labels = self._choices_by_actor(action, actors)
                for actor, row in zip(actors, legal, strict=True):
                    index = {choices[k]: k for k in np.flatnonzero(row).tolist()}
                    if labels[actor] not in index:
                        who = "" if self.is_global else f", actor {actor!r}"
                        expected, got = short_repr([*index], LONG), short_repr(labels[actor])
                        raise InvalidAction(f"{who}: expected one of {expected}, got {got}")
                    chosen.append(index[labels[actor]])
            except InvalidAction as error:
                located = InvalidAction(f"actions[{name!r}]{error}")
                located.env_index = i
                raise located from None
        return Ragged(np.array(chosen, dtype=np.int64), mask.actors.lengths)

    def check_mask(self, mask: VecActionMask, what: str, exact: bool) -> None:
        """Check that the legal choices of a batched mask match its actors.

        Args:
            mask: of B frames, with valid actors.
            what: the field, for messages.
            exact: also check dtypes, and that every actor has a legal choice.

        Raises:
            InvalidObservation: names the field and the expected value.
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
            expect((num_choices > 0).all(), what, "at least one choice per actor", num_choices)
            legal = mask.legal_by_label().any(axis=1)
            expect(legal.all(), what, "a legal choice per actor", legal)

    def as_choices(self, value: Any) -> Ragged:
        """Convert an argument of `VecEnv.act`, a `Ragged` or a buffer of entity-gym."""
        return as_choices(value)

    def illegal_choice(
        self, choices: npt.NDArray[Any], mask: VecActionMask
    ) -> tuple[int, str] | None:
        """Return the row and description of the first illegal choice, None if all are legal.

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

    # -- Choices as text, and statistics to display ------------------------------------------------

    def typed(self, words: Sequence[str]) -> Any:
        """Parse a typed choice, a number from 1.

        Args:
            words: a single word, or one per component.

        Raises:
            ValueError: the words are no choice; the message starts with "expected".
        """
        if len(words) != 1 or not words[0].isdecimal():
            raise ValueError(f"expected the number of a choice, got {short_repr(' '.join(words))}")
        return int(words[0]) - 1

    def choice_of(self, value: Any, mask: VecActionMask) -> Any:
        """Validate the choice of one actor, and convert it to that of batches.

        Args:
            value: plain data: an integer, or a list with a number per component.
            mask: of this actor only, without a parent.

        Raises:
            ValueError: the choice is not legal; the message starts with "expected".
        """
        num_choices = int(self.num_choices(mask)[0])
        allowed = np.ones(num_choices) if mask.mask is None else mask.mask.values.reshape(-1)
        legal = np.flatnonzero(allowed).tolist()
        if type(value) is not int or value not in legal:
            raise ValueError(f"expected one of {legal}, got {short_repr(value)}")
        return value

    def text_of(self, choice: Any, names: Sequence[str]) -> str:
        """Format a choice.

        Args:
            choice: of one actor, as in batches.
            names: of all choices; not used by continuous actions.
        """
        name: str = names[choice]
        return name

    def shown(
        self, parameters: npt.NDArray[Any], action: Actors, chosen: npt.NDArray[Any]
    ) -> Float32Array | None:
        """Return statistics of action distributions to display: the probabilities of choices.

        Args:
            parameters: recorded log-probabilities, or logits, of all choices; -inf where not
                allowed. Log-probabilities are only exponentiated.
            action: the actors.
            chosen: their choices.

        Returns:
            float32 of the shape of `parameters`; NaN for inactive actors. None if `parameters` has
            another size.
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
        displayed: Float32Array = probs.reshape(parameters.shape)
        return displayed

    def certain(self, chosen: Ragged, mask: VecActionMask) -> Probabilities:
        """Return one-hot probabilities of choices per frame; None for continuous actions."""
        frames = zip(
            chosen.of_frames(), np.split(self.num_choices(mask), chosen.starts[1:]), strict=True
        )
        return [np.eye(max(counts, default=0), dtype=np.float32)[of] for of, counts in frames]

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
        all_legal = np.ones(int(num_choices.sum()), dtype=np.bool_)
        legal = all_legal if mask.mask is None else mask.mask.values.reshape(-1)
        spans = zip(exclusive_cumsum(num_choices), num_choices, strict=True)
        chosen = [rng.choice(np.flatnonzero(legal[start : start + n])) for start, n in spans]
        return Ragged(np.array(chosen, dtype=np.int64), mask.actors.lengths)

    def unbatch_mask(
        self, mask: VecActionMask, ids: Sequence[Sequence[EntityID]]
    ) -> list[ActionMask | None]:
        """Split a batched mask into the masks of frames, with ids of actors.

        Args:
            mask: of B frames.
            ids: of the entities of each frame, in order, and of the global entity.

        Returns:
            B masks; None for frames without actors.
        """
        no_rows = Ragged.empty(mask.actors.values, len(ids))
        actees = (no_rows if mask.actees is None else mask.actees).of_frames()
        frames = zip(ids, mask.actors.of_frames(), actees, self._allowed(mask), strict=True)
        return [
            self._mask([of[k] for k in actors], [of[k] for k in selectable], flags)
            if len(actors)
            else None
            for of, actors, selectable, flags in frames
        ]

    def _mask(self, actors: IDs, actees: IDs, allowed: BoolArray) -> ActionMask:
        """Create the mask of a frame from (actors, choices) flags."""
        return self.mask_type()

    def _actors_and_choices(
        self, name: ActionName, mask: VecActionMask, obs: Sequence[Observation], obs_space: ObsSpace
    ) -> Iterable[tuple[Sequence[EntityID], Sequence[EntityID]]]:
        """Yield the ids of actors, by default their indices, and the choices of each frame.

        Actions without ids list their actors in this order.
        """
        return zip(map(np.ndarray.tolist, mask.actors.of_frames()), repeat(self.labels))

    def _allowed(self, mask: VecActionMask) -> Iterator[BoolArray]:
        """Yield the flags of each frame, (actors, choices) or (actors, labels, choices)."""
        flags = mask.full_mask(self.mask_columns).of_frames()
        for actors, frame_flags in zip(mask.actors.lengths.tolist(), flags, strict=True):
            choices = frame_flags.size // max(1, actors * mask.labels)
            shape = (actors, choices) if mask.labels == 1 else (actors, mask.labels, choices)
            yield frame_flags.reshape(shape)

    def _choices_by_actor(
        self, action: Action | None, actors: Sequence[EntityID]
    ) -> Mapping[EntityID, EntityID]:
        """Return the chosen label or id by actor.

        Raises:
            InvalidAction: the type of the action is wrong, or its actors are other ones.
        """
        expected = f"a {self.action_type.__name__}"
        if not self.is_global:
            expected += f" of the actors {short_repr([*actors], LONG)}"
        if not actors:
            expected = "no action, as there are no actors"
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
            got = f"actors {short_repr([*acting], LONG)}"
        except (TypeError, ValueError, IndexError) as error:
            got = f"{short_repr(action)} ({error})"
        raise InvalidAction(f": expected {expected}, got {got}")

    def renamed(self, labels: Mapping[str, str]) -> Self:
        """Return the space with renamed labels.

        Args:
            labels: new labels by old ones.

        Raises:
            InvalidSpace: the new labels are not unique.
        """
        return self

    def random_mask(self, actors: IDs, actees: IDs, rng: np.random.Generator) -> ActionMask:
        """Return a random mask, for checks of networks.

        Args:
            actors: ids of entities of a frame.
            actees: likewise.
            rng: random number generator.
        """
        return self.mask_type()

    def _mask_shape(self, actors: IDs, choices: int) -> tuple[int, ...]:
        """Return the shape of the mask of a frame, (actors, [labels of the parent,] choices)."""
        labels = self.labels_of_mask
        return (len(actors), choices) if labels == 1 else (len(actors), labels, choices)

    def _masks_of(self, frames: Frames, name: ActionName, absent: ActionMask | None) -> list[Any]:
        """Return the mask of each frame, `absent` where the action is not available."""
        masks = [o.actions.get(name) for o in frames.obs]
        if set(map(type, masks)) == {self.mask_type}:
            return masks
        for i, mask in enumerate(masks):
            if mask is not None and not isinstance(mask, self.mask_type):
                expected, got = f"a {self.mask_type.__name__}", type(mask).__name__
                raise unexpected(i, f"actions[{name!r}]", expected, got)
        return [absent if mask is None else mask for mask in masks]
