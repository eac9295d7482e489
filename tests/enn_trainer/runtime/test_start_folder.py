"""Relative paths of a run stay where they were when an environment changes the folder."""

import json
from pathlib import Path

import pytest

from enn_trainer import train
from enn_trainer.checkpoints.state_manager import StateManager, load_checkpoint
from enn_trainer.cli import run as enn
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.worlds import Meadow

WORLD = """
import os
from collections.abc import Mapping
from tests.enn_trainer.worlds import Meadow

class Wanders(Meadow):
    def __init__(self, where: str = "init") -> None:
        self.where = where
        self._wander("init")

    def reset(self):
        self._wander("reset")
        return super().reset()

    def act(self, actions):
        self._wander("act")
        return super().act(actions)

    def _wander(self, where):
        if where == self.where:
            os.makedirs("elsewhere", exist_ok=True)
            os.chdir("elsewhere" if os.path.basename(os.getcwd()) != "elsewhere" else ".")
"""
FILES = [
    *["data_dir=data", "capture_samples=rollouts.rec", "eval.capture_samples=evals.rec"],
    *["eval.steps=2", "eval.num_envs=2", "eval.interval=24", "eval.opponent=runs/rival"],
    *["checkpoint.every_seconds=0"],
]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with an environment and an opponent."""
    monkeypatch.chdir(tmp_path)
    Path("wanders.py").write_text(WORLD)
    settings = [*SMALL, "total_timesteps=24", "data_dir=other"]
    train(StateManager(overrides=settings, checkpoint_dir="runs/rival"), Meadow)
    return tmp_path


def found(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
@pytest.mark.parametrize("where", ["init", "reset", "act"])
def test_environment_that_changes_the_folder_does_not_move_files(
    home: Path, where: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    kwargs = f'env.kwargs={{"where": "{where}"}}'
    arguments = ["train", *SMALL, *FILES, "env.id=wanders.py:Wanders", kwargs]
    assert enn([*arguments, "--checkpoint-dir", "runs/mine"]) == 0
    assert Path.cwd() == home / "elsewhere", "the test tests nothing else"
    assert found(home / "elsewhere") == set()
    files = found(home)
    assert {"data/rollouts.rec", "data/evals.rec"} <= files
    assert "runs/mine/metrics.jsonl" in files
    assert load_checkpoint(home / "runs/mine").state.step == 72
    assert load_checkpoint(home / "runs/mine").config.data_dir == "data"
    monkeypatch.chdir(home)
    named = "env.id=wanders.py:Wanders"
    more = ["--checkpoint-dir", "runs/mine", "--resume", named, "total_timesteps=96"]
    capsys.readouterr()
    assert enn(["train", *more]) == 0
    assert "resumed " in capsys.readouterr().out
    assert found(home / "elsewhere") == set()
    assert load_checkpoint(home / "runs/mine").state.step == 96


@pytest.mark.slow
def test_init_from_is_relative_to_the_start_folder(home: Path) -> None:
    arguments = ["train", *SMALL, "env.id=wanders.py:Wanders", "--checkpoint-dir", "runs/new"]
    assert enn([*arguments, "--init-from", "runs/rival"]) == 0
    assert load_checkpoint(home / "runs/new").state.step == 72


def test_folder_is_printed_as_typed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["train", *SMALL, "env.id=Xor", "--checkpoint-dir", "runs/xor"]
    assert enn(arguments) == 0
    out = capsys.readouterr().out
    assert "saved runs/xor/step-000000000072\n" in out
    assert "enn resume runs/xor" in out
    assert str(home) not in out


def test_paths_of_evaluations_are_relative_to_the_start_folder(home: Path) -> None:
    arguments = ["eval", "runs/rival", "--env", "wanders.py:Wanders", "--episodes", "4"]
    assert enn([*arguments, "--opponent", "runs/rival", "--json", "numbers.json"]) == 0
    assert found(home / "elsewhere") == set()
    content = json.loads((home / "numbers.json").read_text())
    assert content["checkpoint"] == str(home / "runs/rival/step-000000000024")


def test_recording_of_play_is_relative_to_the_start_folder(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda prompt: "q")
    arguments = ["play", "wanders.py:Wanders", "--record", "played.rec", "--agent", "runs/rival"]
    assert enn(arguments) == 0
    assert (home / "played.rec").is_file()
    assert found(home / "elsewhere") == set()
