"""Saving goes on beside training, saves what was at its step, and survives a full disk."""

import json
import os
import shlex
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch

from enn_trainer import Callback, CheckpointError, StateManager, Trainer, load_checkpoint, train
from enn_trainer.checkpoints import disk, retention, writer
from enn_trainer.checkpoints import format as checkpoint
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.run_dir import INDEX, RunDir
from enn_trainer.checkpoints.writer import RunSaver
from enn_trainer.cli import run as enn
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.checkpoints.failing_disk import failing_disk
from tests.enn_trainer.resuming import assert_same
from tests.enn_trainer.worlds import Meadow

NEVER = "checkpoint.every_seconds=1000000"
ALWAYS = "checkpoint.every_seconds=0"
FILES = {"config.ron": b"(a: 1)", "state.ron": b"x" * 100}


def manager_of(tmp_path: Path, *overrides: str) -> StateManager:
    return StateManager(
        overrides=[*SMALL, f"data_dir={tmp_path}", *overrides], checkpoint_dir=tmp_path / "run"
    )


def steps(run_dir: Path) -> list[int]:
    return [int(path.name[5:]) for path in reversed(RunDir(run_dir).saved_paths())]


def whys(run_dir: Path) -> list[str]:
    found = reversed(RunDir(run_dir).saved_paths())
    return [checkpoint.verify(path).manifest["why"] for path in found]


def rubbish(run_dir: Path) -> list[str]:
    """What is there beside saves and files of a run."""
    logs = ("metrics.jsonl", "spans.json", "events.out.tfevents")
    known = ("index.json", ".lock", "run.json", "step-", *logs)
    return [p.name for p in run_dir.iterdir() if not p.name.startswith(known)]


class SlowDisk:
    """While the context is open nothing is written until it is let go."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._go = threading.Event()
        write_file = disk.write_file

        def wait(path: Path, data: bytes) -> None:
            assert self._go.wait(60)
            write_file(path, data)

        patch.setattr(disk, "write_file", wait)

    def __enter__(self) -> "SlowDisk":
        return self

    def let_go(self) -> None:
        self._go.set()

    def hold(self) -> None:
        self._go.clear()

    def __exit__(self, *_: object) -> None:
        self.let_go()


@pytest.mark.slow
def test_training_continues_while_a_save_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most one is; what is saved is the state of its step, to the bit."""
    manager = manager_of(tmp_path, NEVER)
    with Trainer(manager, Meadow) as trainer, SlowDisk(monkeypatch) as slow:
        trainer.step()
        before = load_checkpoint_of_memory(manager)
        manager.save_interval_s = 1e-9
        assert manager.step() is None, "it is not complete"
        assert trainer.state.step == 24
        for _ in range(3):
            trainer.step()
            assert manager.step() is None
        assert steps(tmp_path / "run") == [0]
        slow.let_go()
        manager.save_interval_s = None
        assert manager.wait() == tmp_path / "run" / "step-000000000024"
        assert manager.wait() is None, "told once"
        assert manager.step() is None
        assert steps(tmp_path / "run") == [0, 24]
    saved = load_checkpoint(tmp_path / "run")
    assert saved.state.step == 24
    weights = saved.state.agent.state_dict()
    assert all(torch.equal(weights[name], before[name]) for name in before)
    assert not all(torch.equal(p, before[n]) for n, p in trainer.state.agent.named_parameters())


def load_checkpoint_of_memory(manager: StateManager) -> dict[str, torch.Tensor]:
    """Copies of the tensors of the agent."""
    return {name: t.clone() for name, t in manager.state.agent.state_dict().items()}


