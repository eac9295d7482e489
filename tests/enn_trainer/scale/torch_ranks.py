"""Program of ranks that torchrun starts, for the tests of `TorchGroup`."""

import os
import signal
import sys
import time

import torch

from enn_trainer.errors import RankError
from enn_trainer.scale.group import current_group
from enn_trainer.scale.shards import tree_sum


def main(case: str) -> None:
    group = current_group()
    group.begin(4.0 if case == "stopped" else 60.0, uses_gpu=False)
    rows = torch.randn(3, 1001, generator=torch.Generator().manual_seed(0))
    own, counts = (rows[:1], [1, 2]) if group.rank == 0 else (rows[1:], [1, 2])
    assert torch.equal(group.tree_sum(own, counts), tree_sum([*rows], torch.add))
    for size in (10, 100_000, 50, 200_000):
        found = group.gather(bytes([group.rank]) * (size + group.rank), "messages")
        assert found == [bytes([rank]) * (size + rank) for rank in range(2)]
        got = group.send_to_leader(bytes([group.rank]) * (size * group.rank + 1), "recording")
        assert got == ([b"\0", b"\1" * (size + 1)] if group.leads else [])
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # in a run, it is a request to stop
    try:
        if group.rank == 1 and case == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if group.rank == 1 and case == "fails":
            error = ValueError("no such thing")
            group.fail(error)
            raise error
        if group.rank == 1 and case == "stopped":
            time.sleep(12)
        group.gather(None, "learning")
    except RankError as error:
        print(f"{error}", flush=True)
        sys.exit(3)
    print(f"rank {group.rank} is done", flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
