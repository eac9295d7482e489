"""`TorchGroup`: ranks that torchrun starts."""

import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import StateManager, Trainer
from enn_trainer.scale.exchange import are_gathered
from enn_trainer.scale.packing import digest_of
from entity_env.examples import Minefield
from tests.enn_trainer.scale.small_runs import SMALL, run_digest
from tests.enn_trainer.scale.torchrun_programs import PROGRAM, RUN, torchrun


@pytest.mark.slow
def test_a_killed_rank_ends_all_and_torchrun_resumes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = [*SMALL, "checkpoint.every_seconds=0", "--checkpoint-dir", "run", "--resume-or-start"]
    done = torchrun("--max-restarts", "1", str(RUN), *run, number=signal.SIGKILL)
    assert done.returncode == 0, done.stderr
    assert "rank 1 (" in done.stderr
    assert "does not answer" in done.stderr
    assert "step 168 total_timesteps of 168 reached" in done.stdout
    assert run_digest(tmp_path / "run") == run_digest(None)


@pytest.mark.slow
def test_ranks_of_several_hosts_begin_anew_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each torchrun counts restarts in its own way: the loss of another's rank is none."""
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("localhost", 0)) as server:
        port = server.getsockname()[1]
    meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "1"]
    hosts = ["--nnodes", "2", "--nproc-per-node", "1", "--max-restarts", "2", *meet]
    saves = ["--checkpoint-dir", "run", "--resume-or-start", "checkpoint.every_seconds=0"]
    command = [sys.executable, "-m", "torch.distributed.run", *hosts, str(RUN), *SMALL, *saves]
    environment = {**os.environ, "RANK_SIGNAL": str(int(signal.SIGKILL))}
    with ExitStack() as stack:
        of_hosts = []
        for _ in range(2):
            options: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
            process = subprocess.Popen(command, env=environment, text=True, **options)
            stack.callback(process.kill)
            of_hosts.append(process)
        for process in of_hosts:
            printed = process.communicate(timeout=200.0)[0]
            assert process.returncode == 0, printed
            assert "step 168 total_timesteps of 168 reached" in printed
    assert run_digest(tmp_path / "run") == run_digest(None)


@pytest.mark.slow
def test_sigterm_to_one_rank_ends_all_with_one_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    done = torchrun(str(RUN), *SMALL, "--checkpoint-dir", "run", number=signal.SIGTERM)
    assert done.stdout.count("step 112 interrupted") == 2, done.stderr
    saved = sorted(path.name for path in (tmp_path / "run").glob("step-*"))
    assert saved == ["step-000000000000", "step-000000000112"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ranks", "shards", "width", "are_whole"),
    [(2, 2, 16, True), (2, 2, 160, False), (3, 5, 48, False)],
)
def test_gradients_of_torchrun_have_the_bits_of_one_process(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ranks: int,
    shards: int,
    width: int,
    are_whole: bool,
) -> None:
    """Those of small networks are sent whole, of large ones in slices; shards may be uneven."""
    monkeypatch.chdir(tmp_path)
    settings = [f"scale.shards={shards}", f"net.d_model={width}", "total_timesteps=112"]
    done = torchrun(str(RUN), *SMALL, *settings, "--checkpoint-dir", "run", ranks=ranks)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step 112 total_timesteps of 112 reached") == ranks
    with Trainer(StateManager(checkpoint_dir=Path("run")), Minefield) as trainer:
        num_bytes = 4 * sum(x.numel() for x in trainer.state.agent.parameters())
        found = digest_of(trainer.state.agent)
    assert are_gathered(num_bytes, ranks, shards) == are_whole
    assert found == run_digest(None, *settings)


@pytest.mark.slow
def test_ranks_of_torchrun_exchange_messages_and_sums() -> None:
    done = torchrun(str(PROGRAM), "fine")
    assert done.returncode == 0, done.stderr
    for rank in range(2):  # lines of two processes may be mixed
        assert done.stdout.count(f"rank {rank} is done") == 1


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
def test_ranks_that_do_not_make_the_same_calls_end_with_the_phases() -> None:
    done = torchrun(str(PROGRAM), "crossed")
    assert done.returncode != 0
    assert re.search(r"rank 0 \(\S+\) exchanges while evaluating, rank 1 does not", done.stdout)
    assert re.search(r"rank 1 \(\S+\) exchanges while learning, rank 0 does not", done.stdout)


@pytest.mark.slow
def test_a_rank_that_does_not_begin_is_named() -> None:
    done = torchrun(str(PROGRAM), "absent")
    assert "ends while start: expected 2 ranks within 3 s, 1 did not begin" in done.stdout


@pytest.mark.slow
def test_a_rank_that_hangs_is_named_after_the_timeout() -> None:
    done = torchrun(str(PROGRAM), "stopped")
    assert done.returncode != 0
    assert "ends while learning: rank 1 (" in done.stdout, done.stderr
    assert "scale.timeout_s=4" in done.stdout
