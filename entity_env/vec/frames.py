"""Positions of the entities that actions name, in their frames."""

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import chain, count
from typing import Any

import numpy as np

from entity_env.actions import EntityID, EntityName
from entity_env.arrays import BoolArray, IntArray, all_none
from entity_env.errors import LONG, invalid_in, short_repr, unexpected
from entity_env.observation import Observation, ObsSpace
from entity_env.ragged import Ragged, exclusive_cumsum, row_indices


class _RowLayout:
    """Positions of the entities of each type, computed from the numbers of entities.

    Args:
        lengths: the bytes of (types, B) int64: entities per type.
        num_types: the number of types.
        num_frames: B.
    """

    def __init__(self, lengths: bytes, num_types: int, num_frames: int) -> None:
        counts = np.frombuffer(lengths, dtype=np.int64).reshape(num_types, num_frames)
        # (types + 1, B): the last row is zero, it begins behind all entities.
        self.counts = np.concatenate([counts, np.zeros((1, num_frames), dtype=np.int64)])
        self.type_starts: IntArray = np.cumsum(self.counts, axis=0) - self.counts
        self.positions: dict[tuple[int, ...], Ragged] = {}

    def positions_of(self, types: tuple[int, ...]) -> Ragged:
        """Return the positions of all entities of the types, in the order of `types`."""
        if types not in self.positions:
            ks = list(types)
            starts, counts = self.type_starts[ks].T, self.counts[ks].T  # (B, named types)
            rows = row_indices(starts.reshape(-1), counts.reshape(-1))
            self.positions[types] = Ragged(rows, counts.sum(axis=1))
        return self.positions[types]


_layout = lru_cache(maxsize=8)(_RowLayout)
"""Cached, as in many environments the numbers of entities stay the same from step to step."""


