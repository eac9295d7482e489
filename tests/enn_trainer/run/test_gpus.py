"""Ranks on GPUs: by nccl where each has its own, else by gloo."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.enn_trainer.run.small_runs import OPTIONS, SMALL

PROGRAM, EXCHANGES = (Path(__file__).with_name(f"gpu_{name}.py") for name in ("run", "exchanges"))
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.slow,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def run(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run Python with deterministic operations."""
    return subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8", **variables},
        capture_output=True,
        text=True,
        timeout=250.0,
        check=False,
    )


def digests(done: subprocess.CompletedProcess[str]) -> list[tuple[str, str, str]]:
    """Return the device, the backend and the digest of each rank."""
    assert done.returncode == 0, done.stderr
    found = sorted(re.findall(r"rank (\d+) on (\S+) by (\S+): (\d+)", done.stdout))
    return [(device, backend, digest) for _, device, backend, digest in found]


@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["net.d_model=160"],
        *(OPTIONS[name] for name in ("scaled rewards", "entropy target", "memory", "lessons")),
    ],
)
def test_two_ranks_on_gpus_learn_the_bits_of_one_process(settings: list[str]) -> None:
    """Gradients of the wider network are exchanged in slices, from GPU to GPU if there are two."""
    given = [*SMALL, "scale.shards=2", *settings, "--no-save"]
    ((_, _, expected),) = digests(run(str(PROGRAM), *given))
    ranks = digests(run(*TORCHRUN, "2", str(PROGRAM), *given))
    has_two = torch.cuda.device_count() > 1
    own, backend = ("cuda:1", "nccl") if has_two else ("cuda:0", "gloo")
    assert ranks == [("cuda:0", backend, expected), (own, backend, expected)]


@pytest.mark.parametrize(
    "settings", [[], ["net.memory=(of: frame)", "ppo.seq_len=4"], ["net.precision=bfloat16"]]
)
def test_a_resumed_run_on_a_gpu_equals_the_uninterrupted_run(
    settings: list[str],
) -> None:
    folder = ["--checkpoint-dir", "run"]
    expected = digests(run(str(PROGRAM), *SMALL, *settings, "--no-save"))
    digests(run(str(PROGRAM), *SMALL, *settings, "total_timesteps=56", *folder))
    resumed = [*SMALL, *settings, "total_timesteps=168", *folder, "--resume"]
    assert digests(run(str(PROGRAM), *resumed)) == expected


@pytest.mark.parametrize("ranks", [1, 2])
def test_sums_of_rows_on_gpus_equal_those_of_one_process(ranks: int) -> None:
    """Of one rank also by nccl, which needs a GPU for each rank."""
    done = run(*TORCHRUN, str(ranks), str(EXCHANGES))
    assert done.returncode == 0, done.stderr
    has_each = torch.cuda.device_count() >= ranks
    assert done.stdout.count(f"by nccl {has_each} is fine") == ranks


def test_a_rank_out_of_memory_is_reported_with_sizes_and_ends_all() -> None:
    done = run(*TORCHRUN, "2", str(PROGRAM), *SMALL, "--no-save", OUT_OF_MEMORY="1")
    assert done.returncode != 0
    why = "CUDA out of memory. Tried to allocate 1048576.00 GiB"
    assert re.search(
        rf"rank 0 \(\S+\) ends while .*: rank 1 \(\S+\) failed with .*{why}", done.stderr
    )
    assert re.search(rf"^error: rank 1: {why}", done.stderr, re.MULTILINE)


def test_a_rank_without_a_gpu_is_reported() -> None:
    hides = "import os, runpy, sys; sys.argv[:] = sys.argv[1:]\n"
    hides += 'if os.environ["RANK"] == "1": os.environ["CUDA_VISIBLE_DEVICES"] = ""\n'
    hides += 'runpy.run_path(sys.argv[0], run_name="__main__")'
    command = [*TORCHRUN, "2", "--no-python", sys.executable, "-c", hides]
    done = run(*command, str(PROGRAM), *SMALL, "--no-save")
    assert done.returncode != 0
    assert "rank 1: device: expected the value of rank 0, 'cuda', got 'cpu'" in done.stderr