@pytest.mark.slow
def test_state_saved_during_training_is_consistent(
    tmp_path: Path,
) -> None:
    """Every save of a run that saves all the time equals the state of a run that stopped there."""
    manager = manager_of(tmp_path, "checkpoint.every_seconds=1e-9", "checkpoint.keep=100")
    train(manager, Meadow)
    saved = steps(tmp_path / "run")
    assert saved[0] == 0
    assert saved[-1] == 72
    other = StateManager(overrides=[*SMALL, f"data_dir={tmp_path}"])
    with Trainer(other, Meadow) as trainer:
        for step in (24, 48, 72):
            trainer.step()
            if step in saved:
                path = tmp_path / "run" / f"step-{step:012d}"
                assert_same(load_checkpoint(path).state, trainer.state)


def test_copies_are_independent_of_the_state(tmp_path: Path) -> None:
    """Also moments, input statistics, plain data and the configuration."""
    manager = manager_of(tmp_path, "ppo.reward_scaling=true", 'ppo.ent_targets={"walk": 0.1}')
    with Trainer(manager, Meadow) as trainer:
        trainer.step()
        run = manager._saveable(tmp_path / "copy", {"a": 1.0})
        contents = run.copy()
        expected = {
            n: c if isinstance(c, str | bytes) else {k: t.clone() for k, t in c.items()}
            for n, c in contents.items()
        }
        manager.state.memory["asked"] = 99
        trainer.config.checkpoint.keep = 77
        trainer.step()
        for tensor in trainer.state.agent.state_dict().values():
            tensor.zero_()
        assert run.policy.keep == 3
        for name, content in contents.items():
            if isinstance(content, str | bytes):
                assert content == expected[name]
            else:
                then = expected[name]
                assert isinstance(then, dict)
                assert content.keys() == then.keys()
                assert all(torch.equal(content[key], then[key]) for key in content), name


@pytest.mark.alone
def test_training_thread_waits_only_for_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = manager_of(tmp_path, NEVER)
    with Trainer(manager, Meadow) as trainer, SlowDisk(monkeypatch) as slow:
        trainer.step()
        manager.save_interval_s = 1e-9
        start = time.perf_counter()
        manager.step()
        copied_s = time.perf_counter() - start
        time.sleep(2 * copied_s + 0.1)
        slow.let_go()
        manager.save_interval_s = None
        manager.wait()
        numbers = trainer.step()
    assert 0 < numbers["checkpoint/copy_ms"] <= copied_s * 1e3
    assert numbers["checkpoint/write_ms"] > 2 * copied_s * 1e3
    (saved,) = (p for p in RunDir(tmp_path / "run").saved_paths() if p.name[-2:] == "24")
    sizes = checkpoint.verify(saved).manifest["files"].values()
    assert numbers["checkpoint/bytes"] == sum(file["size"] for file in sizes)
    assert numbers["checkpoint/failed"] == 0


def test_a_run_is_saved_when_it_begins_and_when_it_ends(tmp_path: Path) -> None:
    train(manager_of(tmp_path), Meadow)
    assert steps(tmp_path / "run") == [0, 72]
    assert whys(tmp_path / "run") == ["begin", "end"]


@pytest.mark.slow
def test_a_run_that_starts_from_another_run_is_saved_when_it_begins(tmp_path: Path) -> None:
    train(manager_of(tmp_path), Meadow)
    elsewhere = StateManager(
        overrides=["total_timesteps=96"],
        init_path=tmp_path / "run",
        checkpoint_dir=tmp_path / "other",
    )
    train(elsewhere, Meadow)
    assert steps(tmp_path / "other") == [72, 96]
    assert whys(tmp_path / "other") == ["begin", "end"]


def test_step_without_progress_loses_nothing(tmp_path: Path) -> None:
    """B59: twice at one step, and after a resume without an update between."""
    settings = [ALWAYS, "checkpoint.keep=1"]
    manager = manager_of(tmp_path, *settings)
    with Trainer(manager, Meadow) as trainer:
        trainer.step()
        for _ in range(3):
            manager.step()
        assert manager.wait() is None
        trainer.save()
        trainer.save()
    assert steps(tmp_path / "run") == [24]
    again = manager_of(tmp_path, *settings)
    with Trainer(again, Meadow) as trainer:
        for _ in range(3):
            again.step()
        trainer.save()
    assert steps(tmp_path / "run") == [24]
    assert find(tmp_path / "run").step == 24


