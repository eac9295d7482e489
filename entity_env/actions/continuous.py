"""Continuous action spaces: float components within bounds."""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from numbers import Real
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from entity_env.actions import (
    Action,
    ActionMask,
    ActionName,
    ContinuousAction,
    ContinuousActionMask,
    EntityID,
    GlobalContinuousAction,
    GlobalContinuousActionMask,
)
from entity_env.actions.action_space import ActionSpace, Actors, IDs, Probabilities
from entity_env.arrays import Float32Array, FloatArray, IntArray, all_none, as_block
from entity_env.errors import (
    InvalidAction,
    InvalidSpace,
    short_repr,
    unexpected,
)
from entity_env.kinds import check_unique
from entity_env.observation import OMIT_EMPTY, Observation, ObsSpace
from entity_env.ragged import Ragged, from_ragged_buffer
from entity_env.vec.frames import Frames, ids_of_actors
from entity_env.vec.row_checks import check_rows, expect
from entity_env.vec.vec_obs import VecActionMask, VecContinuousActionMask

_EDGE = 0.02
"""Least distance of an initial mean from the bounds, as a share of the range."""
_Z_OF_95 = 1.6448536269514722
"""The 95% quantile of the standard normal distribution."""


@cache
def _gauss_hermite_points() -> tuple[FloatArray, ...]:
    """Return weights and nodes of Gauss-Hermite quadrature, with the ends of the 90% interval.

    Returns:
        (20, 1, 1) weights that sum to 1; (22, 1, 1) points of the standard normal distribution: 20
        nodes, then the 5% and 95% quantiles; and (22, 1, 1), the normal CDF at these points.
    """
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)  # type: ignore[no-untyped-call]
    points = np.array([*nodes, -_Z_OF_95, _Z_OF_95])
    cdf = np.array([0.5 + 0.5 * math.erf(z / math.sqrt(2)) for z in points])
    return tuple(x[:, None, None] for x in (weights / weights.sum(), points, cdf))


