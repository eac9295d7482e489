"""All commands alike: names of options, examples that run, start-up, and errors."""

import argparse
import contextlib
import json
import re
import shlex
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from enn_trainer.base.errors import ConfigError
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.cli import COMMANDS, run
from enn_trainer.cli.arguments import OneLineParser, normalize_json_option, not_negative, positive
from enn_trainer.cli.typed_settings import parse_kwargs
from enn_trainer.command import run_command
from enn_trainer.runtime.interrupt import StoppedAtOnce
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.checkpoints.published import GOLDEN
from tests.fork_server import ENN, PIPE, start_program

ROOT = Path(__file__).parents[3]
ENN_IN_ONE_PROCESS = (
    "-c",
    """
from enn_trainer.cli import doctor_command, main
call = lambda function, timeout_s: (vars(doctor_command)[function](), "")
doctor_command._call_in_subprocess = call
doctor_command.TRIAL_S = 0.0
main()
""",
)
"""The program `enn`, with a command `doctor` that starts no subprocesses.

Subprocesses of `enn doctor` are tested in `test_doctor_command.py`.
"""
SMALLER = {
    "enn train": SMALL,
    "enn train --resume": ["total_timesteps=96"],
    "enn resume": ["total_timesteps=96"],
    "enn clone": ["clone.epochs=1", "net.d_model=8", "net.n_layer=1"],
    "enn check": ["--episodes", "2"],
    "enn watch": ["--episodes", "2"],
    "enn eval": ["--episodes", "4"],
    "enn league play": ["--games", "4"],
    "enn league exploit": ["--timesteps", "48", "--games", "4"],
    "enn tune": ["--trials", "1"],
    "enn tune Xor": [*SMALL, "eval.episodes=8", "--trials", "1", "--confirm", "0"],
    "enn tune --show": [],
    "enn profile": [*SMALL, "--updates", "1"],
}
"""Additional arguments that make an example fast."""
MEANINGS = {
    "--seed": {"metavar": "N", "type": not_negative, "nargs": None, "const": None},
    "--episodes": {"metavar": "N", "type": positive, "nargs": None, "const": None},
    "--env": {"metavar": "ENV", "type": None, "nargs": None, "const": None},
    "--env-kwargs": {"metavar": "KEY=VALUE", "type": None, "nargs": "+", "const": None},
    "--out": {"metavar": "FILE", "type": Path, "nargs": None, "const": None},
    "--json": {"metavar": None, "type": None, "nargs": 0, "const": True},
}
"""The attributes of an option in every command that has it."""


def parsers() -> Iterator[tuple[str, argparse.ArgumentParser]]:
    """Yield each command and subcommand with its parser."""
    for name, command in COMMANDS.items():
        todo = [(f"enn {name}", command.parser())]
        while todo:
            called, parser = todo.pop(0)
            yield called, parser
            for action in parser._actions:
                if isinstance(action, argparse._SubParsersAction):
                    todo += [(f"{called} {sub}", one) for sub, one in action.choices.items()]


def examples(parser: argparse.ArgumentParser) -> list[str]:
    _, _, block = (parser.epilog or "").partition("examples:\n")
    return [line.strip() for line in block.splitlines() if line.startswith("  enn ")]


def enn(line: str, folder: Path, typed: str) -> tuple[int, str, str]:
    """Run a command line with some input, and return its status and what it prints."""
    with TemporaryFile("w+") as file:
        file.write(typed)
        file.seek(0)
        arguments, streams = shlex.split(line), {"stdout": PIPE, "stderr": PIPE}
        program = [*(ENN_IN_ONE_PROCESS if arguments[0] == "doctor" else ENN), *arguments]
        process = start_program(program, cwd=folder, stdin=file.fileno(), text=True, **streams)
        first = ""
        if arguments[0] == "serve":  # goes on until Ctrl-C
            first = process.stdout.readline()
            process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=120)
    return process.returncode, first + out, error


