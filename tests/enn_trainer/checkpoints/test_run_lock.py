"""One process at a time trains in the folder of a run."""

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import Callback, CheckpointError, StateManager, Trainer, train
from enn_trainer.checkpoints import run_lock
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.checkpoints.run_lock import LOCK
from enn_trainer.cli import run as enn
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.worlds import Meadow
from tests.fork_server import start_program

HOLD = """
import sys
import time
from pathlib import Path
from enn_trainer.checkpoints.run_dir import RunDir
with RunDir(Path(sys.argv[1])).lock():
    print("locked", flush=True)
    sys.stdin.read()
"""


class Holder:
    """Another process that trains in a folder."""

    def __init__(self, run_dir: Path) -> None:
        self.process = start_program(
            ["-c", HOLD, str(run_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "locked\n"

    def __enter__(self) -> "Holder":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.alone
@pytest.mark.slow
def test_second_process_is_refused_before_any_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    with Holder(run_dir) as holder:
        arguments = ["train", *SMALL, f"data_dir={tmp_path}", "--checkpoint-dir", str(run_dir)]
        assert enn(arguments) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {run_dir}: expected a run that is not locked, process ")
        assert f" {holder.process.pid} on " in line
        assert [p.name for p in run_dir.iterdir()] == [LOCK], "nothing was begun"
        assert [p.name for p in tmp_path.iterdir()] == ["run"]
        os.kill(holder.process.pid, signal.SIGKILL)
        holder.process.wait()
        assert enn(arguments) == 0, "the lock is gone with its process"


def test_folder_is_unlocked_after_close_and_always_readable(tmp_path: Path) -> None:
    def manager() -> StateManager:
        where: Any = {"checkpoint_dir": tmp_path / "run"}
        return StateManager(overrides=[*SMALL, f"data_dir={tmp_path}"], **where)

    with Trainer(manager(), Meadow):
        with pytest.raises(CheckpointError, match=f"process {os.getpid()} on"):
            Trainer(manager(), Meadow)
        assert find(tmp_path / "run").step == 0
    Trainer(manager(), Meadow).close()


def test_folder_is_unlocked_after_a_failed_start(tmp_path: Path) -> None:
    settings = [*SMALL, f"data_dir={tmp_path}", "env.kwargs={'a': 1}".replace("'", '"')]
    with pytest.raises(ValueError):  # noqa: PT011 (whatever the world says)
        Trainer(StateManager(overrides=settings, checkpoint_dir=tmp_path / "run"), Meadow)
    with RunDir(tmp_path / "run").lock():
        pass


def test_leftovers_of_dead_processes_are_removed(tmp_path: Path) -> None:
    kept = ["step-000000000001", ".damaged-step-000000000001-3", ".writing-mine", "index.json"]
    for name in kept:
        (tmp_path / name).mkdir()
    for name in [".writing-step-000000000002-77", ".deleting-step-000000000001-77"]:
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "file").write_text("x")
    for name in (".index.json-77", ".pins.json-77"):
        (tmp_path / name).write_text("x")
    with RunDir(tmp_path).lock():
        assert sorted(p.name for p in tmp_path.iterdir()) == sorted([*kept, LOCK])


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 4000, '{"pid": 1}'])
def test_lock_without_owner_is_respected(tmp_path: Path, text: str) -> None:
    with RunDir(tmp_path).lock():
        (tmp_path / LOCK).write_text(text)
        with (
            pytest.raises(CheckpointError, match="another process trains it"),
            RunDir(tmp_path).lock(),
        ):
            pass


