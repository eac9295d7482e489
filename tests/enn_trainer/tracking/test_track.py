import math
import resource
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from enn_trainer.tracking.track import Guarded, Track, flatten_config
from enn_trainer.tracking.track_services import TensorBoardSink
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.tracking.builders import hyperparameters, read
from tests.fork_server import run_program


@dataclass
class NetConfig:
    d_model: int = 64
    relpos: "NetConfig | None" = None


@dataclass
class Config:
    seed: int = 7
    net: NetConfig = field(default_factory=lambda: NetConfig(relpos=NetConfig(d_model=8)))


def test_scalars_round_trip_with_tags_and_steps(tmp_path: Path) -> None:
    with Track([TensorBoardSink(tmp_path / "run", {})]) as track:
        track.write(2048, {"losses/entropy": 1.5, "episodic_reward.mean": 0.25})
        track.write(4096, {"losses/entropy": 1.25})
    events = read(tmp_path / "run")
    assert set(events.Tags()["scalars"]) == {"losses/entropy", "episodic_reward.mean"}
    assert [(e.step, e.value) for e in events.Scalars("losses/entropy")] == [
        (2048, 1.5),
        (4096, 1.25),
    ]
    assert [(e.step, e.value) for e in events.Scalars("episodic_reward.mean")] == [(2048, 0.25)]


def test_nan_and_infinity_are_written_unchanged(tmp_path: Path) -> None:
    """A diverged run must look diverged, not like one that stopped reporting."""
    with Track([TensorBoardSink(tmp_path, {})]) as track:
        track.write(1, {"nan": math.nan, "inf": math.inf})
    events = read(tmp_path)
    assert math.isnan(events.Scalars("nan")[0].value)
    assert events.Scalars("inf")[0].value == math.inf


def test_hyperparameters_are_a_table_with_full_names(tmp_path: Path) -> None:
    with Track([TensorBoardSink(tmp_path, flatten_config(Config()))]):
        pass
    assert hyperparameters(tmp_path).splitlines() == [
        "| parameter | value |",
        "| --- | --- |",
        "| seed | 7 |",
        "| net.d_model | 64 |",
        "| net.relpos.d_model | 8 |",
        "| net.relpos.relpos | None |",
    ]


def test_a_value_cannot_break_the_table(tmp_path: Path) -> None:
    with Track([TensorBoardSink(tmp_path, {"filter": "a|b\nc"})]):
        pass
    assert hyperparameters(tmp_path).splitlines()[2:] == ["| filter | a\\|b c |"]


def test_files_are_closed_when_the_run_fails(tmp_path: Path) -> None:
    """The numbers before a crash are those one wants to see."""

    def crash() -> None:
        with Track([TensorBoardSink(tmp_path, {})]) as track:
            track.write(1, {"x": 1.0})
            raise RuntimeError("crash")

    with pytest.raises(RuntimeError, match="crash"):
        crash()
    assert read(tmp_path).Scalars("x")[0].value == 1.0


def cli(
    folder: Path, *arguments: str, limit: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `enn train`, optionally with a limit of the size of files."""
    program = (
        "import resource, sys\n"
        "from enn_trainer.cli import run\n"
        f"limit = {limit}\n"
        "if limit: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))\n"
        "sys.exit(run(['train', 'env.id=Xor', *sys.argv[1:]]))\n"
    )
    options = [*SMALL, "rollout.processes=1", f"data_dir={folder}", *arguments]
    return run_program(["-c", program, *options], text=True)


@pytest.mark.slow
def test_unwritable_folder_prints_one_line_for_new_and_resumed_runs(
    tmp_path: Path,
) -> None:
    checkpoint = ["--checkpoint-dir", str(tmp_path / "c")]
    assert cli(tmp_path / "data", *checkpoint, "total_timesteps=24").returncode == 0
    (tmp_path / "c" / "run.json").unlink()
    (tmp_path / "c" / "run.json").mkdir()
    ended = cli(tmp_path / "data", *checkpoint, "--resume", "total_timesteps=48")
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: --checkpoint-dir, data_dir: cannot write ")
    assert ended.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_full_disk_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    """At this size run.json and the first lines fit; metrics.jsonl soon does not."""
    ended = cli(tmp_path, "total_timesteps=1000", "--no-save", limit=10_000)
    assert ended.returncode == 2
    (error,) = ended.stderr.splitlines()
    assert error.startswith("error: --checkpoint-dir, data_dir: cannot write ")
    assert error.endswith("metrics.jsonl: File too large")


def test_failed_tensorboard_write_is_reported_and_keeps_the_file_readable(tmp_path: Path) -> None:
    said: list[str] = []
    sink = Guarded("TensorBoard", lambda: TensorBoardSink(tmp_path, {}), said.append)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    sink.write(1, {"x": 1.0})
    (file,) = tmp_path.iterdir()
    size = file.stat().st_size
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 20, before[1]))
    try:
        sink.write(2, {"x": 2.0, "y": 2.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    sink.close()
    assert len(said) == 1
    assert said[0].startswith(
        "TensorBoard failed, training continues without it and retries later: OSError"
    )
    assert file.stat().st_size == size
    assert [event.step for event in read(tmp_path).Scalars("x")] == [1]


def test_tensorboard_file_continues_after_truncation(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path, {})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    sink.write(1, {"x": 1.0})
    (file,) = tmp_path.iterdir()
    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + 20, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            sink.write(2, {"x": 2.0, "y": 2.0})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    sink.write(3, {"x": 3.0})
    sink.close()
    assert [event.step for event in read(tmp_path).Scalars("x")] == [1, 3]
