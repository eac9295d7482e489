"""Program of ranks that torchrun starts, for the tests of `TorchGroup`."""

import os
import resource
import signal
import sys
import time

import numpy as np
import torch

from enn_trainer.base.errors import RankError
from enn_trainer.base.group import Group, tree_sum
from enn_trainer.runtime.torch_group import TorchGroup, current_group

MOST_ROOM = 2**21
"""Bytes that a message is filled up to at most."""


def check_sums(group: Group) -> None:
    """Raise if sums over shards are not those of one process, for any shape."""
    rng = np.random.default_rng(0)
    for _ in range(30):
        columns, *counts = rng.integers(1, [2000, 5, 5]).tolist()
        dtype = torch.float64 if columns % 2 else torch.float32
        rows = torch.from_numpy(rng.normal(size=(sum(counts), columns))).to(dtype)
        first = sum(counts[: group.rank])
        own = rows[first : first + counts[group.rank]]
        assert torch.equal(group.tree_sum(own, counts), tree_sum([*rows], torch.add))


def check_messages_of_one_rank(group: TorchGroup) -> None:
    """Raise if others fill memory when one rank sends much, or the next small message is long."""
    for rank in range(2):
        size, before_kb = 40_000_000, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        given = bytes([7]) * size if group.rank == rank else b"short"
        found = group.exchange(given, "a save")
        assert found[rank] == bytes([7]) * size
        assert found[1 - rank] == b"short"
        used_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb
        assert used_kb < 4 * size / 1000, f"{used_kb} kB more"
    sent: list[int] = []
    send = group._exchange

    def counted(data: bytes, phase: str) -> list[bytes]:
        sent.append(len(data))
        return send(data, phase)

    group._exchange = counted  # type: ignore[method-assign]
    group.exchange(b"short", "a save")
    assert len(sent) == 1, sent
    assert sent[0] <= MOST_ROOM + 100, sent


def main(case: str) -> None:
    if case == "absent":
        try:
            TorchGroup(3.0) if os.environ["RANK"] == "0" else time.sleep(8)
        except RankError as error:
            print(f"{error}", flush=True)
        return
    group = current_group()
    assert isinstance(group, TorchGroup)
    group.begin(4.0 if case == "stopped" else 60.0, uses_gpu=False)
    check_sums(group)
    for size in (10, 100_000, 50, 200_000):
        found = group.gather(bytes([group.rank]) * (size + group.rank), "messages")
        assert found == [bytes([rank]) * (size + rank) for rank in range(2)]
        got = group.send_to_leader(bytes([group.rank]) * (size * group.rank + 1), "recording")
        assert got == ([b"\0", b"\1" * (size + 1)] if group.leads else [])
    check_messages_of_one_rank(group)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # in a run, it is a request to stop
    try:
        if group.rank == 1 and case == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if group.rank == 1 and case == "fails":
            mistake = ValueError("no such thing")
            group.fail(mistake)
            raise mistake
        if group.rank == 1 and case == "stopped":
            time.sleep(12)
        group.gather(None, "evaluating" if case == "crossed" and group.leads else "learning")
    except RankError as error:
        print(f"{error}", flush=True)
        sys.exit(3)
    print(f"rank {group.rank} is done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
