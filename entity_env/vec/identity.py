"""Numbers of entities, by which the frames of an episode show who is who."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, TypeAlias

import numpy as np

from entity_env.actions import EntityID, EntityName
from entity_env.arrays import BoolArray
from entity_env.errors import EntityEnvError
from entity_env.observation import GLOBAL, Observation, ObsSpace
from entity_env.ragged import Ragged
from entity_env.vec.batching import located_in_last
from entity_env.vec.frames import Frames
from entity_env.vec.vec_obs import VecObs


class Numbers(dict[EntityID, int]):
    """The number of each id of a type that an environment has shown in its running episode.

    An id that is looked up first gets the next number.
    """

    def __missing__(self, one: EntityID) -> int:
        number = self[one] = len(self)
        return number


Tables: TypeAlias = dict[EntityName, Numbers]
"""The numbers of an environment by type."""


class IdentityTracker:
    """Numbers of the entities that each of B environments has shown in its running episode.

    An entity is known by its type and id. Every id is remembered until the episode ends, as an
    entity that is gone may return.

    Args:
        types: the entity types to number.
        num_envs: B, where each side of a match counts as an environment.

    Attributes:
        tables: per environment and type the number of each id, in the order of the numbers.
    """

    def __init__(self, types: Sequence[EntityName], num_envs: int) -> None:
        self.types = types
        self.tables: list[Tables] = [{name: Numbers() for name in types} for _ in range(num_envs)]
        # By type, the ids of the last frame of each environment, and the numbers of all of them:
        # most frames show the same.
        self._ids: dict[EntityName, list[Any]] = {}
        self._last: dict[EntityName, list[list[int]]] = {}
        self._joined: dict[EntityName, Ragged] = {}

    def begin(self, envs: Sequence[int] | None = None) -> None:
        """Forget all entities of some environments, or of all, as their episodes begin."""
        for i in range(len(self.tables)) if envs is None else envs:
            for numbers in self.tables[i].values():
                numbers.clear()
            for of_envs in self._ids.values():
                of_envs[i] = None

    def number_last(
        self, final: VecObs, truncated: BoolArray, outcomes: Sequence[Observation]
    ) -> None:
        """Set `identity` of the last observations of truncated episodes, before others begin.

        Args:
            final: the last observations, made by `batch_outcomes`.
            truncated: (B,) the environments whose episode was cut off.
            outcomes: B observations, of which `final` was made.

        Raises:
            InvalidObservation: ids, which `batch_outcomes` does not check, are wrong.
        """
        types = [name for name in final.features if name != GLOBAL]
        cut_off = np.flatnonzero(truncated).tolist()
        last = [outcomes[i] for i in cut_off]
        with located_in_last(truncated):
            Frames(last, types, final.features, final.visible).check_ids()
        for name in types:
            if name in self.types:
                pairs = zip(cut_off, last, strict=True)
                numbers = [self._numbers(i, name, _ids(o, name)) for i, o in pairs]
                final.identity[name] = _ragged(numbers)

    def update(self, batch: VecObs, obs: Sequence[Observation]) -> None:
        """Set `identity` of a batch, in which episodes that are `done` have begun anew.

        Args:
            batch: made of the observations by `batch_obs`.
            obs: B observations.
        """
        self.begin(np.flatnonzero(batch.done).tolist())
        self.number(batch, obs)

    def number(self, batch: VecObs, obs: Sequence[Observation]) -> None:
        """Set `identity` of a batch of the next frame of each environment."""
        shown = [name for name in batch.features if name in self.types]
        ids = [o.ids for o in obs]
        batch.identity = {name: self._numbers_of_all(ids, name) for name in shown}

    def number_one(self, batch: VecObs, obs: Observation, env: int = 0) -> None:
        """Set `identity` of a batch of a frame of one environment."""
        shown = [name for name in batch.features if name in self.types]
        batch.identity = {n: _ragged([self._numbers(env, n, _ids(obs, n))]) for n in shown}

    def _numbers(self, env: int, name: EntityName, ids: Sequence[EntityID]) -> list[int]:
        """Return the numbers of the entities of a type in a frame of an environment."""
        return [*map(self.tables[env][name].__getitem__, ids)]

    def _numbers_of_all(
        self, ids_by_type: Sequence[Mapping[EntityName, Any]], name: EntityName
    ) -> Ragged:
        """Return the numbers of the entities of a type in all environments."""
        ids = [by_type.get(name, _NOBODY) for by_type in ids_by_type]
        if not {*map(type, ids)} <= _COMPARABLE:
            ids = [one if type(one) in _COMPARABLE else [*one] for one in ids]
        before = self._ids.setdefault(name, [None] * len(ids))
        if _differ(ids, before) or name not in self._joined:
            numbers = self._last.setdefault(name, [[] for _ in ids])
            for i, (now, last) in enumerate(zip(ids, before, strict=True)):
                if _differ(now, last):
                    numbers[i] = self._numbers(i, name, now)
                    before[i] = now[:]  # environments may change a list that they gave
            self._joined[name] = _ragged(numbers)
        known = self._joined[name]
        return Ragged(known.values.copy(), known.lengths.copy())


_NOBODY: list[EntityID] = []
_COMPARABLE = {list, tuple}
"""Types of sequences of ids of which equal ones compare so, at once."""


def _differ(ids: Any, before: Any) -> bool:
    """Return whether ids differ; NumPy compares its numbers with each member of a tuple."""
    try:
        return bool(ids != before)
    except ValueError:
        return True


def _ids(obs: Observation, name: EntityName) -> list[EntityID]:
    """Return the ids of a type as a list of their own, which environments do not change."""
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
    """Return the types that `VecEnv.track` was given, all of the space for None.

    Raises:
        EntityEnvError: a type is not in the space, or an episode has begun.
    """
    known = [*obs_space.entities]
    if has_begun:
        raise EntityEnvError("track: call it before the first reset")
    unknown = [name for name in types or () if name not in known]
    if unknown:
        raise EntityEnvError(f"track: expected types among {known}, got {unknown}")
    return known if types is None else [*types]
