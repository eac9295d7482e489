import shutil
import subprocess
from pathlib import Path

import pytest

import enn_trainer
from enn_trainer.cli import COMMANDS, run
from entity_env.examples import ENV_REGISTRY

COMPLETION = Path(enn_trainer.__path__[0]) / "cli" / "completion"


@pytest.mark.parametrize(("shell", "name"), [("bash", "enn.bash"), ("zsh", "_enn")])
def test_command_prints_the_script(
    shell: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["completion", shell]) == 0
    assert capsys.readouterr().out == (COMPLETION / name).read_text()


def completed(words: list[str]) -> list[str]:
    """Return what bash offers for the last word, as a Tab there would."""
    script = """
        source "$1"; shift
        COMP_WORDS=(enn "$@"); COMP_CWORD=$#
        compopt() { :; }  # fails where bash itself is not completing
        "$(complete -p enn | sed 's/.*-F \\([^ ]*\\) .*/\\1/')"
        printf '%s\\n' "${COMPREPLY[@]}"
    """
    done = subprocess.run(
        ["bash", "-c", script, "bash", str(COMPLETION / "enn.bash"), *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stderr == ""
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["tra"], {"train"}),
        ([""], {*COMMANDS}),
        (["train", "optim.l"], {"optim.lr=", "optim.lr_warmup_steps="}),
        (["train", "--checkpoint-dir", "runs/a", "--resume", "ppo.gae_"], {"ppo.gae_lambda="}),
        (["train", "env.id", "=", "Mine"], {"Minefield", "MineSweeper"}),
        (["train", "--resume-"], {"--resume-from", "--resume-or-start"}),
        (["clone", "clone.ep"], {"clone.epochs="}),
        (["check", "Du"], {name for name in ENV_REGISTRY if name.startswith("Du")}),
        (["check", "Duel", "--max"], {"--max-steps"}),
        (["eval", "runs/a", "--env", "Xo"], {"Xor"}),
        (["checkpoints", "ver"], {"verify"}),
        (["checkpoints", "evolve", "runs/a", "--env", "Xo"], {"Xor"}),
        (["completion", "z"], {"zsh"}),
        (["config", "--cl"], {"--class"}),
    ],
)
def test_bash_completes(words: list[str], expected: set[str]) -> None:
    assert set(completed(words)) == expected


@pytest.mark.skipif(shutil.which("zsh") is None, reason="there is no zsh")
def test_zsh_reads_the_script() -> None:
    subprocess.run(["zsh", "-n", str(COMPLETION / "_enn")], check=True, timeout=30)
