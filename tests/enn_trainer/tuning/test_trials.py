"""Runs of trials as processes, followed by their metrics."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from enn_trainer.algorithms.optimizers import check_finite, check_finite_weights
from enn_trainer.base.errors import NotFiniteError
from enn_trainer.checkpoints.run_lock import is_locked
from enn_trainer.tuning import trials
from enn_trainer.tuning.trials import NOT_FINITE, TrialRun, read_metric
from tests.enn_trainer.tuning.builders import STUB

TAG = "eval/episodic_reward.mean"


def follow(run: TrialRun, *, pruned_at: int | None = None, stop: bool = False) -> tuple[str, Any]:
    """Follow a run, and return its ending and the numbers of values seen, or its error."""
    counts = []

    def is_over(curve: Mapping[int, float]) -> bool:
        counts.append(len(curve))
        return len(curve) == pruned_at

    record = run.follow(TAG, is_over, lambda: stop)
    return record.ending, record.error or counts


def test_values_are_seen_in_order_one_by_one(tmp_path: Path) -> None:
    run_dir = tmp_path / "t" / "seed-1"
    run = TrialRun(run_dir, ["ppo.ent_coef=1"])
    assert follow(run) == ("completed", [1, 2, 3, 4, 5])
    assert read_metric(run_dir, TAG).curve[400] == -1.0
    again = run.follow(TAG)
    assert (again.score, again.frames, again.ending) == (-1.0, 400, "completed")


def test_seconds_of_a_run_include_its_earlier_starts(tmp_path: Path) -> None:
    run = TrialRun(tmp_path / "t" / "seed-1", [])
    assert 0 < run.follow(TAG, is_stopped=lambda: True).seconds < run.follow(TAG).seconds


def test_nothing_is_seen_after_the_decision(tmp_path: Path) -> None:
    run_dir = tmp_path / "t" / "seed-1"
    assert follow(TrialRun(run_dir, []), pruned_at=2) == ("pruned", [1, 2])
    assert not is_locked(run_dir)


def test_a_run_without_the_metric_has_failed(tmp_path: Path) -> None:
    record = TrialRun(tmp_path / "t" / "seed-1", []).follow("reward")
    assert (record.ending, record.error) == ("failed", "the run logged no reward")


def test_a_process_of_an_earlier_driver_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB", json.dumps({"seconds": 0.1}))
    run_dir = tmp_path / "t" / "seed-1"
    run = TrialRun(run_dir, [])
    with subprocess.Popen([*STUB, "trial=1", "--checkpoint-dir", str(run_dir)]) as process:
        while not is_locked(run_dir):
            time.sleep(0.01)
        assert follow(run, pruned_at=3) == ("pruned", [1, 2, 3])
        assert process.wait() == 128 + 15  # it was asked to save


def test_a_stopped_run_continues(tmp_path: Path) -> None:
    run = TrialRun(tmp_path / "t" / "seed-1", [])
    assert follow(run, stop=True)[0] == "stopped"
    assert follow(run) == ("completed", [1, 2, 3, 4, 5])


def test_values_that_are_not_finite_end_a_run(tmp_path: Path) -> None:
    run_dir = tmp_path / "t" / "seed-1"
    run_dir.mkdir(parents=True)
    row = {"step": 0, "kind": "eval", TAG: "nan"}
    (run_dir / "metrics.jsonl").write_text(json.dumps(row) + "\n")
    assert follow(TrialRun(run_dir, [])) == ("not finite", f"{TAG} is not finite")


def test_messages_of_divergence_are_recognised() -> None:
    import torch

    agent = torch.nn.Linear(1, 1)
    with pytest.raises(NotFiniteError) as loss:
        check_finite(agent, {"policy_loss": torch.tensor(float("nan"))}, "minibatch 1")
    torch.nn.init.constant_(agent.weight, float("inf"))
    with pytest.raises(NotFiniteError) as weights:
        check_finite_weights(agent)
    for error in (loss, weights):
        assert any(words in str(error.value) for words in NOT_FINITE)


def test_settings_of_the_environment_are_not_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENN_OPTIM__LR", "0.5")
    code = "import os; print(*os.environ.items(), sep='\\n')"
    monkeypatch.setattr(trials, "ENN_TRAIN", (sys.executable, "-c", code))
    follow(TrialRun(tmp_path / "t" / "seed-1", []))
    output = (tmp_path / "t" / "seed-1.txt").read_text()
    assert "('OMP_NUM_THREADS', '1')" in output
    assert "ENN_OPTIM__LR" not in output


def test_the_last_line_says_why_a_run_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STUB", json.dumps({"fails": [7]}))
    run = TrialRun(tmp_path / "t" / "seed-1", ["trial=7"])
    assert follow(run) == ("failed", "no space left on device")
