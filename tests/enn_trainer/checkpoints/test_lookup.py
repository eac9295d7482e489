"""Saves are found and read beside a run that deletes and replaces them."""

import shutil
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from enn_trainer import CheckpointError, StateManager, load_agent
from enn_trainer.checkpoints import format as checkpoint
from enn_trainer.checkpoints import lookup, writer
from enn_trainer.checkpoints.lookup import read_contents
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.cli import run as enn
from enn_trainer.config import CheckpointConfig
from tests.enn_trainer.builders import SMALL, run_small
from tests.enn_trainer.worlds import Pasture

KEEP_ONE = CheckpointConfig(keep=1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of a save of a run."""
    folder = tmp_path_factory.mktemp("saved")
    best = 'checkpoint.best=["losses/entropy min"]'
    run_small(folder, "total_timesteps=24", best, env=Pasture, checkpoint_dir=folder / "run")
    saved = lookup.find(folder / "run")
    return {name: saved.read(name) for name in saved.manifest["files"]}


class SavingRun:
    """A run that keeps its newest save only."""

    def __init__(self, run_dir: Path, files: dict[str, bytes]) -> None:
        self.run_dir, self.files, self.step = run_dir, files, 24
        run_dir.mkdir()
        self.save()

    def save(self) -> Path:
        before, self.step = f"\n    step: {self.step}".encode(), self.step + 1
        facts = {"metrics": {"losses/entropy": -float(self.step)}}
        state = self.files["state.ron"]
        assert before in state
        state = state.replace(before, f"\n    step: {self.step}".encode())
        self.files = {**self.files, "state.ron": state}
        saved = writer.save(self.run_dir, self.step, self.files, "test", facts)
        RunDir(self.run_dir).prune(KEEP_ONE)
        return saved.path


@contextmanager
def saving(one: SavingRun) -> Iterator[None]:
    """While the context is open, a thread saves all the time."""
    is_over = threading.Event()

    def save() -> None:
        while not is_over.is_set():
            one.save()

    thread = threading.Thread(target=save)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


READERS: dict[str, Callable[[Path], object]] = {
    "load_agent": load_agent,
    "newest": lambda run_dir: load_agent(f"{run_dir}@latest"),
    "best": lambda run_dir: load_agent(f"{run_dir}@best"),
    "show": read_contents,
    "resume from": lambda run_dir: StateManager(init_path=run_dir).state,
    "pin": lambda run_dir: _done(enn(["checkpoints", "pin", str(run_dir)])),
}


def _done(status: int) -> None:
    assert status == 0


@pytest.mark.slow
@pytest.mark.parametrize("reader", [*READERS])
def test_newest_save_is_read_while_a_run_keeps_a_single_save(
    tmp_path: Path, files: dict[str, bytes], reader: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one = SavingRun(tmp_path / "run", files)
    with saving(one):
        for number in range(1000):
            READERS[reader](tmp_path / "run")
            if number >= 5 and one.step > 26:  # a busy disk saves less often
                break
    assert one.step > 26, "it went on meanwhile"
    assert "damaged" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["read_manifest", "OpenFiles"])
def test_lookup_retries_if_a_save_is_deleted_during_verification(
    tmp_path: Path, files: dict[str, bytes], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = SavingRun(tmp_path / "run", files)
    real, calls = getattr(checkpoint, name), 0

    def meanwhile(*args: object) -> object:
        nonlocal calls
        calls += 1
        if calls <= 3:
            for child in (tmp_path / "run").glob("step-*"):
                shutil.rmtree(child)
            monkeypatch.setattr(checkpoint, name, real)
            one.save()
            monkeypatch.setattr(checkpoint, name, meanwhile)
        return real(*args)

    monkeypatch.setattr(checkpoint, name, meanwhile)
    said: list[str] = []
    assert lookup.find(tmp_path / "run", said.append).step == one.step
    assert calls > 3
    assert not said


def test_lookup_fails_if_every_save_is_deleted_meanwhile(
    tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    SavingRun(tmp_path / "run", files)
    real, step = checkpoint.read_manifest, 100

    def vanish(path: Path) -> object:
        nonlocal step
        step += 1
        path.parent.rename(path.parent.with_name(checkpoint.save_name(step)))
        return real(path)

    monkeypatch.setattr(checkpoint, "read_manifest", vanish)
    with pytest.raises(CheckpointError, match=r"20 times in a row; .*checkpoint.keep"):
        lookup.find(tmp_path / "run")
    assert step == 120


def test_open_save_is_readable_after_deletion(tmp_path: Path, files: dict[str, bytes]) -> None:
    """A run is configured, its environments begin, and only then its state is read."""
    one = SavingRun(tmp_path / "run", files)
    saved = lookup.find(tmp_path / "run")
    manager = StateManager(init_path=tmp_path / "run", overrides=SMALL[:-1])
    assert manager.config.rollout.num_envs == 6
    then = one.files
    one.save()
    assert not saved.path.exists()
    assert {name: saved.read(name) for name in files} == then
    assert manager.state.step == 25


@pytest.mark.alone
@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_files_of_a_save_are_closed_once_the_state_is_read(
    tmp_path: Path, files: dict[str, bytes]
) -> None:
    """A save that is deleted later takes no room."""

    def is_open() -> bool:
        links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
        return any(link.readlink().is_relative_to(tmp_path) for link in links)

    SavingRun(tmp_path / "run", files)
    manager = StateManager(init_path=tmp_path / "run")
    assert manager.config is not None
    assert is_open()
    assert manager.state.step == 25
    assert not is_open()
    load_agent(tmp_path / "run")
    assert not is_open()


def test_lookup_retries_if_a_resolved_save_is_deleted(
    tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes before anybody has looked for its manifest."""
    (tmp_path / "run").mkdir()
    for step in (1, 2):
        facts = {"metrics": {"losses/entropy": -float(step)}}
        writer.save(tmp_path / "run", step, files, "test", facts)
    best = tmp_path / "run" / checkpoint.save_name(2)
    is_save, resolve = checkpoint.is_save, lookup.resolve
    resolved: list[Path] = []

    def resolve_noting(path: Path, say: Callable[[str], None]) -> Path:
        resolved.append(resolve(path, say))
        return resolved[-1]

    def is_save_until_found(path: Path) -> bool:
        if resolved == [best] and best.exists():
            shutil.rmtree(best)
        return is_save(path)

    monkeypatch.setattr(lookup, "resolve", resolve_noting)
    monkeypatch.setattr(lookup, "is_save", is_save_until_found)
    assert lookup.find(tmp_path / "run@best").step == 1


def save_that_is_replaced_once_its_manifest_is_read(
    run_dir: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    writer.save(run_dir, 1, files, "first")
    real = checkpoint.read_manifest

    def replaced(path: Path) -> object:
        monkeypatch.undo()
        manifest = real(path)
        other = {**files, "state.ron": b"other"}
        writer.save(run_dir, 1, other, "second", {"metrics": {"a": 1.0}})
        return manifest

    monkeypatch.setattr(checkpoint, "read_manifest", replaced)


def test_lookup_retries_if_a_save_is_replaced_while_reading(
    tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its manifest is of before, its files of afterwards."""
    save_that_is_replaced_once_its_manifest_is_read(tmp_path, files, monkeypatch)
    saved = lookup.find(tmp_path / "step-000000000001")
    assert saved.manifest["why"] == "second"
    assert saved.read("state.ron") == b"other"


def test_save_replaced_while_listing_is_valid(
    tmp_path: Path, files: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_that_is_replaced_once_its_manifest_is_read(tmp_path, files, monkeypatch)
    (entry,) = RunDir(tmp_path).entries()
    assert (entry.kind, entry.manifest["why"]) == ("valid", "second")
