"""`Group`: the processes of a run, and what they exchange.

Messages are bytes of this project's own packing. Every rank calls the same methods in the same
order.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from enn_trainer.base.errors import ConfigError, EnnTrainerError, RankError
from entity_env.errors import EntityEnvError
from entity_env.serialization.messages import pack, unpack

T = TypeVar("T")

ALIVE_S = 1.0
"""Time between two messages of a rank that works while others wait."""


class Group(ABC):
    """Processes of a run.

    Attributes:
        rank: number of this process.
        size: number of processes.
    """

    rank: int = 0
    size: int = 1

    @property
    def leads(self) -> bool:
        """True in rank 0, which saves and tracks."""
        return self.rank == 0

    @abstractmethod
    def exchange(self, data: bytes, phase: str) -> list[bytes]:
        """Return the bytes that each rank gave.

        Args:
            data: of this rank, of any length.
            phase: what the run does, the same in all ranks, for messages.
        """

    @abstractmethod
    def exchange_slices(self, sent: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the rows that each rank gave to this one.

        Args:
            sent: (size, n, width), n rows for each rank.
            counts: number of rows that each rank gives.

        Returns:
            (sum of counts, width).
        """

    def begin(self, timeout_s: float, uses_gpu: bool) -> None:
        """Take the settings of a run: the longest time to wait for a rank, and the device."""
        return

    def fail(self, error: BaseException) -> None:
        """Tell the others that this rank ends by an error."""
        return

    def leave_if_failed(self) -> None:
        """Close the connections of a rank that failed, for the others to notice at once."""
        return

    def gather(self, value: T, phase: str) -> list[T]:
        """Return the values that each rank gave, which are plain data."""
        if self.size == 1:
            return [value]
        return [cast(T, unpack(data)) for data in self.exchange(pack(value), phase)]

    def send_to_leader(self, data: bytes, phase: str) -> list[bytes]:
        """Return the bytes that each rank gave, at least one, in rank 0; nothing in the others."""
        found = self.exchange(data, phase)
        return found if self.leads else []

    def gather_shards(self, values: Sequence[T], phase: str) -> list[T]:
        """Return the values of all shards, plain data, of those of each rank."""
        return [value for of_rank in self.gather([*values], phase) for value in of_rank]

    def share(self, value: T, phase: str) -> T:
        """Return the value of rank 0, plain data."""
        return self.gather(value if self.leads else cast(T, None), phase)[0]

    def lead(self, work: Callable[[], T], phase: str) -> T:
        """Let rank 0 work while the others wait, and return its result, as `together`."""
        return self.together(lambda alive: work() if self.leads else cast(T, None), phase)[0]

    def together(
        self,
        work: Callable[[Callable[[], None]], T],
        phase: str,
        ask: Callable[[], int] = lambda: 0,
        answer: Callable[[int], None] = lambda number: None,
    ) -> list[T]:
        """Let each rank work at its own pace, and return the results of all, plain data.

        Args:
            work: gets a function to call from time to time, which tells the others that it works;
                it calls nothing else of the group.
            phase: what it does.
            ask: returns a number of this rank, such as that of a signal.
            answer: gets such numbers of all ranks, the same ones in each.

        Raises:
            ConfigError: another rank failed with an error of this project or of an environment.
        """
        if self.size == 1:
            return [work(lambda: None)]
        results: dict[int, T] = {}
        failures: dict[int, str] = {}
        last_s = time.monotonic()

        def tell(told: list[Any] | None) -> None:
            nonlocal last_s
            found: list[Any] = self.gather([ask(), told], phase)
            last_s = time.monotonic()
            for rank, (number, one) in enumerate(found):
                if number:
                    answer(number)
                if one is not None:
                    is_done, content = one
                    (results if is_done else failures)[rank] = content
            if failures:
                raise ConfigError(*(f"rank {rank}: {why}" for rank, why in failures.items()))

        def alive() -> None:
            if time.monotonic() - last_s >= ALIVE_S:
                tell(None)

        try:
            result = work(alive)
        except (EnnTrainerError, EntityEnvError) as error:
            if not failures and not isinstance(error, RankError):
                with suppress(ConfigError):
                    tell([False, str(error)])
            raise
        tell([True, result])
        while len(results) < self.size:
            tell(None)
        return [results[rank] for rank in range(self.size)]

    def tree_sum(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the sum of the rows of all shards, as a balanced binary tree over their order.

        Each rank adds a slice of the columns.

        Args:
            rows: (shards of this rank, n).
            counts: number of shards of each rank.

        Returns:
            (n,).
        """
        if self.size == 1:
            return cast(Tensor, tree_sum([*rows], torch.add))
        num_columns = rows.shape[1]
        width = -(-num_columns // self.size)
        padded = F.pad(rows, (0, width * self.size - num_columns))
        sent = padded.view(len(rows), self.size, width).transpose(0, 1).contiguous()
        total = tree_sum([*self.exchange_slices(sent, counts)], torch.add)
        of_all = self.exchange_slices(total.repeat(self.size, 1, 1), [1] * self.size)
        return of_all.flatten()[:num_columns]


class OneProcess(Group):
    """Group of one process, which exchanges nothing."""

    def exchange(self, data: bytes, phase: str) -> list[bytes]:
        """Return the bytes."""
        return [data]

    def exchange_slices(self, sent: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the rows."""
        return sent[0]


ALONE = OneProcess()
"""Group of one process."""


def tree_sum(terms: Sequence[T], add: Callable[[T, T], T]) -> T:
    """Return the sum of the terms of all shards, as a balanced binary tree over their order."""
    level = [*terms]
    while len(level) > 1:
        pairs = [add(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]
