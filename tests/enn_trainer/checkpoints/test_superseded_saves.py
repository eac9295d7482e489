"""A save of a step that was evaluated afterwards is replaced by one that has the metrics."""

import errno
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import Callback, CheckpointError, StateManager, Trainer, train
from enn_trainer.checkpoints import disk, writer
from enn_trainer.checkpoints import format as checkpoint
from enn_trainer.checkpoints.format import VerifiedSaves
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.run_dir import SUPERSEDED, RunDir
from enn_trainer.checkpoints.saved_state import read_config
from enn_trainer.checkpoints.state_files import restore
from enn_trainer.config import CheckpointConfig
from enn_trainer.stop_conditions import Steps, StopsRising
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.checkpoints.failing_disk import failing_disk
from tests.enn_trainer.checkpoints.save_contents import FILES, NEW, OLD
from tests.enn_trainer.resuming import assert_same, assert_same_clocks
from tests.enn_trainer.worlds import Pasture
from tests.fork_server import run_program

SETTINGS = [
    *SMALL,
    "total_timesteps=96",
    "eval.steps=2",
    "eval.interval=24",
    "eval.num_envs=2",
    "checkpoint.every_seconds=1000000",
    "checkpoint.keep=1",
    'checkpoint.best=["eval/good max"]',
]


class Judge(Callback):
    """Calls the agent of one step the best, and sends SIGTERM in the update before another."""

    name = "judge"

    def __init__(self, best: int, stops: int = -1) -> None:
        self.best, self.stops, self.seen = best, stops, list[int]()

    def on_update_start(self, trainer: Any) -> None:
        if trainer.state.step == self.stops:
            os.kill(os.getpid(), signal.SIGTERM)

    def on_eval_end(self, trainer: Any, metrics: dict[str, float]) -> None:
        metrics["eval/good"] = -abs(trainer.state.step - self.best)
        self.seen.append(trainer.state.step)

    def state_dict(self) -> dict[str, Any]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.seen = state["seen"]


def go(folder: Path, judge: Judge, *overrides: str, **options: Any) -> StateManager:
    settings = [*SETTINGS, f"data_dir={folder}", *overrides]
    manager = StateManager(overrides=settings, checkpoint_dir=folder / "run")
    train(manager, Pasture, callbacks=[judge], **options)
    return manager


def steps(folder: Path) -> list[int]:
    return [checkpoint.verify(path).step for path in RunDir(folder / "run").saved_paths()]


def assert_same_saves(one: Path, other: Path) -> None:
    """The same steps, and in each the same weights, state and memory."""
    assert steps(other) == steps(one)
    for path in RunDir(one / "run").saved_paths():
        saved, theirs = checkpoint.verify(path), checkpoint.verify(other / "run" / path.name)
        assert theirs.read(checkpoint.WEIGHTS) == saved.read(checkpoint.WEIGHTS)
        states = [restore(save, read_config(save)) for save in (saved, theirs)]
        assert_same(*states)
        assert_same_clocks(*states)


@pytest.mark.slow
@pytest.mark.parametrize("best", [24, 48, 96])
def test_best_save_after_an_interruption_equals_that_of_an_uninterrupted_run(
    tmp_path: Path, best: int
) -> None:
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    go(straight, Judge(best))
    go(resumed, Judge(best, stops=best - 24))
    assert steps(resumed)[0] == best
    go(resumed, Judge(best))
    assert find(resumed / "run@best").step == find(straight / "run@best").step == best
    assert_same_saves(straight, resumed)


@pytest.mark.slow
def test_run_interrupted_before_every_evaluation_keeps_the_same_saves(
    tmp_path: Path,
) -> None:
    settings = ["checkpoint.keep_every_steps=48", "checkpoint.keep_best=2"]
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    go(straight, Judge(72), *settings)
    for stops in range(0, 96, 24):
        go(resumed, Judge(72, stops), *settings)
    go(resumed, Judge(72), *settings)
    assert find(straight / "run@best").step == 72
    assert_same_saves(straight, resumed)


@pytest.mark.slow
def test_save_of_step_0_has_the_evaluation_of_step_0(tmp_path: Path) -> None:
    """An agent that begins with the weights of another one may be at its best at once."""
    go(tmp_path, Judge(0))
    assert steps(tmp_path) == [96, 0]
    saved = find(tmp_path / "run@best")
    assert saved.step == 0
    assert restore(saved, read_config(saved)).next_eval_step == 24


