import math
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from tensorboard.backend.event_processing import (  # type: ignore[import-untyped]  # has no types
    event_accumulator,
)

from enn_trainer.track import Track, flatten_config, metric_scalars
from enn_trainer.track_tensorboard import TensorBoardSink
from entity_env import Metric


@dataclass
class NetConfig:
    d_model: int = 64
    relpos: "NetConfig | None" = None


@dataclass
class Config:
    seed: int = 7
    net: NetConfig = field(default_factory=lambda: NetConfig(relpos=NetConfig(d_model=8)))


def read(log_dir: Path) -> event_accumulator.EventAccumulator:
    events = event_accumulator.EventAccumulator(str(log_dir))
    events.Reload()
    return events


def hyperparameters(log_dir: Path) -> str:
    (event,) = read(log_dir).Tensors("hyperparameters/text_summary")
    return str(event.tensor_proto.string_val[0], "utf-8")


def test_scalars_are_read_back_under_their_tags_at_their_steps(tmp_path: Path) -> None:
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


def test_nan_and_infinity_are_written_as_they_are(tmp_path: Path) -> None:
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


def test_no_service_is_imported_with_the_modules() -> None:
    """It takes seconds, which every command would pay."""
    code = (
        "import sys, enn_trainer.open_track; "
        "sys.exit(bool({'tensorboard', 'wandb', 'mlflow', 'matplotlib'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_metric_scalars_have_mean_min_max_and_count() -> None:
    metrics = {"reward": Metric.of(np.array([1.0, 2.0, 6.0]))}
    assert metric_scalars(metrics, "eval/") == {
        "eval/reward.mean": 3.0,
        "eval/reward.min": 1.0,
        "eval/reward.max": 6.0,
        "eval/reward.count": 3.0,
    }


def test_a_metric_that_counted_nothing_has_only_its_count() -> None:
    """Its range is infinite and its mean undefined; a chart is better off without them."""
    assert metric_scalars({"reward": Metric()}) == {"reward.count": 0.0}