@dataclass(frozen=True)
class Frames:
    """The entities of B frames, with lookup by type and by id."""

    obs: Sequence[Observation]
    types: list[EntityName]
    features: Mapping[EntityName, Ragged]
    visible: Mapping[EntityName, Ragged]
    strict: bool = False  # reject unordered collections of ids and of entities in masks
    _positions: dict[int, dict[EntityID, int]] = field(default_factory=dict, init=False)

    @cached_property
    def _layout(self) -> _RowLayout:
        lengths = b"".join([self.features[name].lengths.data for name in self.types])
        return _layout(lengths, len(self.types), len(self.obs))

    @property
    def totals(self) -> IntArray:
        """(B,) int64, entities per frame."""
        totals: IntArray = self._layout.type_starts[-1]
        return totals

    @cached_property
    def visible_rows(self) -> BoolArray:
        """(entities,) bool, visibility in the order of the frames."""
        layout, flags = self._layout, np.ones(int(self.totals.sum()), dtype=np.bool_)
        frame_starts = exclusive_cumsum(self.totals)
        for k, name in enumerate(self.types):
            if name in self.visible:
                rows = row_indices(frame_starts + layout.type_starts[k], layout.counts[k])
                flags[rows] = self.visible[name].values
        return flags

    def check_ids(self) -> None:
        """Raise unless each entity has one id, hashable and unique in its frame.

        An action names entities to the environment by these ids, also where the mask named types.
        One set per frame: about 35 ns per id, and nothing for types without ids.

        Raises:
            InvalidObservation: names the frame and the field.
        """
        if not any(o.ids for o in self.obs):
            return
        checked_names([o.ids for o in self.obs], self.types, "ids: expected types among")
        try:
            if self._has_valid_ids():
                return
        except TypeError:
            pass  # ids without a length, or not hashable
        for i in range(len(self.obs)):
            self._check_frame_ids(i)

    def _has_valid_ids(self) -> bool:
        """Return whether the ids of all frames are valid, without Python code per entity."""
        columns, with_ids = [], np.zeros(len(self.obs), dtype=np.int64)
        for k, name in enumerate(self.types):
            frame_ids = [o.ids.get(name) for o in self.obs]
            if all_none(frame_ids):
                continue
            column = [() if ids is None else ids for ids in frame_ids]
            counts = np.where([ids is not None for ids in frame_ids], self._layout.counts[k], 0)
            if list(map(len, column)) != counts.tolist():
                return False
            columns.append(column)
            with_ids += counts
        if self.strict and not _are_in_order(chain.from_iterable(columns)):
            return False
        # One set at a time, which is faster than all of them in memory.
        unique = map(set().union, *columns) if columns else ()
        if columns and list(map(len, unique)) != with_ids.tolist():
            return False
        # Entities of types without ids are called (type, row).
        are_named = np.array_equal(with_ids, self.totals)
        all_ids = chain.from_iterable(chain.from_iterable(columns))
        return are_named or tuple not in set(map(type, all_ids))

    def _check_frame_ids(self, i: int) -> None:
        """Raise if the ids of one frame are invalid; slower than `_has_valid_ids`."""
        obs = self.obs[i]
        # Entities of types without ids are called (type, row).
        without_ids = [name for name in self.types if obs.ids.get(name) is None]
        rows = set(chain.from_iterable(map(obs.ids_of_type, without_ids)))
        owners: dict[EntityID, EntityName] = {}
        for name, ids in obs.ids.items():
            if ids is None:
                continue
            # Each type has one id per entity.
            n, what = int(self.features[name].lengths[i]), f"ids[{name!r}]"
            if not has_len(ids):
                raise unexpected(i, what, f"a sequence of {n} ids", short_repr(ids, LONG))
            if self.strict:
                _check_order(i, what, ids)
            if len(ids) != n or sum(1 for _ in ids) != n:
                raise unexpected(i, what, f"{n} ids", len(ids))
            # Ids are hashable, and unique in the frame.
            for entity_id in ids:
                try:
                    is_row = entity_id in rows
                except TypeError:
                    raise unexpected(i, what, "hashable ids", short_repr(entity_id, LONG)) from None
                if is_row:
                    other = f"{entity_id!r}, which an entity without an id has"
                    raise invalid_in(i, f"{what}: expected other ids than {other}")
                if entity_id in owners:
                    got = f"{entity_id!r} for two entities of {name!r} and {owners[entity_id]!r}"
                    raise unexpected(i, what, "unique ids", got)
                owners[entity_id] = name

    def locate(self, ids: Sequence[Any], types: Sequence[Any], what: str) -> Ragged:
        """Return the positions of the named entities.

        Args:
            ids: per frame the ids of the named entities, or None.
            types: per frame the types with all of their entities named, or None; where ids and
                types are both None, every entity of the frame is named.
            what: the field, for messages.

        Returns:
            int64 (named,) per frame, in the order in which they are named.
        """
        if self.strict and not _are_in_order(chain(ids, types)):
            for i, fields in enumerate(zip(ids, types, strict=True)):
                _check_order(i, what, *fields)
        if all_none(ids) and is_same_everywhere(types):
            shared = self._layout.positions_of(self._type_indices(types[0], what, 0))
            return Ragged(shared.values.copy(), shared.lengths.copy())
        if type(None) not in set(map(type, ids)):
            flat: list[int] = []
            for i, named in enumerate(ids):
                flat += self._positions_of_ids(i, named, what)
            lengths = np.fromiter(map(len, ids), dtype=np.int64, count=len(ids))
            return Ragged(np.array(flat, dtype=np.int64), lengths)
        positions = []
        for i, (named, frame_types) in enumerate(zip(ids, types, strict=True)):
            if named is not None:
                frame_positions = np.array(self._positions_of_ids(i, named, what), dtype=np.int64)
            else:
                ks, layout = list(self._type_indices(frame_types, what, i)), self._layout
                frame_positions = row_indices(layout.type_starts[ks, i], layout.counts[ks, i])
            positions.append(frame_positions)
        lengths = np.fromiter(map(len, positions), dtype=np.int64, count=len(positions))
        return Ragged(np.concatenate(positions), lengths)

    def actors_of(self, masks: Sequence[Any], what: str) -> Ragged:
        """Return the positions of the actors named by masks; raise if one is invisible.

        Args:
            masks: of each frame, with `actor_ids` and `actor_types`.
            what: the field, for messages.
        """
        ids, types = [mask.actor_ids for mask in masks], [mask.actor_types for mask in masks]
        actors = self.locate(ids, types, what)
        self.check_visible(actors, what)
        return actors

    def global_actors(self, masks: Sequence[Any]) -> Ragged:
        """Return the position of the global actor, after all entities, in frames with a mask."""
        offered = np.array([mask is not None for mask in masks], dtype=np.bool_)
        return Ragged(self.totals[offered], offered.astype(np.int64))

    def _type_indices(
        self, types: Sequence[EntityName] | None, what: str, i: int
    ) -> tuple[int, ...]:
        """Return the indices of the types that frame i names; of all types for None."""
        if types is None:
            return tuple(range(len(self.types)))
        if not has_len(types):
            raise unexpected(i, what, "a sequence of types", short_repr(types, LONG))
        for name in types:
            if name not in self.types:
                raise unexpected(i, what, f"types among {self.types}", repr(name))
        if len(set(types)) < len(types):
            raise unexpected(i, what, "each type once", list(types))
        return tuple(map(self.types.index, types))

    def _positions_of_ids(self, i: int, ids: Any, what: str) -> list[int]:
        is_single = type(ids) in (list, tuple) and len(ids) == 1 and type(ids[0]) in (int, str)
        if is_single and (position := self._position_of_id(i, ids[0])) is not None:
            return [position]
        try:
            by_id = self._positions_by_id(i) if len(ids) else {}
            positions = list(map(by_id.__getitem__, ids))
        except (KeyError, TypeError):
            by_id = self._positions_by_id(i)
            raise unexpected(
                i, what, f"ids among {short_repr([*by_id], LONG)}", repr(ids)
            ) from None
        if len(set(positions)) < len(positions):
            raise unexpected(i, what, "each entity once", repr(ids))
        return positions

    def _position_of_id(self, i: int, entity_id: Any) -> int | None:
        """Return the position of an entity in frame i without a dictionary; None if unknown."""
        first = 0
        for name in self.types:
            ids = self.obs[i].ids_of_type(name)
            if type(ids) not in (list, tuple):
                return None
            try:
                return first + ids.index(entity_id)
            except ValueError:
                first += len(ids)
        return None

    def _positions_by_id(self, i: int) -> dict[EntityID, int]:
        """Return the position of each entity by its id or `(type, row)`; the ids must be valid."""
        if i not in self._positions:
            ids = chain.from_iterable(map(self.obs[i].ids_of_type, self.types))
            self._positions[i] = dict(zip(ids, count()))
        return self._positions[i]

    def are_visible(self, positions: Ragged) -> BoolArray:
        """Return whether the policy sees the entities at some positions, (positions,) bool."""
        if not self.visible:
            return np.ones(len(positions.values), np.bool_)
        frame = np.repeat(np.arange(len(positions)), positions.lengths)
        rows = exclusive_cumsum(self.totals)[frame] + positions.values
        visible: BoolArray = self.visible_rows[rows]
        return visible

    def check_visible(self, positions: Ragged, what: str) -> None:
        """Raise if the entity at one of the positions is hidden from the policy."""
        if not self.visible:
            return
        hidden = np.flatnonzero(~self.are_visible(positions))
        if len(hidden):
            frame = np.repeat(np.arange(len(positions)), positions.lengths)
            i, row = int(frame[hidden[0]]), int(positions.values[hidden[0]])
            present = [name for name in self.types if self.features[name].lengths[i]]
            entity = f"entity {row} of the frame (types {present})"
            rule = "hidden entities can neither act nor be selected"
            raise invalid_in(i, f"{what}: {entity} is invisible; {rule}")