@pytest.mark.slow
def test_retention_settings_decide_which_saves_are_kept(tmp_path: Path) -> None:
    """Windows of 60 steps begin at 60 and 120; the best evaluation is that of step 96."""

    class Says(Callback):
        def on_eval_end(self, trainer: Any, metrics: dict[str, float]) -> None:
            metrics["eval/good"] = -abs(trainer.state.step - 96)

    manager = manager_of(
        tmp_path,
        *["total_timesteps=192", NEVER, "checkpoint.keep=1", "checkpoint.keep_every_steps=60"],
        *["eval.steps=1", "eval.interval=24", 'checkpoint.best=["eval/good max"]'],
    )
    train(manager, Meadow, callbacks=[Says()])
    run_dir = tmp_path / "run"
    assert steps(run_dir) == [72, 96, 120, 192]
    index = json.loads((run_dir / INDEX).read_text())
    assert [entry["kept"] for entry in index] == [
        ["newest", "every 60 steps"],
        ["every 60 steps"],
        ["best eval/good max"],
        ["every 60 steps"],
    ]
    assert index[2]["metrics"]["eval/good"] == 0
    assert index[2]["metrics"]["restart"] == 0, "those of the update at this step"
    assert [entry["why"] for entry in index] == [
        *["end", "every 60 steps", "best eval/good max", "every 60 steps, best eval/good max"]
    ]


@pytest.mark.slow
def test_manifest_records_the_origin_of_the_save(tmp_path: Path) -> None:
    """N14."""
    manager = manager_of(tmp_path, "seed=5", "eval.steps=2")
    train(manager, Meadow)
    manifest = find(tmp_path / "run").manifest
    assert manifest["step"] == 72
    assert manifest["seed"] == 5
    assert manifest["time_used"] == manager.state.time_used > 0
    assert manifest["config_version"] == manager.config.version()
    assert manifest["metrics"]["eval/step.count"] == 12, "measured before the save"
    assert manifest["command"] == shlex.join(sys.argv)
    assert manifest["host"]
    assert manifest["packages"]["torch"] == torch.__version__
    assert "git" in manifest


@pytest.mark.slow
def test_final_save_has_the_metrics_of_the_end(tmp_path: Path) -> None:
    """Started again, it is not measured again, which would be recorded twice."""

    class Counts(Callback):
        evals = 0

        def on_eval_end(self, trainer: Any, metrics: dict[str, float]) -> None:
            self.evals += 1

    counts = Counts()
    settings = ["eval.steps=2", "eval.interval=1000"]
    first = train(manager_of(tmp_path, *settings), Meadow, callbacks=[counts])
    again = train(manager_of(tmp_path, *settings), Meadow, callbacks=[counts])
    assert counts.evals == 2, "at the beginning and at the end"
    assert again.step == first.step
    assert again.eval == first.eval


@pytest.mark.slow
def test_save_has_no_metrics_of_other_steps(tmp_path: Path) -> None:
    manager = manager_of(tmp_path, "eval.steps=2", "eval.interval=48", ALWAYS)
    train(manager, Meadow)
    told = [
        "eval/step.count" in checkpoint.verify(path).manifest["metrics"]
        for path in RunDir(tmp_path / "run").saved_paths()
    ]
    assert told == [True, True, False], "at 72, the end, and 48, and not at 24"


@pytest.mark.slow
def test_misspelt_metric_of_best_is_reported_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(manager_of(tmp_path, 'checkpoint.best=["losses/entropie min"]'), Meadow)
    out = capsys.readouterr().out
    line = "checkpoint.best: no metric 'losses/entropie' so far, did you mean 'losses/entropy'?"
    assert out.count(line) == 1


