"""`enn plot`: reading, grouping and drawing of metrics."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from enn_trainer import ConfigError
from enn_trainer.cli import run as enn
from enn_trainer.cli.plot_command import (
    Run,
    changes_of,
    confidence,
    curve_of,
    grouped,
    read_run,
    smoothed,
)
from tests.enn_trainer.builders import run_small
from tests.enn_trainer.checkpoints.published import GOLDEN

PNG = b"\x89PNG\r\n"


def write_run(folder: Path, seed: int, values: list[float], **config: object) -> Path:
    folder.mkdir(parents=True)
    settings = {"env.id": "Xor", "name": "n", "seed": seed, **config}
    (folder / "run.json").write_text(json.dumps({"config": settings}))
    lines = [{"step": 10 * (i + 1), "time": 0, "x": v} for i, v in enumerate(values)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.mark.slow
def test_a_run_is_drawn_from_any_of_its_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manager = run_small(tmp_path, "total_timesteps=48", checkpoint_dir=tmp_path / "c")
    assert manager.checkpoint_dir == tmp_path / "c"
    for i, path in enumerate((tmp_path / "c", tmp_path / "c" / "metrics.jsonl")):
        out = tmp_path / f"{i}.png"
        assert enn(["plot", str(path), "--out", str(out)]) == 0
        assert out.read_bytes().startswith(PNG)
        assert capsys.readouterr().out.endswith(f"wrote {out}\n")
        assert sorted(read_run(path).points["fps"]) == [24, 48]


def test_runs_that_differ_only_in_the_seed_are_a_mean_with_a_band(tmp_path: Path) -> None:
    paths = [
        write_run(tmp_path / "a", 1, [1.0, 2.0]),
        write_run(tmp_path / "b", 2, [3.0, 2.0]),
        write_run(tmp_path / "c", 1, [5.0, 5.0], **{"optim.lr": 0.1}),
    ]
    (both, group), (alone, other) = grouped([read_run(path) for path in paths])
    assert (both, len(group)) == ("Xor n, 2 seeds", 2)
    assert (alone, len(other)) == ("c", 1)
    curve = curve_of(both, group, "x")
    assert curve.values.tolist() == [2.0, 2.0]
    assert curve.spread is not None
    # Deviation sqrt(2), divided by sqrt(2) runs, times 12.70620 for one degree of freedom.
    assert curve.spread.tolist() == pytest.approx([12.70620, 0.0])
    assert curve_of(alone, other, "x").spread is None


def test_means_cover_the_common_range_of_steps() -> None:
    runs = [Run("a", {}, {"x": {0: 0.0, 10: 1.0, 20: 2.0}}), Run("b", {}, {"x": {0: 0.0, 10: 3.0}})]
    curve = curve_of("both", runs, "x")
    assert curve.steps.tolist() == [0, 10]
    assert curve.values.tolist() == [0, 2]


def test_confidence_band_has_the_nominal_coverage() -> None:
    draws = np.random.default_rng(0).normal(size=(5, 4000))
    inside = np.abs(draws.mean(axis=0)) <= confidence(draws)
    assert 0.93 < inside.mean() < 0.97


def test_smoothing_is_a_trailing_moving_average() -> None:
    assert smoothed(np.array([1.0, 2.0, 6.0, 4.0]), 3).tolist() == [1.0, 1.5, 3.0, 4.0]
    assert smoothed(np.array([1.0, 2.0]), 1).tolist() == [1.0, 2.0]


def test_non_finite_values_and_a_torn_last_line_are_skipped(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "a", 1, [1.0])
    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"step": 20, "x": "nan"}\n{"step": 3')
    assert curve_of("a", [read_run(folder)], "x").steps.tolist() == [10]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "error: RUN: expected the folder of a run"),
        (["a", "--metric", "y"], "error: --metric: expected a tag of the runs, such as x; got 'y'"),
        (["a"], "error: RUN: expected metrics episodic_reward.mean, .* got none of them"),
        (["a", "--metric", "x", "--out", "o.txt"], "error: --out: expected a file that ends in"),
        (["a", "--metric", "x", "--out", "no/o.png"], "error: --out: expected a file in a folder"),
        (["bad", "--metric", "x"], "error: RUN: .*line 1 is damaged"),
    ],
)
def test_usage_errors_print_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    import re

    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "a", 1, [1.0])
    write_run(tmp_path / "bad", 1, [1.0])
    (tmp_path / "bad" / "metrics.jsonl").write_text('oops\n{"step": 1, "x": 1}\n')
    assert enn(["plot", *arguments]) == 2
    error = capsys.readouterr().err
    assert re.match(message, error)
    assert error.count("\n") == 1


def test_runs_with_equal_seeds_have_no_band(tmp_path: Path) -> None:
    paths = [write_run(tmp_path / name, 1, [1.0, 2.0]) for name in "ab"]
    ((label, group),) = grouped([read_run(path) for path in paths])
    assert label == "Xor n, 2 runs"
    assert curve_of(label, group, "x").spread is None
    other = read_run(write_run(tmp_path / "c", 2, [1.0, 2.0]))
    ((label, group),) = grouped([*group, other])
    assert label == "Xor n, 3 runs of 2 seeds"
    assert curve_of(label, group, "x").spread is None


def test_trial_and_data_dir_do_not_split_groups(tmp_path: Path) -> None:
    runs = [
        read_run(write_run(tmp_path / str(i), i, [1.0], trial=i, data_dir=f"d{i}")) for i in (1, 2)
    ]
    assert [label for label, _ in grouped(runs)] == ["Xor n, 2 seeds"]


def test_runs_without_settings_are_not_grouped() -> None:
    run = Run("same", {}, {"x": {1: 1.0}})
    assert [(label, len(group)) for label, group in grouped([run, run])] == [("same", 1)] * 2


@pytest.mark.slow
def test_skipped_values_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    paths = [
        write_run(tmp_path / "a", 1, [1.0, 2.0, float("nan")]),
        write_run(tmp_path / "b", 2, [1.0, 2.0, 3.0, 4.0]),
        write_run(tmp_path / "c", 3, [float("nan")]),
    ]
    with (paths[2] / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "y": 1}\n')
    out = tmp_path / "x.png"
    arguments = [*map(str, paths), "--metric", "x", "y", "--out", str(out)]
    assert enn(["plot", *arguments]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "x: left out: a: values that are not finite (1)",
        "x: left out: c: no finite values",
        "x: left out: Xor n, 3 seeds: steps outside 10 to 20, which not all runs cover",
        "y: left out: a: no values",
        "y: left out: b: no values",
        f"wrote {out}",
    ]


def test_runs_without_common_steps_have_no_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = write_run(tmp_path / "a", 1, [1.0]), write_run(tmp_path / "b", 2, [1.0])
    (second / "metrics.jsonl").write_text('{"step": 20, "x": 1}\n')
    out = tmp_path / "x.png"
    assert enn(["plot", str(first), str(second), "--metric", "x", "--out", str(out)]) == 2
    assert "Xor n, 2 seeds: its runs have no steps in common" in capsys.readouterr().err
    assert not out.exists()


def test_run_without_a_log_folder_in_its_save_is_rejected(tmp_path: Path) -> None:
    shutil.copytree(GOLDEN, tmp_path / "run/latest-step000000004096")
    (tmp_path / "run" / "step-mine").mkdir()
    with pytest.raises(ConfigError, match="expected the folder of a run"):
        read_run(tmp_path / "run")


@pytest.mark.slow
def test_curriculum_stage_changes_are_marked(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", 1, [0.0, 1.0, 1.0, 0.0])
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text.replace('"x"', '"curriculum/a b/lesson"'))
    (loaded := read_run(run)).points["curriculum/c/lesson"] = {10: 0, 20: 2}  # type: ignore[index]
    assert changes_of([loaded]) == ((20, "a b: 1, c: 2"), (40, "a b: 0"))
    tag, out = "curriculum/a b/lesson", tmp_path / "x.svg"
    assert enn(["plot", str(run), "--metric", tag, "--out", str(out)]) == 0
    assert "a b: 1" in out.read_text()


def test_dollar_signs_in_names_are_not_parsed_as_formulas(tmp_path: Path) -> None:
    run = write_run(tmp_path / r"$\r$", 1, [0.0, 1.0, 0.0])
    tag, out = r"curriculum/$\q$/lesson", tmp_path / "x.svg"
    text = (run / "metrics.jsonl").read_text()
    (run / "metrics.jsonl").write_text(text.replace('"x"', json.dumps(tag)))
    assert enn(["plot", str(run), "--metric", tag, "--out", str(out)]) == 0
    assert tag in out.read_text()
