"""`Shards`: groups of environments for forward passes and sums.

Results depend on the number of shards, by rounding, but are bitwise the same for any assignment of
shards to processes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

import numpy as np

from entity_env.arrays import IntArray
from rogue_net.ragged import EntityBatch

T = TypeVar("T")


@dataclass(frozen=True)
class Shards:
    """S consecutive groups of columns.

    A column is an index among all environments, or among the environments that are trained on.

    Attributes:
        bounds: S + 1 numbers, the first column of each group, and the end of the last group.
        local: the groups of this process, which are consecutive.
    """

    bounds: tuple[int, ...]
    local: range

    @staticmethod
    def one(num_columns: int) -> "Shards":
        """Create a single group of all columns."""
        return Shards((0, num_columns), range(1))

    @staticmethod
    def of(num_envs: int, sides: int, count: int) -> "Shards":
        """Split environments into `count` groups of whole matches, of nearly equal size."""
        matches = num_envs // sides
        bounds = tuple(matches * i // count * sides for i in range(count + 1))
        return Shards(bounds, range(count))

    def for_rank(self, rank: int, num_ranks: int) -> "Shards":
        """Return the same groups with the consecutive share of a rank as `local`."""
        first, stop = (self.count * i // num_ranks for i in (rank, rank + 1))
        return replace(self, local=range(first, stop))

    def counts(self, num_ranks: int) -> list[int]:
        """Return the number of groups of each rank."""
        return [len(self.for_rank(rank, num_ranks).local) for rank in range(num_ranks)]

    def map(self, column: Callable[[int], int]) -> "Shards":
        """Return the groups after a mapping of columns; `column` maps each bound."""
        return replace(self, bounds=tuple(map(column, self.bounds)))

    @property
    def count(self) -> int:
        """Number of groups, S."""
        return len(self.bounds) - 1

    @property
    def num_columns(self) -> int:
        """Number of columns of all processes."""
        return self.bounds[-1]

    @property
    def columns(self) -> range:
        """Columns of this process."""
        return range(self.bounds[self.local.start], self.bounds[self.local.stop])

    @property
    def slices(self) -> list[slice]:
        """Columns of each group of this process, relative to its first column."""
        first, bounds = self.columns.start, self.bounds[self.local.start : self.local.stop + 1]
        return [slice(start - first, stop - first) for start, stop in pairwise(bounds)]

    def group_index(self, columns: IntArray) -> IntArray:
        """Return the group of each column, an index among all groups."""
        return np.searchsorted(self.bounds[1:-1], columns, side="right")

    def place(self, column: int) -> int:
        """Return the index, among the groups of this process, of the group of a local column."""
        start = np.array([column + self.columns.start], np.int64)
        return int(self.group_index(start)[0]) - self.local.start

    def rows(self, frames: IntArray) -> IntArray:
        """Convert positions among the frames of all processes to positions in this process.

        Args:
            frames: (n,) int64, t * B + b for step t of column b, of all B columns.
        """
        step, column = np.divmod(frames, self.num_columns)
        rows: IntArray = step * len(self.columns) + column - self.columns.start
        return rows

    def split_frames(self, batch: EntityBatch) -> list[EntityBatch]:
        """Return the frames of each group of this process, ordered by step.

        Args:
            batch: T * b frames of the b columns of this process.
        """
        if len(self.local) == 1:
            return [batch]
        frames = np.arange(batch.num_frames).reshape(-1, len(self.columns))
        return [batch.take(frames[:, columns].flatten()) for columns in self.slices]

    def positions(self, frames: IntArray) -> list[IntArray]:
        """Return the positions of the frames of each group of this process in a minibatch.

        Args:
            frames: (n,) int64, t * B + b for step t of column b, of all B columns.
        """
        group_of_frame = self.group_index(frames % self.num_columns)
        return [np.flatnonzero(group_of_frame == group) for group in self.local]

    def runs(self, columns: IntArray) -> list[slice]:
        """Split columns of this process into runs of the same group.

        Args:
            columns: (n,) int64, ascending or of one group, relative to the first local column.

        Returns:
            Consecutive slices of `columns`.
        """
        if self.count == 1 or not len(columns):
            return [slice(0, len(columns))]
        group_of_column = self.group_index(columns + self.columns.start)
        cuts = [0, *(np.flatnonzero(np.diff(group_of_column)) + 1).tolist(), len(columns)]
        return [slice(start, stop) for start, stop in pairwise(cuts)]


UNCUT = Shards.one(2**62)
"""A single group of any number of columns."""