def test_file_system_without_locks_is_reported_once_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Leftovers stay: they may be those of a process at work."""

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", flock)
    (tmp_path / ".writing-step-000000000002-77").mkdir()
    said: list[str] = []
    with RunDir(tmp_path).lock(said.append):
        assert (tmp_path / ".writing-step-000000000002-77").exists()
    assert len(said) == 1
    assert "no locks" in said[0]


def test_run_saved_by_another_process_meanwhile_is_not_continued(
    tmp_path: Path,
) -> None:
    """Its state would be older than what is there, and another run from the first save on."""

    def manager() -> StateManager:
        settings = [*SMALL, f"data_dir={tmp_path}"]
        return StateManager(overrides=settings, checkpoint_dir=tmp_path / "run")

    early, late = manager(), manager()
    assert early.resumed_from is None
    with Trainer(late, Meadow) as trainer:
        trainer.step()
        trainer.save()
    with pytest.raises(CheckpointError, match="another process saved step-000000000024 while"):
        Trainer(early, Meadow)
    chosen = manager()
    assert chosen.resumed_from is not None
    (tmp_path / "run" / "step-000000000099").mkdir()  # not valid: nothing to go on from
    with Trainer(chosen, Meadow) as trainer:
        assert trainer.state.step == 24


FORK = """
import os, subprocess, sys, time
from pathlib import Path
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.checkpoints.run_lock import folder_lock
run_dir, (which, how, end) = Path(sys.argv[1]), sys.argv[2:]
with RunDir(run_dir).lock() if which == "run" else folder_lock(run_dir):
    if how == "exec":
        child = subprocess.Popen(["sleep", "60"], close_fds=False).pid
    else:
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
    print(child, flush=True)
    if end == "killed":
        time.sleep(60)
print("over", flush=True)
"""


@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.parametrize(
    ("which", "how", "end"),
    [
        ("run", "fork", "normal"),
        ("run", "fork", "killed"),
        ("run", "exec", "killed"),
        ("pins", "fork", "normal"),
        ("pins", "fork", "killed"),
    ],
)
def test_surviving_child_holds_no_lock(tmp_path: Path, which: str, how: str, end: str) -> None:
    """Neither after the end of the process that had it, nor after its death."""
    process = start_program(
        ["-c", FORK, str(tmp_path), which, how, end],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        if end == "normal":
            assert process.stdout.readline() == "over\n"
        process.kill()
        process.wait()
        descriptor = os.open(tmp_path / LOCK if which == "run" else tmp_path, os.O_RDONLY)
        deadline = time.monotonic() + 10
        while not _can_be_locked(descriptor) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert _can_be_locked(descriptor)
        os.close(descriptor)
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        process.stdout.close()


LEAVES = """
import os, sys
from pathlib import Path
from enn_trainer.checkpoints.run_dir import RunDir
with RunDir(Path(sys.argv[1])).lock():
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        print("left", flush=True)
        sys.stdin.read()
"""


@pytest.mark.slow
def test_child_that_leaves_the_context_does_not_unlock_the_run(tmp_path: Path) -> None:
    """As where an environment forks, and an exception in the child goes through the trainer."""
    process = start_program(
        ["-c", LEAVES, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "left\n"
    with pytest.raises(CheckpointError, match="expected a run that is not locked"):
        RunDir(tmp_path).lock().__enter__()
    process.communicate()
    assert process.returncode == 0


def _can_be_locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


TRAINS = """
import sys, time
from pathlib import Path
from enn_trainer import StateManager, train
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.worlds import Pasture

class Slow(Pasture):
    is_waiting = False

    def act(self, actions):
        if (Path(sys.argv[1]) / "wait").exists():
            if not Slow.is_waiting:
                print("waits", flush=True)
            Slow.is_waiting = True
            while (Path(sys.argv[1]) / "wait").exists():
                time.sleep(0.01)
        return super().act(actions)

