"""Observation spaces, and `Observation`: one frame of an environment."""

import copy
from collections.abc import Collection, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np

from entity_env.actions import ActionMask, ActionName, EntityID, EntityName
from entity_env.arrays import BoolArray, Float32Array, as_flag
from entity_env.errors import InvalidObservation, InvalidSpace, short_repr
from entity_env.kinds import Kind, as_rows, label_map, split_kinds, unknown_label

GLOBAL = "__global__"
"""The name under which the global features travel beside the entity types."""


OMIT_EMPTY = "omit_empty"
"""Metadata of fields that files leave out where they are empty."""


@dataclass(init=False)
class Entity:
    """An entity type: the names of its features, in the order of their columns.

    Args:
        features: names of numbers, then kinds and flags.
        kinds: further kinds.
        constants: names of features that are meant to have one value in all rows, such as the
            place from which a frame is seen: a run gives no notice of them. They are not saved,
            and entity types that differ in nothing else are equal.

    Attributes:
        features: the names of the numbers.
        kinds: features that are one of several labels, in the columns behind the numbers.
    """

    features: list[str]
    kinds: list[Kind] = field(default_factory=list, metadata={OMIT_EMPTY: True})

    def __init__(
        self,
        features: Sequence[str | Kind],
        kinds: Sequence[Kind] = (),
        constants: Collection[str] = (),
    ) -> None:
        self.features, self.kinds = split_kinds("Entity.features", features, kinds)
        self.constants = frozenset(constants)
        if unknown := sorted(self.constants - {*self.columns}):
            raise InvalidSpace(
                f"Entity.constants: expected some of the features {self.columns}, got {unknown}"
            )

    @property
    def columns(self) -> list[str]:
        """The names of all features in the order of a row: numbers, then kinds."""
        return [*self.features, *(kind.name for kind in self.kinds)]

    def __repr__(self) -> str:
        return f"Entity(features={self.features!r}{_repr_of('kinds', self.kinds)})"


@dataclass(init=False)
class ObsSpace:
    """The entity types and features of an environment.

    Args:
        global_features: names of numbers, then kinds and flags.
        entities: the entity types.
        global_kinds: further kinds.

    Attributes:
        global_features: numbers that belong to no entity, present in every frame.
        entities: the entity types. Their order is the order of the entities in a frame.
        global_kinds: kinds that belong to no entity, behind the numbers.
    """

    global_features: list[str] = field(default_factory=list)
    entities: dict[EntityName, Entity] = field(default_factory=dict)
    global_kinds: list[Kind] = field(default_factory=list, metadata={OMIT_EMPTY: True})

    def __init__(
        self,
        global_features: Sequence[str | Kind] | None = None,
        entities: Mapping[EntityName, Entity] | None = None,
        global_kinds: Sequence[Kind] = (),
    ) -> None:
        what, given = "ObsSpace.global_features", [] if global_features is None else global_features
        self.global_features, self.global_kinds = split_kinds(what, given, global_kinds)
        self.entities = {} if entities is None else entities  # type: ignore[assignment]
        if GLOBAL in self.entities:
            raise InvalidSpace(f"ObsSpace.entities: the name {GLOBAL!r} is taken, choose another")

    def __repr__(self) -> str:
        shown = f"global_features={self.global_features!r}, entities={self.entities!r}"
        return f"ObsSpace({shown}{_repr_of('global_kinds', self.global_kinds)})"

    @property
    def global_entity(self) -> Entity:
        """The global features, as those of an entity."""
        return Entity(self.global_features, self.global_kinds)

    @property
    def kinds(self) -> dict[EntityName, list[Kind]]:
        """The kinds of each type that has any, and under GLOBAL those that belong to no entity."""
        found = {name: entity.kinds for name, entity in self.entities.items() if entity.kinds}
        return {**found, GLOBAL: self.global_kinds} if self.global_kinds else found


def _repr_of(name: str, kinds: Sequence[Kind]) -> str:
    return f", {name}={kinds!r}" if kinds else ""


Features: TypeAlias = Float32Array | Sequence[Sequence[float | str]]
Flags: TypeAlias = BoolArray | Sequence[bool]


