"""Observation spaces, and `Observation`: one observation of an environment."""

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
"""Name of the global features where they are stored with the entity types."""


OMIT_EMPTY = "omit_empty"
"""Metadata of fields that are omitted from files if they are empty."""


@dataclass(init=False)
class Entity:
    """Feature space of an entity type: names of its features, in the order of the columns.

    Args:
        features: names of numeric features, then categorical features and flags.
        kinds: more categorical features.
        constants: names of features that are constant on purpose, such as the position of the
            camera: training does not warn about them. Not saved, and ignored in comparisons.

    Attributes:
        features: names of the numeric features.
        kinds: the categorical features; their columns follow the numeric ones.
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
        """The names of all features in the order of a row, numeric ones first."""
        return [*self.features, *(kind.name for kind in self.kinds)]

    def __repr__(self) -> str:
        return f"Entity(features={self.features!r}{_repr_of('kinds', self.kinds)})"


@dataclass(init=False)
class ObsSpace:
    """Observation space: the entity types and features of an environment.

    Args:
        global_features: names of numeric global features, then categorical features and flags.
        entities: the entity types.
        global_kinds: more categorical global features.

    Attributes:
        global_features: names of numeric features that belong to no entity.
        entities: the entity types, in the order of the entities in a frame.
        global_kinds: categorical features that belong to no entity, after the numeric ones.
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
        what, names = "ObsSpace.global_features", [] if global_features is None else global_features
        self.global_features, self.global_kinds = split_kinds(what, names, global_kinds)
        self.entities = {} if entities is None else entities  # type: ignore[assignment]
        if GLOBAL in self.entities:
            raise InvalidSpace(f"ObsSpace.entities: the name {GLOBAL!r} is taken, choose another")

    def __repr__(self) -> str:
        arguments = f"global_features={self.global_features!r}, entities={self.entities!r}"
        return f"ObsSpace({arguments}{_repr_of('global_kinds', self.global_kinds)})"

    @property
    def global_entity(self) -> Entity:
        """The global features as an entity type."""
        return Entity(self.global_features, self.global_kinds)

    @property
    def kinds(self) -> dict[EntityName, list[Kind]]:
        """The categorical features by type, or by GLOBAL; without empty lists."""
        by_type = {name: entity.kinds for name, entity in self.entities.items() if entity.kinds}
        return {**by_type, GLOBAL: self.global_kinds} if self.global_kinds else by_type


def _repr_of(name: str, kinds: Sequence[Kind]) -> str:
    return f", {name}={kinds!r}" if kinds else ""


Features: TypeAlias = Float32Array | Sequence[Sequence[float | str]]
Flags: TypeAlias = BoolArray | Sequence[bool]