@dataclass(init=False, repr=False)
class _ContinuousActionSpace(ActionSpace):
    """Base class of continuous action spaces.

    Args:
        components: (low, high) by name of the component, both finite or both infinite; or only the
            names, with bounds in `low` and `high`.
        low: the lower bound of each component.
        high: the upper bound of each component.
        start: the initial mean of a new policy, by name of the component, within its bounds; by
            default the middle of the range, or 0 without bounds. Spaces that differ only in
            `start` are equal.
        after: as in `ActionSpace`.
        when: likewise.

    Raises:
        InvalidSpace: bounds of a component are missing, not numbers, in the wrong order, or only
            one of them is infinite; a start is not within them, or of an unknown component.
    """

    index_to_component: list[str]
    low: list[float]
    high: list[float]
    start: dict[str, float] = field(
        default_factory=dict, kw_only=True, compare=False, metadata={OMIT_EMPTY: True}
    )

    batch_mask_type = VecContinuousActionMask
    choice_dtype = np.float32

    def __init__(
        self,
        index_to_component: Mapping[str, tuple[float, float]] | Sequence[str],
        low: Sequence[float] | None = None,
        high: Sequence[float] | None = None,
        *,
        start: Mapping[str, float] | None = None,
        after: ActionName | None = None,
        when: Sequence[str] | None = None,
    ) -> None:
        names, what = [*index_to_component], type(self).__name__
        if isinstance(index_to_component, Mapping):
            if low is not None or high is not None:
                raise InvalidSpace(f"{what}: expected bounds by name, or in low and high, got both")
            pairs = [*index_to_component.values()]
        else:
            count, counts = len(names), (len(low or ()), len(high or ()))
            if counts != (count, count):
                expected = f"{count} bounds in low and in high, one per name"
                raise InvalidSpace(f"{what}: expected {expected}, got {counts[0]} and {counts[1]}")
            pairs = list(zip(low or (), high or (), strict=True))
        if not names or not all(isinstance(name, str) for name in names):
            got = short_repr(names)
            raise InvalidSpace(f"{what}: expected names of at least one component, got {got}")
        check_unique(what, names)
        bounds = [_bounds_of(f"{what}[{n!r}]", pair) for n, pair in zip(names, pairs, strict=True)]
        self.index_to_component = [str.__str__(name) for name in names]
        self.low, self.high = [x for x, _ in bounds], [x for _, x in bounds]
        self.start = _checked_start(what, start or {}, self.bounds_by_name())
        self.after, self.when = after, [*(when or ())]
        super().__post_init__()

    def __repr__(self) -> str:
        bounds_by_name = self.bounds_by_name().items()
        bounds = ", ".join(f"{name!r}: ({low:g}, {high:g})" for name, (low, high) in bounds_by_name)
        return f"{type(self).__name__}({{{bounds}}})"

    def __len__(self) -> int:
        return len(self.index_to_component)

    @property
    def components(self) -> list[str]:
        """The names of the components."""
        return self.index_to_component

    def bounds_by_name(self) -> dict[str, tuple[float, float]]:
        """Return the lower and upper bound of each component."""
        bounds = zip(self.low, self.high, strict=True)
        return dict(zip(self.index_to_component, bounds, strict=True))

    def initial_value(self, component: str) -> float:
        """Return the initial mean of a component: `start`, or the middle of its range."""
        low, high = self.bounds_by_name()[component]
        middle = low + (high - low) / 2 if math.isfinite(low) else 0.0
        return self.start.get(component, middle)

    def initial_means(self) -> FloatArray:
        """Return the initial mean of each component before the sigmoid, (components,) float64.

        A mean near a bound is moved to 2% of the range from it.
        """
        means = np.zeros(len(self))
        for i, (name, (low, high)) in enumerate(self.bounds_by_name().items()):
            if name in self.start and math.isfinite(low):
                share = np.clip((self.start[name] - low) / (high - low), _EDGE, 1 - _EDGE)
                means[i] = math.log(share / (1 - share))
            else:
                means[i] = self.start.get(name, 0.0)
        return means

    @property
    def choice_columns(self) -> tuple[int, ...]:
        """One column per component."""
        return (len(self),)

    @property
    def mask_columns(self) -> tuple[int, ...]:
        """One column per component, of each bound."""
        return (len(self),)

    def num_choices(self, action: Actors) -> IntArray:
        """Raise TypeError, as continuous actions have no list of choices.

        Raises:
            TypeError: always.
        """
        raise TypeError(f"{type(self).__name__}: continuous actions have no list of choices")

    def num_parameters(self, action: Actors) -> IntArray:
        """Return twice the number of components: mean and log standard deviation of each."""
        return np.full(int(np.add.reduce(action.actors.lengths)), 2 * len(self))

    def renamed(self, labels: Mapping[str, str]) -> Self:
        """Return the space with renamed components."""
        names = [labels[name] for name in self.index_to_component]
        start = {labels[name]: value for name, value in self.start.items()}
        return replace(self, index_to_component=names, start=start)

    # -- Choices of batches ------------------------------------------------------------------------

    def as_choices(self, value: Any) -> Ragged:
        """Convert an argument of `VecEnv.act` to float32 (actors, components) per frame.

        Raises:
            InvalidAction: the dtype is not numeric, or the number of components is wrong.
        """
        rows = from_ragged_buffer(value)
        if rows.values.dtype.kind not in "fiu" or rows.values.shape[1:] != self.choice_columns:
            expected = f"numbers of the shape (actors, {len(self)})"
            got = f"{rows.values.dtype} {rows.values.shape}"
            raise InvalidAction(f"{self.index_to_component}: expected {expected}, got {got}")
        return Ragged(rows.values.astype(np.float32, copy=False), rows.lengths)

    def illegal_choice(
        self, choices: npt.NDArray[Any], mask: VecActionMask
    ) -> tuple[int, str] | None:
        """Return the row and description of the first illegal value, None if all are legal."""
        assert isinstance(mask, VecContinuousActionMask)
        low, high = mask.low.values, mask.high.values
        legal = (choices >= low) & (choices <= high) & np.isfinite(choices)
        if legal.all():
            return None
        row, column = np.argwhere(~legal)[0].tolist()
        range_ = f"{low[row, column]:g} to {high[row, column]:g}"
        name = self.index_to_component[column]
        return row, f"{name}={choices[row, column]:g}, which is not from {range_},"

    def first_choices(self, mask: VecActionMask) -> Ragged:
        """Return the lower bounds; 0 for unbounded components."""
        assert isinstance(mask, VecContinuousActionMask)
        low = mask.low.values
        return Ragged(np.where(np.isfinite(low), low, np.float32(0)), mask.actors.lengths)

    def random_choices(self, mask: VecActionMask, rng: np.random.Generator) -> Ragged:
        """Sample uniformly within bounds; unbounded components are standard normal."""
        assert isinstance(mask, VecContinuousActionMask)
        low, high = mask.low.values, mask.high.values
        is_bounded = np.isfinite(low)
        start, end = np.where(is_bounded, low, 0), np.where(is_bounded, high, 0)
        share = rng.random(low.shape)
        numbers = start.astype(np.float64) * (1 - share) + end.astype(np.float64) * share
        numbers = np.where(is_bounded, numbers, rng.standard_normal(low.shape))
        return Ragged(np.clip(numbers.astype(np.float32), low, high), mask.actors.lengths)

    def check_mask(self, mask: VecActionMask, what: str, exact: bool) -> None:
        """Check that the bounds of a batched mask match its actors and the space."""
        assert isinstance(mask, VecContinuousActionMask)
        num_frames = len(mask.actors.lengths)
        for name, rows in (("low", mask.low), ("high", mask.high)):
            at = f"{what}.{name}"
            check_rows(rows, at, np.float32, self.choice_columns, num_frames, exact)
            same = np.array_equal(rows.lengths, mask.actors.lengths)
            expect(same, at, f"{mask.actors.lengths.tolist()} rows", rows.lengths)
        self._check_bounds(mask.low.values, mask.high.values, what)

    # -- Choices as text, and statistics to display ------------------------------------------------

    def typed(self, words: Sequence[str]) -> list[float]:
        """Parse typed values: `steer=0.5 gas=1`, or `0.5` for a single component.

        Raises:
            ValueError: there is not exactly one number per component.
        """
        names = self.index_to_component
        pairs = [word.rpartition("=") for word in words]
        if len(names) == len(words) == 1 and not pairs[0][1]:
            pairs = [(names[0], "=", words[0])]
        try:
            values = {name: float(number) for name, _, number in pairs}
            if len(pairs) == len(names):
                return [values[name] for name in names]
        except (KeyError, ValueError):
            pass
        expected = " ".join(f"{name}=NUMBER" for name in names)
        got = short_repr(" ".join(words)) if any(words) else "nothing"
        raise ValueError(f"expected {expected}, got {got}")

    def choice_of(self, value: Any, mask: VecActionMask) -> Any:
        """Validate the values of one actor, and convert them to (components,) float32.

        Raises:
            ValueError: a value is not a number within the bounds of the actor.
        """
        are_numbers = isinstance(value, list) and all(type(x) in (int, float) for x in value)
        if not are_numbers or len(value) != len(self):
            raise ValueError(f"expected {len(self)} numbers, got {short_repr(value)}")
        numbers = _float32(value)
        if (illegal := self.illegal_choice(numbers[None], mask)) is not None:
            raise ValueError(f"expected numbers within their bounds, got {illegal[1].rstrip(',')}")
        return numbers

    def text_of(self, choice: Any, names: Sequence[str]) -> str:
        """Format values as `typed` parses them."""
        values = zip(self.index_to_component, np.asarray(choice).tolist(), strict=True)
        return " ".join(f"{name}={number:.6g}" for name, number in values)

    def shown(
        self, parameters: npt.NDArray[Any], action: Actors, chosen: npt.NDArray[Any]
    ) -> Float32Array:
        """Return statistics of action distributions to display, in units of the environment.

        Args:
            parameters: recorded means and log standard deviations, before the sigmoid.
            action: the actors, with their bounds.
            chosen: their values.

        Returns:
            (actors, 4 * components) float32: for each component the mean, the standard deviation,
            and the 5% and 95% quantiles. NaN for inactive actors.
        """
        # (actors, 2 * components) -> (actors, 2, components) -> 2 x (actors, components)
        shape = len(chosen), 2, len(self)
        mean, log_std = parameters.reshape(shape).astype(np.float64).swapaxes(0, 1)
        low, high = np.asarray(action.bounds.values).astype(np.float64).swapaxes(0, 1)
        is_bounded, is_uniform = np.isfinite(low), log_std == math.inf
        start, end = np.where(is_bounded, low, 0), np.where(is_bounded, high, 0)

        # x = low + (high - low) * sigmoid(mean + std * z), or mean + std * z without bounds:
        # (points, actors, components)
        weights, points, cdf = _gauss_hermite_points()
        drawn = mean + np.exp(np.where(is_uniform, 0, log_std)) * points
        share = np.where(is_uniform, cdf, 1 / (1 + np.exp(-np.clip(drawn, -500, 500))))
        numbers = np.where(is_bounded, start * (1 - share) + end * share, drawn)

        # Mean and standard deviation, by Gauss-Hermite quadrature
        at_nodes = numbers[:-2]
        average = (weights * at_nodes).sum(axis=0)
        deviation = np.sqrt((weights * (at_nodes - average) ** 2).sum(axis=0))
        displayed: Float32Array = np.stack([average, deviation, *numbers[-2:]], axis=2).astype(
            np.float32
        )
        displayed = displayed.reshape(len(chosen), 4 * len(self))
        displayed[np.isnan(chosen).any(axis=1)] = np.nan
        return displayed

    def certain(self, chosen: Ragged, mask: VecActionMask) -> Probabilities:
        """Return None for each frame, as continuous actions have no list of probabilities."""
        return [None] * len(chosen)

    # -- Masks of frames ---------------------------------------------------------------------------

    def _batched(
        self, actors: Ragged, lows: Sequence[Any], highs: Sequence[Any], name: ActionName
    ) -> VecContinuousActionMask:
        """Batch the bounds of actors; None in `lows` or `highs` means the bounds of the space."""
        default = np.repeat(_float32([self.low, self.high])[:, None], len(actors.values), axis=1)
        low, high = Ragged(default[0], actors.lengths), Ragged(default[1], actors.lengths)
        if all_none(lows) and all_none(highs):
            return VecContinuousActionMask(actors, low, high)
        for side, rows, bounds in (("low", low.values, lows), ("high", high.values, highs)):
            for i, (value, start, n) in enumerate(
                zip(bounds, actors.starts.tolist(), actors.lengths.tolist(), strict=True)
            ):
                if value is not None and (n or np.size(value)):
                    what = f"actions[{name!r}].{side}"
                    rows[start : start + n] = as_block(value, n, len(self), what, i)
        self._check_bounds(low.values, high.values, f"actions[{name!r}]", actors.lengths)
        return VecContinuousActionMask(actors, low, high)

    def _check_bounds(
        self, low: Float32Array, high: Float32Array, what: str, lengths: IntArray | None = None
    ) -> None:
        """Check that bounds are in order, both finite or infinite, and within the space.

        Args:
            low: (actors, components).
            high: likewise.
            what: the field, for messages.
            lengths: (B,) number of actors of each frame, to name the environment.

        Raises:
            InvalidObservation: names the environment and component.
        """
        within = (low >= _float32(self.low)) & (high <= _float32(self.high)) & (low <= high)
        fits = within & (np.isfinite(low) == np.isfinite(high))
        if fits.all():
            return
        row, column = np.argwhere(~fits)[0].tolist()
        env_index = None
        if lengths is not None:
            env_index = int(np.searchsorted(np.cumsum(lengths), row, side="right"))
        space = f"{self.low[column]:g} <= low <= high <= {self.high[column]:g}"
        got = f"{low[row, column]:g} and {high[row, column]:g}"
        component = self.index_to_component[column]
        expected = f"{component}: {space}, both finite or both infinite"
        raise unexpected(env_index, f"{what}.low and .high", expected, got)

    def _random_bounds(
        self, actors: int, rng: np.random.Generator
    ) -> tuple[Float32Array, Float32Array]:
        """Sample bounds within the space; some of them are equal."""
        low, high = (
            np.broadcast_to(_float32(x), (actors, len(self))) for x in (self.low, self.high)
        )
        is_bounded = np.isfinite(low)
        start, size = np.where(is_bounded, low, 0), np.where(is_bounded, high - low, 0)
        shares = np.sort(
            rng.choice([0.0, 0.25, 0.5, 0.75, 1.0], size=(2, actors, len(self))), axis=0
        )
        narrow = [
            np.where(is_bounded, start + size * share, x)
            for share, x in zip(shares, (low, high), strict=True)
        ]
        lowest, highest = (np.clip(x.astype(np.float32), low, high) for x in narrow)
        return lowest, highest

    def _values_of(
        self,
        action: Action | None,
        actors: Sequence[EntityID],
        low: Float32Array,
        high: Float32Array,
    ) -> Float32Array:
        """Return the values of the actors of a frame, (actors, components) float32.

        Raises:
            InvalidAction: the type of the action is wrong, or values are missing or out of bounds.
        """
        values = self._choices_by_actor(action, actors)
        if not actors:
            return np.zeros((0, len(self)), np.float32)
        names = list(getattr(action, "names", self.index_to_component))
        if sorted(names) != sorted(self.index_to_component):
            raise InvalidAction(f": expected {self.index_to_component}, got {short_repr(names)}")
        columns = [names.index(name) for name in self.index_to_component]
        try:
            rows = np.array([values[actor] for actor in actors], dtype=np.float32)[:, columns]
        except (TypeError, ValueError, IndexError) as error:
            raise InvalidAction(f": expected {len(self)} numbers per actor: {error}") from None
        legal = (rows >= low) & (rows <= high) & np.isfinite(rows)
        if not legal.all():
            row, column = np.argwhere(~legal)[0].tolist()
            who = "" if self.is_global else f", actor {actors[row]!r}"
            expected = f"a number from {low[row, column]:g} to {high[row, column]:g}"
            raise InvalidAction(
                f"{who}, {self.index_to_component[column]}: expected {expected}, got "
                f"{rows[row, column]:g}"
            )
        return rows

    def encode(
        self,
        name: ActionName,
        actions: Sequence[Action | None],
        mask: VecActionMask,
        obs: Sequence[Observation],
        obs_space: ObsSpace,
    ) -> Ragged:
        """Convert the actions of environments to values: the inverse of `decode`.

        Returns:
            float32 (actors, components) per frame, within bounds.
        """
        assert isinstance(mask, VecContinuousActionMask)
        pairs = self._actors_and_choices(name, mask, obs, obs_space)
        frames = zip(actions, pairs, mask.low.of_frames(), mask.high.of_frames(), strict=True)
        rows = [np.zeros((0, len(self)), np.float32)]
        for i, (action, (actors, _), low, high) in enumerate(frames):
            try:
                rows.append(self._values_of(action, actors, low, high))
            except InvalidAction as error:
                located = InvalidAction(f"actions[{name!r}]{error}")
                located.env_index = i
                raise located from None
        return Ragged(np.concatenate(rows), mask.actors.lengths)

    def unbatch_mask(
        self, mask: VecActionMask, ids: Sequence[Sequence[EntityID]]
    ) -> list[ActionMask | None]:
        """Split a batched mask into the masks of frames, with ids of actors and their bounds."""
        assert isinstance(mask, VecContinuousActionMask)
        actors = mask.actors.of_frames()
        frames = zip(ids, actors, mask.low.of_frames(), mask.high.of_frames(), strict=True)
        return [
            self._bounded([of[k] for k in actors], low, high) if len(actors) else None
            for of, actors, low, high in frames
        ]

    def _bounded(self, actors: IDs, low: Float32Array, high: Float32Array) -> ActionMask:
        """Create the mask of a frame from (actors, components) bounds."""
        raise NotImplementedError


