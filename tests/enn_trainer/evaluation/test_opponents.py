"""Bots are opponents wherever a setting or an option names one."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enn_trainer import ConfigError, StateManager, command, train
from enn_trainer.cli import run
from enn_trainer.evaluation.opponents import create_opponent
from enn_trainer.viewer.replay_format import read_replay
from entity_env import InvalidAction
from entity_env.examples import Duel
from entity_env.named_world import is_bot_name
from entity_env.recording.read_recording import Recording
from tests.enn_trainer.cli.hand_play import play
from tests.enn_trainer.evaluation.builders import DUEL, run_duel
from tests.enn_trainer.one_line import refused
from tests.entity_env import duel_bots

BOTS = str(Path(duel_bots.__file__))
MODULE = duel_bots.__name__
EVAL = ["eval.steps=20", "eval.interval=128", "eval.num_envs=8"]
MARK = Path("imported")
SOURCE = f"""
from pathlib import Path
from {MODULE} import Greedy

Path("{MARK}").touch()
"""


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A bot of a module in the current folder, which leaves a mark if it is imported."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.delitem(sys.modules, "foreign_bots", raising=False)
    Path("foreign_bots.py").write_text(SOURCE)
    return "foreign_bots:Greedy"


@pytest.mark.parametrize(
    ("name", "is_bot"),
    [
        ("bots.py:Greedy", True),
        ("/some where/bots.py:Greedy", True),
        ("package.module:Greedy", True),
        ("module:Greedy", True),
        ("random", False),
        ("runs/duel", False),
        ("runs/duel@best", False),
        ("duel@opponent:first", False),
        ("runs/duel@opponent:first", False),
        ("./a:b", False),
        ("bots.py", False),
        ("bots.py:", False),
    ],
)
def test_bot_names_are_distinguished_from_checkpoints(name: str, is_bot: bool) -> None:
    assert is_bot_name(name) == is_bot


@pytest.mark.slow
def test_bot_is_measured_in_training_and_in_suites(tmp_path: Path) -> None:
    suites = f'eval.suites={{"weak": (opponent: "{MODULE}:Shoots")}}'
    _, result = run_duel(tmp_path, *EVAL, f"eval.opponent={BOTS}:Greedy", suites)
    assert result.eval["eval/episodic_reward.count"] > 0
    strong, weak = result.eval["eval/win.mean"], result.eval["eval/weak/win.mean"]
    assert strong < weak
    # Any callable that makes opponents may return the class.
    manager = StateManager(overrides=[*DUEL, f"data_dir={tmp_path}", *EVAL, "eval.opponent=x"])
    own = train(manager, Duel, create_opponent=lambda *_: duel_bots.Greedy)
    assert own.eval["eval/win.mean"] == strong


@pytest.mark.slow
def test_bots_play_both_sides_and_processes_change_nothing(tmp_path: Path) -> None:
    alone = [*EVAL, f"eval.opponent={BOTS}:Waits", "eval.opponent_only=true"]
    _, one = run_duel(tmp_path, *alone, "eval.processes=1")
    _, two = run_duel(tmp_path, *alone, "eval.processes=2")
    assert one.eval["eval/episodic_reward.mean"] == 0
    assert one.eval == two.eval


def test_bot_class_is_accepted_as_opponent() -> None:
    spaces: Any = Duel().obs_space(), Duel().action_space(), None
    assert create_opponent(duel_bots.Greedy, *spaces) is duel_bots.Greedy
    assert create_opponent(f"{MODULE}:Greedy", *spaces) is duel_bots.Greedy


@pytest.mark.parametrize(
    ("opponent", "words"),
    [
        (f"{BOTS}:Gredy", ["expected an attribute of", "did you mean Greedy?"]),
        ("nowhere.py:Greedy", ["nowhere.py", "does not exist"]),
        ("no.such.module:Greedy", ["ModuleNotFoundError"]),
        (f"{BOTS}:Sized", ["without arguments", "size"]),
        ("entity_env.examples:Duel", ["a subclass of entity_env.Bot"]),
    ],
)
def test_missing_bot_is_rejected_before_training(
    opponent: str, words: list[str], tmp_path: Path
) -> None:
    with pytest.raises(ConfigError) as error:
        run_duel(tmp_path, *EVAL, f"eval.opponent={opponent}", "total_timesteps=100000000")
    assert str(error.value).startswith("eval.opponent: ")
    for word in words:
        assert word in str(error.value)


def test_illegal_action_names_bot_match_side_and_step(tmp_path: Path) -> None:
    place = r"bot ShootsItself in match 0, side 1, step 0: actions\['attack'\], actor \('Ally', 0\)"
    with pytest.raises(InvalidAction, match=place):
        run_duel(tmp_path, *EVAL, f"eval.opponent={BOTS}:ShootsItself")


@pytest.mark.slow
def test_commands_accept_bots(
    duel_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bot, report, page = f"{BOTS}:Greedy", tmp_path / "report.json", tmp_path / "page.html"
    against = [str(duel_run), "--opponent", bot]
    assert run(["eval", *against, "--episodes", "8", "--out", str(report)]) == 0
    assert json.loads(report.read_text())["suites"][""]["episodes"] == 8
    assert run(["watch", *against, "--episodes", "1", "--out", str(page)]) == 0
    [episode] = read_replay(page).episodes
    values = episode.answers.values.reshape(-1, 2)
    assert np.isfinite(values[:, 0]).all()
    assert np.isnan(values[:, 1]).all()
    assert run(["check", "Duel", "--bot", bot, "--episodes", "1"]) == 0
    error = refused(["watch", str(duel_run), "--beside", bot, "--out", str(page)], capsys)
    assert (
        f"--beside: expected a checkpoint or random, which have probabilities, got the bot {bot}"
        in error
    )
    assert "--bot: expected an attribute" in refused(
        ["check", "Duel", "--bot", f"{BOTS}:G"], capsys
    )

    # A person against the bot, whose choices are recorded with probability 1.
    file = tmp_path / "mine.rec"
    playing = ["Duel", "--agent", bot, "--side", "0", "--episodes", "1", "--record", str(file)]
    assert play(monkeypatch, playing, *[""] * 200) == 0
    out = capsys.readouterr().out
    assert "side 1, the agent: attack enemy" in out.lower()
    assert "100.0% <- Enter" in out
    recording = Recording.open(file)
    for step in recording.steps():
        probs = step.decisions.probs["attack"].values
        assert (probs == 1).all()


@pytest.mark.slow
def test_bot_in_a_checkpoint_is_imported_only_if_named(
    foreign: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = [*DUEL, f"data_dir={tmp_path}"]
    typed = [*data, *EVAL, f"eval.opponent={foreign}", "--checkpoint-dir", "run"]
    assert run(["train", "Duel", *typed]) == 0
    assert "enn resume run --trust" in capsys.readouterr().out
    MARK.unlink()
    del sys.modules["foreign_bots"]
    resume = ["resume", "run", "total_timesteps=256"]
    error = refused(resume, capsys)
    assert error.startswith("error: eval.opponent: expected a bot that is named on the command")
    assert f"'{foreign}'" in error
    assert f"give eval.opponent={foreign} again, or --trust" in error
    assert not MARK.exists()
    assert run(["eval", "run", "--episodes", "2"]) == 0
    assert not MARK.exists()

    # A program of one's own.
    @command()
    def main(state_manager: StateManager) -> None:
        train(state_manager, Duel)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["mine.py", "--resume-from", "run", "total_timesteps=256"])
        with pytest.raises(SystemExit) as end:
            main()
    assert end.value.code == 2
    assert not MARK.exists()

    # Named or trusted, also in a dry run, whose second half reads a save of its own.
    for more in ([f"eval.opponent={foreign}", "--dry-run"], ["--trust", "--dry-run"], ["--trust"]):
        assert run([*resume, *more]) == 0, capsys.readouterr().err
        assert MARK.exists()
