"""Numbers of entities, which identify an entity in all frames of an episode."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from entity_env.actions import EntityID, EntityName
from entity_env.arrays import BoolArray
from entity_env.errors import EntityEnvError
from entity_env.observation import GLOBAL, Observation, ObsSpace
from entity_env.ragged import Ragged
from entity_env.vec.batching import located_errors_of_final
from entity_env.vec.frames import Frames
from entity_env.vec.vec_obs import VecObs


class EntityNumbers(dict[EntityID, int]):
    """Numbers of the ids of one entity type in the running episode of an environment.

    An id that is looked up first gets the next number.
    """

    def __missing__(self, entity_id: EntityID) -> int:
        number = self[entity_id] = len(self)
        return number


Tables: TypeAlias = dict[EntityName, EntityNumbers]
"""Numbers of the ids of an environment by entity type."""


class IdentityTracker:
    """Numbers of the entities in the running episode of each of B environments.

    An entity is identified by its type and id. Every id is remembered until the episode ends, as an
    entity that is gone may return.

    Args:
        types: the entity types to number.
        num_envs: B, where each side of a match counts as an environment.

    Attributes:
        tables: per environment and type the number of each id, in the order of the numbers.
    """

    def __init__(self, types: Sequence[EntityName], num_envs: int) -> None:
        self.types = types
        self.tables: list[Tables] = [{t: EntityNumbers() for t in types} for _ in range(num_envs)]
        # By type, ids of the last frame of each environment and all their numbers: most frames
        # repeat them.
        self._ids: dict[EntityName, list[Any]] = {}
        self._last: dict[EntityName, list[list[int]]] = {}
        self._joined: dict[EntityName, Ragged] = {}

    def begin(self, envs: Sequence[int] | None = None) -> None:
        """Forget the entities of some environments, or of all, as their episodes begin."""
        for i in range(len(self.tables)) if envs is None else envs:
            for numbers in self.tables[i].values():
                numbers.clear()
            for last_ids in self._ids.values():
                last_ids[i] = None

    def number_last(
        self, final: VecObs, truncated: BoolArray, outcomes: Sequence[Observation]
    ) -> None:
        """Set `identity` of the last observations of truncated episodes, before others begin.

        Args:
            final: the last observations, made by `batch_outcomes`.
            truncated: (B,) bool, environments with a truncated episode.
            outcomes: B observations from which `final` was made.

        Raises:
            InvalidObservation: ids, which `batch_outcomes` does not check, are invalid.
        """
        types = [name for name in final.features if name != GLOBAL]
        cut_off = np.flatnonzero(truncated).tolist()
        last = [outcomes[i] for i in cut_off]
        with located_errors_of_final(truncated):
            Frames(last, types, final.features, final.visible).check_ids()
        for name in types:
            if name in self.types:
                pairs = zip(cut_off, last, strict=True)
                numbers = [self._numbers(i, name, _ids(o, name)) for i, o in pairs]
                final.identity[name] = _ragged(numbers)

    def update(self, batch: VecObs, obs: Sequence[Observation]) -> None:
        """Set `identity` of a batch, and start the numbers again where an episode is `done`.

        Args:
            batch: made of the observations by `batch_obs`.
            obs: B observations.
        """
        self.begin(np.flatnonzero(batch.done).tolist())
        self.number(batch, obs)

    def number(self, batch: VecObs, obs: Sequence[Observation]) -> None:
        """Set `identity` of a batch with the next frame of each environment."""
        tracked = [name for name in batch.features if name in self.types]
        ids = [o.ids for o in obs]
        batch.identity = {name: self._numbers_of_all(ids, name) for name in tracked}

    def number_one(self, batch: VecObs, obs: Observation, env: int = 0) -> None:
        """Set `identity` of a batch with one frame of one environment."""
        tracked = [name for name in batch.features if name in self.types]
        batch.identity = {n: _ragged([self._numbers(env, n, _ids(obs, n))]) for n in tracked}

    def _numbers(self, env: int, name: EntityName, ids: Sequence[EntityID]) -> list[int]:
        """Return the numbers of the entities of a type in a frame of an environment."""
        return [*map(self.tables[env][name].__getitem__, ids)]

    def _numbers_of_all(
        self, ids_by_type: Sequence[Mapping[EntityName, Any]], name: EntityName
    ) -> Ragged:
        """Return the numbers of the entities of a type in all environments."""
        ids = [by_type.get(name, _NO_IDS) for by_type in ids_by_type]
        if not {*map(type, ids)} <= _COMPARABLE:
            ids = [one if type(one) in _COMPARABLE else [*one] for one in ids]
        last_ids = self._ids.setdefault(name, [None] * len(ids))
        if _differ(ids, last_ids) or name not in self._joined:
            numbers = self._last.setdefault(name, [[] for _ in ids])
            for i, (new, last) in enumerate(zip(ids, last_ids, strict=True)):
                if _differ(new, last):
                    numbers[i] = self._numbers(i, name, new)
                    last_ids[i] = new[:]  # a copy, as environments may change their lists
            self._joined[name] = _ragged(numbers)
        joined = self._joined[name]
        return Ragged(joined.values.copy(), joined.lengths.copy())


_NO_IDS: list[EntityID] = []
_COMPARABLE = {list, tuple}
"""Types of sequences of ids that `!=` compares as a whole."""


def _differ(ids: Any, last_ids: Any) -> bool:
    """Return whether ids differ; NumPy compares an array with each member of a tuple."""
    try:
        return bool(ids != last_ids)
    except ValueError:
        return True


def _ids(obs: Observation, name: EntityName) -> list[EntityID]:
    """Return the ids of a type as a new list, which environments do not change."""
    ids = obs.ids.get(name)
    return [] if ids is None else [*ids]


def _ragged(numbers: Sequence[list[int]]) -> Ragged:
    """Return numbers by environment as int64 (n,) per frame."""
    lengths = np.fromiter(map(len, numbers), np.int64, len(numbers))
    flat = chain.from_iterable(numbers)
    return Ragged(np.fromiter(flat, np.int64, int(lengths.sum())), lengths)


def types_to_track(
    types: Sequence[EntityName] | None, obs_space: ObsSpace, has_begun: bool
) -> list[EntityName]:
    """Return the argument of `VecEnv.track`; all types of the space for None.

    Raises:
        EntityEnvError: a type is not in the space, or an episode has begun.
    """
    all_types = [*obs_space.entities]
    if has_begun:
        raise EntityEnvError("track: call it before the first reset")
    unknown = [name for name in types or () if name not in all_types]
    if unknown:
        raise EntityEnvError(f"track: expected types among {all_types}, got {unknown}")
    return all_types if types is None else [*types]
