"""First guesses of users of other libraries: accepted, or answered by the line to type.

`command_lines.txt` has a command line, its outcome, and the text that the answer contains.
"""

import functools
import os
import re
import shlex
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from enn_trainer.cli import COMMANDS, _parser_of, run
from enn_trainer.cli.guesses.correction import correct
from enn_trainer.cli.guesses.words import (
    COMMANDS_OF_OTHER_LIBRARIES,
    OPTIONS_OF_OTHER_LIBRARIES,
    UNAVAILABLE,
)
from enn_trainer.config import TrainConfig
from enn_trainer.config.field_types import entries
from enn_trainer.config.other_libraries import (
    SETTINGS_OF_OTHER_LIBRARIES,
    VALUES_OF_OTHER_LIBRARIES,
    setting_hint,
)
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.one_line import refused

ROOT = Path(__file__).parents[4]
LINES = [
    f"{line} | ".split(" | ")[:3]
    for line in Path(__file__).with_name("command_lines.txt").read_text().splitlines()
]


@pytest.fixture(scope="session")
def first_runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a user: the environment of the README, a configuration and two runs."""
    folder = tmp_path_factory.mktemp("first_runs")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    (folder / "orchard.py").write_text(next(code for code in blocks if "class Orchard" in code))
    (folder / "config.yaml").write_text("version: 6\nenv:\n  id: Xor\n")
    for number, name in enumerate(("TreasureHunt-1", "orchard"), 1):
        env = "orchard.py:Orchard" if name == "orchard" else "TreasureHunt"
        path = folder / "runs" / name
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            assert run(["train", env, *SMALL, "--checkpoint-dir", str(path)]) == 0
        os.utime(path, (number, number))  # the second one is newer
    return folder


@pytest.fixture
def here(first_runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, which is the current one."""
    shutil.copytree(first_runs, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def is_accepted(line: str) -> bool:
    """Return whether a line is accepted; of training and servers only the arguments are."""
    name, *words = shlex.split(line)[1:]
    if name == "train":
        return run([name, *words, "--print-config"]) == 0
    if name == "serve":
        COMMANDS[name].parser().parse_args(words)
        return True
    try:
        return run([name, *words]) == 0
    except SystemExit as exit:  # of --help
        return exit.code == 0


def status_of(line: str) -> int:
    """Run a command line; return the status, also of errors in its arguments."""
    try:
        return run(shlex.split(line)[1:])
    except SystemExit as exit:
        return int(exit.code or 0)


@pytest.mark.slow
@pytest.mark.parametrize("line", [line for line, outcome, _ in LINES if outcome == "accepted"])
def test_first_guess_is_accepted(line: str, here: Path) -> None:
    assert is_accepted(line)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "correction"),
    [(line, text) for line, outcome, text in LINES if outcome == "answered"],
)
def test_first_guess_is_answered_by_the_line_to_type(
    line: str, correction: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(line) in (1, 2)
    printed = capsys.readouterr()
    (answer,) = [text for text in (printed.out + printed.err).splitlines() if "type: " in text]
    assert re.search(rf"type: {re.escape(correction)}(;|$)", answer), answer
    if correction.startswith("enn train") and "&&" not in correction:
        is_small = "num-envs" in correction  # for the minibatches of the configuration
        assert is_accepted(correction) or (is_small and "optim.bs" in capsys.readouterr().err)
    elif correction.startswith("enn ") and "&&" not in correction:
        name, *words = shlex.split(correction)[1:]
        COMMANDS[name].parser().parse_args(words)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "problem"),
    [(line, text) for line, outcome, text in LINES if outcome == "refused"],
)
def test_wrong_value_is_refused_with_the_expected_one(
    line: str, problem: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status_of(line) == 2
    assert capsys.readouterr().err == f"error: {problem}\n"


def test_nine_in_ten_first_guesses_are_accepted_or_answered() -> None:
    outcomes = [outcome for _, outcome, _ in LINES]
    assert len(outcomes) > 100
    assert outcomes.count("refused") <= len(outcomes) // 10


@pytest.mark.parametrize(
    ("line", "correction"),
    [
        ("enn train Xor --n-epochs 4 --n-envs=8", "--optim.update-epochs 4 --rollout.num-envs 8"),
        ("enn train Xor --device cpu", "--cuda false"),
        ("enn train Xor --device auto", "enn train Xor"),
        ("enn train Xor --use-lstm true --seed 3", "--net.memory.of frame --seed 3"),
        ("enn train Xor --wandb --wandb-project a", "--track --wandb-project-name a"),
        ("enn train Xor --eval-freq 9 --n-eval-episodes 2", "--eval.interval 9 --eval.episodes 2"),
        ("enn train Minefield --capture-video", "--eval.capture-videos"),
        ("enn train Xor --n-timesteps 1.5M", "--total-timesteps 1500000"),
        ("enn train --algo ppo --env-name Pendulum-v1 -n 9", "gymnasium:Pendulum-v1"),
        ("enn profile ppo ALE/Pong-v5", "enn profile gymnasium:ALE/Pong-v5"),
        ("enn trian Xor", "enn train Xor"),
        ("enn learn Xor --lr-rate 1 --num-steps 4", "enn train Xor --lr-rate 1 --rollout.steps 4"),
        ("enn enjoy --env Xor", "enn train Xor && enn watch runs/Xor-1"),
        ("enn sweep Xro", "enn tune Xor 'optim.lr=loguniform 1e-4 1e-2' eval.episodes=32"),
        ("enn tune Xor ppo.gamma='uniform 0 1' --trials 9", "'ppo.gamma=uniform 0 1' --trials 9"),
        ("enn train Xor --seeds 2", "for seed in $(seq 2); do enn train Xor --seed $seed; done"),
        ("enn train Xor --hyperparams --seed 3", "enn train Xor --seed 3"),
        ("enn train Xor --params n_envs=8 gamma:0.9", "rollout.num_envs=8 ppo.gamma=0.9"),
        ("enn train 'my env.yaml' --run-id x", "enn train --config 'my env.yaml'"),
    ],
)
def test_words_of_other_libraries_are_replaced_in_the_whole_line(
    line: str,
    correction: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    _, _, answer = refused(shlex.split(line)[1:], capsys).partition("; type: ")
    assert correction in answer


@pytest.mark.parametrize(
    "line",
    [
        "enn train Xor seed=abc n_steps=4",  # the error is about the seed
        "enn train Xor --steps-of-all 3",
        "enn eval nowhere",
        f"enn eval {'long' * 99}",
        f"enn train {'long' * 99}",
    ],
)
def test_error_about_another_word_has_no_line_to_type(
    line: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert status_of(line) in (1, 2)
    assert "type: " not in capsys.readouterr().err


def test_newest_run_of_an_environment_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for number in (1, 2):
        save = Path("runs", f"Xor-{number}", "step-000000000008")
        save.mkdir(parents=True)
        os.utime(save.parent, (9 - number, 9 - number))
    Path("runs/Xor-3").mkdir()  # has no saves
    line = ["train", "Xor", "--seed", "3", "--resume"]
    assert refused(line, capsys).endswith("; type: enn resume runs/Xor-1 --seed 3\n")
    line = ["train", "--load", "latest", "--env", "Xor"]
    assert refused(line, capsys).endswith("; type: enn resume runs/Xor-1\n")
    assert refused(["eval", "Xor"], capsys).endswith("; type: enn eval runs/Xor-1\n")


def test_user_program_is_answered_by_its_own_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from enn_trainer import StateManager, command

    @command()
    def main(manager: StateManager) -> None:
        raise AssertionError

    monkeypatch.setattr("sys.argv", ["my program.py", "--learning-rate", "1e-3"])
    with pytest.raises(SystemExit):
        main()
    line = "python 'my program.py' --lr 1e-3"
    assert capsys.readouterr().err == f"error: --learning-rate: no such option; type: {line}\n"


def test_help_of_a_command_and_version_are_words(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        run(["help", "train"])
    assert exit.value.code == 0
    assert capsys.readouterr().out.startswith("usage: enn train")
    assert run(["help"]) == 0
    assert "commands:" in capsys.readouterr().out


def test_words_of_other_libraries_are_none_of_ours() -> None:
    paths = {entry.path for entry in entries(TrainConfig)}
    assert paths >= {*SETTINGS_OF_OTHER_LIBRARIES.values()}
    assert not paths & SETTINGS_OF_OTHER_LIBRARIES.keys()
    assert VALUES_OF_OTHER_LIBRARIES.keys() <= SETTINGS_OF_OTHER_LIBRARIES.keys()
    assert not COMMANDS.keys() & {*COMMANDS_OF_OTHER_LIBRARIES, *UNAVAILABLE}
    assert COMMANDS.keys() >= {*COMMANDS_OF_OTHER_LIBRARIES.values(), *OPTIONS_OF_OTHER_LIBRARIES}
    for name, options in OPTIONS_OF_OTHER_LIBRARIES.items():
        valid = COMMANDS[name].parser()._option_string_actions
        for template in filter(lambda text: text.startswith("--"), options.values()):
            option = template.split()[0]
            assert option in valid or option.removeprefix("--").replace("-", "_") in paths


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("learning_rate", "optim.lr"),
        ("--Learning-Rate", "optim.lr"),
        ("vec.num-envs", "rollout.num_envs"),
        ("seed", None),
        ("sauce", None),
    ],
)
def test_setting_of_a_word_is_looked_up(word: str, path: str | None) -> None:
    assert setting_hint(word) == path


_PARSERS = {name: functools.partial(_parser_of, name) for name in COMMANDS}
_OPTIONS = {option for parser in _PARSERS.values() for option in parser()._option_string_actions}
_OTHER_OPTIONS = {f"--{word}" for words in OPTIONS_OF_OTHER_LIBRARIES.values() for word in words}
_OTHER_OPTIONS |= {f"--{word}" for word in SETTINGS_OF_OTHER_LIBRARIES}
_COMMANDS = [*COMMANDS, *COMMANDS_OF_OTHER_LIBRARIES, *UNAVAILABLE, "trian"]
_VALUES = ["Xor", "Xro", "runs", "runs/Xor-1", "a.py:A", "c.ron", "ppo", "1e-3", "100k", "true", ""]
_VALUES += ["--", "-", "env.id=Xor", "optim.lr=1", "lr=1", "eval.interval=5", "x=y", "list", "{}"]


@settings(max_examples=200)
@given(
    st.sampled_from(_COMMANDS),
    st.lists(
        st.sampled_from(sorted(_OPTIONS | _OTHER_OPTIONS))
        | st.sampled_from(_VALUES)
        | st.sampled_from(sorted(_OTHER_OPTIONS)).map("{}=5".format),
        max_size=6,
    ),
)
def test_every_line_can_be_corrected(command: str, words: list[str]) -> None:
    """A failure would replace the error of the command by a traceback."""
    text, mistakes = correct("enn", [command, *words], _PARSERS)
    assert text
    assert mistakes <= {
        *["CHECKPOINT", "COMMAND", "ENV", "RUN", "ranges", "--metric", "--trials", "--to"]
    } | {part for word in (command, *words) for part in (word, *re.split(r"[=:\s]+", word))}