@pytest.mark.slow
def test_final_evaluation_is_in_the_last_save(tmp_path: Path) -> None:
    """The evaluation at the end was cut short, or is switched on afterwards."""
    manager = StateManager(
        overrides=[*SMALL, f"data_dir={tmp_path}"], checkpoint_dir=tmp_path / "run"
    )
    train(manager, Pasture)
    go(tmp_path, Judge(72), "total_timesteps=72")
    assert find(tmp_path / "run@best").step == 72


def test_evaluation_between_two_saves_of_a_step_is_in_the_save(tmp_path: Path) -> None:
    settings = [*SETTINGS, f"data_dir={tmp_path}"]
    manager = StateManager(overrides=settings, checkpoint_dir=tmp_path / "run")
    with Trainer(manager, Pasture, callbacks=[Judge(24)]) as trainer:
        trainer.step()
        trainer.save()
        trainer.evaluate()
        saved = trainer.save()
        assert saved == tmp_path / "run" / "step-000000000024"
        first = checkpoint.verify(saved).manifest
        assert first["metrics"]["eval/good"] == 0
        trainer.save()
        assert checkpoint.verify(saved).manifest == first, "nothing was measured since"


@pytest.mark.slow
def test_save_with_episodes_is_not_replaced_after_a_failure(tmp_path: Path) -> None:
    """The latter has none, and the evaluation that failed is done again."""

    class Fails(Judge):
        def on_eval_end(self, trainer: Any, metrics: dict[str, float]) -> None:
            super().on_eval_end(trainer, metrics)
            if trainer.state.step == 24:
                raise OSError("as if a disk were full")

    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    go(straight, Judge(24))
    go(resumed, Judge(24, stops=0))
    with pytest.raises(OSError, match="disk"):
        go(resumed, Fails(24))
    saved = find(resumed / "run")
    assert saved.step == 24
    assert restore(saved, read_config(saved)).envs is not None
    go(resumed, Judge(24))
    assert_same_saves(straight, resumed)


@pytest.mark.slow
def test_condition_counts_the_evaluation_at_the_end_of_the_run(
    tmp_path: Path,
) -> None:
    """Continued without the bound, the run ends where the straight run does."""
    straight, parts = tmp_path / "straight", tmp_path / "parts"
    rising = StopsRising("eval/good", patience=2)
    for folder, stop in ((straight, rising), (parts, rising | Steps(72)), (parts, rising)):
        go(folder, Judge(48), "total_timesteps=144", stop=stop)
    assert find(straight / "run").step == find(parts / "run").step == 96
    assert_same_saves(straight, parts)


def test_save_with_more_metrics_replaces_only_the_same_weights(tmp_path: Path) -> None:
    first = writer.save(tmp_path, 1, FILES, "first", OLD)
    said: list[str] = []
    other = {**FILES, checkpoint.WEIGHTS: b"v"}
    assert writer.save(tmp_path, 1, other, "other", NEW, said.append).manifest["why"] == "first"
    assert said == [f"{first.path}: exists already, with other weights; it is kept"]
    assert writer.save(tmp_path, 1, FILES, "second", NEW).manifest["why"] == "second"
    assert writer.save(tmp_path, 1, FILES, "third", NEW).manifest["why"] == "second"
    assert checkpoint.verify(first.path).manifest["metrics"] == NEW["metrics"]
    assert [path.name for path in tmp_path.iterdir()] == [first.path.name]


KILLED = """
import os, sys
from pathlib import Path
from enn_trainer.checkpoints import disk, writer
from tests.enn_trainer.checkpoints.save_contents import FILES, NEW, OLD

root, can_exchange = Path(sys.argv[1]), sys.argv[2] == "exchange"
if not can_exchange:
    disk.exchange = lambda one, other: False
names = ["make_dir", "write_file", "sync_dir", "rename", "remove", "exchange"]
real = {name: getattr(disk, name) for name in names}

def dies(number):
    calls = 0
    def wrapped(function):
        def call(*args):
            nonlocal calls
            if calls == number:
                os._exit(1)
            calls += 1
            result = function(*args)
            return result
        return call
    for name in names:
        setattr(disk, name, wrapped(real[name]))

number, status = 0, 1
while status:
    run_dir = root / str(number)
    run_dir.mkdir()
    writer.save(run_dir, 1, FILES, "first", OLD)
    child = os.fork()
    if child == 0:
        dies(number)
        writer.save(run_dir, 1, FILES, "second", NEW)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    number += 1
"""


