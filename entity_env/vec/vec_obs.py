"""`VecObs`: one frame of each of many environments, as flat arrays and lengths."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np
import numpy.typing as npt

from entity_env.actions import ActionName, EntityName
from entity_env.observation import OMIT_EMPTY
from entity_env.ragged import Indices, Ragged, exclusive_cumsum, row_indices

Choices: TypeAlias = dict[ActionName, Ragged]
"""The choices of the actors of every action, as in `VecEnv.act`: int64 (actors,) per frame, or
float32 (actors, components) of numbers."""


@dataclass
class After:
    """The action that actors take before a dependent one.

    Attributes:
        action: its name.
        rows: int64 (actors,) per frame, the number of each actor among the actors of that action in
            its frame.
        when: the labels of that action with which the dependent one is taken, by their number; any
            choice if empty.
    """

    action: ActionName
    rows: Ragged
    when: list[int]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def labels(self) -> int:
        """The number of labels that masks tell apart."""
        return max(1, len(self.when))

    @classmethod
    def cat(cls, pieces: Sequence[Self]) -> Self:
        """Concatenate the frames of several pieces."""
        return replace(pieces[0], rows=Ragged.cat([piece.rows for piece in pieces]))

    def take(self, frames: npt.NDArray[np.int64]) -> Self:
        """Return the given frames, in the given order."""
        return replace(self, rows=self.rows.take(frames))


class VecActionMask:
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

    def mask_lengths(self) -> npt.NDArray[np.int64]:
        """Return the rows that `mask` has in each frame, (B,) int64."""
        lengths = self.actors.lengths * self.labels
        return lengths if self.actees is None else lengths * self.actees.lengths

    @classmethod
    def cat(cls, pieces: Sequence[Self]) -> Self:
        """Concatenate the frames of several masks of one action."""
        rows: dict[str, Any] = {"actors": Ragged.cat([piece.actors for piece in pieces])}
        if pieces[0].actees is not None:
            rows["actees"] = Ragged.cat([p.actees for p in pieces if p.actees is not None])
        like = next((piece.mask for piece in pieces if piece.mask is not None), None)
        rows["mask"] = None
        if like is not None:
            columns = like.values.shape[1:]
            rows["mask"] = Ragged.cat([piece.full_mask(columns) for piece in pieces])
        return replace(cls(**rows), **_cat_after(pieces))  # type: ignore[type-var]

    def take(self, frames: npt.NDArray[np.int64]) -> Self:
        """Return the given frames, in the given order, as a copy."""
        given = {name: rows for name, rows in vars(self).items() if rows is not None}
        return replace(self, **{name: rows.take(frames) for name, rows in given.items()})  # type: ignore[type-var]

    def keep(self, kept: npt.NDArray[np.bool_], label: Indices | None = None) -> Self:
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

    def keep_actees(self, kept: npt.NDArray[np.bool_]) -> Self:
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

    def _rows_of(self, actors: Indices, label: Indices | None) -> dict[str, Any]:
        """Return the fields that have rows for each actor, of some of them, flat."""
        if self.mask is None:
            return {}
        # Each actor has `labels` blocks of rows: one row, or one for each actee of its frame.
        size = np.ones(len(self.actors.values), np.int64)
        if self.actees is not None:
            size = np.repeat(self.actees.lengths, self.actors.lengths)
        starts, sizes = exclusive_cumsum(size)[actors] * self.labels, size[actors]
        if label is not None:
            return {"mask": self.mask.values[row_indices(starts + label[actors] * sizes, sizes)]}
        return {"mask": self.mask.values[row_indices(starts, sizes * self.labels)]}

    def legal_by_label(self) -> npt.NDArray[np.bool_]:
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
        any_of: npt.NDArray[np.bool_] = self.mask.values.reshape(-1, self.labels, size).any(axis=2)
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

    @classmethod
    def cat(cls, pieces: Sequence[Self]) -> Self:
        """Concatenate the frames of several masks of one action."""
        actors, low, high = (
            Ragged.cat([vars(piece)[name] for piece in pieces])
            for name in ("actors", "low", "high")
        )
        return cls(actors, low, high, **_cat_after(pieces))

    def _rows_of(self, actors: Indices, label: Indices | None) -> dict[str, Any]:
        return {"low": self.low.values[actors], "high": self.high.values[actors]}


def _cat_after(pieces: Sequence[VecActionMask]) -> dict[str, Any]:
    found = [piece.after for piece in pieces if piece.after is not None]
    return {"after": After.cat(found)} if found else {}


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
    def of_each(cls, rows: npt.NDArray[np.int64]) -> "list[Metric]":
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
class VecObs:
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
    reward: npt.NDArray[np.float32]
    done: npt.NDArray[np.bool_]
    metrics: dict[str, Metric]
    truncated: npt.NDArray[np.bool_] = None  # type: ignore[assignment]
    final: "VecObs | None" = None
    env_metrics: dict[str, Ragged] = field(default_factory=dict)
    kinds: dict[EntityName, Ragged] = field(default_factory=dict, metadata={OMIT_EMPTY: True})
    identity: dict[EntityName, Ragged] = field(default_factory=dict, metadata={OMIT_EMPTY: True})
    lost: npt.NDArray[np.bool_] = field(
        default_factory=lambda: _NO_FLAGS, metadata={OMIT_EMPTY: True}
    )
    padding: npt.NDArray[np.bool_] = field(
        default_factory=lambda: _NO_FLAGS, metadata={OMIT_EMPTY: True}
    )

    def __post_init__(self) -> None:
        if self.truncated is None:
            self.truncated = np.zeros(len(self.done), dtype=np.bool_)

    def __len__(self) -> int:
        return len(self.reward)

    @property
    def terminated(self) -> npt.NDArray[np.bool_]:
        """(B,) bool, those of `done` that ended by themselves."""
        terminated: npt.NDArray[np.bool_] = self.done & ~self.truncated
        return terminated

    @property
    def is_padding(self) -> npt.NDArray[np.bool_]:
        """(B,) bool, `padding` with a flag for each frame; a copy."""
        return self.padding.copy() if len(self.padding) else np.zeros(len(self), np.bool_)

    @staticmethod
    def cat(pieces: Sequence["VecObs"]) -> "VecObs":
        """Concatenate the frames of several pieces."""
        # Last observations and metrics, which only some pieces have.
        finals = [piece.final for piece in pieces if piece.final is not None]
        names = dict.fromkeys(name for piece in pieces for name in piece.metrics)
        env_metrics = _cat_given(pieces, "env_metrics", np.zeros(0))
        types = pieces[0].features
        hiding = [name for name in types if any(name in piece.visible for piece in pieces)]

        # Frames, one piece after the other.
        return VecObs(
            features={name: Ragged.cat([p.features[name] for p in pieces]) for name in types},
            visible={name: Ragged.cat([p.visibility(name) for p in pieces]) for name in hiding},
            action_masks={
                name: mask.cat([piece.action_masks[name] for piece in pieces])
                for name, mask in pieces[0].action_masks.items()
            },
            reward=np.concatenate([piece.reward for piece in pieces]),
            done=np.concatenate([piece.done for piece in pieces]),
            metrics={  # from the values, where known: sums of sums would round differently
                name: Metric.of(env_metrics[name].values)
                if name in env_metrics
                else sum((p.metrics[name] for p in pieces if name in p.metrics), Metric())
                for name in names
            },
            truncated=np.concatenate([piece.truncated for piece in pieces]),
            final=VecObs.cat(finals) if finals else None,
            env_metrics=env_metrics,
            kinds={name: Ragged.cat([p.kinds[name] for p in pieces]) for name in pieces[0].kinds},
            identity=_cat_given(pieces, "identity", np.zeros(0, np.int64)),
            lost=_cat_flags(pieces, "lost"),
            padding=_cat_flags(pieces, "padding"),
        )

    def extend(self, other: "VecObs") -> None:
        """Append the frames of another batch of the same environments' spaces."""
        vars(self).update(vars(VecObs.cat([self, other])))

    def visibility(self, name: EntityName) -> Ragged:
        """Return which entities of a type the policy sees, bool (n,) per frame."""
        rows = self.features[name]
        return self.visible.get(name, Ragged(np.ones(rows.items(), np.bool_), rows.lengths))


