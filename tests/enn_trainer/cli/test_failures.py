"""Start of `enn`: commands that are instant, versions, and errors."""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

import pytest

import enn_trainer
from enn_trainer.cli import COMMANDS, run
from enn_trainer.cli.failures import REPORT
from rogue_net.native import INSTRUCTIONS
from tests.fork_server import ENN, run_program

ROOT = Path(__file__).parents[3]
WITH_NUMPY = [["envs"], ["train", "--help"]]
LIGHT = [["--help"], ["--version"], ["completion", "bash"], ["completion", "zsh"], *WITH_NUMPY]
BROKEN = {
    "an error of the linker": "raise OSError('libtorch_cpu.so: cannot open shared object file')",
    "an import error": "raise ImportError('undefined symbol: iJIT_NotifyEvent')",
    "one inside": "import torch.inner",
}


FIRST_BROKEN = next(iter(BROKEN))
MOST_MODULES = 250
"""Imported by a light command, which has 190 now; the interpreter alone has 70."""


def enn(arguments: Sequence[str], **environment: str) -> "subprocess.CompletedProcess[str]":
    first = environment.pop("first", str(ROOT))
    path = os.pathsep.join([first, str(ROOT)])
    return subprocess.run(
        [sys.executable, *ENN, *arguments],
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        cwd=first,
    )


def broken_torch(kind: str, folder: Path) -> str:
    """Make a torch in a folder that cannot be imported, and return the folder."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text(BROKEN[kind])
    (folder / "torch" / "inner.py").write_text("raise OSError('no GPU, no CPU')")
    return str(folder)


@pytest.mark.slow
@pytest.mark.parametrize("arguments", LIGHT, ids=" ".join)
def test_light_commands_work_with_a_broken_torch(arguments: list[str], tmp_path: Path) -> None:
    done = enn(arguments, first=broken_torch(FIRST_BROKEN, tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    code = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr)); "
    program = [ENN[0], code + ENN[1], *arguments]
    sound = subprocess.run(
        [sys.executable, *program], capture_output=True, text=True, timeout=60, cwd=ROOT
    )
    assert done.stdout == sound.stdout
    modules = sound.stderr.split()
    assert "enn_trainer.cli" in modules
    assert "torch" not in modules
    if arguments not in WITH_NUMPY:
        assert not {"numpy", "rich", "hyperstate"} & {*modules}
        assert len(modules) < MOST_MODULES


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        *((["train"], kind) for kind in BROKEN),
        (["eval", "runs/x"], FIRST_BROKEN),
        (["profile"], FIRST_BROKEN),
    ],
)
def test_broken_torch_prints_one_line_with_the_fix(
    arguments: list[str], kind: str, tmp_path: Path
) -> None:
    done = enn(arguments, first=broken_torch(kind, tmp_path))
    assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
    assert done.stderr.startswith("error: torch: expected a working installation, got ")
    assert done.stderr.endswith(f"type: {sys.executable} -m pip install --force-reinstall torch\n")


def test_missing_torch_prints_one_line_with_the_fix(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(command: object) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    monkeypatch.setattr("enn_trainer.cli.Command.load", load)
    assert run(["train"]) == 1
    error = capsys.readouterr().err
    assert "torch: " in error
    assert f"{sys.executable} -m pip install torch\n" in error
    assert error.count("\n") == 1


def test_version_lists_packages_and_backends(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    first, torch, instructions = capsys.readouterr().out.splitlines()
    assert enn_trainer.__version__ == version("enn-trainer")
    assert first.startswith(f"enn-trainer {enn_trainer.__version__}")
    assert ", revision " in first
    assert torch == f"torch {version('torch')}"
    if INSTRUCTIONS is not None:
        assert instructions == f"instructions: {INSTRUCTIONS}"


@pytest.mark.slow
def test_version_reports_why_the_compiled_part_is_unused(tmp_path: Path) -> None:
    done = enn(["--version"], ROGUE_NET_NATIVE="0")
    assert "instructions: none; compiled part: switched off by ROGUE_NET_NATIVE=0" in (done.stdout)
    (tmp_path / "rogue_net" / "native").mkdir(parents=True)
    for file in ("__init__.py", "native/__init__.py", "native/compiled.py"):
        (tmp_path / "rogue_net" / file).write_text((ROOT / "rogue_net" / file).read_text())
    assert "compiled part: not compiled" in enn(["--version"], first=str(tmp_path)).stdout
    (tmp_path / "rogue_net" / "native" / "_native.abi3.so").write_bytes(b"of another machine")
    out = enn(["--version"], first=str(tmp_path)).stdout
    assert "instructions: none; compiled part: cannot be loaded: " in out


def test_unexpected_error_keeps_its_traceback_and_asks_for_a_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("enn_trainer.cli.envs_command.ENV_REGISTRY", {"Xor": None})
    with pytest.raises(TypeError) as caught:
        run(["envs"])
    assert caught.value.__notes__ == [REPORT]


@pytest.mark.slow
def test_traceback_ends_with_the_report_instructions() -> None:
    code = "import enn_trainer.cli as c; c.COMMANDS['envs'] = 3; c.main()"
    done = run_program(["-c", code, "envs"], text=True, cwd=ROOT)
    assert done.returncode == 1
    assert done.stderr.startswith("Traceback (most recent call last):\n")
    assert done.stderr.splitlines()[-2:] == [
        "AttributeError: 'int' object has no attribute 'load'",
        REPORT,
    ]


@pytest.mark.slow
def test_errors_in_user_code_do_not_ask_for_a_report(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from entity_env.examples import Xor\n"
        "class Mine(Xor):\n"
        "    def act(self, actions): raise RuntimeError('mine')\n"
    )
    with pytest.raises(RuntimeError, match="mine") as caught:
        run(
            [
                "train",
                f"env.id={tmp_path}/mine.py:Mine",
                "rollout.processes=1",
                "total_timesteps=9",
                f"data_dir={tmp_path}",
            ]
        )
    assert REPORT not in getattr(caught.value, "__notes__", [])


@pytest.mark.parametrize(
    "arguments",
    [["runs", "LONG"], ["eval", "LONG"], ["plot", "LONG"], ["train", "--config", "LONG"]],
)
def test_unusable_paths_print_one_line(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    long = "a" * 5000
    arguments = [long if word == "LONG" else word for word in arguments]
    assert run(arguments) in (1, 2)
    assert capsys.readouterr().err == f"error: {long}: File name too long\n"


def test_every_command_module_has_a_parser() -> None:
    for name, command in COMMANDS.items():
        assert command.load().__name__ == f"{name}_command"
        assert command.parser().prog == f"enn {name}"
