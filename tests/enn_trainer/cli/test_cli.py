"""Commands: what they print and how they end."""

import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from enn_trainer import (
    State,
    StateManager,
    TrainConfig,
    command,
    init_train_state,
    load_checkpoint,
    train,
)
from enn_trainer.cli import run
from enn_trainer.cli.trust import raised_bounds
from entity_env.examples import Xor
from tests.enn_trainer.builders import OURS, SCRIPT, SMALL
from tests.fork_server import ENN, PIPE, run_program, start_program

XOR = ["env.id=Xor", *SMALL]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["optm.lr=0.1"], ["optm.lr", "optim.lr"]),
        (["lr=0.1"], ["lr", "optim.lr"]),
        (["optim.lr=fast"], ["optim.lr", "fast"]),
        (["optim.lr"], ["optim.lr", "="]),
        (["rollout.steps=0"], ["rollout.steps", "0"]),
        (["env.id=MoveToOrgin"], ["env.id", "MoveToOrgin", "MoveToOrigin"]),
        (["optim.bs=1000000"], ["optim.bs", "1000000", "rollout"]),
        (["net.pooling=median"], ["net.pooling", "median", "mean"]),
        (["net.pooling=mean", "net.attn_pdrop=0.1"], ["attn_pdrop", "pooling"]),
        (["net.d_model=10", "net.n_head=3"], ["net.n_head", "10", "3"]),
        (["env.kwargs=x"], ["env.kwargs"]),
        (["env.id=Count", 'env.kwargs={"masks": 2}'], ["env.kwargs", "masks", "masked_choices"]),
        (["env.id=Duel", "rollout.num_envs=127"], ["num_envs", "127", "2"]),
        (["--config", "nowhere.ron"], ["nowhere.ron"]),
        (["--resume-from", "nowhere"], ["nowhere"]),
        (["--config", "a", "--resume-from", "b"], ["--config", "--resume-from"]),
        (["--chekpoint-dir", "x"], ["--chekpoint-dir"]),
        (["eval.opponent=random"], ["eval.steps", "eval.steps, episodes"]),
    ],
)
def test_usage_errors_print_one_line_and_exit_with_status_2(
    arguments: list[str], expected: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = run(["train", *arguments])
    except SystemExit as exit:  # from argparse
        status = int(exit.code or 0)
    captured = capsys.readouterr()
    assert status == 2
    assert captured.err.count("\n") == 1, captured.err
    assert captured.err.startswith("error: ")
    for word in expected:
        assert word in captured.err


def test_misspelt_command_gets_a_suggestion(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["trian"]) == 2
    assert "did you mean train?" in capsys.readouterr().err


def test_train_prints_the_next_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    status = run(["train", *XOR, f"data_dir={tmp_path}", "--checkpoint-dir", str(folder)])
    assert status == 0
    out = capsys.readouterr().out
    assert f"saved {folder}/step-" in out
    assert f"enn resume {folder}" in out
    assert "\x1b" not in out


def test_options_are_accepted_in_any_order(tmp_path: Path) -> None:
    config = tmp_path / "config.ron"
    config.write_text('TrainConfig(version: 5, env: (id: "Xor"), total_timesteps: 10)')
    arguments = [f"data_dir={tmp_path}", "--config", str(config), *SMALL[:-1]]
    assert run(["train", *arguments]) == 0


def test_resume_reports_a_different_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--checkpoint-dir", str(tmp_path / "run"), f"data_dir={tmp_path}"]
    run(["train", *XOR, *where])
    config = tmp_path / "config.ron"
    config.write_text('TrainConfig(version: 5, env: (id: "Xor"), optim: (lr: 0.5))')
    run(["train", *where, "--resume", "--config", str(config)])
    out = capsys.readouterr().out
    assert "resuming" in out
    assert re.search(r"optim\.lr +0\.001 +0\.5\n", out)


def test_hps_info_describes_settings(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "--hps-info"]) == 0
    assert "gae_lambda" in capsys.readouterr().out
    assert run(["train", "--hps-info", "learning rate"]) == 0
    assert "optim.lr" in capsys.readouterr().out


