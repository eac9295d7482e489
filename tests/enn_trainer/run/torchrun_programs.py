"""Programs that torchrun starts in several ranks."""

import os
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).with_name("torch_run.py")


def torchrun(*arguments: str, number: int = 0, ranks: int = 2) -> subprocess.CompletedProcess[str]:
    """Run a program with some ranks, of which the second sends itself a signal."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*command, "--nproc-per-node", str(ranks), *arguments],
        env={**os.environ, "RANK_SIGNAL": str(number)},
        capture_output=True,
        text=True,
        timeout=200.0,
        check=False,
    )