class Observation:
    """One frame of an environment, as it shows it after a reset or a step.

    Entities are given as `entities={type: features}` or `{type: (features, ids)}`, or with
    `features` and `ids` apart. A type that is left out has no entities in this frame.

    Args:
        entities: features (n, num_features) per type, alone or with a sequence of n ids: numbers,
            then a label, or its index, for each kind.
        features: features per type; instead of `entities`.
        ids: ids per type, for the types that have any; only with `features`.
        global_features: (num_global_features,) values that belong to no entity, likewise.
        actions: for each action that can be taken now, its actors and their legal choices.
        reward: the reward of the step that led here.
        done: the episode is over; the same as `terminated` unless `truncated` is given.
        terminated: the episode ended by itself, it has no future.
        truncated: the episode was cut off here, its future had value; not so if it terminated in
            the same step.
        visible: per type, (n,) bool; False hides an entity from the policy, not from the value.
        metrics: numbers of this step to log.

    Raises:
        InvalidObservation: `done` contradicts `terminated` and `truncated`, one of them is neither
            true nor false, or both ways of giving entities are used.
    """

    def __init__(
        self,
        *,
        entities: Mapping[EntityName, Features | tuple[Features, Sequence[EntityID]] | None]
        | None = None,
        features: Mapping[EntityName, Features] | None = None,
        ids: Mapping[EntityName, Sequence[EntityID]] | None = None,
        global_features: Float32Array | Sequence[float | str] | None = None,
        actions: Mapping[ActionName, ActionMask] | None = None,
        reward: float = 0.0,
        done: bool | None = None,
        terminated: bool = False,
        truncated: bool = False,
        visible: Mapping[EntityName, Flags] | None = None,
        metrics: dict[str, float] | None = None,
    ) -> None:
        if entities is not None and (features is not None or ids is not None):
            ways = "expected entities, or features and ids, got both; leave one out"
            raise InvalidObservation(f"Observation: {ways}")
        # Features and ids by type.
        if entities is None:
            self.features = dict(features or {})
            self.ids = dict(ids or {})
        else:
            self.features, self.ids = {}, {}
            for name, entity in entities.items():
                if isinstance(entity, tuple) and len(entity) == 2:
                    self.features[name], self.ids[name] = entity  # type: ignore[assignment]
                elif entity is not None:
                    self.features[name] = entity
        # The ways in which an episode ends.
        if not {type(done), type(terminated), type(truncated)} <= _FLAG_TYPES:
            done = None if done is None else as_flag(done, "done")
            terminated = as_flag(terminated, "terminated")
            truncated = as_flag(truncated, "truncated")
        if done is not None and not done and (terminated or truncated):
            given = f"{terminated=} and {truncated=}"
            raise InvalidObservation(f"Observation: done=False contradicts {given}; leave it out")
        # Everything else is empty by default.
        self.global_features = global_features if global_features is not None else []
        self.actions = actions if actions is not None else {}
        self.reward = reward
        self.terminated = bool(terminated or (done and not truncated))
        self.truncated = bool(truncated and not terminated)
        self.visible = visible if visible is not None else {}
        self.metrics = metrics if metrics is not None else {}

    def __repr__(self) -> str:
        counts = {name: _size(block) for name, block in self.features.items()}
        offered = list(self.actions) if isinstance(self.actions, Mapping) else self.actions
        shown = f"entities={short_repr(counts)}, actions={short_repr(offered)}"
        return f"Observation({shown}, reward={short_repr(self.reward)}, {self._end})"

    def __str__(self) -> str:
        # Entities by type.
        lines = [f"Observation: reward {short_repr(self.reward)}, {self._end}"]
        if _size(self.global_features):
            lines.append(f"  global features: {_numbers([self.global_features])}")
        for name, block in self.features.items():
            shown = f"  {short_repr(name)}: {_size(block)}"
            if _size(block):
                shown += f", features {_numbers(block)}"
            for what, values in (("ids", self.ids), ("visible", self.visible)):
                if isinstance(values, Mapping) and name in values:
                    shown += f", {what} {_items(values[name])}"
            lines.append(shown)
        # Actions with their actors and choices, and metrics.
        actions = self.actions.items() if isinstance(self.actions, Mapping) else ()
        for name, mask in actions:
            fields = getattr(mask, "__dict__", {"": mask}).items()
            words = [
                _allowed(values) if part == "mask" else f"{part} {_items(values)}"
                for part, values in fields
                if values is not None
            ]
            lines.append(f"  action {short_repr(name)}: {', '.join(words) or 'everything allowed'}")
        if self.metrics:
            lines.append(f"  metrics: {short_repr(self.metrics)}")
        more = len(lines) - _MOST_LINES
        return "\n".join(lines[:_MOST_LINES] + [f"  and {more} more"] * (more > 0))

    @property
    def _end(self) -> str:
        return "terminated" if self.terminated else "truncated" if self.truncated else "not over"

    @property
    def done(self) -> bool:
        """The episode is over, one way or the other."""
        return self.terminated or self.truncated

    @done.setter
    def done(self, value: bool) -> None:
        is_over = as_flag(value, "done")
        self.terminated = is_over and not self.truncated
        self.truncated = is_over and self.truncated

    @classmethod
    def empty(cls) -> "Observation":
        """Return an observation of nothing, in which nothing can be done."""
        return cls()

    def num_entities(self, entity: EntityName) -> int:
        """Return the number of entities of a type."""
        return len(self.features.get(entity, ()))

    def index_to_id(self, obs_space: ObsSpace) -> list[EntityID]:
        """Return the id of every entity in the order of the frame, `(type, row)` without one."""
        return [entity_id for name in obs_space.entities for entity_id in self.ids_of_type(name)]

    def id_to_index(self, obs_space: ObsSpace) -> dict[EntityID, int]:
        """Return the position in the frame of every entity, by its id or `(type, row)`."""
        return {entity_id: i for i, entity_id in enumerate(self.index_to_id(obs_space))}

    def ids_of_type(self, entity: EntityName) -> Sequence[EntityID]:
        """Return the ids of the entities of a type, `(type, row)` for a type without ids."""
        ids = self.ids.get(entity)
        if ids is not None:
            return ids
        n = self.num_entities(entity)
        return _rows_of_type(entity, 1 << n.bit_length())[:n]


