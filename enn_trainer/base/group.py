"""`Group`: the processes of a run, and their communication.

Messages are in the binary format of `entity_env.serialization.messages`. Every rank calls the same
methods in the same order.
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
"""Time between two messages of a rank that works while other ranks wait."""


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
        """Gather the bytes of all ranks.

        Args:
            data: bytes of this rank, of any length.
            phase: name of the current phase, equal in all ranks, for messages.
        """

    @abstractmethod
    def exchange_slices(self, sent: Tensor, counts: Sequence[int]) -> Tensor:
        """Exchange rows between all ranks, and return the rows for this rank.

        Args:
            sent: (size, n, width), n rows for each rank.
            counts: number of rows that each rank sends.

        Returns:
            (sum of counts, width).
        """

    def begin(self, timeout_s: float, uses_gpu: bool) -> None:
        """Apply the settings of a run: the maximal time to wait for a rank, and the device."""
        return

    def fail(self, error: BaseException) -> None:
        """Notify the other ranks that this rank ends with an error."""
        return

    def leave_if_failed(self) -> None:
        """Close the connections of a failed rank, so that the other ranks detect it at once."""
        return

    def gather(self, value: T, phase: str) -> list[T]:
        """Gather plain data of all ranks."""
        if self.size == 1:
            return [value]
        return [cast(T, unpack(data)) for data in self.exchange(pack(value), phase)]

    def send_to_leader(self, data: bytes, phase: str) -> list[bytes]:
        """Gather the bytes of all ranks, at least one each, in rank 0; return [] in the others."""
        messages = self.exchange(data, phase)
        return messages if self.leads else []

    def gather_shards(self, values: Sequence[T], phase: str) -> list[T]:
        """Gather plain data of all shards, from the values of the shards of each rank."""
        return [value for rank_values in self.gather([*values], phase) for value in rank_values]

    def broadcast(self, value: T, phase: str) -> T:
        """Broadcast plain data of rank 0."""
        return self.gather(value if self.leads else cast(T, None), phase)[0]

    def lead(self, work: Callable[[], T], phase: str) -> T:
        """Run a function in rank 0 while the others wait, and broadcast its result."""
        return self.together(lambda heartbeat: work() if self.leads else cast(T, None), phase)[0]

    def together(
        self,
        work: Callable[[Callable[[], None]], T],
        phase: str,
        ask: Callable[[], int] = lambda: 0,
        answer: Callable[[int], None] = lambda number: None,
    ) -> list[T]:
        """Run a function in each rank at its own pace, and gather the results, plain data.

        Args:
            work: function of a heartbeat, which it must call from time to time; it must not call
                other methods of the group.
            phase: name of the phase.
            ask: returns a number of this rank, such as a signal number.
            answer: called with the numbers of all ranks, equally in each rank.

        Raises:
            ConfigError: another rank failed with an error of this project or of an environment.
        """
        if self.size == 1:
            return [work(lambda: None)]
        results: dict[int, T] = {}
        failures: dict[int, str] = {}
        last_s = time.monotonic()

        def exchange_status(status: list[Any] | None) -> None:
            nonlocal last_s
            answers: list[Any] = self.gather([ask(), status], phase)
            last_s = time.monotonic()
            for rank, (number, status_of_rank) in enumerate(answers):
                if number:
                    answer(number)
                if status_of_rank is not None:
                    is_done, content = status_of_rank
                    (results if is_done else failures)[rank] = content
            if failures:
                raise ConfigError(*(f"rank {rank}: {why}" for rank, why in failures.items()))

        def heartbeat() -> None:
            if time.monotonic() - last_s >= ALIVE_S:
                exchange_status(None)

        try:
            result = work(heartbeat)
        except (EnnTrainerError, EntityEnvError) as error:
            if not failures and not isinstance(error, RankError):
                with suppress(ConfigError):
                    exchange_status([False, str(error)])
            raise
        exchange_status([True, result])
        while len(results) < self.size:
            exchange_status(None)
        return [results[rank] for rank in range(self.size)]

    def tree_sum(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Sum the rows of all shards, as a balanced binary tree over their order.

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
        totals = self.exchange_slices(total.repeat(self.size, 1, 1), [1] * self.size)
        return totals.flatten()[:num_columns]


class OneProcess(Group):
    """Group of one process, without communication."""

    def exchange(self, data: bytes, phase: str) -> list[bytes]:
        """Return the bytes."""
        return [data]

    def exchange_slices(self, sent: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the rows."""
        return sent[0]


ALONE = OneProcess()
"""Group of one process."""


def tree_sum(terms: Sequence[T], add: Callable[[T, T], T]) -> T:
    """Sum the terms of all shards, as a balanced binary tree over their order."""
    level = [*terms]
    while len(level) > 1:
        pairs = [add(level[i], level[i + 1]) for i in range(0, len(level) - 1, 2)]
        level = pairs + level[2 * len(pairs) :]
    return level[0]