def test_envs_lists_the_built_in_environments(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["envs"]) == 0
    assert "MoveToOrigin" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("is_module", [False, True])
def test_both_commands_train(tmp_path: Path, is_module: bool) -> None:
    arguments = [*XOR, f"data_dir={tmp_path}"]
    if is_module:
        result = subprocess.run(
            [sys.executable, "-m", "enn_trainer.train", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
    else:
        result = run_program([*ENN, "train", *arguments], text=True, check=True)
    assert "step 72/72 (100%)" in result.stdout
    assert result.stderr == ""


THEIRS = """
    import hyperstate
    from enn_trainer import TrainConfig, State, init_train_state, train
    from entity_env.examples import TreasureHunt

    @hyperstate.stateful_command(TrainConfig, State, init_train_state)
    def main(state_manager: hyperstate.StateManager) -> None:
        train(state_manager=state_manager, env=TreasureHunt)

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_command_uses_the_initial_state_of_the_user(
    more: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mine(State):
        pass

    made, trained = list[State](), list[State]()

    def begin(config: TrainConfig, context: dict[str, Any]) -> State:
        made.append(init_train_state(config, context))
        return made[-1]

    @command(TrainConfig, Mine, begin)
    def main(manager: StateManager) -> None:
        assert manager.state_cls is Mine
        train(manager, Xor)
        trained.append(manager.state)

    monkeypatch.setattr(sys, "argv", ["mine.py", *SMALL, f"data_dir={tmp_path}", *more])
    main()
    assert len(made) == 1 + len(more)  # a dry run has a second half, which resumes the first
    assert trained[0] is made[0]


@pytest.mark.slow
@pytest.mark.parametrize("source", [THEIRS, OURS], ids=["hyperstate", "ours"])
def test_program_of_a_user_trains_saves_and_resumes(
    source: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if source is THEIRS:
        request.getfixturevalue("hyperstate")
    script = tmp_path / "mine.py"
    script.write_text(textwrap.dedent(source))
    arguments = [*SMALL, f"data_dir={tmp_path}", "--checkpoint-dir", str(tmp_path / "run")]
    if source is OURS:
        arguments.append("--resume-or-start")
    for total in (72, 96):
        settings = [a for a in arguments if not a.startswith("total_timesteps")]
        settings.insert(0, f"total_timesteps={total}")
        if source is OURS and total == 72:  # as typed; worker processes import the script
            settings[settings.index("rollout.processes=1")] = "rollout.processes=2"
            result = subprocess.run(
                [sys.executable, str(script), *settings],
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        else:
            result = run_program([*SCRIPT, str(script), *settings], text=True)
        assert result.returncode == 0, result.stderr
        assert f"step {total}/{total} (100%)" in result.stdout
    assert "resumed" in result.stdout


@pytest.mark.slow
def test_user_command_exits_with_status_2_on_usage_errors(tmp_path: Path) -> None:
    script = tmp_path / "mine.py"
    script.write_text(textwrap.dedent(OURS))
    result = run_program([*SCRIPT, str(script), "optim.lrr=1"], text=True)
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "optim.lr" in result.stderr


def trained(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    """Return what `enn train` prints, called as the installed program."""
    monkeypatch.setattr("sys.argv", ["enn", "train", *arguments])
    assert run(["train", *arguments]) == 0
    return capsys.readouterr().out


def typed(line: str, folder: Path, seconds: float = 120) -> str:
    """Return what a command line prints that is typed in a shell in a folder, until a SIGTERM."""
    result = subprocess.run(
        ["sh", "-c", f"printf '%s\\0' {line}"], capture_output=True, text=True, check=True
    )
    program, *arguments = result.stdout.split("\0")[:-1]
    assert Path(folder, shutil.which(program) or program) == Path(sys.executable).with_name("enn")
    process = start_program([*ENN, *arguments], cwd=folder, stdout=PIPE, stderr=PIPE, text=True)
    timer = threading.Timer(seconds, process.terminate)
    timer.start()
    out, err = process.communicate()
    timer.cancel()
    assert process.returncode in (0, 143), line + err
    return str(out)


def next_line(said: str, word: str) -> str:
    """The line with a word among those to type next."""
    _, _, after = said.rpartition("\nnext:\n")
    (line,) = (line for line in after.splitlines() if word in line)
    return line


SLOW = """
import time
from tests.enn_trainer.worlds import Pasture

class Slow(Pasture):
    def act(self, actions):
        time.sleep(0.02)
        return super().act(actions)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bounds", "why"),
    [
        (["total_timesteps=24"], "total_timesteps of 24 reached"),
        (["max_train_time=0"], "max_train_time of 0 seconds reached"),
        (["max_train_time=1", "env.id=slow.py:Slow"], "max_train_time of 1 seconds reached"),
        (['stop=["reward.mean >= -1"]'], "reward.mean >= -1"),
        (
            ['stop=["reward.mean >= 1e9", "reward.mean <= 1e9"]', "total_timesteps=24"],
            "reward.mean <= 1e+09",
        ),
    ],
)
def test_printed_resume_command_continues_the_run(
    tmp_path: Path,
    bounds: list[str],
    why: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Typed as it stands, whatever ended the run, and whatever the folder is called."""
    (tmp_path / "slow.py").write_text(SLOW)
    monkeypatch.chdir(tmp_path)
    settings = [*SMALL[:-1], "total_timesteps=240", "checkpoint.every_seconds=1000000"]
    arguments = [*XOR[:1], *settings, *bounds, "--checkpoint-dir", "my run"]
    said = trained(arguments, monkeypatch, capsys)
    assert f"{why}, saved " in said
    before = saved_steps(tmp_path)
    line = next_line(said, " resume ")
    assert "1e9" not in line or ">= 1e9" in line, "what is not reached stays"
    assert "resumed" in typed(line, tmp_path, seconds=20)
    assert max(saved_steps(tmp_path)) > max(before)


def saved_steps(folder: Path) -> list[int]:
    return [int(path.name[5:]) for path in (folder / "my run").glob("step-*")]


@pytest.mark.slow
@pytest.mark.parametrize("env", ["Xor", "slow.py:Slow"])
def test_printed_eval_command_evaluates_the_agent(
    tmp_path: Path,
    env: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "slow.py").write_text(SLOW.replace("0.02", "0"))
    monkeypatch.chdir(tmp_path)
    where = ["--checkpoint-dir", "my run", "--resume-or-start", f"env.id={env}"]
    said = trained([*SMALL, *where], monkeypatch, capsys)
    assert "docs/" not in said
    assert "episodic_reward" in typed(next_line(said, " eval "), tmp_path)
    assert list(tmp_path.glob("my run/eval-step-*.json"))


def test_printed_command_of_a_run_interrupted_at_its_end_raises_the_bound(tmp_path: Path) -> None:
    manager = StateManager(overrides=SMALL, checkpoint_dir=tmp_path)
    manager.take_state(state := SimpleNamespace(step=72, time_used=1.0, metrics={}))  # type: ignore[arg-type]
    assert raised_bounds(manager.config, state) == ["total_timesteps=144"]  # type: ignore[arg-type]
    state.step = 48
    assert raised_bounds(manager.config, state) == []  # type: ignore[arg-type]


@pytest.mark.slow
def test_printed_command_after_an_upgrade_extends_a_finished_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = str(tmp_path / "old"), str(tmp_path / "new")
    settings = [*SMALL, f"data_dir={tmp_path}"]
    assert run(["train", "env.id=Xor", *settings, "--checkpoint-dir", old]) == 0
    assert run(["checkpoints", "upgrade", old, "--to", new]) == 0
    _, _, line = capsys.readouterr().out.rpartition("to continue: ")
    assert run(shlex.split(line)[1:]) == 0
    assert "saved" in capsys.readouterr().out
    assert load_checkpoint(new).state.step == 144
