"""`Group`: the processes of a run, and what they exchange.

Messages are bytes of this project's own packing. Every rank calls the same methods in the same
order.
"""

import atexit
import os
import signal
import socket
import struct
import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from typing import Any, TypeVar, cast
from uuid import uuid4

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
_HEAD = struct.Struct("<QI")
"""Length of a message, and checksum of its phase."""
_MOST_ROOM = 2**21
"""Bytes that a message is filled up to at most, so that its length needs no message of its own."""
_NOTICED_S = 3.0
"""Time that other ranks have to notice that one is lost, as long as one is asked for."""
_STORE_ANSWERS_S = 2.0
"""Time beyond that which the store of torchrun has to answer; its host may be the lost one."""


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
        from torch.distributed.rendezvous import rendezvous

        self._dist, self._timeout_s = dist, timeout_s
        self._room: dict[str, int] = {}
        self._hosts: list[str] = []
        self._phase, self._by_gpu, self._has_failed = "", False, False
        limit = timedelta(seconds=timeout_s)
        store, self.rank, self.size = next(rendezvous("env://", timeout=limit))
        self._host = socket.gethostname()
        self._store = self._store_of_start(store)
        self._store.set(f"host/{self.rank}", self._host)
        with self._noticed("start"):
            dist.init_process_group(
                "gloo", timeout=limit, store=self._store, rank=self.rank, world_size=self.size
            )
            self._hosts = [self._store.get(f"host/{i}").decode() for i in range(self.size)]
        self._bytes = self._numbers = dist.group.WORLD
        atexit.register(self._close)

    def _store_of_start(self, store: Any) -> Any:
        """Return the part of the store of torchrun for this start of the ranks, once all are there.

        The store still has the keys of ranks before a restart. Restarts are counted by each host
        in its own way, so that their number is no name for a start.

        Raises:
            RankError: some ranks did not begin in time.
        """
        from torch.distributed.distributed_c10d import PrefixStore

        own, others, shown = uuid4().hex, range(1, self.size), ""
        store.set(f"begun/{self.rank}", own)
        end_s = time.monotonic() + self._timeout_s
        while time.monotonic() < end_s:
            # Rank 0 shows whom it has seen, and waits until each has seen itself there.
            if self.leads and store.check([f"begun/{rank}" for rank in others]):
                seen = [own, *(store.get(f"begun/{rank}").decode() for rank in others)]
                if shown != (shown := " ".join(seen)):
                    store.set("seen", shown)
                if store.check([f"{own}/{other}" for other in seen[1:]]):
                    return PrefixStore(own, store)
            elif not self.leads and store.check(["seen"]):
                seen = store.get("seen").decode().split()
                if own in seen:
                    store.set(f"{seen[0]}/{own}", "")
                    return PrefixStore(seen[0], store)
            time.sleep(0.02)
        missing = [rank for rank in range(self.size) if not store.check([f"begun/{rank}"])]
        raise RankError(
            f"rank {self.rank} ({self._host}) ends while start: expected {self.size} ranks within "
            f"{self._timeout_s:g} s, {', '.join(map(str, missing)) or 'some'} did not begin"
        )

    def begin(self, timeout_s: float, uses_gpu: bool) -> None:
        """Take the settings of a run: the longest time to wait for a rank, and the device."""
        self._timeout_s, limit = timeout_s, timedelta(seconds=timeout_s)
        self._has_failed = False  # a run before this one may have
        with self._noticed("start"):
            self._bytes = self._numbers = self._dist.new_group(timeout=limit, backend="gloo")
        # Each rank takes a GPU of its machine; nccl needs one for each.
        place, num_gpus = int(os.environ.get("LOCAL_RANK", "0")), 0
        if uses_gpu:
            num_gpus = torch.cuda.device_count()
            torch.cuda.set_device(place % num_gpus)
        self._by_gpu = all(self.gather(place < num_gpus, "start"))
        if self._by_gpu:
            with self._noticed("start"):
                self._numbers = self._dist.new_group(timeout=limit, backend="nccl")

    def exchange(self, data: bytes, phase: str) -> list[bytes]:
        """Return the bytes that each rank gave.

        Messages of a phase are about as long as before, so that their length seldom needs a
        message of its own.
        """
        room, kind = self._room.get(phase, 4096), zlib.crc32(phase.encode())
        head = _HEAD.pack(len(data), kind)
        found = self._exchange(head + data[:room].ljust(room, b"\0"), phase)
        lengths, kinds = zip(*(_HEAD.unpack_from(one) for one in found), strict=True)
        if other := [rank for rank, one in enumerate(kinds) if one != kind]:
            raise RankError(
                f"rank {self.rank} ({self._host}) exchanges while {phase}, rank {other[0]} does "
                "not; call step, run, evaluate and save in all ranks, in the same order"
            )
        found = [one[_HEAD.size :] for one in found]
        if (longest := max(lengths)) > room:
            rests = [max(length - room, 0) for length in lengths]
            if 2 * sum(rests) <= self.size * max(rests):
                more = self._exchange_long(data[room:], rests, phase)
            else:
                more = self._exchange(data[room:].ljust(max(rests), b"\0"), phase)
            found = [first + second for first, second in zip(found, more, strict=True)]
            self._room[phase] = min(longest + longest // 32, _MOST_ROOM)
        return [one[:length] for one, length in zip(found, lengths, strict=True)]

    def send_to_leader(self, data: bytes, phase: str) -> list[bytes]:
        """Return the bytes that each rank gave, at least one, in rank 0; nothing in the others."""
        lengths = self.exchange(len(data).to_bytes(8, "little"), phase)
        counts = [int.from_bytes(one, "little") if self.leads else 0 for one in lengths]
        own = [len(data), *[0] * (self.size - 1)]
        row = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        got = row.new_empty(sum(counts))
        with self._noticed(phase):
            self._dist.all_to_all_single(got, row, counts, own, group=self._bytes)
        return [one.numpy().tobytes() for one in torch.split(got, counts)] if self.leads else []

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
        # torchrun sends it once the first rank has ended; this one ends too, and says why.
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
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

    def _exchange_long(self, data: bytes, lengths: Sequence[int], phase: str) -> list[bytes]:
        """Return the bytes that each rank gave, of which most are of few ranks, as a save is."""
        found = [b""] * self.size
        for rank in (rank for rank, length in enumerate(lengths) if length):
            given = data if rank == self.rank else lengths[rank]  # for as many zeros
            row = torch.frombuffer(bytearray(given), dtype=torch.uint8)
            with self._noticed(phase):
                self._dist.broadcast(row, rank, group=self._bytes)
            found[rank] = row.numpy().tobytes()
        return found

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
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            raise RankError(self._why(error)) from None

    def _why(self, error: Exception) -> str:
        """Return the ranks that are lost, their hosts and phases."""
        found: list[str] = []
        asking = threading.Thread(target=lambda: found.append(self._lost()), daemon=True)
        asking.start()
        asking.join(_NOTICED_S + _STORE_ANSWERS_S)
        lost = found[0] if found and found[0] else self._beyond_network()
        first = " ".join(str(error).split())[:200]
        return (
            f"rank {self.rank} ({self._host}) ends while {self._phase}: {lost} "
            f"(scale.timeout_s={self._timeout_s:g}; {first})"
        )

    def _lost(self) -> str:
        """Return the ranks that are lost by the store of torchrun; the others notice it too."""
        others = [rank for rank in range(self.size) if rank != self.rank]
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
            if not missing:
                return "network: expected an answer of all ranks"
            return "; ".join(self._about(rank) for rank in missing)
        return ""

    def _beyond_network(self) -> str:
        """Return the ranks of other hosts, all of which were last seen in the phase of this one."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        far = [rank for rank in others if self._hosts and self._hosts[rank] != self._host]
        told = [
            f"rank {rank} ({self._hosts[rank]}) does not answer, last seen while {self._phase}"
            for rank in far
        ]
        return "; ".join([*told, "the store of torchrun does not answer"])

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
