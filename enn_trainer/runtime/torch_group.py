"""`TorchGroup`: ranks started by torchrun; and the group of this process."""

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

_DIRECT_BYTES = 2**22
"""Maximal bytes of an all-to-all exchange; larger ones use an all-gather, which is slower."""
_HEAD = struct.Struct("<QI")
"""Length of a message, and checksum of its phase."""
_MAX_ROOM = 2**21
"""Maximal size to which messages are padded, so that their length needs no separate message."""
_NOTICE_S = 3.0
"""Time that other ranks have to detect the loss of a rank."""
_STORE_TIMEOUT_S = 2.0
"""Additional time for an answer of torchrun's store, as its host may be the lost one."""


class TorchGroup(Group):
    """Processes started by torchrun, which communicate by `torch.distributed`.

    Args:
        timeout_s: maximal time to wait for a rank.
    """

    def __init__(self, timeout_s: float = 300.0) -> None:
        from torch.distributed.rendezvous import rendezvous

        self._timeout_s, limit = timeout_s, timedelta(seconds=timeout_s)
        self._room: dict[str, int] = {}
        self._phase, self._by_gpu, self._has_failed = "", False, False
        store, self.rank, self.size = next(rendezvous("env://", timeout=limit))
        self._host = socket.gethostname()
        self._store = self._wait_for_start(store)
        with self._rank_errors("start"):
            dist.init_process_group(
                "gloo", timeout=limit, store=self._store, rank=self.rank, world_size=self.size
            )
        self._bytes: Any = dist.group.WORLD
        self._numbers = self._bytes
        atexit.register(self._close)

    def _wait_for_start(self, store: Any) -> Any:
        """Wait for all ranks, and return a prefix store that is unique to this start of the ranks.

        Also gathers the hosts of the ranks. After a restart the store still has the keys of the
        previous ranks, and hosts count restarts differently, so that the count cannot be a prefix.

        Raises:
            RankError: some ranks did not start in time.
        """
        from torch.distributed.distributed_c10d import PrefixStore

        begun, seen = ([f"{key}/{rank}" for rank in range(self.size)] for key in ("begun", "seen"))
        store.set(begun[self.rank], f"{uuid4().hex} {self._host}")
        end_s = time.monotonic() + self._timeout_s
        while time.monotonic() < end_s:
            # Each rank publishes the ranks that it sees, until all see the same ones.
            if store.check(begun):
                ranks = b" ".join(store.multi_get(begun))
                store.set(seen[self.rank], ranks)
                if store.check(seen) and {*store.multi_get(seen)} == {ranks}:
                    words = ranks.decode().split()
                    self._hosts = words[1::2]
                    return PrefixStore(words[0], store)
            time.sleep(0.02)
        missing = [rank for rank, key in enumerate(begun) if not store.check([key])]
        raise RankError(
            f"rank {self.rank} ({self._host}) ends while start: expected {self.size} ranks within "
            f"{self._timeout_s:g} s, {', '.join(map(str, missing)) or 'some'} did not begin"
        )

    def begin(self, timeout_s: float, uses_gpu: bool) -> None:
        """Apply the settings of a run: the maximal time to wait for a rank, and the device."""
        self._timeout_s, limit = timeout_s, timedelta(seconds=timeout_s)
        self._has_failed = False  # an earlier run may have failed
        with self._rank_errors("start"):
            self._bytes = self._numbers = dist.new_group(timeout=limit, backend="gloo")
        # Each rank uses a GPU of its machine; nccl needs one per rank.
        place, num_gpus = int(os.environ.get("LOCAL_RANK", "0")), 0
        if uses_gpu:
            num_gpus = torch.cuda.device_count()
            torch.cuda.set_device(place % num_gpus)
        self._by_gpu = all(self.gather(place < num_gpus, "start"))
        if self._by_gpu:
            with self._rank_errors("start"):
                self._numbers = dist.new_group(timeout=limit, backend="nccl")

    def exchange(self, data: bytes, phase: str) -> list[bytes]:
        """Gather the bytes of all ranks.

        Messages of a phase are padded to about the length of the last ones, so that their length
        rarely needs a separate message.
        """
        room, kind = self._room.get(phase, 4096), zlib.crc32(phase.encode())
        head = _HEAD.pack(len(data), kind)
        messages = self._exchange(head + data[:room].ljust(room, b"\0"), phase)
        lengths, kinds = zip(*(_HEAD.unpack_from(one) for one in messages), strict=True)
        if different := [rank for rank, one in enumerate(kinds) if one != kind]:
            raise RankError(
                f"rank {self.rank} ({self._host}) exchanges while {phase}, rank {different[0]} "
                "does not; call step, run, evaluate and save in all ranks, in the same order"
            )
        messages = [one[_HEAD.size :] for one in messages]
        if (longest := max(lengths)) > room:
            rests = [max(length - room, 0) for length in lengths]
            if 2 * sum(rests) <= self.size * max(rests):
                more = self._exchange_long(data[room:], rests, phase)
            else:
                more = self._exchange(data[room:].ljust(max(rests), b"\0"), phase)
            messages = [first + second for first, second in zip(messages, more, strict=True)]
            self._room[phase] = min(longest + longest // 32, _MAX_ROOM)
        return [one[:length] for one, length in zip(messages, lengths, strict=True)]

    def _exchange(self, data: bytes, phase: str) -> list[bytes]:
        """Gather the bytes of all ranks, the same number from each."""
        is_small = len(data) * self.size <= _DIRECT_BYTES
        row = torch.frombuffer(bytearray(data * self.size if is_small else data), dtype=torch.uint8)
        got = row.new_empty(self.size, len(data))
        with self._rank_errors(phase):
            if is_small:
                dist.all_to_all_single(got.view(-1), row, group=self._bytes)
            else:
                dist.all_gather([*got], row, group=self._bytes)
        return [one.numpy().tobytes() for one in got]

    def _exchange_long(self, data: bytes, lengths: Sequence[int], phase: str) -> list[bytes]:
        """Gather bytes of different lengths by a broadcast from each rank with any."""
        messages = [b""] * self.size
        for rank in (rank for rank, length in enumerate(lengths) if length):
            content = data if rank == self.rank else lengths[rank]  # a number makes zeros
            row = torch.frombuffer(bytearray(content), dtype=torch.uint8)
            with self._rank_errors(phase):
                dist.broadcast(row, rank, group=self._bytes)
            messages[rank] = row.numpy().tobytes()
        return messages

    def send_to_leader(self, data: bytes, phase: str) -> list[bytes]:
        """Gather the bytes of all ranks, at least one each, in rank 0; return [] in the others."""
        lengths = self.gather(len(data), phase)
        counts = lengths if self.leads else [0] * self.size
        send_counts = [len(data), *[0] * (self.size - 1)]
        row = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        got = row.new_empty(sum(counts))
        with self._rank_errors(phase):
            dist.all_to_all_single(got, row, counts, send_counts, group=self._bytes)
        return [one.numpy().tobytes() for one in torch.split(got, counts)] if self.leads else []

    def exchange_slices(self, sent: Tensor, counts: Sequence[int]) -> Tensor:
        """Exchange rows between all ranks, and return the rows for this rank."""
        rows = sent.flatten(end_dim=1).to(sent.device if self._by_gpu else "cpu")
        got = rows.new_empty(sum(counts), sent.shape[2])
        send_counts = [sent.shape[1]] * self.size
        with self._rank_errors("learning"):
            dist.all_to_all_single(got, rows, [*counts], send_counts, group=self._numbers)
        return got.to(sent.device)

    def fail(self, error: BaseException) -> None:
        """Notify the other ranks that this rank ends with an error."""
        self._has_failed = True
        # torchrun sends it once the first rank has ended; this rank ends too, with its message.
        with suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if not isinstance(error, RankError):
            text = " ".join(f"{type(error).__name__}: {error}".split())[:500]
            with suppress(Exception):
                self._store.set(f"failed/{self.rank}", text)

    def leave_if_failed(self) -> None:
        """Close the connections of a failed rank, so that the other ranks detect it at once."""
        if self._has_failed:
            self._bytes = self._numbers = None
            self._close()

    def _close(self) -> None:
        with suppress(Exception):
            dist.destroy_process_group()

    @contextmanager
    def _rank_errors(self, phase: str) -> Iterator[None]:
        """Return a context that converts errors to a RankError with the lost rank.

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
            raise RankError(self._rank_error_text(error)) from None

    def _rank_error_text(self, error: Exception) -> str:
        """Return a message with the lost ranks, their hosts and phases."""
        lost_ranks: list[str] = []

        def ask() -> None:
            with suppress(Exception):
                lost_ranks.extend(self._find_lost())

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(_NOTICE_S + _STORE_TIMEOUT_S)
        # Without an answer, ranks of other hosts are unreachable; all are in the same phase.
        far = [
            f"rank {rank} ({host}) does not answer, last seen while {self._phase}"
            for rank, host in enumerate(self._hosts)
            if host != self._host
        ]
        lost = lost_ranks or [*far, "the store of torchrun does not answer"]
        first = " ".join(str(error).split())[:200]
        return (
            f"rank {self.rank} ({self._host}) ends while {self._phase}: {'; '.join(lost)} "
            f"(scale.timeout_s={self._timeout_s:g}; {first})"
        )

    def _find_lost(self) -> list[str]:
        """Return descriptions of the lost ranks from torchrun's store, and mark this rank alive."""
        other_ranks = [rank for rank in range(self.size) if rank != self.rank]
        failed, silent, end_s = list[int](), other_ranks, time.monotonic() + _NOTICE_S
        self._store.set(f"noticed/{self.rank}", "")
        while silent and not failed and time.monotonic() < end_s:
            failed = [rank for rank in other_ranks if self._store.check([f"failed/{rank}"])]
            silent = [rank for rank in other_ranks if not self._store.check([f"noticed/{rank}"])]
            time.sleep(0.05)
        descriptions = [self._describe(rank) for rank in failed or silent]
        return descriptions or ["network: expected an answer of all ranks"]

    def _describe(self, rank: int) -> str:
        """Return a description of a lost rank from torchrun's store."""
        keys, store = (f"phase/{rank}", f"failed/{rank}"), self._store
        phase, failed = (store.get(k).decode() if store.check([k]) else "?" for k in keys)
        why = "does not answer" if failed == "?" else f"failed with {failed}"
        return f"rank {rank} ({self._hosts[rank]}) {why}, last seen while {phase}"


CURRENT_GROUP: ContextVar[Group | None] = ContextVar("group", default=None)
"""Group of the runs of a context, for tests with threads as ranks."""
_group_of_torchrun = cache(TorchGroup)


def current_group() -> Group:
    """Return torchrun's group if it started several processes, else `ALONE`."""
    group = CURRENT_GROUP.get()
    if group is not None:
        return group
    if "TORCHELASTIC_RUN_ID" not in os.environ or os.environ.get("WORLD_SIZE", "1") == "1":
        return ALONE
    return _group_of_torchrun()