folder = Path(sys.argv[1])
settings = [*SMALL[:-1], "total_timesteps=1000000", f"data_dir={folder}", *sys.argv[2:]]
manager = StateManager(overrides=settings, checkpoint_dir=folder / "run", existing="continue")
manager.save_interval_s = 0.0
train(manager, Slow)
"""


class Training:
    """A process that trains in `folder / "run"`, and waits in the middle of an update if told."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.run_dir = folder, folder / "run"
        self.process = start_program(
            ["-c", TRAINS, str(folder)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.wait_until(lambda: find(self.run_dir).step >= 48)

    def hold(self) -> None:
        """Let it wait in the middle of an update."""
        (self.folder / "wait").touch()
        assert self.process.stdout is not None
        assert any(line == "waits\n" for line in self.process.stdout)

    def go_on(self) -> None:
        (self.folder / "wait").unlink()

    def has_signed(self) -> bool:
        """Whether it says in the lock that it trains."""
        lock = self.run_dir / LOCK
        return lock.exists() and str(self.process.pid) in lock.read_text()

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while time.monotonic() < end:
            with suppress(CheckpointError):
                if is_so():
                    return
            assert self.process.poll() is None, self.process.communicate()[0]
            time.sleep(0.02)
        raise AssertionError("it took too long")

    def __enter__(self) -> "Training":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the file is the only lock")
@pytest.mark.parametrize("how", ["removed", "renamed"])
def test_second_process_is_refused_after_the_parent_folder_is_recreated(
    tmp_path: Path, how: str
) -> None:
    """Under the path of the first process, and where what it trains in is now."""
    run_dir = tmp_path / "parent" / "run"
    run_dir.mkdir(parents=True)
    with Holder(run_dir):
        tried = [run_dir]
        if how == "removed":
            shutil.rmtree(run_dir.parent)
        else:
            tried.append(run_dir.parent.rename(tmp_path / "moved") / "run")
            (tried[-1] / LOCK).unlink()
        run_dir.mkdir(parents=True)
        for path in tried:
            refused = pytest.raises(CheckpointError, match="expected a run that is not locked")
            with refused, RunDir(path).lock():
                pass


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the file is the only lock")
def test_second_process_is_refused_under_every_path_of_a_folder_behind_a_link(
    tmp_path: Path,
) -> None:
    """A run that was begun through a link goes on through it, wherever it leads by then."""
    for name in ("real", "other"):
        (tmp_path / name / "run").mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to("real")
    with Holder(link / "run"):
        link.unlink()
        link.symlink_to("other")
        shutil.rmtree(tmp_path / "real")
        (tmp_path / "real" / "run").mkdir(parents=True)
        for path in (link / "run", tmp_path / "real" / "run"):
            refused = pytest.raises(CheckpointError, match="expected a run that is not locked")
            with refused, RunDir(path).lock():
                pass
        with RunDir(tmp_path / "other").lock():  # another folder
            pass


def test_long_folder_names_with_a_common_prefix_are_different_runs(tmp_path: Path) -> None:
    names = ["a" * 90 + end for end in "12"]
    for name in names:
        (tmp_path / name).mkdir()
    with Holder(tmp_path / names[0]), RunDir(tmp_path / names[1]).lock() as lock:
        assert lock.is_current


def removed(run_dir: Path, what: str) -> None:
    if what == LOCK:
        (run_dir / LOCK).unlink()
    else:
        run_dir.rename(run_dir.with_name("removed"))  # at once, while the run writes into it


@pytest.mark.slow
@pytest.mark.parametrize("what", ["run", LOCK])
def test_removed_folder_or_lock_is_recreated_and_saved_to(tmp_path: Path, what: str) -> None:
    with Training(tmp_path) as training:
        before = find(training.run_dir).step
        removed(training.run_dir, what)
        training.wait_until(training.has_signed)
        training.wait_until(lambda: find(training.run_dir).step > before)
        settings = [*SMALL, f"data_dir={tmp_path}"]
        manager = StateManager(overrides=settings, checkpoint_dir=training.run_dir)
        with pytest.raises(CheckpointError, match=f"process {training.process.pid} on "):
            Trainer(manager, Meadow)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the file is the only lock")
@pytest.mark.parametrize("what", ["run", LOCK])
def test_second_process_is_refused_after_folder_or_lock_are_removed(
    tmp_path: Path, what: str
) -> None:
    """Also in the middle of an update of the first, which then goes on."""
    with Training(tmp_path) as training:
        training.hold()
        before = find(training.run_dir).step
        removed(training.run_dir, what)
        training.run_dir.mkdir(exist_ok=True)
        for _ in range(2):
            with (
                pytest.raises(CheckpointError, match="expected a run that is not locked"),
                RunDir(training.run_dir).lock(),
            ):
                pass
        training.go_on()
        training.wait_until(training.has_signed)
        training.wait_until(lambda: find(training.run_dir).step > before)
        with (
            pytest.raises(CheckpointError, match=f"process {training.process.pid} on "),
            RunDir(training.run_dir).lock(),
        ):
            pass


@pytest.mark.slow
@pytest.mark.parametrize("what", ["run", LOCK])
def test_run_ends_without_writing_if_another_process_took_its_folder(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine, which does not know of the first one."""
    monkeypatch.setattr(run_lock, "claim", nullcontext)
    settings = [*SMALL, f"data_dir={tmp_path}"]
    manager = StateManager(overrides=settings, checkpoint_dir=tmp_path / "run")
    manager.save_interval_s = 0.0
    taken = None

    class Loses(Callback):
        def on_update_end(self, trainer: Any, metrics: dict[str, float]) -> None:
            nonlocal taken
            if trainer.state.step == 48:
                removed(tmp_path / "run", what)
                (tmp_path / "run").mkdir(exist_ok=True)
                taken = Holder(tmp_path / "run")
                self.there = sorted(tmp_path.glob("run/*"))

    callback = Loses()
    try:
        with pytest.raises(CheckpointError, match=r"was removed .* process .* trains there now"):
            train(manager, Meadow, callbacks=[callback])
        assert sorted(tmp_path.glob("run/*")) == callback.there
    finally:
        assert taken is not None
        taken.__exit__()


@pytest.mark.slow
@pytest.mark.parametrize("what", ["run", LOCK])
def test_run_ends_without_saving_if_another_run_was_saved_meanwhile(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On another machine, to its end: nothing is locked, and there are saves of the same steps."""
    monkeypatch.setattr(run_lock, "claim", nullcontext)
    settings = [*SMALL, f"data_dir={tmp_path}"]

    class Loses(Callback):
        def on_update_end(self, trainer: Any, metrics: dict[str, float]) -> None:
            if trainer.state.step == 48:
                removed(tmp_path / "run", what)
                train(StateManager(overrides=settings, checkpoint_dir=tmp_path / "run"), Meadow)
                self.there = contents(tmp_path / "run")

    callback = Loses()
    manager = StateManager(overrides=settings, checkpoint_dir=tmp_path / "run")
    manager.save_interval_s = 0.0
    message = r"was removed during the run, and another process saved step-\d+ there; this run ends"
    with pytest.raises(CheckpointError, match=message):
        train(manager, Meadow, callbacks=[callback])
    assert contents(tmp_path / "run") == callback.there


def contents(run_dir: Path) -> dict[Path, bytes]:
    """Return all files of a run but its lock and logs, which are written until it ends."""
    left_out = (LOCK, "spans.json", "metrics.jsonl", "events.out.tfevents")
    files = [path for path in run_dir.rglob("*") if path.is_file()]
    return {path: path.read_bytes() for path in files if not path.name.startswith(left_out)}


@pytest.mark.slow
@pytest.mark.parametrize("what", ["run", LOCK])
def test_resumed_run_recognises_copied_saves(tmp_path: Path, what: str) -> None:
    """Before its first save in this process, when the lock, or the folder, is another one."""

    def manager(*more: str) -> StateManager:
        settings = [*SMALL, f"data_dir={tmp_path}", *more]
        return StateManager(overrides=settings, checkpoint_dir=tmp_path / "run")

    class Copies(Callback):
        def on_update_end(self, trainer: Any, metrics: dict[str, float]) -> None:
            if trainer.state.step == 96:
                removed(tmp_path / "run", what)
                if what == "run":
                    shutil.copytree(tmp_path / "removed", tmp_path / "run")

    train(manager(), Meadow)
    assert find(tmp_path / "run").step == 72
    train(manager("total_timesteps=120"), Meadow, callbacks=[Copies()])
    assert find(tmp_path / "run").step == 120