def actions(parser: argparse.ArgumentParser) -> dict[str, argparse.Action]:
    return {name: a for a in parser._actions for name in a.option_strings or [a.dest]}


def test_options_mean_the_same_in_all_commands() -> None:
    seen = set()
    for called, parser in parsers():
        assert isinstance(parser, OneLineParser), called
        assert parser.prog == called
        for name, action in actions(parser).items():
            if name in MEANINGS:
                seen.add(name)
                result = {key: getattr(action, key) for key in MEANINGS[name]}
                assert result == MEANINGS[name], (called, name)
            is_world = action.metavar == "ENV" and not action.option_strings
            if is_world:  # is followed by its arguments
                index = parser._actions.index(action)
                after = [a for a in parser._actions[index + 1 :] if not a.option_strings]
                assert action.dest == "env" or action.nargs == "?", called
                if action.nargs is None:
                    assert (after[0].metavar, after[0].nargs) == ("KEY=VALUE", "*"), called
                    assert "--env-kwargs" in actions(parser), called
    assert seen == MEANINGS.keys()


def test_every_option_and_argument_is_described() -> None:
    for called, parser in parsers():
        for action in parser._actions:
            if action.option_strings:
                assert action.help, (called, action.option_strings)


def test_every_help_text_has_an_example() -> None:
    for called, parser in parsers():
        result = examples(parser)
        assert result, called
        assert any(line.startswith(called) for line in result), called
        lines = [line.strip() for line in parser.format_help().splitlines()]
        assert result == lines[-len(result) :]


ORCHARD = """
import numpy as np
from entity_env import Entity, Environment, Observation, ObsSpace, PlainState
from entity_env import SelectEntityActionMask, SelectEntityActionSpace

class Orchard(PlainState, Environment):
    def __init__(self, trees: int = 5) -> None:
        self.trees = trees

    def obs_space(self):
        return ObsSpace(entities={"Picker": Entity([]), "Tree": Entity(["ripeness"])})

    def action_space(self):
        return {"pick": SelectEntityActionSpace()}

    def reset(self):
        self.ripe = self.rng.randint(0, self.trees - 1)
        return self.observe(False, 0.0)

    def act(self, actions):
        return self.observe(True, float(actions["pick"].actees[0] == self.ripe))

    def observe(self, done, reward):
        trees = [[float(i == self.ripe)] for i in range(self.trees)]
        pick = SelectEntityActionMask(actor_types=["Picker"], actee_types=["Tree"])
        return Observation(
            entities={"Picker": ([[]], ["me"]), "Tree": (trees, list(range(self.trees)))},
            actions={"pick": pick},
            done=done,
            reward=reward,
        )

    def render(self, **kwargs):
        return np.zeros((16, 16, 3), dtype=np.uint8)
"""


@pytest.fixture(scope="session")
def workplace(tmp_path_factory: pytest.TempPathFactory, xor_run: Path, mines_run: Path) -> Path:
    """A folder with what examples name: runs, a recording, a world, a configuration."""
    folder = tmp_path_factory.mktemp("workplace")
    for name, path in (("xor", xor_run), ("mines", mines_run)):
        shutil.copytree(path, folder / "runs" / name)
    shutil.copytree(GOLDEN, folder / "runs" / "old")
    (folder / "orchard.py").write_text(ORCHARD)
    shutil.copy(ROOT / "tests/entity_env/duel_bots.py", folder / "bots.py")
    (folder / "mine.ron").write_text('TrainConfig(version: 5, env: (id: "Minefield"))')
    with contextlib.chdir(folder):
        arguments = ["env.id=orchard.py:Orchard", *SMALL, "--checkpoint-dir", "runs/orchard"]
        assert run(["train", *arguments]) == 0
        pool = ["selfplay.share=0.5", "selfplay.snapshot_every=30"]
        duel = ["Duel", *SMALL, *pool, "--checkpoint-dir", "runs/duel"]
        assert run(["train", *duel]) == 0
        status, _, error = enn("play Minefield --record mine.rec --episodes 2", folder, "1\n" * 500)
        assert status == 0, error
    return folder