def test_best_of_evaluations_without_evaluations_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"checkpoint.best\[0\]: expected evaluations"):
        manager_of(tmp_path, 'checkpoint.best=["eval/reward.mean max"]').config  # noqa: B018


@pytest.mark.slow
def test_full_disk_at_any_operation_of_a_save_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one before is intact, nothing half done is left, and the next one works."""
    for number in range(1000):
        run_dir = tmp_path / str(number)
        run_dir.mkdir()
        writer.save(run_dir, 1, FILES, "test")
        with monkeypatch.context() as patch:
            failing = failing_disk(patch, lambda call, number=number: call == number)
            with suppress(CheckpointError):
                writer.save(run_dir, 2, FILES, "test")
            if failing.calls <= number:
                break
        checkpoint.verify(run_dir / "step-000000000001")
        there = {path.name for path in run_dir.iterdir()}
        assert there <= {"step-000000000001", "step-000000000002"}
        found = RunDir(run_dir).newest(say=lambda line: pytest.fail(line))
        assert found is not None, "and what is there is complete"
        assert writer.save(run_dir, 2, FILES, "test").step == 2
        assert find(run_dir).step == 2
    assert number >= 14, "mkdir, three files, two folders, rename"


def test_full_disk_at_any_operation_of_a_damaged_save_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no valid save is moved aside only for a save that is complete."""
    for number in range(1000):
        run_dir = tmp_path / str(number)
        damaged = run_dir / "step-000000000002"
        damaged.mkdir(parents=True)
        (damaged / "mine").write_text("x")
        with monkeypatch.context() as patch:
            failing = failing_disk(patch, lambda call, number=number: call == number)
            with suppress(CheckpointError):
                writer.save(run_dir, 2, FILES, "test")
            if failing.calls <= number:
                break
        assert [p.read_text() for p in run_dir.glob("*/mine")] == ["x"]
        assert not list(run_dir.glob(".writing*"))
    assert number >= 15


