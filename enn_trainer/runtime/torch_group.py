"""`TorchGroup`: ranks that torchrun started; and the group of this process."""

import atexit
import os
import signal
import socket
import struct
import threading
import time
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import timedelta
from functools import cache
from typing import Any
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor

from enn_trainer.base.errors import RankError
from enn_trainer.base.group import ALONE, Group

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


class TorchGroup(Group):
    """Processes that torchrun started, which speak by `torch.distributed`.

    Args:
        timeout_s: longest time to wait for a rank.
    """

    def __init__(self, timeout_s: float = 300.0) -> None:
        from torch.distributed.rendezvous import rendezvous

        self._timeout_s, limit = timeout_s, timedelta(seconds=timeout_s)
        self._room: dict[str, int] = {}
        self._phase, self._by_gpu, self._has_failed = "", False, False
        store, self.rank, self.size = next(rendezvous("env://", timeout=limit))
        self._host = socket.gethostname()
        self._store = self._store_of_start(store)
        with self._noticed("start"):
            dist.init_process_group(
                "gloo", timeout=limit, store=self._store, rank=self.rank, world_size=self.size
            )
        self._bytes: Any = dist.group.WORLD
        self._numbers = self._bytes
        atexit.register(self._close)

    def _store_of_start(self, store: Any) -> Any:
        """Return the part of the store of torchrun for this start of the ranks, once all are there.

        It also takes their hosts. The store still has the keys of ranks before a restart. Restarts
        are counted by each host in its own way, so that their number is no name for a start.

        Raises:
            RankError: some ranks did not begin in time.
        """
        from torch.distributed.distributed_c10d import PrefixStore

        begun, seen = ([f"{key}/{rank}" for rank in range(self.size)] for key in ("begun", "seen"))
        store.set(begun[self.rank], f"{uuid4().hex} {self._host}")
        end_s = time.monotonic() + self._timeout_s
        while time.monotonic() < end_s:
            # Each rank shows whom it has seen, until all have seen the same ones.
            if store.check(begun):
                found = b" ".join(store.multi_get(begun))
                store.set(seen[self.rank], found)
                if store.check(seen) and {*store.multi_get(seen)} == {found}:
                    words = found.decode().split()
                    self._hosts = words[1::2]
                    return PrefixStore(words[0], store)
            time.sleep(0.02)
        missing = [rank for rank, key in enumerate(begun) if not store.check([key])]
        raise RankError(
            f"rank {self.rank} ({self._host}) ends while start: expected {self.size} ranks within "
            f"{self._timeout_s:g} s, {', '.join(map(str, missing)) or 'some'} did not begin"
        )

    def begin(self, timeout_s: float, uses_gpu: bool) -> None:
        """Take the settings of a run: the longest time to wait for a rank, and the device."""
        self._timeout_s, limit = timeout_s, timedelta(seconds=timeout_s)
        self._has_failed = False  # a run before this one may have
        with self._noticed("start"):
            self._bytes = self._numbers = dist.new_group(timeout=limit, backend="gloo")
        # Each rank takes a GPU of its machine; nccl needs one for each.
        place, num_gpus = int(os.environ.get("LOCAL_RANK", "0")), 0
        if uses_gpu:
            num_gpus = torch.cuda.device_count()
            torch.cuda.set_device(place % num_gpus)
        self._by_gpu = all(self.gather(place < num_gpus, "start"))
        if self._by_gpu:
            with self._noticed("start"):
                self._numbers = dist.new_group(timeout=limit, backend="nccl")

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

    def _exchange(self, data: bytes, phase: str) -> list[bytes]:
        """Return the bytes that each rank gave, as many of each."""
        is_small = len(data) * self.size <= _SENT_TO_EACH
        row = torch.frombuffer(bytearray(data * self.size if is_small else data), dtype=torch.uint8)
        got = row.new_empty(self.size, len(data))
        with self._noticed(phase):
            if is_small:
                dist.all_to_all_single(got.view(-1), row, group=self._bytes)
            else:
                dist.all_gather([*got], row, group=self._bytes)
        return [one.numpy().tobytes() for one in got]

    def _exchange_long(self, data: bytes, lengths: Sequence[int], phase: str) -> list[bytes]:
        """Return the bytes that each rank gave, of which most are of few ranks, as a save is."""
        found = [b""] * self.size
        for rank in (rank for rank, length in enumerate(lengths) if length):
            given = data if rank == self.rank else lengths[rank]  # for as many zeros
            row = torch.frombuffer(bytearray(given), dtype=torch.uint8)
            with self._noticed(phase):
                dist.broadcast(row, rank, group=self._bytes)
            found[rank] = row.numpy().tobytes()
        return found

    def send_to_leader(self, data: bytes, phase: str) -> list[bytes]:
        """Return the bytes that each rank gave, at least one, in rank 0; nothing in the others."""
        lengths = self.gather(len(data), phase)
        counts = lengths if self.leads else [0] * self.size
        own = [len(data), *[0] * (self.size - 1)]
        row = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        got = row.new_empty(sum(counts))
        with self._noticed(phase):
            dist.all_to_all_single(got, row, counts, own, group=self._bytes)
        return [one.numpy().tobytes() for one in torch.split(got, counts)] if self.leads else []

    def exchange_slices(self, sent: Tensor, counts: Sequence[int]) -> Tensor:
        """Return the rows that each rank gave to this one."""
        rows = sent.flatten(end_dim=1).to(sent.device if self._by_gpu else "cpu")
        got = rows.new_empty(sum(counts), sent.shape[2])
        own = [sent.shape[1]] * self.size
        with self._noticed("learning"):
            dist.all_to_all_single(got, rows, [*counts], own, group=self._numbers)
        return got.to(sent.device)

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

    def _close(self) -> None:
        with suppress(Exception):
            dist.destroy_process_group()

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

        def ask() -> None:
            with suppress(Exception):
                found.extend(self._lost())

        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(_NOTICED_S + _STORE_ANSWERS_S)
        # Without an answer, ranks of other hosts are beyond the network; all are in one phase.
        far = [
            f"rank {rank} ({host}) does not answer, last seen while {self._phase}"
            for rank, host in enumerate(self._hosts)
            if host != self._host
        ]
        lost = found or [*far, "the store of torchrun does not answer"]
        first = " ".join(str(error).split())[:200]
        return (
            f"rank {self.rank} ({self._host}) ends while {self._phase}: {'; '.join(lost)} "
            f"(scale.timeout_s={self._timeout_s:g}; {first})"
        )

    def _lost(self) -> list[str]:
        """Return the ranks that are lost by the store of torchrun; the others notice it too."""
        others = [rank for rank in range(self.size) if rank != self.rank]
        failed, silent, end_s = list[int](), others, time.monotonic() + _NOTICED_S
        self._store.set(f"noticed/{self.rank}", "")
        while silent and not failed and time.monotonic() < end_s:
            failed = [rank for rank in others if self._store.check([f"failed/{rank}"])]
            silent = [rank for rank in others if not self._store.check([f"noticed/{rank}"])]
            time.sleep(0.05)
        told = [self._about(rank) for rank in failed or silent]
        return told or ["network: expected an answer of all ranks"]

    def _about(self, rank: int) -> str:
        """Return what the store of torchrun has about a rank that is lost."""
        keys, store = (f"phase/{rank}", f"failed/{rank}"), self._store
        phase, failed = (store.get(k).decode() if store.check([k]) else "?" for k in keys)
        why = "does not answer" if failed == "?" else f"failed with {failed}"
        return f"rank {rank} ({self._hosts[rank]}) {why}, last seen while {phase}"


OF_CONTEXT: ContextVar[Group | None] = ContextVar("group", default=None)
"""Group of the runs of a context, as in tests with threads for ranks."""
_group_of_torchrun = cache(TorchGroup)


def current_group() -> Group:
    """Return the group of this process: that of torchrun if it started several, else `ALONE`."""
    group = OF_CONTEXT.get()
    if group is not None:
        return group
    if "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        return ALONE
    return _group_of_torchrun()
