"""`enn play`: arguments, display and recordings."""

import re
import signal
import subprocess
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from enn_trainer.cli import run
from entity_env.examples import Duel
from entity_env.recording.read_recording import Recording
from entity_env.vec.variation import Variation
from tests.enn_trainer.cli.hand_play import play
from tests.enn_trainer.one_line import refused
from tests.entity_env.builders import check_probabilities
from tests.fork_server import ENN, start_program

SOURCE = """
    from entity_env.examples import Xor

    class Sized(Xor):
        def __init__(self, size):
            super().__init__()
            if size > 3:
                raise ValueError(f"size: expected at most 3, got {size!r}")

    class Drawn(Xor):
        def __init__(self, size=1):
            super().__init__()
            if size < 0:
                raise ValueError("too small")

    def number():
        return 3
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "my_world.py"
    path.write_text(textwrap.dedent(SOURCE))
    return str(path)


def test_environment_of_a_file_is_played(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(monkeypatch, [f"{file}:Sized", "size=2", "--seed", "4"], "2", "", "1", "q") == 0
    out = capsys.readouterr().out
    assert "episode 2 is over: 1 steps" in out
    assert re.search(r"episodes: 2, mean return: (0|0\.5|1)\n--seed 4 repeats these episodes", out)
    assert "\x1b" not in out
    assert play(monkeypatch, ["entity_env.examples:Xor", "--episodes", "1"], "1") == 0
    assert re.search(r"episodes: 1, .*\n--seed \d+ repeats", capsys.readouterr().out)


def test_environment_arguments_are_json_python_or_text() -> None:
    from enn_trainer.cli.typed_settings import parse_kwargs

    arguments = ["a=3", "b=true", "c=True", "d=[1, 2]", "e=(1, 2)", "f=text", "g=x=y", 'h="3"']
    assert parse_kwargs(arguments, "KEY=VALUE") == {
        "a": 3,
        "b": True,
        "c": True,
        "d": [1, 2],
        "e": (1, 2),
        "f": "text",
        "g": "x=y",
        "h": "3",
    }


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], ["ENV"]),
        (["Xorr"], ["Xorr", "did you mean Xor?"]),
        (["nowhere.py:World"], ["nowhere.py", "does not exist"]),
        (["FILE:Sized"], ["KEY=VALUE", "size"]),
        (["FILE:Sized", "sise=3"], ["KEY=VALUE", "size"]),
        (["FILE:Sized", "size"], ["KEY=VALUE", "'size'", "size=3"]),
        (["FILE:Sized", "size=4"], ["ENV", "expected at most 3, got 4"]),
        (["FILE:Sized", "size=four"], ["ENV", "Sized"]),
        (["FILE:number"], ["ENV", "return annotation"]),
        (["Xor", "--agent", "nowhere"], ["nowhere"]),
        (["Xor", "--agent", "DUEL"], ["--agent", "does not fit the environment", "Ally"]),
        (["Xor", "--record", "/no/such/folder/file"], ["--record", "/no/such/folder/file"]),
        (["Xor", "--record", "/"], ["--record"]),
        (["Xor", "--episodes", "0"], ["--episodes", "positive"]),
        (["Xor", "--verbos"], ["--verbos"]),
        (["Minefield", "--vary", "max_mine=1"], ["--vary", "did you mean max_mines"]),
        (["Minefield", "--vary", "max_mines=int 9 1"], ["--vary max_mines: character 7"]),
        (["Minefield", "--vary", "max_mines"], ["--vary: expected NAME=SAMPLER", "max_mines"]),
        (["Minefield", "width=9", "--vary", "width=9"], ["--vary", "not given as KEY=VALUE"]),
    ],
)
def test_invalid_argument_prints_one_line_and_exits_with_status_2(
    arguments: list[str],
    expected: list[str],
    file: str,
    duel_run: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    values = [a.replace("FILE", file).replace("DUEL", str(duel_run)) for a in arguments]
    said = refused(["play", *values], capsys)
    for word in expected:
        assert word in said


def test_varied_arguments_are_sampled_per_episode_as_in_evaluations(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    vary = ["--vary", "size=int 2 9", "--seed", "4", "--record", str(tmp_path / "a.rec")]
    assert play(monkeypatch, [f"{file}:Drawn", *vary], "1", "", "1", "", "1", "q") == 0
    out = capsys.readouterr().out
    variation = Variation.of({"size": "int 2 9"})
    drawn = [variation.arguments(4, 0, episode)["size"] for episode in range(3)]
    assert re.findall(r"^size=(\d+)$", out, re.MULTILINE) == [str(size) for size in drawn]
    episodes = Recording.open(tmp_path / "a.rec").episodes()
    assert [one.parameters for one in episodes] == [{"size": size} for size in drawn]


def test_environment_with_set_parameters_is_played(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(monkeypatch, ["Duel", "--vary", "squad=1", "--seed", "1"], "q") == 0
    assert "\nsquad=1\n" in capsys.readouterr().out


def test_value_rejected_by_the_environment_is_an_error_with_its_arguments(
    file: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(monkeypatch, [f"{file}:Drawn", "--vary", "size=-1"], "1", "q") == 2
    err = capsys.readouterr().err
    assert "--vary: environment 0, episode 0: Drawn does not take {'size': -1}: too small" in err


def test_side_without_an_agent_and_foreign_file_end_with_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["play", "Duel", "--side", "0"]) == 1
    assert "side: expected one of [0, 1] and an agent" in capsys.readouterr().err
    (tmp_path / "text").write_text("no recording, but some text")
    assert run(["play", "Xor", "--record", str(tmp_path / "text")]) == 1
    err = capsys.readouterr().err
    assert "is not a recording" in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_agent_advises_and_enter_takes_the_most_probable_choice(
    mines_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "file"
    arguments = ["MineSweeper", "--agent", str(mines_run), "--record", str(path), "--seed", "0"]
    assert play(monkeypatch, arguments, "", "1", "*", "q") == 0
    out = capsys.readouterr().out
    assert re.search(r"the agent expects -?\d", out)
    assert re.search(r"5\) Defuse Mines  \d+\.\d%", out)
    steps = list(Recording.open(path).steps())
    assert len(steps) == 2
    for step in steps:
        check_probabilities(step.decisions)
    [first, _], second = steps[0].decisions.probs["Move"].values, steps[1].decisions
    suggested = max(map(float, re.findall(r"(\d+\.\d)% <- Enter", out.split("Robot 1 (x")[0])))
    assert 100 * first == pytest.approx(suggested, abs=0.06)
    logits = second.logits["Move"].values
    assert second.actions["Move"].values.tolist() == logits.argmax(axis=1).tolist()


def test_agent_plays_the_other_side(
    duel_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["Duel", "--agent", str(duel_run), "--side", "1", "--episodes", "1"]
    assert play(monkeypatch, arguments, *["*"] * 200) == 0
    out = capsys.readouterr().out
    assert "side 0, the agent: attack Enemy" in out
    assert "side 1\nthe agent expects" in out
    assert re.search(r"episodes: 1, mean return: (0, 0|1, -1|-1, 1)\n", out)


def test_agent_samples_the_actions_of_its_side(duel_run: Path) -> None:
    """Else it would be the same opponent in every game."""
    from enn_trainer import load_agent

    game = Duel()
    game.seed(0)
    obs = game.reset()[0]
    agent = load_agent(duel_run, seed=1)
    chosen = {tuple(agent.act(obs).actions["attack"].actees) for _ in range(20)}  # type: ignore
    assert len(chosen) > 1


def start(path: Path, *lines: str) -> "subprocess.Popen[str]":
    """Input of a person that pauses after some lines, until they are recorded."""
    arguments = ["play", "TreasureHunt", "--record", str(path), "--seed", "0"]
    child = start_program(
        [*ENN, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    child.stdin.write("".join(f"{line}\n" for line in lines))
    child.stdin.flush()
    deadline = time.monotonic() + 120
    while not path.exists() or count(path) < len(lines):
        assert child.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return child


def count(path: Path) -> int:
    try:
        return len(list(Recording.open(path).steps()))
    except ValueError:  # the header is being written
        return 0


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 0), (signal.SIGKILL, -9), (signal.SIGTERM, -15)]
)
def test_recording_of_an_interrupted_game_is_readable(
    number: int, status: int, tmp_path: Path
) -> None:
    path = tmp_path / "file"
    child = start(path, "1", "1", "2")
    child.send_signal(number)
    out, err = child.communicate(timeout=60)
    assert child.returncode == status
    recording = Recording.open(path)
    assert recording.complete
    [episode] = recording.episodes()
    actions: Any = episode.decisions.actions["move"].values.tolist()
    assert actions == [0, 0, 1]
    assert episode.ending == "unfinished"
    assert err == ""
    if number == signal.SIGINT:
        assert f"recorded in {path}" in out
