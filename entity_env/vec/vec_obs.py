"""`VecObs`: one frame of each of many environments, as flat arrays and lengths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.actions import ActionName, EntityName
from entity_env.arrays import BoolArray, Float32Array, IntArray
from entity_env.frame_data import SAME, FrameData, Path
from entity_env.observation import OMIT_EMPTY
from entity_env.ragged import Ragged, Selection, exclusive_cumsum, row_indices

Choices: TypeAlias = dict[ActionName, Ragged]
"""The choices of the actors of every action, as in `VecEnv.act`: int64 (actors,) per frame, or
float32 (actors, components) for continuous actions."""


@dataclass
class After(FrameData):
    """Link of a dependent action to its parent, the action that its actors take before it.

    Attributes:
        action: name of the parent action.
        rows: int64 (actors,) per frame, index of each actor among the actors of the parent action
            in its frame.
        when: indices of the labels of the parent action that activate the dependent action; empty
            for all choices.
    """

    action: ActionName = field(metadata=SAME)
    rows: Ragged
    when: list[int] = field(metadata=SAME)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labels(self) -> int:
        """Number of parent labels for which masks differ."""
        return max(1, len(self.when))


class VecActionMask(FrameData):
    """Base class of batched masks: the actors of an action in each frame, and their choices.

    Attributes:
        actors: int64 (actors,) per frame, positions in the frame, of actors with a legal choice.
        actees: int64 (actees,) per frame, positions in the frame; None if nothing is selected.
        mask: bool, True where allowed; None when everything is. (actors, choices) per frame; with
            actees (actors * actees,) per frame, row by row. A dependent action with labels in
            `after.when` has, for each actor, a row or block of actees per label, in their order.
        after: link to the parent action, for a dependent action.
    """

    num_draws: ClassVar[int] = 1
    """Number of random numbers to sample the choice of an actor."""
    actors: Ragged
    actees: Ragged | None
    mask: Ragged | None
    after: After | None = None

    @property
    def labels(self) -> int:
        """Number of labels of the parent action for which the mask differs."""
        return 1 if self.after is None else self.after.labels

    @property
    def bounds(self) -> Ragged | None:
        """Bounds of continuous actions, (actors, 2, components) per frame; None for others."""
        return None

    def mask_lengths(self) -> IntArray:
        """Return the number of rows of `mask` in each frame, (B,) int64."""
        lengths = self.actors.lengths * self.labels
        return lengths if self.actees is None else lengths * self.actees.lengths

    def missing(self, path: Path, like: Any) -> Any:
        """Return the mask if it is None: everything is allowed."""
        if path == ("mask",):
            return self.full_mask(like.values.shape[1:])
        return super().missing(path, like)

    def keep(self, selected: BoolArray, label: IntArray | None = None) -> Self:
        """Return the mask of some of the actors.

        Args:
            selected: (actors,) bool, the actors to keep.
            label: (actors,) int64, for a mask with several labels: index in `after.when` of the
                label to keep the rows of; the returned mask then depends on no action. None to keep
                the rows of all labels.
        """
        rows = np.flatnonzero(selected)
        frame = np.repeat(np.arange(len(self.actors)), self.actors.lengths)[rows]
        lengths = np.bincount(frame, minlength=len(self.actors))
        changes: dict[str, Any] = {"actors": Ragged(self.actors.values[rows], lengths)}
        counts = lengths if self.actees is None else lengths * self.actees.lengths
        for name, values in self._rows_of(rows, label).items():
            per_actor = 1 if name != "mask" or label is not None else self.labels
            changes[name] = Ragged(values, counts * per_actor)
        if label is not None:
            changes["after"] = None
        elif self.after is not None:
            after_rows = Ragged(self.after.rows.values[rows], lengths)
            changes["after"] = replace(self.after, rows=after_rows)
        return replace(self, **changes)  # type: ignore[type-var]

    def keep_actees(self, selected: BoolArray) -> Self:
        """Return the mask of some of the actees.

        Args:
            selected: (actees,) bool, the actees to keep.
        """
        assert self.actees is not None
        blocks = self.actors.lengths * self.labels
        starts, sizes = (np.repeat(x, blocks) for x in (self.actees.starts, self.actees.lengths))
        frame = np.repeat(np.arange(len(self.actees)), self.actees.lengths)[selected]
        lengths = np.bincount(frame, minlength=len(self.actees))
        mask = self.mask
        if mask is not None:
            mask = Ragged(mask.values[selected[row_indices(starts, sizes)]], blocks * lengths)
        actees = Ragged(self.actees.values[selected], lengths)
        return replace(self, actees=actees, mask=mask)  # type: ignore[type-var]

    def _rows_of(self, actors: IntArray, label: IntArray | None) -> dict[str, Any]:
        """Return the fields with rows for each actor, of some of the actors, flat."""
        if self.mask is None:
            return {}
        # Each actor has `labels` blocks of rows.
        size = block_sizes(self)
        starts, sizes = exclusive_cumsum(size)[actors] * self.labels, size[actors]
        if label is not None:
            return {"mask": self.mask.values[row_indices(starts + label[actors] * sizes, sizes)]}
        return {"mask": self.mask.values[row_indices(starts, sizes * self.labels)]}

    def legal_by_label(self) -> BoolArray:
        """Return whether actors have a legal choice after each label, (actors, labels) bool."""
        num_actors = len(self.actors.values)
        if self.actees is not None:
            sizes = np.repeat(self.actees.lengths, self.actors.lengths * self.labels)
            if self.mask is None:
                return (sizes > 0).reshape(num_actors, self.labels)
            block = np.repeat(np.arange(len(sizes)), sizes)
            legal = np.bincount(block, weights=self.mask.values, minlength=len(sizes)) > 0
            return legal.reshape(num_actors, self.labels)
        if self.mask is None:
            return np.ones((num_actors, self.labels), np.bool_)
        size = self.mask.values.shape[1]
        is_legal: BoolArray = self.mask.values.reshape(-1, self.labels, size).any(axis=2)
        return is_legal

    def full_mask(self, columns: tuple[int, ...]) -> Ragged:
        """Return the mask; an array of True if it is None.

        Args:
            columns: `ActionSpace.mask_columns`.
        """
        if self.mask is not None:
            return self.mask
        lengths = self.mask_lengths()
        return Ragged(np.ones((int(lengths.sum()), *columns), np.bool_), lengths)


def block_sizes(mask: Any) -> IntArray:
    """Return the number of mask rows of each actor for one parent label, (actors,) int64.

    Args:
        mask: has `actors` and `actees`, in memory or on a device.
    """
    if mask.actees is None:
        return np.ones(len(mask.actors.values), np.int64)
    return np.repeat(mask.actees.lengths, mask.actors.lengths)  # one row per actee of its frame


@dataclass
class VecCategoricalActionMask(VecActionMask):
    """The actors of a categorical (or global) action in each frame, and their choices.

    Attributes:
        actors: int64 (actors,) per frame, positions in the frame. The position of the global
            actor is the number of entities of the frame. Actors without a legal choice are omitted.
        mask: bool (actors, choices) per frame, True where allowed; None when everything is.
        after: as in `VecActionMask`.
    """

    actees = None
    actors: Ragged
    mask: Ragged | None
    after: After | None = field(default=None, metadata={OMIT_EMPTY: True})


@dataclass
class VecSelectEntityActionMask(VecActionMask):
    """The actors of a select-entity action in each frame, and the entities that may be selected.

    Attributes:
        actors: int64 (actors,) per frame, positions in the frame, of actors with a legal choice.
        actees: int64 (actees,) per frame, positions in the frame.
        mask: bool (actors * actees,) per frame, row by row, True where that actor may select
            that actee; None when everything is allowed.
        after: as in `VecActionMask`.
    """

    actors: Ragged
    actees: Ragged
    mask: Ragged | None = None
    after: After | None = field(default=None, metadata={OMIT_EMPTY: True})


@dataclass
class VecContinuousActionMask(VecActionMask):
    """The actors of a continuous action in each frame, and their bounds.

    Attributes:
        actors: int64 (actors,) per frame, positions in the frame. The position of the global
            actor is the number of entities of the frame.
        low: float32 (actors, components) per frame, lower bounds.
        high: float32 (actors, components) per frame, upper bounds.
        after: as in `VecActionMask`.
    """

    actees = None
    mask = None
    actors: Ragged
    low: Ragged
    high: Ragged
    after: After | None = field(default=None, metadata={OMIT_EMPTY: True})

    @property
    def num_draws(self) -> int:  # type: ignore[override]
        """Number of random numbers to sample the choice of an actor: one per component."""
        return int(self.low.values.shape[1])

    @property
    def bounds(self) -> Ragged:
        """Lower and upper bounds, float32 (actors, 2, components) per frame."""
        return Ragged(np.stack([self.low.values, self.high.values], axis=1), self.actors.lengths)

    def _rows_of(self, actors: IntArray, label: IntArray | None) -> dict[str, Any]:
        return {"low": self.low.values[actors], "high": self.high.values[actors]}


_ADD, _MIN, _MAX = np.add.reduce, np.minimum.reduce, np.maximum.reduce


@dataclass
class Metric:
    """Count, sum, minimum and maximum of the values of one metric."""

    count: int = 0
    sum: float = 0.0
    min: float = float("inf")
    max: float = float("-inf")

    @classmethod
    def of(cls, values: npt.NDArray[Any]) -> "Metric":
        """Return the metric of an array of values."""
        if values.size == 0:
            return cls()
        flat = values.reshape(-1)
        total, low, high = _ADD(flat), _MIN(flat), _MAX(flat)  # methods take twice as long
        return cls(values.size, float(total), float(low), float(high))

    @classmethod
    def of_each(cls, rows: IntArray) -> "list[Metric]":
        """Return the metric of each row of integers, (metrics, values)."""
        num_metrics, count = rows.shape
        if count == 0:
            return [cls() for _ in range(num_metrics)]
        reduced = [of(rows, axis=1).tolist() for of in (_ADD, _MIN, _MAX)]
        return [cls(count, *map(float, each)) for each in zip(*reduced, strict=True)]

    def push(self, value: float) -> None:
        """Add one value."""
        self.count += 1
        self.sum += value
        self.min = min(self.min, value)
        self.max = max(self.max, value)

    def __add__(self, other: "Metric") -> "Metric":
        low, high = min(self.min, other.min), max(self.max, other.max)
        return Metric(self.count + other.count, self.sum + other.sum, low, high)

    @property
    def mean(self) -> float:
        """Mean of the values; 0 if there are none."""
        return self.sum / self.count if self.count else 0.0


def add_metrics(total: dict[str, Metric], more: Mapping[str, Metric]) -> None:
    """Add the metrics of one step to the running totals, in place."""
    for name, metric in more.items():
        total[name] = total[name] + metric if name in total else metric


_NO_FLAGS = np.zeros(0, np.bool_)


@dataclass
class VecObs(FrameData):
    """One frame of each of B environments.

    An environment is reset in the step that ends its episode: its features and masks are then the
    first of the new episode, its reward, flags and metrics are the last of the old one.

    Attributes:
        features: float32 (n, num_features) per frame, for every entity type of the space; and
            under "__global__" one row per frame, if there are global features.
        visible: bool (n,) per frame, for the types with entities that may be hidden.
        action_masks: for every action of the space.
        reward: (B,) float32.
        done: (B,) bool, the episode ended in this step.
        metrics: metrics of the environments, over all of them.
        truncated: (B,) bool, the episode was truncated.
        final: last observations of the truncated episodes, one frame for each True in
            `truncated`, without actions; None when nothing was truncated.
        env_metrics: the values behind `metrics`, float64, none or one per environment.
        kinds: uint8 or int16 (n, num_kinds) per frame, label indices of categorical features, for
            the types that have any, and under "__global__" for global ones; see
            `kinds.label_dtype`.
        identity: int64 (n,) per frame, for the types that `VecEnv.track` was called with: the
            number of each entity, 0, 1, ... in the order in which its environment, or side of a
            match, first showed it in this episode. Equal numbers are the same entity, even of two
            types. A frame in which a type has no ids has no rows of it.
        lost: (B,) bool, the episode was truncated because its worker process was lost; empty if
            there are none.
        padding: (B,) bool, frames between two episodes, of environments that take a step to reset:
            actions have no effect in them, and the next step has no reward and begins an episode.
            They follow the step that has `done`, and are not learnt from. Empty if there are none.
    """

    features: dict[EntityName, Ragged]
    visible: dict[EntityName, Ragged]
    action_masks: dict[ActionName, VecActionMask]
    reward: Float32Array
    done: BoolArray
    metrics: dict[str, Metric] = field(metadata=SAME)
    truncated: BoolArray = None  # type: ignore[assignment]
    final: "VecObs | None" = field(default=None, metadata=SAME)
    env_metrics: dict[str, Ragged] = field(default_factory=dict)
    kinds: dict[EntityName, Ragged] = field(default_factory=dict, metadata={OMIT_EMPTY: True})
    identity: dict[EntityName, Ragged] = field(default_factory=dict, metadata={OMIT_EMPTY: True})
    lost: BoolArray = field(default_factory=lambda: _NO_FLAGS, metadata={OMIT_EMPTY: True})
    padding: BoolArray = field(default_factory=lambda: _NO_FLAGS, metadata={OMIT_EMPTY: True})

    def __post_init__(self) -> None:
        if self.truncated is None:
            self.truncated = np.zeros(len(self.done), dtype=np.bool_)

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def terminated(self) -> BoolArray:
        """(B,) bool, the episode ended and was not truncated."""
        terminated: BoolArray = self.done & ~self.truncated
        return terminated

    @property
    def is_padding(self) -> BoolArray:
        """(B,) bool, copy of `padding` with a flag for each frame."""
        return self.padding.copy() if len(self.padding) else np.zeros(len(self), np.bool_)

    def missing(self, path: Path, like: Any) -> Any:
        """Return the default of a missing leaf: everything is visible, no entity has a number."""
        if path[0] == "visible":
            return self.visibility(path[1])
        if path[0] in ("env_metrics", "identity"):
            return Ragged.empty(like.values, len(self))
        return super().missing(path, like)

    def select(self, selection: Selection) -> Self:
        """Return a copy of the selected frames, with blank reward, done and metrics."""
        reward, no_flags = np.zeros(len(self), np.float32), np.zeros(len(self), np.bool_)
        blank = replace(self, reward=reward, done=no_flags, truncated=no_flags, lost=no_flags)
        blank = replace(blank, metrics={}, env_metrics={}, final=None)
        selected = super(VecObs, replace(blank, padding=self.is_padding)).select(selection)
        padding = selected.padding if selected.padding.any() else _NO_FLAGS
        return replace(selected, lost=_NO_FLAGS, padding=padding)

    @classmethod
    def cat(cls, pieces: Sequence[Self]) -> Self:
        """Concatenate the frames of several pieces."""
        for name in ("lost", "padding"):
            if any(len(getattr(piece, name)) for piece in pieces):
                pieces = [piece._with_flags(name) for piece in pieces]
        joined = super().cat(pieces)
        visible = {n: joined.visible[n] for n in joined.features if n in joined.visible}
        finals = [piece.final for piece in pieces if piece.final is not None]
        metrics = {  # from the values, if available: sums of sums would round differently
            name: Metric.of(joined.env_metrics[name].values)
            if name in joined.env_metrics
            else sum((p.metrics[name] for p in pieces if name in p.metrics), Metric())
            for name in dict.fromkeys(name for piece in pieces for name in piece.metrics)
        }
        final = VecObs.cat(finals) if finals else None
        return replace(joined, visible=visible, metrics=metrics, final=final)

    def _with_flags(self, name: str) -> Self:
        """Return a copy with a flag for each frame."""
        all_flags: Any = {name: np.zeros(len(self), np.bool_)}
        return self if len(getattr(self, name)) else replace(self, **all_flags)

    def extend(self, other: "VecObs") -> None:
        """Append the frames of another batch with the same spaces, in place."""
        vars(self).update(vars(VecObs.cat([self, other])))

    def visibility(self, name: EntityName) -> Ragged:
        """Return which entities of a type the policy sees, bool (n,) per frame."""
        rows = self.features[name]
        return self.visible.get(name, Ragged(np.ones(rows.items(), np.bool_), rows.lengths))