def _cat_flags(pieces: Sequence[VecObs], attribute: str) -> npt.NDArray[np.bool_]:
    """Concatenate flags that are empty in pieces without any; empty if no piece has any."""
    flags = [getattr(piece, attribute) for piece in pieces]
    if not any(map(len, flags)):
        return _NO_FLAGS
    missing = (np.zeros(len(piece), np.bool_) for piece in pieces)
    return np.concatenate([f if len(f) else none for f, none in zip(flags, missing, strict=True)])


def _cat_given(
    pieces: Sequence[VecObs], attribute: str, like: npt.NDArray[Any]
) -> dict[str, Ragged]:
    """Concatenate rows by name; pieces that do not give a name have no rows of it."""
    given = [(getattr(piece, attribute), len(piece)) for piece in pieces]
    return {
        name: Ragged.cat([rows.get(name, Ragged.empty(like, n)) for rows, n in given])
        for name in dict.fromkeys(name for rows, _ in given for name in rows)
    }


def take_obs(obs: VecObs, frames: npt.NDArray[np.int64]) -> VecObs:
    """Return a copy of the given frames, in order; reward, done and metrics are blank."""
    features = {name: rows.take(frames) for name, rows in obs.features.items()}
    visible = {name: rows.take(frames) for name, rows in obs.visible.items()}
    masks = {name: mask.take(frames) for name, mask in obs.action_masks.items()}
    blank = np.zeros(len(frames), dtype=np.float32), np.zeros(len(frames), dtype=np.bool_)
    kinds = {name: rows.take(frames) for name, rows in obs.kinds.items()}
    identity = {name: rows.take(frames) for name, rows in obs.identity.items()}
    taken = VecObs(features, visible, masks, *blank, {}, kinds=kinds, identity=identity)
    if obs.is_padding[frames].any():
        taken.padding = obs.padding[frames]
    return taken
