"""Runs whose output nobody reads, and environments that raise what such runs would."""

import subprocess
from pathlib import Path

import pytest

from enn_trainer.checkpoints.state_manager import load_checkpoint
from tests.enn_trainer.builders import SMALL
from tests.fork_server import ENN, run_program, start_program

WORLD = """
import builtins, sys
from tests.enn_trainer.worlds import Meadow

class Mine(Meadow):
    def __init__(self, kind: str = "") -> None:
        self.kind = kind

    def act(self, actions):
        print("a frame", 500 * "-")
        print("a frame", 500 * "-", file=sys.stderr)
        if self.kind:
            raise getattr(builtins, self.kind)(0)
        return super().act(actions)
"""


def train_arguments(folder: Path, *more: str) -> list[str]:
    world = folder / "mine.py"
    world.write_text(WORLD)
    run_dir = str(folder / "run")
    where = [f"env.id={world}:Mine", f"data_dir={folder}", "--checkpoint-dir", run_dir]
    return [*ENN, "train", *SMALL, *where, *more]


@pytest.mark.slow
@pytest.mark.parametrize(("closed", "processes"), [("stdout", 1), ("stderr", 1), ("stdout", 2)])
def test_run_continues_when_output_of_its_environment_is_not_read(
    tmp_path: Path, closed: str, processes: int
) -> None:
    """Training, and saving at the end, as after `| head`."""
    process = start_program(
        train_arguments(tmp_path, f"rollout.processes={processes}"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    left, read = process.stdout, process.stderr
    if closed == "stderr":
        left, read = read, left
    left.close()
    with read:
        printed = read.read().decode()
    assert process.wait(100) == 0, printed
    assert "Error" not in printed
    assert load_checkpoint(tmp_path / "run").state.step == 72


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["BrokenPipeError", "KeyboardInterrupt", "SystemExit"])
def test_exceptions_of_an_environment_do_not_look_like_the_end_of_a_run(
    tmp_path: Path, kind: str
) -> None:
    arguments = train_arguments(tmp_path, f'env.kwargs={{"kind": "{kind}"}}')
    done = run_program(arguments, text=True)
    assert done.returncode != 0
    assert "in environment 0, episode 0, step 1" in done.stderr
    assert kind in done.stderr
    assert "Traceback" in done.stderr
    assert "stopped at once" not in done.stderr


@pytest.mark.slow
def test_exit_in_a_constructor_is_an_error_of_every_command(tmp_path: Path) -> None:
    world = tmp_path / "leaves.py"
    lines = [
        "import sys",
        "from entity_env.examples import MoveToOrigin",
        "class Mine(MoveToOrigin):",
    ]
    world.write_text("\n".join([*lines, "    def __init__(self): sys.exit(0)\n"]))
    arguments = [*ENN, "play", f"{world}:Mine"]
    done = run_program(arguments, text=True)
    assert done.returncode != 0
    assert "the environment raised SystemExit: 0" in done.stderr


@pytest.mark.slow
def test_command_with_a_closed_pipe_ends_quietly() -> None:
    process = start_program([*ENN, "envs"], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(60) == 0
