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
float32 (actors, components) of numbers."""


@dataclass
class After(FrameData):
    """The action that actors take before a dependent one.

    Attributes:
        action: its name.
        rows: int64 (actors,) per frame, the number of each actor among the actors of that action in
            its frame.
        when: the labels of that action with which the dependent one is taken, by their number; any
            choice if empty.
    """

    action: ActionName = field(metadata=SAME)
    rows: Ragged
    when: list[int] = field(metadata=SAME)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labels(self) -> int:
        """The number of labels that masks tell apart."""
        return max(1, len(self.when))


class VecActionMask(FrameData):
    """Base class of batched masks: the actors of an action in each frame, and their choices.

    Attributes:
        actors: int64 (actors,) per frame, positions in the frame; those with a legal choice.
        actees: int64 (actees,) per frame, positions in the frame; None if nothing is selected.
        mask: bool, True where allowed; None when everything is. (actors, choices) per frame; with
            actees (actors * actees,) per frame, row by row. Of a dependent action with labels in
            `after.when` there are as many rows, or blocks of actees, for each actor, one after the
            other.
        after: the action that the actors take before this one, if it depends on one.
    """

    num_draws: ClassVar[int] = 1
    """Random numbers that the choice of an actor takes."""
    actors: Ragged
    actees: Ragged | None
    mask: Ragged | None
    after: After | None = None

    @property
    def labels(self) -> int:
        """The number of labels of the action before this one that the mask tells apart."""
        return 1 if self.after is None else self.after.labels

    @property
    def bounds(self) -> Ragged | None:
        """Bounds of the numbers that actors choose, (actors, 2, components) per frame, if any."""
        return None

    def mask_lengths(self) -> IntArray:
        """Return the rows that `mask` has in each frame, (B,) int64."""
        lengths = self.actors.lengths * self.labels
        return lengths if self.actees is None else lengths * self.actees.lengths

    def missing(self, path: Path, like: Any) -> Any:
        """Return the mask if it is not given: everything is allowed."""
        if path == ("mask",):
            return self.full_mask(like.values.shape[1:])
        return super().missing(path, like)

    def keep(self, kept: BoolArray, label: IntArray | None = None) -> Self:
        """Return the mask of some of the actors.

        Args:
            kept: (actors,) bool, those to keep.
            label: (actors,) int64, for a mask that tells labels apart: the one to keep the rows of,
                by its place in `after.when`; the mask that is returned then depends on no action.
                None to keep the rows of all labels.
        """
        rows = np.flatnonzero(kept)
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
            of_kept = Ragged(self.after.rows.values[rows], lengths)
            changes["after"] = replace(self.after, rows=of_kept)
        return replace(self, **changes)  # type: ignore[type-var]

    def keep_actees(self, kept: BoolArray) -> Self:
        """Return the mask of some of the actees, (actees,) bool."""
        assert self.actees is not None
        blocks = self.actors.lengths * self.labels
        starts, sizes = (np.repeat(x, blocks) for x in (self.actees.starts, self.actees.lengths))
        frame = np.repeat(np.arange(len(self.actees)), self.actees.lengths)[kept]
        lengths = np.bincount(frame, minlength=len(self.actees))
        mask = self.mask
        if mask is not None:
            mask = Ragged(mask.values[kept[row_indices(starts, sizes)]], blocks * lengths)
        actees = Ragged(self.actees.values[kept], lengths)
        return replace(self, actees=actees, mask=mask)  # type: ignore[type-var]

    def _rows_of(self, actors: IntArray, label: IntArray | None) -> dict[str, Any]:
        """Return the fields that have rows for each actor, of some of them, flat."""
        if self.mask is None:
            return {}
        # Each actor has `labels` blocks of rows.
        size = block_sizes(self)
        starts, sizes = exclusive_cumsum(size)[actors] * self.labels, size[actors]
        if label is not None:
            return {"mask": self.mask.values[row_indices(starts + label[actors] * sizes, sizes)]}
        return {"mask": self.mask.values[row_indices(starts, sizes * self.labels)]}

    def legal_by_label(self) -> BoolArray:
        """Return which actors have a legal choice after each label, (actors, labels) bool."""
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
        any_of: BoolArray = self.mask.values.reshape(-1, self.labels, size).any(axis=2)
        return any_of

    def full_mask(self, columns: tuple[int, ...]) -> Ragged:
        """Return the mask; all choices are allowed if it was not given.

        Args:
            columns: `ActionSpace.mask_columns`.
        """
        if self.mask is not None:
            return self.mask
        lengths = self.mask_lengths()
        return Ragged(np.ones((int(lengths.sum()), *columns), np.bool_), lengths)


def block_sizes(mask: Any) -> IntArray:
    """Return the rows of a mask that each actor has for a label, (actors,) int64.

    Args:
        mask: has `actors` and `actees`, in memory or on a device.
    """
    if mask.actees is None:
        return np.ones(len(mask.actors.values), np.int64)
    return np.repeat(mask.actees.lengths, mask.actors.lengths)  # a row for each actee of its frame


@dataclass
class VecCategoricalActionMask(VecActionMask):
    """The actors of a categorical (or global) action in each frame, and their choices.

    Attributes:
        actors: int64 (actors,) per frame, positions in the frame. The position of the global
            actor is the number of entities of the frame. Actors with nothing legal are not here.
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
        actors: int64 (actors,) per frame, positions in the frame; those that can select anything.
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
    """The actors of an action of numbers in each frame, and the bounds of each.

    Attributes:
        actors: int64 (actors,) per frame, positions in the frame. The position of the global
            actor is the number of entities of the frame.
        low: float32 (actors, components) per frame, the smallest numbers.
        high: float32 (actors, components) per frame, the largest numbers.
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
        """Random numbers that the choice of an actor takes: one for each component."""
        return int(self.low.values.shape[1])

    @property
    def bounds(self) -> Ragged:
        """float32 (actors, 2, components) per frame, the smallest and largest numbers."""
        return Ragged(np.stack([self.low.values, self.high.values], axis=1), self.actors.lengths)

    def _rows_of(self, actors: IntArray, label: IntArray | None) -> dict[str, Any]:
        return {"low": self.low.values[actors], "high": self.high.values[actors]}


_ADD, _MIN, _MAX = np.add.reduce, np.minimum.reduce, np.maximum.reduce


@dataclass
class Metric:
    """Count, sum and range of the values of one metric."""

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
        """Return the metrics of arrays of integers, all of one length: (metrics, values)."""
        num_metrics, count = rows.shape
        if count == 0:
            return [cls() for _ in range(num_metrics)]
        found = [of(rows, axis=1).tolist() for of in (_ADD, _MIN, _MAX)]
        return [cls(count, *map(float, each)) for each in zip(*found, strict=True)]

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
        """The mean; 0 when nothing was counted."""
        return self.sum / self.count if self.count else 0.0


def add_metrics(total: dict[str, Metric], more: Mapping[str, Metric]) -> None:
    """Add the metrics of one more step to those of all steps so far."""
    for name, metric in more.items():
        total[name] = total[name] + metric if name in total else metric


_NO_FLAGS = np.zeros(0, np.bool_)


@dataclass
class VecObs(FrameData):
    """One frame of each of B environments.

    An environment whose episode ended is reset in the same step: its features and masks are the
    first of the new episode, its reward, flags and metrics are the last of the old one.

    Attributes:
        features: float32 (n, num_features) per frame, for every entity type of the space; and
            under "__global__" one row per frame, where there is anything global.
        visible: bool (n,) per frame, for the types of which something may be hidden.
        action_masks: for every action of the space.
        reward: (B,) float32.
        done: (B,) bool, the episode ended in this step.
        metrics: metrics of the environments, over all of them.
        truncated: (B,) bool, those of `done` that were cut off.
        final: the last observations of the truncated episodes, one frame for each True in
            `truncated`, without actions; None when nothing was truncated.
        env_metrics: the values behind `metrics`, float64, none or one per environment.
        kinds: uint8 or int16 (n, num_kinds) per frame, the indices of labels, for the types that
            have kinds, and under "__global__" for kinds that belong to no entity; see
            `kinds.label_dtype`.
        identity: int64 (n,) per frame, for the types that `VecEnv.track` was given: the numbers of
            the entities, 0, 1, ... in the order in which their environment, or side of a match,
            first showed them in this episode. Equal numbers are one entity, even of two types. A
            frame in which a type has no ids has no rows of it.
        lost: (B,) bool, those of `truncated` that ended as their worker process was lost; empty if
            none did.
        padding: (B,) bool, frames between two episodes, of environments that take a step to reset:
            nobody acts in them, and the next step has no reward and begins an episode. They follow
            the step that has `done`, and are not learnt from. Empty if there are none.
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
        """(B,) bool, those of `done` that ended by themselves."""
        terminated: BoolArray = self.done & ~self.truncated
        return terminated

    @property
    def is_padding(self) -> BoolArray:
        """(B,) bool, `padding` with a flag for each frame; a copy."""
        return self.padding.copy() if len(self.padding) else np.zeros(len(self), np.bool_)

    def missing(self, path: Path, like: Any) -> Any:
        """Return a leaf that is not given: all is seen, and nobody has numbers."""
        if path[0] == "visible":
            return self.visibility(path[1])
        if path[0] in ("env_metrics", "identity"):
            return Ragged.empty(like.values, len(self))
        return super().missing(path, like)

    def select(self, selection: Selection) -> Self:
        """Return a copy of the selected frames; reward, done and metrics are blank."""
        reward, no_flags = np.zeros(len(self), np.float32), np.zeros(len(self), np.bool_)
        shown = replace(self, reward=reward, done=no_flags, truncated=no_flags, lost=no_flags)
        shown = replace(shown, metrics={}, env_metrics={}, final=None)
        taken = super(VecObs, replace(shown, padding=self.is_padding)).select(selection)
        padding = taken.padding if taken.padding.any() else _NO_FLAGS
        return replace(taken, lost=_NO_FLAGS, padding=padding)

    @classmethod
    def cat(cls, pieces: Sequence[Self]) -> Self:
        """Concatenate the frames of several pieces."""
        for name in ("lost", "padding"):
            if any(len(getattr(piece, name)) for piece in pieces):
                pieces = [piece._with_flags(name) for piece in pieces]
        joined = super().cat(pieces)
        visible = {n: joined.visible[n] for n in joined.features if n in joined.visible}
        finals = [piece.final for piece in pieces if piece.final is not None]
        metrics = {  # from the values, where known: sums of sums would round differently
            name: Metric.of(joined.env_metrics[name].values)
            if name in joined.env_metrics
            else sum((p.metrics[name] for p in pieces if name in p.metrics), Metric())
            for name in dict.fromkeys(name for piece in pieces for name in piece.metrics)
        }
        final = VecObs.cat(finals) if finals else None
        return replace(joined, visible=visible, metrics=metrics, final=final)

    def _with_flags(self, name: str) -> Self:
        """Return the same with a flag for each frame."""
        all_flags: Any = {name: np.zeros(len(self), np.bool_)}
        return self if len(getattr(self, name)) else replace(self, **all_flags)

    def extend(self, other: "VecObs") -> None:
        """Append the frames of another batch of the same environments' spaces."""
        vars(self).update(vars(VecObs.cat([self, other])))

    def visibility(self, name: EntityName) -> Ragged:
        """Return which entities of a type the policy sees, bool (n,) per frame."""
        rows = self.features[name]
        return self.visible.get(name, Ragged(np.ones(rows.items(), np.bool_), rows.lengths))
