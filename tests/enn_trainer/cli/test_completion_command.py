import importlib
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

import enn_trainer
from enn_trainer.cli import COMMANDS, run
from enn_trainer.config import CloneRunConfig, TrainConfig
from enn_trainer.config.schema import schema_of
from entity_env.examples import ENV_REGISTRY

ROOT = Path(__file__).parents[3]
COMPLETION = Path(enn_trainer.__path__[0]) / "cli" / "completion"
SETTINGS = {f"{field}=" for field in schema_of(TrainConfig).fields}
SETTINGS_OF_CLONING = {f"{field}=" for field in schema_of(CloneRunConfig).fields}


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with scripts of the present parsers; `test_generated.py` compares the files."""
    folder = tmp_path_factory.mktemp("completion")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT)
        made = importlib.import_module("docs.generate.completion").scripts()
    for name, text in made.items():
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(("shell", "name"), [("bash", "enn.bash"), ("zsh", "_enn")])
def test_command_prints_the_script(
    shell: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["completion", shell]) == 0
    assert capsys.readouterr().out == (COMPLETION / name).read_text()


def completed(scripts: Path, words: list[str]) -> list[str]:
    """Return what bash offers for the last word, as a Tab there would."""
    script = """
        source "$1"; shift
        COMP_WORDS=(enn "$@"); COMP_CWORD=$#
        compopt() { :; }  # fails where bash itself is not completing
        "$(complete -p enn | sed 's/.*-F \\([^ ]*\\) .*/\\1/')"
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "-c", script, "bash", str(scripts / "enn.bash"), *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


def options(command: str) -> set[str]:
    """Return the options of a command."""
    actions = COMMANDS[command].parser()._actions
    return {option for action in actions for option in action.option_strings}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "least", "among"),
    [
        (["tra"], {"train"}, COMMANDS),
        ([""], {"train", "eval"}, COMMANDS),
        (["train", "optim.l"], {"optim.lr=", "optim.lr_warmup_steps="}, SETTINGS),
        (
            ["train", "--checkpoint-dir", "runs/a", "--resume", "ppo.gae_"],
            {"ppo.gae_lambda="},
            SETTINGS,
        ),
        (["train", "env.id", "=", "Mine"], {"Minefield", "MineSweeper"}, ENV_REGISTRY),
        (["train", "--resume-"], {"--resume-from", "--resume-or-start"}, options("train")),
        (["clone", "clone.ep"], {"clone.epochs="}, SETTINGS_OF_CLONING),
        (["check", "Du"], {"Duel"}, ENV_REGISTRY),
        (["check", "Duel", "--max"], {"--max-steps"}, options("check")),
        (["eval", "runs/a", "--env", "Xo"], {"Xor"}, ENV_REGISTRY),
        (["checkpoints", "ver"], {"verify"}, ["verify"]),
        (["checkpoints", "evolve", "runs/a", "--env", "Xo"], {"Xor"}, ENV_REGISTRY),
        (["completion", "z"], {"zsh"}, ["bash", "zsh"]),
        (["config", "--cl"], {"--class"}, options("config")),
    ],
)
def test_bash_completes(
    words: list[str], least: set[str], among: Iterable[str], scripts: Path
) -> None:
    result = {*completed(scripts, words)}
    assert least <= result
    assert result == {word for word in among if word.startswith(words[-1])}


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_zsh_reads_the_script(scripts: Path) -> None:
    subprocess.run(["zsh", "-n", str(scripts / "_enn")], check=True, timeout=30)
