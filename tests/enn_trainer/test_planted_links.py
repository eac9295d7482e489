"""Links, pipes and folders planted where files are written: nothing elsewhere is touched."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import CheckpointError, ConfigError
from enn_trainer.checkpoints import disk, writer
from enn_trainer.checkpoints import format as checkpoint
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.cli import run
from enn_trainer.config import CheckpointConfig
from enn_trainer.runtime.spans import Spans
from enn_trainer.tracking.track_services import JsonlSink
from entity_env.examples import Xor
from entity_env.recording.record import RecordingVecEnv
from entity_env.recording.recording_format import RecordingError
from entity_env.serialization.plain_open import append_plain, new_file, read_plain, replace_file
from entity_env.vec.serial import EnvList
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.one_line import refused

FILES = {"config.ron": b"(a: 1)", "state.ron": b"(b: 2)"}
PRECIOUS = "precious\n"


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """Return a file outside the run, which must stay as it is."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "file").write_text(PRECIOUS)
    return folder / "file"


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    for step in (1, 2, 3):
        writer.save(folder, step, FILES, "test")
    return folder


def untouched(victim: Path) -> bool:
    """Return whether the file is alone in its folder, as it was."""
    return victim.read_text() == PRECIOUS and [*victim.parent.iterdir()] == [victim]


def lock(run_dir: Path) -> None:
    with RunDir(run_dir).lock():
        pass


def test_lock_that_is_a_link_is_refused_and_its_target_unchanged(
    run_dir: Path, victim: Path
) -> None:
    (run_dir / ".lock").symlink_to(victim)
    with pytest.raises(CheckpointError, match=r"\.lock: .* got a link"):
        lock(run_dir)
    assert untouched(victim)
    (run_dir / ".lock").unlink()
    (run_dir / ".lock").symlink_to(victim.with_name("new"))
    with pytest.raises(CheckpointError, match=r"\.lock: .* got a link"):
        lock(run_dir)
    assert untouched(victim), "nothing is made behind a dangling link"


def test_lock_that_is_a_pipe_or_a_folder_is_refused(run_dir: Path) -> None:
    os.mkfifo(run_dir / ".lock")
    with pytest.raises(CheckpointError, match=r"\.lock: .*pipe"):
        lock(run_dir)
    (run_dir / ".lock").unlink()
    (run_dir / ".lock").mkdir()
    with pytest.raises(CheckpointError, match=r"\.lock: "):
        lock(run_dir)


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_leftovers_that_are_links_are_removed_and_not_followed(
    kind: str, run_dir: Path, victim: Path
) -> None:
    names = [".writing-step-000000000009-1", ".deleting-step-000000000009-1", ".pins.json-1"]
    for name in names:
        (run_dir / name).symlink_to(victim if kind == "file" else victim.parent)
    lock(run_dir)
    assert untouched(victim)
    assert not any(os.path.lexists(run_dir / name) for name in names)


@pytest.mark.parametrize("name", ["pins.json", "index.json"])
def test_files_of_a_run_do_not_follow_links(name: str, run_dir: Path, victim: Path) -> None:
    """Neither through one of their own name nor through one of the temporary file's."""
    saved = checkpoint.verify(run_dir / checkpoint.save_name(3))
    (run_dir / f".{name}-{os.getpid()}").symlink_to(victim)
    if name == "index.json":
        (run_dir / name).symlink_to(victim)
    RunDir(run_dir).pin(saved.path.name)
    RunDir(run_dir).prune(CheckpointConfig())
    assert untouched(victim)
    assert not (run_dir / name).is_symlink()
    assert saved.path.name in (run_dir / name).read_text()


def test_pins_behind_a_dangling_link_are_an_error(run_dir: Path) -> None:
    """Else pruning deletes what was pinned."""
    (run_dir / "pins.json").symlink_to("nowhere.json")
    with pytest.raises(CheckpointError, match="got a link"):
        RunDir(run_dir).pins()
    with pytest.raises(CheckpointError, match="no checkpoint is deleted"):
        RunDir(run_dir).prune(CheckpointConfig(keep=1))


