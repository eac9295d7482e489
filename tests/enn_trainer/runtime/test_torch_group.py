"""`TorchGroup`: ranks that torchrun starts, most of them forked."""

import re
import signal
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
from torch.distributed import HashStore

from enn_trainer import StateManager, Trainer
from enn_trainer.runtime.exchange import are_gathered, digest_of
from enn_trainer.runtime.torch_group import TorchGroup
from entity_env.examples import Minefield
from tests.enn_trainer.run.forked_ranks import run_hosts, run_ranks
from tests.enn_trainer.run.small_runs import SMALL, run_digest
from tests.enn_trainer.run.torchrun_programs import RUN, torchrun

SAVES = ["checkpoint.every_seconds=0", "--checkpoint-dir", "run", "--resume-or-start"]


@pytest.mark.slow
def test_killed_rank_ends_all_and_torchrun_restarts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (done,) = run_hosts("torch_run", *SMALL, *SAVES, ranks=2, number=signal.SIGKILL)
    assert done.returncode == 0, done.stderr
    assert "rank 1 (" in done.stderr
    assert "does not answer" in done.stderr
    assert "step 168 total_timesteps of 168 reached" in done.stdout
    assert run_digest(tmp_path / "run") == run_digest(None)


@pytest.mark.slow
def test_ranks_of_several_hosts_restart_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each torchrun counts restarts in its own way: the loss of another's rank is none."""
    monkeypatch.chdir(tmp_path)
    options = {"hosts": 2, "restarts": 2, "number": signal.SIGKILL}
    for done in run_hosts("torch_run", *SMALL, *SAVES, **options):
        assert done.returncode == 0, done.stdout
        assert "step 168 total_timesteps of 168 reached" in done.stdout
    assert run_digest(tmp_path / "run") == run_digest(None)


def started(store: HashStore, rank: int) -> Any:
    """Return the store of a start of two ranks, as a rank gets it."""
    group = TorchGroup.__new__(TorchGroup)
    group.rank, group.size, group._timeout_s, group._host = rank, 2, 60.0, "here"
    return group._wait_for_start(store)


@pytest.mark.parametrize("first", [0, 1])
def test_store_of_start_has_no_keys_of_an_earlier_start(first: int) -> None:
    """And is the same one in all ranks, of which one begins long before the other."""
    store = HashStore()
    with ThreadPoolExecutor(2) as pool:
        for _ in range(3):
            early = pool.submit(started, store, first)
            # It shows whom it sees, and may see the other one of the earlier start.
            wait([early], timeout=0.1)
            assert not early.done()
            late = pool.submit(started, store, 1 - first)
            one, other = early.result(), late.result()
            assert not other.check(["written"])
            one.set("written", "")
            assert other.check(["written"])


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
def test_gradients_of_torchrun_equal_one_process_bitwise(
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
    done = run_ranks("torch_run", *SMALL, *settings, "--checkpoint-dir", "run", ranks=ranks)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step 112 total_timesteps of 112 reached") == ranks
    with Trainer(StateManager(checkpoint_dir=Path("run")), Minefield) as trainer:
        num_bytes = 4 * sum(x.numel() for x in trainer.state.agent.parameters())
        found = digest_of(trainer.state.agent)
    assert are_gathered(num_bytes, ranks, shards) == are_whole
    assert found == run_digest(None, *settings)


@pytest.mark.slow
def test_ranks_of_torchrun_exchange_messages_and_sums() -> None:
    done = run_ranks("torch_ranks", "fine")
    assert done.returncode == 0, done.stderr
    for rank in range(2):  # lines of two processes may be mixed
        assert done.stdout.count(f"rank {rank} is done") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "why"),
    [("killed", "does not answer"), ("fails", "failed with ValueError: no such thing")],
)
def test_error_names_the_lost_rank(case: str, why: str) -> None:
    done = run_ranks("torch_ranks", case)
    assert done.returncode != 0
    assert "rank 0 (" in done.stdout, done.stderr
    assert "ends while learning: rank 1 (" in done.stdout
    assert why in done.stdout
    assert "last seen while" in done.stdout


@pytest.mark.slow
def test_ranks_with_different_calls_raise_with_their_phases() -> None:
    done = run_ranks("torch_ranks", "crossed")
    assert done.returncode != 0
    assert re.search(r"rank 0 \(\S+\) exchanges while evaluating, rank 1 does not", done.stdout)
    assert re.search(r"rank 1 \(\S+\) exchanges while learning, rank 0 does not", done.stdout)


@pytest.mark.slow
def test_error_names_a_rank_that_does_not_start() -> None:
    done = run_ranks("torch_ranks", "absent")
    assert "ends while start: expected 2 ranks within 3 s, 1 did not begin" in done.stdout


@pytest.mark.slow
def test_error_names_a_hanging_rank_after_the_timeout() -> None:
    done = run_ranks("torch_ranks", "stopped")
    assert done.returncode != 0
    assert "ends while learning: rank 1 (" in done.stdout, done.stderr
    assert "scale.timeout_s=4" in done.stdout