@pytest.mark.slow
def test_run_continues_after_a_transient_disk_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Writing, of which every third operation fails in turn; and deleting and the index, each."""
    manager = manager_of(tmp_path, ALWAYS, "checkpoint.keep=1")
    run_dir = tmp_path / "run"
    number, num_failed, calls = 0, 0, 1
    with Trainer(manager, Meadow) as trainer:
        while number < calls:
            number += 3 if number < 18 else 1
            trainer.step()
            with monkeypatch.context() as patch:
                failing = failing_disk(patch, lambda call: call == number)  # noqa: B023 (of now)
                assert manager.step() is None
                path = manager.wait()
            calls = failing.calls
            found = find(run_dir).step
            # Where only flushing the folder failed, the save is there nevertheless.
            assert found == trainer.state.step or (
                path is None and found == trainer.state.step - 24
            )
            failed = trainer.step()["checkpoint/failed"]
            said = [line for line in capsys.readouterr().out.splitlines() if "No space" in line]
            if number < calls:
                num_failed += path is None
                assert failed == num_failed, "what is saved is no failure, whatever is left over"
                assert len(said) == 1
                assert "training goes on" in said[0]
                assert str(run_dir) in said[0]
            else:
                assert (failed, said) == (num_failed, []), "no operation is left to fail"
            manager.step()
            assert manager.wait() == run_dir / f"step-{trainer.state.step:012d}"
            assert rubbish(run_dir) == []
            assert steps(run_dir) == [trainer.state.step]
    assert number >= 20
    assert num_failed >= 5


def test_full_disk_is_reported_once_and_fails_the_end_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Fills(Callback):
        def on_train_start(self, trainer: Any) -> None:
            failing_disk(monkeypatch, lambda call: True)

    manager = manager_of(tmp_path, ALWAYS)
    with pytest.raises(CheckpointError, match=r"No space left on device; the newest save is .*000"):
        train(manager, Meadow, callbacks=[Fills()])
    assert manager.state.step == 72, "training went on"
    out = capsys.readouterr().out
    assert out.count("No space") == 1
    assert steps(tmp_path / "run") == [0]
    assert rubbish(tmp_path / "run") == []


@pytest.mark.slow
def test_full_disk_at_the_end_is_one_line_and_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    arguments = ["train", *SMALL, f"data_dir={tmp_path}", "--checkpoint-dir", str(run_dir)]
    assert enn(arguments) == 0
    failing_disk(monkeypatch, lambda call: True)
    assert enn([*arguments, "--resume", "total_timesteps=96"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: ")
    assert "No space left on device; the newest save is" in line
    assert "step-000000000072" in line


def test_run_that_cannot_be_saved_at_its_start_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing_disk(monkeypatch, lambda call: True)
    with pytest.raises(CheckpointError, match="No space left on device; nothing is saved"):
        Trainer(manager_of(tmp_path), Meadow)


def test_unexpected_error_of_the_writer_reaches_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Trainer(manager_of(tmp_path), Meadow) as trainer:
        monkeypatch.setattr(retention, "reasons_to_keep", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            trainer.save()


def test_close_waits_for_a_save_in_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager = manager_of(tmp_path, NEVER)
    write_file = disk.write_file
    with Trainer(manager, Meadow) as trainer:
        trainer.step()
        manager.save_interval_s = 1e-9

        def slowly(path: Path, data: bytes) -> None:
            time.sleep(0.1)
            write_file(path, data)

        monkeypatch.setattr(disk, "write_file", slowly)
        manager.step()
        assert steps(tmp_path / "run") == [0]
    assert steps(tmp_path / "run") == [0, 24]


def test_a_forked_child_does_not_wait_for_a_save_that_its_parent_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that writes is not in the child, which would wait for ever."""
    manager = manager_of(tmp_path, ALWAYS)
    with Trainer(manager, Meadow) as trainer:
        trainer.step()
        with SlowDisk(monkeypatch):
            manager.step()
            child = os.fork()
            if child == 0:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
                signal.alarm(10)
                manager.wait()
                os._exit(7)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_a_run_is_saved_in_a_child_forked_after_its_manager(
    tmp_path: Path,
) -> None:
    manager = manager_of(tmp_path, ALWAYS)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(60)
        torch.set_num_threads(1)  # a child of a process that used OpenMP has none of its threads
        with suppress(BaseException), Trainer(manager, Meadow) as trainer:
            trainer.step()
            trainer.save()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert steps(tmp_path / "run") == [0, 24]