class Observation:
    """The observation that an environment returns from a reset or step.

    Pass entities as `entities={type: features}` or `{type: (features, ids)}`, or as separate
    `features` and `ids`. Types that are left out have no entities in this frame.

    Args:
        entities: features by type, (n, num_features), or a tuple of them and n ids. A row has the
            numeric features, then a label, or its index, per categorical feature.
        features: features by type; instead of `entities`.
        ids: ids by type, for types with ids; only with `features`.
        global_features: (num_global_features,) features that belong to no entity.
        actions: masks of the available actions: actors and their legal choices.
        reward: the reward of the step.
        done: the episode is over; the same as `terminated` unless `truncated` is set.
        terminated: the episode reached a terminal state.
        truncated: the episode was cut off, and its value is bootstrapped; ignored if `terminated`.
        visible: by type, (n,) bool; False hides an entity from the policy, not from the value
            function.
        metrics: numbers of this step to log.

    Raises:
        InvalidObservation: `done` contradicts `terminated` and `truncated`, one of them is not a
            flag, or entities are passed in both ways.
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
            ways = "expected entities, or features and ids, got both; remove one"
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
        # Termination and truncation.
        if not {type(done), type(terminated), type(truncated)} <= _FLAG_TYPES:
            done = None if done is None else as_flag(done, "done")
            terminated = as_flag(terminated, "terminated")
            truncated = as_flag(truncated, "truncated")
        if done is not None and not done and (terminated or truncated):
            flags = f"{terminated=} and {truncated=}"
            raise InvalidObservation(f"Observation: done=False contradicts {flags}; remove it")
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
        arguments = f"entities={short_repr(counts)}, actions={short_repr(offered)}"
        return f"Observation({arguments}, reward={short_repr(self.reward)}, {self._end})"

    def __str__(self) -> str:
        # Entities by type.
        lines = [f"Observation: reward {short_repr(self.reward)}, {self._end}"]
        if _size(self.global_features):
            lines.append(f"  global features: {_numbers([self.global_features])}")
        for name, block in self.features.items():
            line = f"  {short_repr(name)}: {_size(block)}"
            if _size(block):
                line += f", features {_numbers(block)}"
            for what, values in (("ids", self.ids), ("visible", self.visible)):
                if isinstance(values, Mapping) and name in values:
                    line += f", {what} {_items(values[name])}"
            lines.append(line)
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
        """The episode is over: terminated or truncated."""
        return self.terminated or self.truncated

    @done.setter
    def done(self, value: bool) -> None:
        is_over = as_flag(value, "done")
        self.terminated = is_over and not self.truncated
        self.truncated = is_over and self.truncated

    @classmethod
    def empty(cls) -> "Observation":
        """Return an observation without entities and actions."""
        return cls()

    def num_entities(self, entity: EntityName) -> int:
        """Return the number of entities of a type."""
        return len(self.features.get(entity, ()))

    def index_to_id(self, obs_space: ObsSpace) -> list[EntityID]:
        """Return the ids of all entities in order, `(type, row)` for entities without ids."""
        return [entity_id for name in obs_space.entities for entity_id in self.ids_of_type(name)]

    def id_to_index(self, obs_space: ObsSpace) -> dict[EntityID, int]:
        """Return the index in the frame of each entity, by its id or `(type, row)`."""
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
    """Format the number of allowed choices of a mask."""
    try:
        legal = np.asarray(mask)
    except ValueError:  # rows of different lengths
        return f"mask {short_repr(mask)}"
    return f"{np.count_nonzero(legal)} of {legal.size} choices allowed"


def _items(values: Any) -> str:
    return short_repr(values.tolist() if isinstance(values, np.ndarray) else values)


def _numbers(values: Any) -> str:
    """Format the first rows of numbers on one line."""
    try:
        rows = [row[: _MOST_NUMBERS + 1] for row in values[: _MOST_ROWS + 1]]
        first = [[v if isinstance(v, str) else f"{v:.4g}" for v in row] for row in rows]
    except (TypeError, ValueError):  # invalid features, reported by `check_env`
        return short_repr(values)
    texts = [f"[{', '.join(_first(row, _MOST_NUMBERS))}]" for row in first]
    return " ".join(_first(texts, _MOST_ROWS))


def _first(texts: list[str], count: int) -> list[str]:
    return [*texts[:count], "..."] if len(texts) > count else texts


@lru_cache(maxsize=256)
def _rows_of_type(entity: EntityName, n: int) -> tuple[EntityID, ...]:
    """Return `(type, row)` for each of n entities; cached for speed."""
    return tuple((entity, i) for i in range(n))


def filter_observation(obs: Observation, obs_space: ObsSpace, obs_filter: ObsSpace) -> Observation:
    """Select the types and features of `obs_filter`, in its order.

    Args:
        obs: an observation of `obs_space`; not changed.
        obs_space: the space of `obs`.
        obs_filter: the types, features and global features to keep.

    Returns:
        The filtered observation; `obs` itself if the spaces are equal.

    Raises:
        InvalidObservation: `obs_filter` has a type or feature that `obs_space` lacks.
    """
    if obs_filter == obs_space:
        return obs
    unknown = [name for name in obs_filter.entities if name not in obs_space.entities]
    if unknown:
        all_types = list(obs_space.entities)
        raise InvalidObservation(f"entities: expected types among {all_types}, got {unknown}")

    # Select columns of features; copy the other fields without the omitted types.
    filtered = copy.copy(obs)
    filtered.features = {}
    for name, target in obs_filter.entities.items():
        if name in obs.features:
            source, what = obs_space.entities[name], f"features of {name!r}"
            filtered.features[name] = _columns(obs.features[name], source, target, what)
    filtered.ids = {name: ids for name, ids in obs.ids.items() if name in obs_filter.entities}
    filtered.visible = {name: v for name, v in obs.visible.items() if name in obs_filter.entities}
    source, target = obs_space.global_entity, obs_filter.global_entity
    one_row: Any = [obs.global_features]
    filtered.global_features = _columns(one_row, source, target, "global_features")[0]
    return filtered


def _columns(features: Features, source: Entity, target: Entity, what: str) -> Float32Array:
    """Select the feature columns of `target`, and map label indices to the labels of `target`."""
    kinds = {kind.name: kind for kind in source.kinds}
    missing = [name for name in target.features if name not in source.features]
    missing += [kind.name for kind in target.kinds if kind.name not in kinds]
    if missing:
        got = f"{missing}, which it does not have"
        raise InvalidObservation(f"{what}: expected features among {source.columns}, got {got}")
    if len(features) == 0:
        return np.zeros((0, len(target.columns)), dtype=np.float32)
    array = as_rows(features, len(features), len(source.features), source.kinds, what)
    names = source.columns
    # Not array[:, columns]: its memory layout makes concatenation slower.
    block = array.take([names.index(name) for name in target.columns], axis=1)
    for column, kind in enumerate(target.kinds, len(target.features)):
        if kind.labels != kinds[kind.name].labels:
            indices = block[:, column].astype(np.int64)
            block[:, column] = label_map(kinds[kind.name], kind)[indices]
            unknown = np.flatnonzero(block[:, column] < 0)
            if len(unknown):
                label = kinds[kind.name].labels[indices[unknown[0]]]
                raise unknown_label(kind, label, unknown[0], what, None)
    return block
