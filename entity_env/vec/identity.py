"""Numbers of entities, by which the frames of an episode show who is who."""

from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np

from entity_env.actions import EntityID, EntityName
from entity_env.errors import EntityEnvError
from entity_env.observation import GLOBAL, Observation, ObsSpace
from entity_env.ragged import Ragged
from entity_env.vec.batching import located_in_last
from entity_env.vec.frames import Frames
from entity_env.vec.vec_obs import VecObs

Tables: TypeAlias = dict[EntityName, dict[EntityID, int]]
"""By type the number of each id that an environment has shown in its running episode."""


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
        self.tables: list[Tables] = [{} for _ in range(num_envs)]

    def begin(self) -> None:
        """Begin an episode in every environment."""
        for table in self.tables:
            table.clear()

    def update(
        self, batch: VecObs, obs: Sequence[Observation], outcomes: Sequence[Observation]
    ) -> None:
        """Set `identity` of a batch and of its last observations.

        Args:
            batch: made of the observations by `batch_obs`.
            obs: B observations.
            outcomes: B observations; that of an episode that ended in this step is its last one.

        Raises:
            InvalidObservation: ids of a last observation, which `batch_obs` does not check, are
                wrong.
        """
        types = [name for name in batch.features if name != GLOBAL]
        shown = [name for name in types if name in self.types]
        # Last observations are of the episodes that ended.
        if batch.final is not None:
            cut_off = np.flatnonzero(batch.truncated).tolist()
            last = [outcomes[i] for i in cut_off]
            with located_in_last(batch.truncated):
                Frames(last, types, batch.final.features, batch.final.visible).check_ids()
            batch.final.identity = _numbers(last, shown, [self.tables[i] for i in cut_off])
        for i in np.flatnonzero(batch.done).tolist():
            self.tables[i].clear()
        batch.identity = _numbers(obs, shown, self.tables)


def _numbers(
    obs: Sequence[Observation],
    types: Sequence[EntityName],
    tables: Sequence[Tables],
) -> dict[EntityName, Ragged]:
    """Return the numbers of the entities of types, and add new entities to the tables."""
    identity = {}
    for name in types:
        numbers: list[int] = []
        ends = []
        for o, table in zip(obs, tables, strict=True):
            ids = o.ids.get(name)
            if ids is not None:
                numbers += numbers_of(ids, table.setdefault(name, {}))
            ends.append(len(numbers))
        lengths = np.diff(np.array(ends, dtype=np.int64), prepend=0)
        identity[name] = Ragged(np.array(numbers, dtype=np.int64), lengths)
    return identity


def numbers_of(ids: Iterable[EntityID], table: dict[EntityID, int]) -> list[int]:
    """Return the number of each id, the next one for an id that is not in the table yet."""
    return [table.setdefault(one, len(table)) for one in ids]


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
