"""First guesses: a world as the first word, settings as options, missing extras."""

import sys
from pathlib import Path

import pytest

from enn_trainer.cli import run
from entity_env.imports.extras import install_line
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.one_line import refused

NOTE = "settings: shipped configuration xor; for others: --config FILE"
PROGRAM = """
from enn_trainer import StateManager, command, train
from entity_env.examples import Xor


@command()
def main(state_manager: StateManager) -> int:
    return train(state_manager, lambda: Xor()).step


if __name__ == "__main__":
    print(main())
"""
LAZY = """
from entity_env.examples import Xor


def make(**arguments) -> Xor:
    import {0}


class World(Xor):
    def __init__(self):
        import {0}
"""


@pytest.mark.slow
def test_first_word_trains_with_the_shipped_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "run")
    begin = ["train", "Xor", *SMALL, f"data_dir={tmp_path}", "--checkpoint-dir", folder]
    assert run(begin) == 0
    assert capsys.readouterr().out.splitlines()[0] == NOTE

    # A run that continues has its own settings.
    assert run(["train", "Xor", "--checkpoint-dir", folder, "--resume", "--print-config"]) == 0
    out = capsys.readouterr().out
    assert "configs/xor.ron" not in out
    assert "0.3 " in next(line for line in out.splitlines() if "ent_coef" in line)
    for flag in ("--resume", "--resume-or-start"):
        assert run([*begin, flag, "--total-timesteps", "1"]) == 0
        out = capsys.readouterr().out
        assert NOTE not in out
        assert "differs" not in out
    assert run([*begin, "--force"]) == 0
    assert NOTE in capsys.readouterr().out


@pytest.mark.slow
def test_environment_of_a_file_is_trusted_when_resuming(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("orchard.py").write_text("from entity_env.examples import Xor as Orchard\n")
    folder = ["--checkpoint-dir", "run"]
    assert run(["train", "orchard.py:Orchard", *SMALL, *folder]) == 0
    assert "shipped" not in capsys.readouterr().out
    assert "--trust" in refused(["train", *folder, "--resume"], capsys)
    assert run(["train", "orchard.py:Orchard", *folder, "--resume"]) == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["train", "Xro"], "did you mean Xor?"),
        (["train", "Xor", "--config", "xro"], "did you mean xor?"),
        (["train", "Xor", "--sede", "3"], "did you mean --seed?"),
        (["train", "Xor", "--steps", "3"], "--rollout.steps or --eval.steps"),
        (["profile", "Xro"], "did you mean Xor?"),
        (["profile", "Xor", "--sede", "3"], "did you mean --seed?"),
        (["clone", "a.rec", "--enf", "Xor"], "did you mean --env?"),
        (["clone", "a.rec", "--config", "xro", "--checkpoint-dir", "d"], "did you mean xor?"),
    ],
)
def test_wrong_first_word_prints_one_line_with_a_suggestion(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert expected in refused(arguments, capsys)


def test_profile_accepts_an_environment(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["profile", "Xor", "--updates", "1", *SMALL]) == 0
    assert capsys.readouterr().err.splitlines()[0] == NOTE


def test_user_program_with_an_environment_accepts_only_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "program"}
    exec(compile(PROGRAM, "program.py", "exec"), names)
    main = names["main"]
    assert callable(main)
    monkeypatch.setattr(sys, "argv", ["program.py", *SMALL, "--total-timesteps", "24"])
    assert main() == 24
    monkeypatch.setattr(sys, "argv", ["program.py", "Xor"])
    capsys.readouterr()
    with pytest.raises(SystemExit) as exit:
        main()
    assert exit.value.code == 2
    expected = "program.py: expected FIELD=VALUE, got 'Xor'; its environment is in the program"
    assert capsys.readouterr().err == f"error: {expected}\n"


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("matplotlib", "plot", ["plot", "."]),
        ("wandb", "wandb", ["train", "Xor", *SMALL, "track=true"]),
        ("mlflow", "mlflow", ["train", "Xor", *SMALL, "mlflow_tracking_uri=sqlite:///x.db"]),
        ("imageio", "video", ["train", "Xor", "eval.steps=1", "eval.capture_videos=true"]),
        ("gymnasium", "gymnasium", ["train", "loads_gymnasium.py:World"]),
        ("gymnasium", "gymnasium", ["play", "lazy_gymnasium.py:World"]),
        ("gymnasium", "gymnasium", ["train", "lazy_gymnasium.py:make"]),
        ("pettingzoo", "pettingzoo", ["train", "loads_pettingzoo.py:World"]),
        ("pettingzoo", "pettingzoo", ["train", "lazy_pettingzoo.py:World", *SMALL]),
    ],
)
def test_missing_extra_prints_one_line_with_the_command(
    package: str,
    extra: str,
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(f"loads_{package}.py").write_text(f"import {package}\n")
    Path(f"lazy_{package}.py").write_text(LAZY.format(package))
    monkeypatch.setitem(sys.modules, package, None)
    assert run(arguments) in (1, 2)
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.endswith(f"; {install_line(extra)}\n")
    assert error.count("\n") == 1


def test_missing_video_extra_prints_one_line_with_the_command(
    xor_run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for suffix, package in ((".gif", "PIL"), (".mp4", "imageio_ffmpeg")):
        monkeypatch.setitem(sys.modules, package, None)
        error = refused(["eval", str(xor_run), "--video", f"film{suffix}"], capsys)
        assert error.endswith(f" {package}, which is not installed; {install_line('video')}\n")