def test_unreadable_pins_do_not_disable_saving(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is deleted then, which is told once."""
    manager = manager_of(tmp_path, ALWAYS, "checkpoint.keep=1")
    with Trainer(manager, Meadow) as trainer:
        (tmp_path / "run" / "pins.json").write_text("{")
        for _ in range(3):
            numbers = trainer.step()
            manager.step()
            manager.wait()
        assert numbers["checkpoint/failed"] == 0
    assert steps(tmp_path / "run") == [0, 24, 48, 72]
    said = capsys.readouterr().out
    assert said.count("no checkpoint is deleted, as pins cannot be read") == 1


@pytest.mark.slow
def test_damaged_saves_of_a_resumed_run_are_replaced(tmp_path: Path) -> None:
    """Gone on with from 24, the run comes by its damaged save of 48 again."""
    settings = [ALWAYS, "checkpoint.keep=9"]
    train(manager_of(tmp_path, *settings), Meadow)
    for step in (48, 72):
        weights = tmp_path / "run" / f"step-{step:012d}" / "state.agent.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1])
    train(manager_of(tmp_path, *settings), Meadow)
    found = RunDir(tmp_path / "run").saved_paths()
    assert [checkpoint.verify(path).step for path in found] == [72, 48, 24, 0]


def test_saving_works_without_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    manager = manager_of(tmp_path, ALWAYS)
    with Trainer(manager, Meadow) as trainer:
        trainer.step()
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", start)
            assert manager.step() is None
        assert steps(tmp_path / "run") == [0, 24]
        assert manager.wait() == tmp_path / "run" / "step-000000000024"
        trainer.step()
        assert trainer.save() == tmp_path / "run" / "step-000000000048"


@pytest.mark.alone
def test_folder_stays_locked_while_a_save_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if waiting for that is cut short, as whoever comes next removes what is half done."""
    manager = manager_of(tmp_path, NEVER)
    with SlowDisk(monkeypatch) as slow:
        slow.let_go()
        trainer = Trainer(manager, Meadow)
        trainer.step()
        slow.hold()
        manager.save_interval_s = 1e-9
        manager.step()
        with monkeypatch.context() as patch:
            patch.setattr(RunSaver, "wait", _interrupted)
            with pytest.raises(KeyboardInterrupt):
                trainer.close()
        with pytest.raises(CheckpointError, match="expected a run that is not locked"):
            Trainer(manager_of(tmp_path), Meadow)
        slow.let_go()
        for thread in threading.enumerate():
            if thread.name.startswith("save"):
                thread.join(60)
    assert steps(tmp_path / "run") == [0, 24]
    with Trainer(manager_of(tmp_path), Meadow) as trainer:
        assert trainer.state.step == 24


def _interrupted(saver: RunSaver) -> None:
    raise KeyboardInterrupt


def test_a_save_that_was_just_written_stays(tmp_path: Path) -> None:
    """Also if newer ones are there that are not known to this process."""
    manager = manager_of(tmp_path, "checkpoint.keep=1")
    with Trainer(manager, Meadow) as trainer:
        trainer.step()
        writer.save(tmp_path / "run", 99, FILES, "another process")
        assert trainer.save() == tmp_path / "run" / "step-000000000024"
    assert steps(tmp_path / "run") == [24, 99]


def test_a_trainer_is_refused_if_another_process_continued_its_run(tmp_path: Path) -> None:
    """It would save what is older than what is there; one that went on by itself is not."""
    manager = manager_of(tmp_path, "checkpoint.keep=1")
    with Trainer(manager, Meadow) as trainer:
        trainer.step()
        trainer.save()
    with Trainer(manager, Meadow) as trainer:
        trainer.step()
        trainer.save()
    with Trainer(manager_of(tmp_path), Meadow) as other:
        other.step()
        other.save()
    with pytest.raises(CheckpointError, match="another process saved step-000000000072 while"):
        Trainer(manager, Meadow)
    assert steps(tmp_path / "run") == [72]
    checkpoint.verify(tmp_path / "run" / "step-000000000072")


def test_newest_save_is_a_valid_one(tmp_path: Path) -> None:
    manager = manager_of(tmp_path)
    with Trainer(manager, Meadow) as trainer:
        trainer.step()
        newest = trainer.save()
        assert newest is not None
        assert manager.newest_save() == newest
        (newest / "manifest.json").write_text("{")
        assert manager.newest_save() == tmp_path / "run" / "step-000000000000"


def test_save_succeeds_if_earlier_saves_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or a run whose lock is removed then would take it for that of another one, and end."""

    def fail(*_: object, **__: object) -> None:
        raise OSError("no pruning today")

    manager = StateManager(
        overrides=[*SMALL, f"data_dir={tmp_path}"], checkpoint_dir=tmp_path / "run"
    )
    with Trainer(manager, Meadow) as trainer:
        monkeypatch.setattr(RunDir, "prune", fail)
        trainer.step()
        trainer.save()
        (tmp_path / "run" / ".lock").unlink()
        trainer.step()
        trainer.save()
    assert find(tmp_path / "run").step == 48