@pytest.mark.slow
@pytest.mark.parametrize("system", ["exchange", "renames only"])
def test_kill_at_any_moment_of_replacing_a_save_leaves_a_valid_one(
    tmp_path: Path, system: str
) -> None:
    run_program(["-c", KILLED, str(tmp_path), system], check=True)
    folders = sorted(tmp_path.iterdir(), key=lambda folder: int(folder.name))
    whys = []
    for run_dir in folders:
        if system == "exchange":
            checkpoint.verify(run_dir / "step-000000000001")
        with RunDir(run_dir).lock():
            saved = checkpoint.verify(run_dir / "step-000000000001")
            found = {path.name for path in run_dir.iterdir()}
        assert found == {"step-000000000001", ".lock"}
        whys.append(saved.manifest["why"])
    assert len(whys) > 8
    assert whys == sorted(whys), "at one moment the second takes the place of the first"
    assert (whys[0], whys[-1]) == ("first", "second")


@pytest.mark.parametrize("can_exchange", [True, False])
def test_full_disk_while_a_save_is_replaced_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    for number in range(1000):
        run_dir = tmp_path / str(number)
        run_dir.mkdir()
        writer.save(run_dir, 1, FILES, "first", OLD)
        error: CheckpointError | None = None
        with monkeypatch.context() as patch:
            if not can_exchange:
                patch.setattr(disk, "exchange", lambda one, other: False)
            failing = failing_disk(patch, lambda call, number=number: call == number)
            try:
                writer.save(run_dir, 1, FILES, "second", NEW)
            except CheckpointError as raised:
                error = raised
            if failing.calls <= number:
                break
        assert error is not None
        checkpoint.verify(run_dir / "step-000000000001")
        assert [path.name for path in run_dir.iterdir()] == ["step-000000000001"]
        assert writer.save(run_dir, 1, FILES, "third", NEW).manifest["metrics"] == NEW["metrics"]
    assert number >= 9


@pytest.mark.slow
def test_resume_restores_an_only_save_that_was_being_replaced(tmp_path: Path) -> None:
    """Where folders cannot be exchanged, a kill may come between two renames."""
    settings = [*SMALL, f"data_dir={tmp_path}"]
    train(StateManager(overrides=settings, checkpoint_dir=tmp_path / "run"), Pasture)
    for path in RunDir(tmp_path / "run").saved_paths():
        path.rename(path.with_name(f"{SUPERSEDED}{path.name}-77"))
    again = StateManager(
        overrides=["total_timesteps=96"], checkpoint_dir=tmp_path / "run", existing="resume"
    )
    assert train(again, Pasture).step == 96
    assert again.state.restart == 1


def test_prune_reads_the_replacement_of_a_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read the saves of a run takes minutes; the best one may be evaluated in these."""
    for step in (1, 2):
        writer.save(tmp_path, step, FILES, "test", OLD)

    class Replaces(VerifiedSaves):
        calls = 0

        def update(self, paths: Any) -> Any:
            found = super().update(paths)
            if self.calls == 0:
                writer.save(tmp_path, 1, FILES, "evaluated", NEW)
            self.calls += 1
            return found

    policy = CheckpointConfig(keep=1, best=["eval/good max"])
    pruned = RunDir(tmp_path).prune(policy, valid=Replaces())
    assert sorted(pruned.manifests) == ["step-000000000001", "step-000000000002"]
    assert checkpoint.verify(tmp_path / "step-000000000001").manifest["why"] == "evaluated"


def test_exchange_returns_false_if_unsupported(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder in (one, other):
        folder.mkdir()
        (folder / folder.name).touch()
    if disk.exchange(one, other):
        assert [path.name for path in (*one.iterdir(), *other.iterdir())] == ["other", "one"]
    other.rename(tmp_path / "gone")
    with pytest.raises(CheckpointError, match=os.strerror(errno.ENOENT)):
        disk.exchange(one, other)