_NO_ACTORS = ContinuousActionMask(actor_ids=())
"""Mask of frames in which an action is not available."""


class ContinuousActionSpace(_ContinuousActionSpace):
    """Each actor chooses a value per component."""

    kind = "continuous"
    mask_type = ContinuousActionMask
    action_type = ContinuousAction

    def batch_mask(self, frames: Frames, name: ActionName) -> VecContinuousActionMask:
        """Batch the masks of B frames."""
        masks = self._masks_of(frames, name, _NO_ACTORS)
        actors = frames.actors_of(masks, f"actions[{name!r}] actors")
        return self._batched(actors, [m.low for m in masks], [m.high for m in masks], name)

    def decode(
        self,
        name: ActionName,
        choices: Ragged,
        mask: VecActionMask,
        obs: Sequence[Observation],
        obs_space: ObsSpace,
        probs: Probabilities,
    ) -> Iterator[Action | None]:
        """Yield the action of each environment."""
        pairs = self._actors_and_choices(name, mask, obs, obs_space)
        for o, (actors, _), values in zip(obs, pairs, choices.of_frames(), strict=True):
            offered, names = name in o.actions, [*self.index_to_component]
            yield ContinuousAction(actors, values, names) if offered else None

    def random_mask(self, actors: IDs, actees: IDs, rng: np.random.Generator) -> ActionMask:
        """Return a mask with random bounds."""
        return self._bounded(actors, *self._random_bounds(len(actors), rng))

    def _bounded(self, actors: IDs, low: Float32Array, high: Float32Array) -> ActionMask:
        return ContinuousActionMask(actor_ids=actors, low=low, high=high)

    def _actors_and_choices(
        self, name: ActionName, mask: VecActionMask, obs: Sequence[Observation], obs_space: ObsSpace
    ) -> Iterable[tuple[Sequence[EntityID], Sequence[EntityID]]]:
        masks: list[Any] = [o.actions.get(name, _NO_ACTORS) for o in obs]
        return ((ids, ()) for ids in ids_of_actors(obs, obs_space, masks, mask.actors))