def smaller(line: str) -> str:
    """Return a line with arguments by which it takes a moment."""
    calls = [c for c in SMALLER if all(f" {word} " in f" {line} " for word in c.split())]
    if not calls or "--hps-info" in line:
        return line
    return f"{line} {shlex.join(SMALLER[max(calls, key=len)])}"


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_example_runs(name: str, workplace: Path, tmp_path: Path) -> None:
    """In the order in which they are printed, as each may need what the one before made."""
    folder = tmp_path / "here"
    shutil.copytree(workplace, folder)
    lines = [
        line
        for called, parser in parsers()
        if called.split()[1] == name
        for line in examples(parser)
    ]
    for line in dict.fromkeys(lines):
        status, out, error = enn(smaller(line).removeprefix("enn "), folder, "q\n")
        assert status == 0, (line, out, error)
        if "--json" in line:
            json.loads(out)


@pytest.mark.parametrize(
    "words",
    [
        ["size=3", "label=a,b", "big=true"],
        ['{"size": 3, "label": "a,b", "big": true}'],
        ['size=3,label="a,b",big=true'],
        ["size=3", '{"label": "a,b", "big": true}'],
    ],
)
def test_environment_arguments_have_the_same_syntax_everywhere(words: list[str]) -> None:
    assert parse_kwargs(words, "KEY=VALUE") == {"size": 3, "label": "a,b", "big": True}
    if len(words) == 1:
        assert parse_kwargs(words[0], "--suite") == parse_kwargs(words, "--env-kwargs")


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["size"], "as in size=3, or JSON as in"),
        (["[3]"], "got '[3]'"),
        (["{size: 3}"], "got '{size: 3}'"),
        (['{"size": 3, "size": 4}'], "size"),
        (["size=3", '{"size": 4}'], "expected every argument once, got size twice"),
    ],
)
def test_malformed_environment_arguments_are_rejected(words: list[str], problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)):
        parse_kwargs(words, "KEY=VALUE")


@pytest.mark.parametrize("arguments", [["n=3"], ["--env-kwargs", "n=3"], ["--kwargs", '{"n": 3}']])
def test_check_takes_arguments_in_every_form(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(
        "from entity_env.examples import Xor\n"
        "class Own(Xor):\n"
        "    def __init__(self, n: int):\n"
        "        super().__init__()\n"
        "        print(f'{n=}')\n"
    )
    run(["check", f"{tmp_path}/own.py:Own", *arguments])
    assert "n=3" in capsys.readouterr().out


def test_json_with_a_file_is_accepted_as_before() -> None:
    assert normalize_json_option(["runs/a", "--json", "b.json", "--seed", "1"]) == [
        *["runs/a", "--out", "b.json", "--seed", "1"]
    ]
    assert normalize_json_option(["--json", "runs/a"]) == ["--json", "runs/a"]
    assert normalize_json_option(["runs/a", "--json"]) == ["runs/a", "--json"]
    assert normalize_json_option([]) == []


@pytest.mark.parametrize(
    ("command", "missing"), [("check", "ENV"), ("play", "ENV"), ("resume", "RUN")]
)
def test_only_required_arguments_are_reported_as_missing(
    command: str, missing: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        run([command])
    error = capsys.readouterr().err
    expected = f"error: the following arguments are required: {missing}; type: enn {command} "
    assert error.startswith(expected)
    assert error.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_run_stopped_before_its_first_save_names_no_save(
    number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(manager: StateManager) -> None:
        raise StoppedAtOnce(number)

    assert run_command(["env.id=Xor"], "enn train", stop) == 128 + number
    assert capsys.readouterr().err == "interrupted\n"


def test_environment_help_lists_all_forms_of_names() -> None:
    for name in ("check", "play", "envs"):
        text = " ".join(COMMANDS[name].parser().format_help().split())
        assert "one of `enn envs`, file.py:Name" in text
        assert "gymnasium:ID or pettingzoo:MODULE" in text
