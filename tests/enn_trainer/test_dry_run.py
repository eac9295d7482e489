"""`--dry-run`: of runs whose rollouts are cut, count or are learnt from otherwise."""

from pathlib import Path

import pytest

from enn_trainer.cli import run
from tests.enn_trainer.builders import POOL, SMALL

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
def test_it_ends_after_two_updates_of_any_run(
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
def test_it_begins_at_a_step_that_its_own_rollouts_do_not_divide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    settings = ["env.id=Xor", *SMALL, "rollout.steps=20", "total_timesteps=120"]
    folder = ["--checkpoint-dir", "run"]
    assert run(["train", *settings, *folder]) == 0
    assert run(["train", *folder, "--resume", "--dry-run"]) == 0, capsys.readouterr().err
    assert "dry run: all is well" in capsys.readouterr().out
