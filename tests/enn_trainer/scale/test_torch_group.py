"""`TorchGroup`: ranks that torchrun starts."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("torch_ranks.py")


def torchrun(*arguments: str, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
    """Run a program with two ranks."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*command, "--nproc-per-node", "2", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )


@pytest.mark.slow
def test_ranks_of_torchrun_exchange_messages_and_sums() -> None:
    done = torchrun(str(PROGRAM), "fine")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["rank 0 is done", "rank 1 is done"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "why"),
    [("killed", "does not answer"), ("fails", "failed with ValueError: no such thing")],
)
def test_the_others_name_a_rank_that_is_lost(case: str, why: str) -> None:
    done = torchrun(str(PROGRAM), case)
    assert done.returncode != 0
    assert "rank 0 (" in done.stdout, done.stderr
    assert "ends while learning: rank 1 (" in done.stdout
    assert why in done.stdout
    assert "last seen while" in done.stdout


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_after_the_timeout() -> None:
    done = torchrun(str(PROGRAM), "stopped")
    assert done.returncode != 0
    assert "ends while learning: rank 1 (" in done.stdout, done.stderr
    assert "scale.timeout_s=4" in done.stdout
