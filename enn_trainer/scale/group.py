"""`Group`: the processes of a run, and what they exchange.

Messages are bytes of this project's own packing. Every rank calls the same methods in the same
order.
"""

import atexit
import os
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from enn_trainer.errors import ConfigError, EnnTrainerError, RankError
from enn_trainer.scale.shards import tree_sum
from entity_env.errors import EntityEnvError
from entity_env.serialization.messages import pack, unpack

T = TypeVar("T")

ALIVE_S = 1.0
"""Time between two messages of a rank that works while others wait."""
_SENT_TO_EACH = 2**22
"""Bytes that a rank sends to each other one at most, rather than around a ring, which is slower."""
_NOTICED_S = 3.0
"""Time that other ranks have to notice that one is lost, as long as one is asked for."""


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
        """True in rank 0, which saves, evaluates and tracks."""
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

    @abstractmethod
    def exchange_rows(self, row: Tensor) -> Tensor:
        """Return the rows of all ranks: (width,) -> (size, width)."""

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

    def gather_shards(self, values: Sequence[T], phase: str) -> list[T]:
        """Return the values of all shards, plain data, of those of each rank."""
        return [value for of_rank in self.gather([*values], phase) for value in of_rank]

    def share(self, value: T, phase: str) -> T:
        """Return the value of rank 0, plain data."""
        return self.gather(value if self.leads else cast(T, None), phase)[0]

    def lead(
        self,
        work: Callable[[Callable[[], None]], T],
        phase: str,
        ask: Callable[[], int] = lambda: 0,
        answer: Callable[[int], None] = lambda number: None,
    ) -> T:
        """Let rank 0 work while the others wait, and return its result, plain data.

        Args:
            work: gets a function to call from time to time, which tells the others that it works.
            phase: what it does.
            ask: returns a number of this rank, such as that of a signal.
            answer: gets such numbers of others while rank 0 works.

        Raises:
            ConfigError: rank 0 failed with an error of this project or of an environment.
        """
        if self.size == 1:
            return work(lambda: None)
        last_s = time.monotonic()

        def tell(result: list[Any] | None) -> list[Any] | None:
            found: list[Any] = self.gather([ask(), result], phase)
            for number in (number for number, _ in found if number):
                answer(number)
            told: list[Any] | None = found[0][1]
            return told

        def alive() -> None:
            nonlocal last_s
            if time.monotonic() - last_s >= ALIVE_S:
                tell(None)
                last_s = time.monotonic()

        if self.leads:
            try:
                result = work(alive)
            except (EnnTrainerError, EntityEnvError) as error:
                if not isinstance(error, RankError):
                    tell([False, str(error)])
                raise
            tell([True, result])
            return result
        while (told := tell(None)) is None:
            pass
        if not told[0]:
            raise ConfigError(f"rank 0: {told[1]}")
        return cast(T, told[1])

    def tree_sum(self, rows: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the sum of the rows of all shards, as a balanced binary tree over their order.

        Each rank adds a slice of the columns.

        Args:
            rows: (shards of this rank, n).
            counts: number of shards of each rank.

        Returns:
            (n,).
        """
        total: Tensor
        if self.size == 1:
            total = tree_sum([*rows], torch.add)
            return total
        num_columns = rows.shape[1]
        width = -(-num_columns // self.size)
        padded = F.pad(rows, (0, width * self.size - num_columns))
        sent = padded.view(len(rows), self.size, width).transpose(0, 1).contiguous()
        total = tree_sum([*self.exchange_slices(sent, counts)], torch.add)
        all_columns = self.exchange_rows(total).flatten()
        return all_columns[:num_columns]


class OneProcess(Group):
    """Group of one process, which exchanges nothing."""

    def exchange(self, data: bytes, phase: str) -> list[bytes]:
        """Return the bytes."""
        return [data]

    def exchange_slices(self, sent: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the rows."""
        return sent[0]

    def exchange_rows(self, row: Tensor) -> Tensor:
        """Return the row."""
        return row[None]


ALONE = OneProcess()
"""Group of one process."""


class TorchGroup(Group):
    """Processes that torchrun started, which speak by `torch.distributed`.

    Args:
        timeout_s: longest time to wait for a rank.
    """

    def __init__(self, timeout_s: float = 300.0) -> None:
        import torch.distributed as dist
        from torch.distributed.distributed_c10d import PrefixStore
        from torch.distributed.rendezvous import rendezvous

        self._dist, self._timeout_s = dist, timeout_s
        self._room: dict[str, int] = {}
        self._phase, self._by_gpu, self._has_failed = "", False, False
        limit = timedelta(seconds=timeout_s)
        store, self.rank, self.size = next(rendezvous("env://", timeout=limit))
        # After a restart, the store of torchrun still has the keys of the ranks before.
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        self._store = PrefixStore(f"attempt-{attempt}", store)
        self._host = socket.gethostname()
        self._store.set(f"host/{self.rank}", self._host)
        with self._noticed("start"):
            dist.init_process_group(
                "gloo", timeout=limit, store=self._store, rank=self.rank, world_size=self.size
            )
        self._bytes = self._numbers = dist.group.WORLD
        atexit.register(self._close)

    def begin(self, timeout_s: float, uses_gpu: bool) -> None:
        """Take the settings of a run: the longest time to wait for a rank, and the device."""
        self._timeout_s, limit = timeout_s, timedelta(seconds=timeout_s)
        with self._noticed("start"):
            self._bytes = self._numbers = self._dist.new_group(timeout=limit, backend="gloo")
            if uses_gpu:
                self._choose_gpu(limit)

    def _choose_gpu(self, limit: timedelta) -> None:
        """Take a GPU of this machine, and exchange tensors by nccl if each rank has its own."""
        place, num_gpus = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
        torch.cuda.set_device(place % num_gpus)
        if all(self.gather(place < num_gpus, "start")):
            self._numbers = self._dist.new_group(timeout=limit, backend="nccl")
            self._by_gpu = True

    def exchange(self, data: bytes, phase: str) -> list[bytes]:
        """Return the bytes that each rank gave.

        Messages of a phase are about as long as before, so that their length seldom needs a
        message of its own.
        """
        room, head = self._room.get(phase, 4096), len(data).to_bytes(8, "little")
        found = self._exchange(head + data[:room].ljust(room, b"\0"), phase)
        lengths = [int.from_bytes(one[:8], "little") for one in found]
        found = [one[8:] for one in found]
        if (longest := max(lengths)) > room:
            rest = data[room:].ljust(longest - room, b"\0")
            more = self._exchange(rest, phase)
            found = [first + second for first, second in zip(found, more, strict=True)]
            self._room[phase] = longest + longest // 32
        return [one[:length] for one, length in zip(found, lengths, strict=True)]

    def exchange_slices(self, sent: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the rows that each rank gave to this one."""
        rows, own = self._placed(sent.flatten(end_dim=1)), [sent.shape[1]] * self.size
        got = rows.new_empty(sum(counts), sent.shape[2])
        with self._noticed("learning"):
            self._dist.all_to_all_single(got, rows, [*counts], own, group=self._numbers)
        return got.to(sent.device)

    def exchange_rows(self, row: Tensor) -> Tensor:
        """Return the rows of all ranks."""
        got = self._placed(row).new_empty(self.size, len(row))
        with self._noticed("learning"):
            self._dist.all_gather([*got], self._placed(row), group=self._numbers)
        return got.to(row.device)

    def fail(self, error: BaseException) -> None:
        """Tell the others that this rank ends by an error."""
        self._has_failed = True
        if not isinstance(error, RankError):
            text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            with suppress(Exception):
                self._store.set(f"failed/{self.rank}", text)

    def leave_if_failed(self) -> None:
        """Close the connections of a rank that failed, for the others to notice at once."""
        if self._has_failed:
            self._bytes = self._numbers = None
            self._close()

    def _placed(self, rows: Tensor) -> Tensor:
        """Return rows where they are exchanged."""
        return rows if self._by_gpu else rows.cpu()

    def _close(self) -> None:
        with suppress(Exception):
            self._dist.destroy_process_group()

    def _exchange(self, data: bytes, phase: str) -> list[bytes]:
        is_small = len(data) * self.size <= _SENT_TO_EACH
        row = torch.frombuffer(bytearray(data * self.size if is_small else data), dtype=torch.uint8)
        got = row.new_empty(self.size, len(data))
        with self._noticed(phase):
            if is_small:
                self._dist.all_to_all_single(got.view(-1), row, group=self._bytes)
            else:
                self._dist.all_gather([*got], row, group=self._bytes)
        return [one.numpy().tobytes() for one in got]

    @contextmanager
    def _noticed(self, phase: str) -> Iterator[None]:
        """Return a context whose errors name the rank that is lost.

        Raises:
            RankError: a rank is lost.
        """
        try:
            if phase != self._phase:
                self._phase = phase
                self._store.set(f"phase/{self.rank}", phase)
            yield
        except RuntimeError as error:
            raise RankError(self._why(error)) from None

    def _why(self, error: Exception) -> str:
        """Return the ranks that are lost, their hosts and phases; the others notice it too."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        lost = "network: expected an answer of all ranks"
        with suppress(Exception):
            self._store.set(f"noticed/{self.rank}", "")
            end_s, missing = time.monotonic() + _NOTICED_S, others
            while missing and time.monotonic() < end_s:
                failed = [rank for rank in others if self._store.check([f"failed/{rank}"])]
                if failed:
                    missing = failed
                    break
                missing = [rank for rank in others if not self._store.check([f"noticed/{rank}"])]
                time.sleep(0.05)
            lost = "; ".join(self._about(rank) for rank in missing) or lost
        first = " ".join(str(error).split())[:200]
        return (
            f"rank {self.rank} ({self._host}) ends while {self._phase}: {lost} "
            f"(scale.timeout_s={self._timeout_s:g}; {first})"
        )

    def _about(self, rank: int) -> str:
        known = {}
        for name in ("host", "phase", "failed"):
            key = f"{name}/{rank}"
            known[name] = self._store.get(key).decode() if self._store.check([key]) else "?"
        why = "does not answer" if known["failed"] == "?" else f"failed with {known['failed']}"
        return f"rank {rank} ({known['host']}) {why}, last seen while {known['phase']}"


_OF_THREAD: ContextVar[Group | None] = ContextVar("group", default=None)
_joined: list[Group] = []


@contextmanager
def group_of_context(group: Group) -> Iterator[None]:
    """Return a context in which runs have a group, as in tests with threads for ranks."""
    token = _OF_THREAD.set(group)
    try:
        yield
    finally:
        _OF_THREAD.reset(token)


def current_group() -> Group:
    """Return the group of this process: that of torchrun if it started several, else `ALONE`."""
    group = _OF_THREAD.get()
    if group is not None:
        return group
    if "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        return ALONE
    if not _joined:
        _joined.append(TorchGroup())
    return _joined[0]