_FLAG_TYPES = {bool, type(None)}
_MOST_LINES = 40
_MOST_ROWS = 3
_MOST_NUMBERS = 8


def _size(values: object) -> int:
    return len(values) if isinstance(values, Sized) else 0


def _allowed(mask: Any) -> str:
    """Return the number of choices that a mask allows as text."""
    try:
        legal = np.asarray(mask)
    except ValueError:  # rows of different lengths
        return f"mask {short_repr(mask)}"
    return f"{np.count_nonzero(legal)} of {legal.size} choices allowed"


def _items(values: Any) -> str:
    return short_repr(values.tolist() if isinstance(values, np.ndarray) else values)


def _numbers(values: Any) -> str:
    """Return the first rows of numbers as text on one line."""
    try:
        rows = [row[: _MOST_NUMBERS + 1] for row in values[: _MOST_ROWS + 1]]
        first = [[v if isinstance(v, str) else f"{v:.4g}" for v in row] for row in rows]
    except (TypeError, ValueError):  # a mistake, which a check reports
        return short_repr(values)
    texts = [f"[{', '.join(_first(row, _MOST_NUMBERS))}]" for row in first]
    return " ".join(_first(texts, _MOST_ROWS))


def _first(texts: list[str], count: int) -> list[str]:
    return [*texts[:count], "..."] if len(texts) > count else texts


@lru_cache(maxsize=256)
def _rows_of_type(entity: EntityName, n: int) -> tuple[EntityID, ...]:
    """Return `(type, row)` for each of n entities; cached, as it is the same for many frames."""
    return tuple((entity, i) for i in range(n))


def filter_observation(obs: Observation, obs_space: ObsSpace, obs_filter: ObsSpace) -> Observation:
    """Return an observation with the types and features of `obs_filter`, in its order.

    Args:
        obs: an observation of `obs_space`; it is not changed.
        obs_space: the space that `obs` was made for.
        obs_filter: the types, features and global features to keep.

    Raises:
        InvalidObservation: `obs_filter` names something that `obs_space` does not have.
    """
    if obs_filter == obs_space:
        return obs
    unknown = [name for name in obs_filter.entities if name not in obs_space.entities]
    if unknown:
        known_types = list(obs_space.entities)
        raise InvalidObservation(f"entities: expected types among {known_types}, got {unknown}")

    # Features by column; all else as it is, without the types that are left out.
    shown = copy.copy(obs)
    shown.features = {}
    for name, wanted in obs_filter.entities.items():
        if name in obs.features:
            known, what = obs_space.entities[name], f"features of {name!r}"
            shown.features[name] = _columns(obs.features[name], known, wanted, what)
    shown.ids = {name: ids for name, ids in obs.ids.items() if name in obs_filter.entities}
    shown.visible = {name: v for name, v in obs.visible.items() if name in obs_filter.entities}
    known, wanted = obs_space.global_entity, obs_filter.global_entity
    one_row: Any = [obs.global_features]
    shown.global_features = _columns(one_row, known, wanted, "global_features")[0]
    return shown


def _columns(features: Features, known: Entity, wanted: Entity, what: str) -> Float32Array:
    """Return the columns of the wanted features, with the indices that labels have in `wanted`."""
    kinds = {kind.name: kind for kind in known.kinds}
    missing = [name for name in wanted.features if name not in known.features]
    missing += [kind.name for kind in wanted.kinds if kind.name not in kinds]
    if missing:
        got = f"{missing}, which it does not have"
        raise InvalidObservation(f"{what}: expected features among {known.columns}, got {got}")
    if len(features) == 0:
        return np.zeros((0, len(wanted.columns)), dtype=np.float32)
    array = as_rows(features, len(features), len(known.features), known.kinds, what)
    own = known.columns
    # Not array[:, columns], which is of another memory layout, and slower to join.
    shown = array.take([own.index(name) for name in wanted.columns], axis=1)
    for column, kind in enumerate(wanted.kinds, len(wanted.features)):
        if kind.labels != kinds[kind.name].labels:
            indices = shown[:, column].astype(np.int64)
            shown[:, column] = label_map(kinds[kind.name], kind)[indices]
            unknown = np.flatnonzero(shown[:, column] < 0)
            if len(unknown):
                label = kinds[kind.name].labels[indices[unknown[0]]]
                raise unknown_label(kind, label, unknown[0], what, None)
    return shown
