"""What stands in metrics.jsonl, also after a kill."""

import json
import math
import os
import signal
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer import ConfigError, StateManager, train
from enn_trainer.tracking.track_services import JsonlSink
from tests.enn_trainer.builders import SMALL, run_small
from tests.enn_trainer.worlds import Meadow
from tests.fork_server import start_program


def rows(path: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_has_step_time_and_tags(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "m", 0)
    before = time.time() - 1
    sink.write(5, {"a/b": 1.5})
    sink.close()
    (row,) = rows(tmp_path / "m")
    assert before < row.pop("time") < time.time() + 1
    assert row == {"step": 5, "kind": "update", "a/b": 1.5}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_non_finite_values_are_text_for_float(tmp_path: Path, value: float) -> None:
    sink = JsonlSink(tmp_path / "m", 0)
    sink.write(1, {"x": value})
    sink.close()
    strict = json.loads((tmp_path / "m").read_text(), parse_constant=pytest.fail)
    assert str(float(strict["x"])) == str(value)


@given(st.integers(0, 6), st.integers(0, 60))
def test_steps_are_unique_after_any_truncation(step: int, torn: int) -> None:
    path = Path(os.environ.get("TMPDIR", "/tmp")) / f"torn-{os.getpid()}.jsonl"
    sink = JsonlSink(path, 0)
    for i in range(1, 7):
        sink.write(i, {"x": i})
    sink.close()
    data = path.read_bytes()
    path.write_bytes(data[: len(data) - torn])
    whole = [row["step"] for row in map(json.loads, data[: len(data) - torn].split(b"\n")[:-1])]
    sink = JsonlSink(path, step)
    sink.write(step + 1, {"x": 0})
    sink.close()
    assert [row["step"] for row in rows(path)] == [s for s in whole if s <= step] + [step + 1]
    path.unlink()


def test_damage_in_the_middle_is_reported(tmp_path: Path) -> None:
    (tmp_path / "m").write_text('{"step": 1}\n{"st\n{"step": 2}\n')
    said: list[str] = []
    JsonlSink(tmp_path / "m", 2, say=said.append).close()
    assert said == [f"{tmp_path / 'm'}: line 2 is damaged and was dropped"]
    assert [row["step"] for row in rows(tmp_path / "m")] == [1, 2]


@pytest.mark.parametrize("line", ["[" * 100_000, '{"step": true}', '{"step": 1.5}', "\\xff"])
def test_line_without_a_step_does_not_end_a_resumed_run(tmp_path: Path, line: str) -> None:
    (tmp_path / "m").write_text(f'{{"step": 1}}\n{line}\n{{"step": 2}}\n')
    said: list[str] = []
    JsonlSink(tmp_path / "m", 2, say=said.append).close()
    assert said == [f"{tmp_path / 'm'}: line 2 is damaged and was dropped"]
    assert [row["step"] for row in rows(tmp_path / "m")] == [1, 2]


def test_repeated_evaluation_is_dropped(tmp_path: Path) -> None:
    for i in range(3):
        sink = JsonlSink(tmp_path / "m", 2 if i else 0)
        if i == 0:
            sink.write(1, {"eval/reward.mean": 7})
            sink.write(2, {"fps": 1})
        sink.write(2, {"eval/reward.mean": i})
        sink.close()
        assert [(row["step"], row["kind"]) for row in rows(tmp_path / "m")] == [
            (1, "eval"),
            (2, "update"),
            (2, "eval"),
        ]
        assert rows(tmp_path / "m")[-1]["eval/reward.mean"] == i


@pytest.mark.slow
def test_finished_run_that_is_restarted_has_one_final_evaluation(tmp_path: Path) -> None:
    settings = ["eval.steps=2", "eval.interval=48", "total_timesteps=72"]
    run_small(tmp_path, *settings, checkpoint_dir=tmp_path / "c")
    before = [(row["step"], row["kind"]) for row in rows(metrics_file(tmp_path))]
    assert before[-1] == (72, "eval")
    run_small(tmp_path, checkpoint_dir=tmp_path / "c")
    assert [(row["step"], row["kind"]) for row in rows(metrics_file(tmp_path))] == before


def test_line_on_a_full_disk_is_an_error(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "metrics.jsonl", 0)
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, sink._file)  # the disk is full from now on
    os.close(full)
    with pytest.raises(ConfigError, match=r"data_dir: .*metrics\.jsonl: No space left"):
        sink.write(1, {"x": 1.0})
    sink.close()


def metrics_file(folder: Path) -> Path:
    (path,) = [*folder.glob("runs/*/metrics.jsonl"), *folder.glob("c/metrics.jsonl")]
    return path


@pytest.mark.alone
@pytest.mark.slow
def test_lines_are_complete_and_ordered_after_kill_and_resume(tmp_path: Path) -> None:
    settings = [*SMALL, f"data_dir={tmp_path}", "eval.steps=2", "eval.interval=48"]
    settings.append("total_timesteps=1000000")
    program = (
        "from enn_trainer import StateManager, train\n"
        "from tests.enn_trainer.worlds import Meadow\n"
        f"m = StateManager(overrides={settings!r}, checkpoint_dir={str(tmp_path / 'c')!r})\n"
        "m.save_interval_s = 0.3\n"
        "train(m, Meadow)\n"
    )
    process = start_program(["-c", program], stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and len(list(tmp_path.glob("c/step-*"))) < 3:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    written = metrics_file(tmp_path).read_text().splitlines()
    assert all(json.loads(line)["step"] % 24 == 0 for line in written[:-1])
    manager = StateManager(checkpoint_dir=tmp_path / "c")
    assert manager.resumed_from is not None
    last = int(manager.resumed_from.path.name.split("-")[1])
    manager.config.total_timesteps = last + 96
    train(manager, Meadow)
    after = rows(metrics_file(tmp_path))
    updates = [row["step"] for row in after if "fps" in row]
    evals = [row["step"] for row in after if "eval/step.count" in row]
    assert updates == list(range(24, last + 97, 24))
    assert len(evals) == len(set(evals))
    assert evals == sorted(evals)


@pytest.mark.slow
def test_run_from_a_save_does_not_modify_the_metrics_of_the_original(tmp_path: Path) -> None:
    """It may still be going on."""
    first = run_small(tmp_path, "total_timesteps=48", checkpoint_dir=tmp_path / "c")
    path = metrics_file(tmp_path)
    before = path.read_bytes()
    save = next((tmp_path / "c").glob("step-*48"))
    other = run_small(tmp_path, init_path=save)
    assert other.state.run_name != first.state.run_name
    assert path.read_bytes() == before
    steps = [r["step"] for r in rows(tmp_path / "runs" / other.state.run_name / "metrics.jsonl")]
    assert steps == [72]
