"""A training run whose workers are killed learns what an undisturbed one learns, bit for bit."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from enn_trainer.callbacks import Callback
from entity_env.examples import Minefield
from entity_env.vec.worker import RestartQuota, WorkerProcess
from tests.enn_trainer.builders import run_small
from tests.enn_trainer.resuming import assert_same


class Kills(Callback):
    """Kills a worker after some rollouts and updates."""

    def __init__(self, started: list[WorkerProcess]) -> None:
        self.started = started
        self.count = 0

    def on_rollout_end(self, trainer: Any, rollout: Any) -> None:
        """Kill the newest worker, which is a replacement later."""
        os.kill(self.started[-1].process.pid, signal.SIGKILL)
        self.count += 1


@pytest.mark.slow
def test_a_run_with_lost_workers_learns_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[WorkerProcess] = []
    begin = WorkerProcess.__init__

    def counted(self: WorkerProcess, setup: Any) -> None:
        begin(self, setup)
        started.append(self)

    monkeypatch.setattr(WorkerProcess, "__init__", counted)
    monkeypatch.setattr(RestartQuota, "take", lambda self: None)  # more than one in a minute
    options = ("env.id=Minefield", "rollout.processes=2", "checkpoint.every_seconds=0")
    undisturbed = run_small(tmp_path, *options, env=Minefield, checkpoint_dir=tmp_path / "one")
    kills = Kills(started)
    disturbed = run_small(
        tmp_path, *options, env=Minefield, checkpoint_dir=tmp_path / "two", callbacks=[kills]
    )
    assert kills.count == 3
    assert len(started) > 4
    assert_same(disturbed.state, undisturbed.state)
