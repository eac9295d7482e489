"""`--dry-run`: of runs whose rollouts are cut, count or are learnt from otherwise."""

import shutil
from pathlib import Path

import pytest

from enn_trainer import StateManager, train
from enn_trainer.cli import run
from enn_trainer.command import dry_run
from tests.enn_trainer.builders import POOL, SMALL
from tests.enn_trainer.worlds import Meadow

REMEMBERS = 'net.memory=(of: "frame")'


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        POOL,
        [*POOL, "selfplay.share=1", "rollout.steps=64", "optim.bs=512"],
        [*POOL, REMEMBERS, "optim.bs=48"],
        [*SMALL, REMEMBERS, "rollout.steps=20", "optim.bs=60"],
        [*SMALL, REMEMBERS, "ppo.seq_len=12", "rollout.steps=24", "optim.bs=24"],
    ],
    ids=["pool", "pool alone", "pool with memory", "memory", "sequences"],
)
def test_dry_run_ends_after_two_updates_of_any_run(
    settings: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The frames of opponents are not counted, and minibatches fit the cut rollouts."""
    monkeypatch.chdir(tmp_path)
    arguments = ["train", "env.id=Duel", *settings, "--dry-run"]
    assert run(arguments) == 0, capsys.readouterr().err
    assert "dry run: all is well" in capsys.readouterr().out
    assert [*tmp_path.iterdir()] == []


@pytest.mark.slow
def test_dry_run_starts_at_a_step_between_its_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["env.id=Xor", *SMALL, "rollout.steps=20", "total_timesteps=120"]
    folder = ["--checkpoint-dir", "run"]
    assert run(["train", *settings, *folder]) == 0
    assert run(["train", *folder, "--resume", "--dry-run"]) == 0, capsys.readouterr().err
    assert "dry run: all is well" in capsys.readouterr().out


def test_dry_run_reads_its_initial_save_once(
    run_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A run that goes on may delete it at any moment."""
    manager = StateManager(checkpoint_dir=run_dir)
    assert manager.resumed_from is not None
    for save in run_dir.glob("step-*"):
        shutil.rmtree(save)
    dry_run(manager, lambda trial: train(trial, Meadow))
    assert "dry run: all is well" in capsys.readouterr().out