class GlobalContinuousActionSpace(_ContinuousActionSpace):
    """One value per component and frame, without an acting entity."""

    kind = "global continuous"
    mask_type = GlobalContinuousActionMask
    action_type = GlobalContinuousAction
    is_global = True

    def batch_mask(self, frames: Frames, name: ActionName) -> VecContinuousActionMask:
        """Batch the masks of B frames; the actor is the global entity, the last of a frame."""
        masks = self._masks_of(frames, name, None)
        actors = frames.global_actors(masks)
        lows = [None if m is None or m.low is None else [m.low] for m in masks]
        highs = [None if m is None or m.high is None else [m.high] for m in masks]
        return self._batched(actors, lows, highs, name)

    def decode(
        self,
        name: ActionName,
        choices: Ragged,
        mask: VecActionMask,
        obs: Sequence[Observation],
        obs_space: ObsSpace,
        probs: Probabilities,
    ) -> Iterator[Action | None]:
        """Yield the action of each environment; None where it is not available."""
        remaining = iter(choices.values)
        for acts in mask.actors.lengths.tolist():
            names = [*self.index_to_component]
            yield GlobalContinuousAction(next(remaining), names) if acts else None

    def random_mask(self, actors: IDs, actees: IDs, rng: np.random.Generator) -> ActionMask:
        """Return a mask with random bounds."""
        return self._bounded(actors, *self._random_bounds(1, rng))

    def _bounded(self, actors: IDs, low: Float32Array, high: Float32Array) -> ActionMask:
        return GlobalContinuousActionMask(low=low[0], high=high[0])


