"""`Shards`: groups of environments by which work is cut and sums are added.

Results depend on the number of shards, by rounding, and on nothing else: which process computes
which shard changes no bit.
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
    """S consecutive groups of columns; a column is an environment, or one that is learnt from.

    Attributes:
        bounds: S + 1 numbers, where the groups begin and the last one ends.
        own: the groups of this process, which are consecutive.
    """

    bounds: tuple[int, ...]
    own: range

    @staticmethod
    def one(num_columns: int) -> "Shards":
        """Return a single group of all columns."""
        return Shards((0, num_columns), range(1))

    @staticmethod
    def of(num_envs: int, sides: int, count: int) -> "Shards":
        """Cut environments into `count` groups of whole matches, whose sizes are nearly equal."""
        matches = num_envs // sides
        bounds = tuple(matches * i // count * sides for i in range(count + 1))
        return Shards(bounds, range(count))

    def of_rank(self, rank: int, num_ranks: int) -> "Shards":
        """Return the same groups, of which a rank has its consecutive share."""
        first, stop = (self.count * i // num_ranks for i in (rank, rank + 1))
        return replace(self, own=range(first, stop))

    def counts(self, num_ranks: int) -> list[int]:
        """Return the number of groups of each rank."""
        return [len(self.of_rank(rank, num_ranks).own) for rank in range(num_ranks)]

    def map(self, column: Callable[[int], int]) -> "Shards":
        """Return the same groups of other columns; `column` maps a bound to another one."""
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
        return range(self.bounds[self.own.start], self.bounds[self.own.stop])

    @property
    def slices(self) -> list[slice]:
        """Columns of each group of this process, counted from its first column."""
        first, bounds = self.columns.start, self.bounds[self.own.start : self.own.stop + 1]
        return [slice(start - first, stop - first) for start, stop in pairwise(bounds)]

    def of_columns(self, columns: IntArray) -> IntArray:
        """Return the group of each of some columns, counted from the first of all."""
        return np.searchsorted(self.bounds[1:-1], columns, side="right")

    def place(self, column: int) -> int:
        """Return the place among the groups of this process of that of one of its columns."""
        start = np.array([column + self.columns.start], np.int64)
        return int(self.of_columns(start)[0]) - self.own.start

    def rows(self, frames: IntArray) -> IntArray:
        """Return the positions of frames of this process among its own.

        Args:
            frames: (n,) int64, t * B + b for step t of column b, of all B columns.
        """
        step, column = np.divmod(frames, self.num_columns)
        rows: IntArray = step * len(self.columns) + column - self.columns.start
        return rows

    def of_frames(self, batch: EntityBatch) -> list[EntityBatch]:
        """Return the frames of each group of this process, step after step.

        Args:
            batch: T * b frames of the b columns of this process.
        """
        if len(self.own) == 1:
            return [batch]
        frames = np.arange(batch.num_frames).reshape(-1, len(self.columns))
        return [batch.take(frames[:, own].flatten()) for own in self.slices]

    def positions(self, frames: IntArray) -> list[IntArray]:
        """Return the positions of the frames of each group of this process in a minibatch.

        Args:
            frames: (n,) int64, t * B + b for step t of column b, of all B columns.
        """
        of_each = self.of_columns(frames % self.num_columns)
        return [np.flatnonzero(of_each == group) for group in self.own]

    def runs(self, columns: IntArray) -> list[slice]:
        """Return consecutive columns of this process that are of one group.

        Args:
            columns: (n,) int64, ascending or of one group, counted from the first of this process.
        """
        if self.count == 1 or not len(columns):
            return [slice(0, len(columns))]
        of_each = self.of_columns(columns + self.columns.start)
        cuts = [0, *(np.flatnonzero(np.diff(of_each)) + 1).tolist(), len(columns)]
        return [slice(start, stop) for start, stop in pairwise(cuts)]


UNCUT = Shards.one(2**62)
"""A single group of any number of columns."""
