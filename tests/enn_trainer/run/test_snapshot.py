"""Runs that are asked to stop in the middle of an update, and resumed: those that never were."""

import os
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import StateManager, load_checkpoint, train
from enn_trainer.callbacks import Callback
from enn_trainer.runtime import interrupt
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.resuming import StopsAt, assert_same, go
from tests.enn_trainer.worlds import Clockwork, Pasture
from tests.fork_server import start_program

PROGRAM = """
import sys, time
from enn_trainer import StateManager, command, train
from enn_trainer.runtime import interrupt
from tests.enn_trainer.worlds import Pasture

interrupt.GRACE_S = float(sys.argv.pop(1))
num_steps = 0

class Slow(Pasture):
    def act(self, actions):
        global num_steps
        num_steps += 1
        if num_steps == 60:  # in the third update
            print("acts", flush=True)
        if num_steps >= 60:
            time.sleep(0.03)
        return super().act(actions)

@command()
def main(state_manager):
    state_manager.save_interval_s = 0.0
    train(state_manager, Slow)

main()
"""


def interrupted(folder: Path, grace_s: float) -> str:
    """What a process says that gets SIGTERM in the rollout of the third update."""
    where = [f"data_dir={folder}", "--checkpoint-dir", str(folder / "run")]
    arguments = [*SMALL, "total_timesteps=120", *where]
    process = start_program(
        ["-c", PROGRAM, str(grace_s), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    timer = threading.Timer(100, process.kill)
    timer.start()
    assert process.stdout is not None
    assert any(line == "acts\n" for line in process.stdout)
    process.send_signal(signal.SIGTERM)
    said, problems = process.communicate()
    timer.cancel()
    assert process.returncode == 143, problems
    return said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("grace_s", "step", "what"),
    [
        (30.0, 72, "interrupted, saved {run}/step-000000000072"),
        (0.0, 48, "the update was discarded, {run}/step-000000000048 is kept"),
    ],
    ids=["update that is finished", "update that is given up"],
)
def test_a_run_ended_by_sigterm_resumes_bit_for_bit(
    tmp_path: Path, grace_s: float, step: int, what: str
) -> None:
    straight = go(tmp_path / "straight", Pasture, *SMALL, "total_timesteps=120")
    folder = tmp_path / "resumed"
    assert what.format(run=folder / "run") in interrupted(folder, grace_s)
    saved = load_checkpoint(folder / "run").state
    assert saved.step == step
    assert saved.envs is not None
    resumed = go(folder, Pasture, "total_timesteps=120")
    assert resumed.state.step == straight.state.step == 120
    assert_same(straight.state, resumed.state)


class StopsInMinibatch(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_minibatch(self, trainer: Any, losses: Any) -> None:
        if trainer.state.step == self.step:
            self.step = -1
            os.kill(os.getpid(), signal.SIGTERM)


@pytest.mark.slow
@pytest.mark.parametrize("callback", [StopsAt, StopsInMinibatch])
def test_an_abandoned_update_keeps_the_newest_save_with_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, callback: Any
) -> None:
    """Saved is what can be gone on with, not what was learnt after it."""
    straight = go(tmp_path / "straight", Pasture, *SMALL)
    folder = tmp_path / "resumed"
    go(folder, Pasture, *SMALL, stops=0)
    newest = folder / "run/step-000000000024"
    monkeypatch.setattr(interrupt, "GRACE_S", 0.0)
    manager = StateManager(overrides=[f"data_dir={folder}"], checkpoint_dir=folder / "run")
    result = train(manager, Pasture, callbacks=[callback(48)])
    assert (result.step, result.checkpoint, result.interrupted) == (48, newest, True)
    assert max(path.name for path in (folder / "run").glob("step-*")) == newest.name
    assert_same(go(folder, Pasture).state, straight.state)


def test_an_abandoned_update_saves_the_previous_state_without_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interrupt, "GRACE_S", 0.0)
    go(tmp_path, Clockwork, *SMALL, stops=48)
    saved = load_checkpoint(tmp_path / "run").state
    assert (saved.step, saved.envs) == (48, None)


@pytest.mark.slow
def test_an_abandoned_first_update_keeps_the_initial_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = go(tmp_path / "straight", Pasture, *SMALL)
    for step in (0, 48):
        folder = tmp_path / str(step)
        with monkeypatch.context() as patch:
            patch.setattr(interrupt, "GRACE_S", 0.0)
            go(folder, Pasture, *SMALL, stops=step)
        assert load_checkpoint(folder / "run").state.step == 0
        assert_same(go(folder, Pasture).state, straight.state)