def _check_order(i: int, what: str, *fields: Any) -> None:
    """Raise if a field of frame i is an unordered collection, such as a set."""
    for values in fields:
        if not _are_in_order([values]):
            raise unexpected(i, what, "a list or another sequence", short_repr(values, LONG))


@lru_cache(maxsize=64)
def _is_in_order(cls: Any) -> bool:
    """Return False for dictionaries, their views, sets and other classes without positions."""
    if not hasattr(cls, "__iter__"):  # no entities at all, or a mistake of another kind
        return True
    return hasattr(cls, "__getitem__") and not issubclass(cls, Mapping | Set)


def _are_in_order(values: Iterable[Any]) -> bool:
    return all(map(_is_in_order, set(map(type, values))))


def is_same_everywhere(types: Sequence[Any]) -> bool:
    """Return whether all frames name the same types: in a list, in a tuple or as None."""
    is_one_kind = set(map(type, types)) <= {type(types[0])} <= {list, tuple, type(None)}
    return is_one_kind and types.count(types[0]) == len(types)


def ids_of_actors(
    obs: Sequence[Observation], obs_space: ObsSpace, masks: Sequence[Any], actors: Ragged
) -> list[Sequence[EntityID]]:
    """Return copies of the ids of the actors of each frame that have a legal choice.

    Args:
        obs: B observations.
        obs_space: their space.
        masks: of an action, with `actor_ids` and `actor_types`.
        actors: int64 (actors,) per frame, positions of the actors to return.
    """
    named = named_ids(obs, obs_space, [m.actor_ids for m in masks], [m.actor_types for m in masks])
    return _remaining_ids(named, obs, obs_space, actors)