@pytest.mark.parametrize("kind", ["file", "folder", "dangling"])
def test_save_does_not_follow_links(kind: str, run_dir: Path, victim: Path) -> None:
    target = {"file": victim, "folder": victim.parent, "dangling": victim.with_name("new")}[kind]
    (run_dir / checkpoint.save_name(4)).symlink_to(target)
    (run_dir / f".writing-{checkpoint.save_name(4)}-{os.getpid()}").symlink_to(target)
    saved = writer.save(run_dir, 4, FILES, "test", say=lambda line: None)
    assert checkpoint.is_valid(saved.path)
    assert not saved.path.is_symlink()
    assert untouched(victim)


def test_pruning_removes_a_link_but_not_its_target(run_dir: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "other"
    elsewhere.mkdir()
    there = (run_dir / checkpoint.save_name(1)).rename(elsewhere / checkpoint.save_name(1))
    (run_dir / there.name).symlink_to(there)
    (run_dir / ".lock").touch()
    assert there.name in RunDir(run_dir).prune(CheckpointConfig(keep=1)).deleted
    assert checkpoint.is_valid(there)
    assert not os.path.lexists(run_dir / there.name)


def test_setting_aside_a_run_moves_its_links(run_dir: Path, victim: Path) -> None:
    (run_dir / "index.json").symlink_to(victim)
    (run_dir / "step-000000000009").symlink_to(victim.parent)
    aside = RunDir(run_dir).set_aside()
    assert aside is not None
    assert (aside / "index.json").is_symlink()
    assert untouched(victim)


def test_writing_a_file_never_truncates_an_existing_file(tmp_path: Path, victim: Path) -> None:
    with pytest.raises(CheckpointError, match="cannot be written"):
        disk.write_file(victim, b"other")
    assert untouched(victim)


def jsonl(folder: Path) -> None:
    sink = JsonlSink(folder / "metrics.jsonl", 10, lambda line: None)
    sink.write(20, {"a": 1.0})
    sink.close()


def spans(folder: Path) -> None:
    Spans().save(folder / "metrics.jsonl")


@pytest.mark.parametrize("write", [jsonl, spans])
@pytest.mark.parametrize("name", ["metrics.jsonl", "metrics.jsonl.tmp"])
def test_metrics_of_a_run_do_not_follow_links(
    name: str, write: Callable[[Path], None], tmp_path: Path, victim: Path
) -> None:
    folder = tmp_path / "numbers"
    folder.mkdir()
    (folder / name).symlink_to(victim)
    if (write, name) == (jsonl, "metrics.jsonl"):
        with pytest.raises(ConfigError, match="got a link"):
            write(folder)
    else:
        write(folder)
    assert untouched(victim)


def test_metrics_are_not_written_into_a_pipe(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "metrics.jsonl")
    with pytest.raises(ConfigError, match=r"metrics\.jsonl"):
        jsonl(tmp_path)


@pytest.mark.parametrize("name", ["videos", "replays", "wandb", ".wandb"])
def test_resumed_run_is_refused_if_one_of_its_folders_is_a_link(
    name: str, tmp_path: Path, victim: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Films and what W&B keeps on the disk would be written behind it."""
    typed = ["train", "env.id=Xor", *SMALL, f"data_dir={tmp_path}", "--checkpoint-dir"]
    assert run([*typed, str(tmp_path / "saves")]) == 0
    folder = tmp_path / "saves"
    (folder / name).symlink_to(victim.parent)
    again = [*typed, str(tmp_path / "saves"), "--resume", "total_timesteps=96"]
    films = ["eval.episodes=2", "eval.interval=24", f"eval.capture_{name}=true"]
    assert run([*again, *(films if name in ("videos", "replays") else ["track=true"])]) == 2
    assert f"{folder / name}: expected a folder, got a link" in capsys.readouterr().err
    assert untouched(victim)


@pytest.mark.parametrize("planted", ["run.json", "metrics.jsonl", "run.json.tmp"])
def test_resumed_run_writes_metrics_through_no_link(
    planted: str, tmp_path: Path, victim: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    typed = ["train", "env.id=Xor", *SMALL, f"data_dir={tmp_path}", "--checkpoint-dir"]
    assert run([*typed, str(tmp_path / "saves")]) == 0
    folder = tmp_path / "saves"
    (folder / planted).unlink(missing_ok=True)
    (folder / planted).symlink_to(victim)
    again = [*typed, str(tmp_path / "saves"), "--resume", "total_timesteps=96"]
    status = run(again)
    assert status == (2 if planted == "metrics.jsonl" else 0)
    assert ("got a link" in capsys.readouterr().err) == (status == 2)
    assert untouched(victim)


def record(path: Path) -> None:
    with_recording = RecordingVecEnv(EnvList(Xor, 1), path)
    with_recording.reset(Xor().obs_space())
    with_recording.close()


@pytest.mark.parametrize("kind", ["link", "dangling", "pipe"])
def test_recording_refuses_links_and_pipes(kind: str, tmp_path: Path, victim: Path) -> None:
    path = tmp_path / "mine.rec"
    if kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(victim if kind == "link" else victim.with_name("new"))
    with pytest.raises(RecordingError, match=r"mine\.rec: cannot be opened"):
        record(path)
    assert untouched(victim)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_capture_of_a_run_does_not_follow_links(
    kind: str, tmp_path: Path, victim: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "samples.rec"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to(victim)
    typed = ["train", "env.id=Xor", *SMALL, f"data_dir={tmp_path}", f"capture_samples={path}"]
    assert f"capture_samples: expected a file to write to, got {path}" in refused(typed, capsys)
    assert untouched(victim)


@pytest.mark.parametrize("prefix", ["", ".writing-"])
def test_report_next_to_a_checkpoint_does_not_follow_links(
    prefix: str, xor_run: Path, tmp_path: Path, victim: Path
) -> None:
    shutil.copytree(xor_run, tmp_path / "run")
    report = tmp_path / "run" / "eval-step-000000000072.json"
    report.with_name(prefix + report.name).symlink_to(victim)
    assert run(["eval", str(tmp_path / "run"), "--episodes", "2"]) == 0
    assert untouched(victim)
    assert json.loads(report.read_text())["step"] == 72


@pytest.mark.slow
@pytest.mark.parametrize("prefix", ["", ".writing-"])
def test_plot_does_not_follow_links(
    prefix: str, xor_run: Path, tmp_path: Path, victim: Path
) -> None:
    pytest.importorskip("matplotlib")
    plot = tmp_path / "plot.png"
    plot.with_name(prefix + plot.name).symlink_to(victim)
    assert run(["plot", str(xor_run), "--out", str(plot)]) == 0
    assert untouched(victim)
    assert plot.read_bytes().startswith(b"\x89PNG")


def test_video_does_not_follow_links(xor_run: Path, tmp_path: Path, victim: Path) -> None:
    pytest.importorskip("PIL")
    from enn_trainer.evaluation.video import open_video, temporary_path

    film = tmp_path / "film.gif"
    temporary_path(film).symlink_to(victim)
    open_video(film)
    assert untouched(victim)
    assert not temporary_path(film).is_symlink()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "device"])
def test_files_are_opened_safely(kind: str, tmp_path: Path, victim: Path) -> None:
    path = tmp_path / "planted"
    plant: dict[str, Callable[[], Any]] = {
        "link": lambda: path.symlink_to(victim),
        "pipe": lambda: os.mkfifo(path),
        "folder": path.mkdir,
        "device": lambda: path.symlink_to("/dev/null"),
    }
    plant[kind]()
    for opened in (append_plain, read_plain):
        with pytest.raises(OSError):  # noqa: PT011 (the system's message differs by kind)
            opened(Path("/dev/null") if kind == "device" else path)
    if kind == "folder":
        for write in (new_file, lambda p: replace_file(p, b"", p.with_name("tmp"))):
            with pytest.raises(OSError):  # noqa: PT011
                write(path)
        assert not path.with_name("tmp").exists()
    else:
        replace_file(path, b"mine", path.with_name("tmp"))
        assert path.read_bytes() == b"mine"
        assert not path.is_symlink()
    assert untouched(victim)