def _checked_start(
    what: str, start: Mapping[str, float], bounds: Mapping[str, tuple[float, float]]
) -> dict[str, float]:
    """Validate the initial means of components.

    Raises:
        InvalidSpace: a component is unknown, or its mean is not a finite number within its bounds.
    """
    for name, value in start.items():
        at = f"{what}: start[{name!r}]"
        if name not in bounds:
            raise InvalidSpace(f"{at}: expected one of the components {list(bounds)}")
        low, high = bounds[name]
        is_number = isinstance(value, Real) and math.isfinite(value) and not isinstance(value, bool)
        if not (is_number and low <= value <= high):
            expected = f"a finite number from {low:g} to {high:g}"
            raise InvalidSpace(f"{at}: expected {expected}, got {short_repr(value)}")
    return {name: float(value) for name, value in start.items()}


def _bounds_of(what: str, pair: Any) -> tuple[float, float]:
    """Validate the bounds of a component.

    Raises:
        InvalidSpace: the bounds are not two numbers in order, both finite or both infinite in
            float32.
    """
    try:
        low, high = map(float, pair)
    except (TypeError, ValueError):
        low, high = 0.0, 0.0
    start, end = _float32([low, high]).tolist()
    are_finite = math.isfinite(start) and math.isfinite(end)
    if not (start < end and (are_finite or (low, high) == (-math.inf, math.inf))):
        expected = "low < high, both finite or both infinite"
        raise InvalidSpace(f"{what}: expected {expected}, got {short_repr(pair)}")
    return low, high


def _float32(numbers: Sequence[Any]) -> Float32Array:
    with np.errstate(over="ignore"):
        return np.array(numbers, dtype=np.float32)