def ids_of_actees(
    obs: Sequence[Observation], obs_space: ObsSpace, masks: Sequence[Any], actees: Ragged
) -> list[Sequence[EntityID]]:
    """Return the ids of the actees of each frame that are visible to the policy.

    Args:
        obs: B observations.
        obs_space: their space.
        masks: of an action, with `actee_ids` and `actee_types`.
        actees: int64 (actees,) per frame, positions of the actees to return.
    """
    named = named_ids(obs, obs_space, [m.actee_ids for m in masks], [m.actee_types for m in masks])
    return _remaining_ids(named, obs, obs_space, actees)


def _remaining_ids(
    named: list[Sequence[EntityID]], obs: Sequence[Observation], obs_space: ObsSpace, subset: Ragged
) -> list[Sequence[EntityID]]:
    """Return the ids of a subset of the named entities of each frame.

    Args:
        named: ids of all entities that are named.
        obs: B observations.
        obs_space: their space.
        subset: int64 per frame, positions of the entities to return, in the same order.
    """
    counts = subset.lengths.tolist()
    if list(map(len, named)) != counts:
        for i, count in enumerate(counts):
            if len(named[i]) != count:
                all_ids = obs[i].index_to_id(obs_space) if count else []
                named[i] = [all_ids[k] for k in subset[i].values]
    # Copies, as environments may change their lists while they act.
    if {*map(type, named)} <= {list}:
        return [*map(list.copy, named)]  # type: ignore[arg-type]
    return [ids if type(ids) is tuple else _copy_ids(ids) for ids in named]


def _copy_ids(ids: Sequence[EntityID]) -> Sequence[EntityID]:
    return ids.copy() if isinstance(ids, np.ndarray) else [*ids]


def named_ids(
    obs: Sequence[Observation], obs_space: ObsSpace, ids: Sequence[Any], types: Sequence[Any]
) -> list[Sequence[EntityID]]:
    """Return the ids of the entities that a mask names in each frame: by id, by type or all.

    Args:
        obs: B observations.
        obs_space: their space.
        ids: per frame the named ids, or None.
        types: per frame the named types, or None.
    """
    if not obs:
        return []
    if not _are_in_order(chain(ids, types, chain.from_iterable(o.ids.values() for o in obs))):
        for i, o in enumerate(obs):
            _check_order(i, "ids", ids[i], types[i], *o.ids.values())
    if all_none(ids) and is_same_everywhere(types):
        named = list(obs_space.entities) if types[0] is None else types[0]
        if len(named) == 1:  # the most common case
            name = named[0]
            frame_ids = [o.ids.get(name) for o in obs]
            pairs = zip(obs, frame_ids, strict=True)
            type_ids = [o.ids_of_type(name) if ids is None else ids for o, ids in pairs]
            return type_ids if types[0] is not None else [list(i) for i in type_ids]
    ids_by_frame: list[Sequence[EntityID]] = []
    for o, ids_named, types_named in zip(obs, ids, types, strict=True):
        if ids_named is None:
            type_names = obs_space.entities if types_named is None else types_named
            ids_named = list(chain.from_iterable(map(o.ids_of_type, type_names)))
        ids_by_frame.append(ids_named)
    return ids_by_frame


def checked_names(names: Sequence[Collection[str]], valid: Collection[str], start: str) -> set[str]:
    """Return the union of the names in all frames.

    Args:
        names: the names in each frame.
        valid: names of the space.
        start: beginning of the message.

    Raises:
        InvalidObservation: a name is not valid.
    """
    union: set[str] = set().union(*names)
    if union <= set(valid):
        return union
    i = next(i for i, frame in enumerate(names) if not set(frame) <= set(valid))
    unknown = [name for name in names[i] if name not in valid]
    raise invalid_in(i, f"{start} {list(valid)}, got {unknown}")


def has_len(value: Any) -> bool:
    """Return whether `len(value)` works; an array of zero dimensions has the method and raises."""
    try:
        len(value)
    except TypeError:
        return False
    return True
