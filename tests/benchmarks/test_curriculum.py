"""`benchmarks/curriculum.py`: its rows, and the page."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def curriculum(benchmark: Any) -> Any:
    return benchmark("curriculum")


def test_rows_have_unique_names_and_loadable_settings(curriculum: Any, tmp_path: Path) -> None:
    names = [row.name for row in curriculum.ROWS]
    assert len({*names}) == len(names)
    for row in curriculum.ROWS:
        config = curriculum.manager_of(row, 1, tmp_path / "run").config
        assert bool(config.curricula) == ("lessons" in row.name or "ramp" in row.name), row
        assert curriculum.evaluations_of(row) or row.world == "Duel"


TINY = ("total_timesteps=256", "rollout.num_envs=6", "rollout.steps=16", "optim.bs=32")


@pytest.mark.slow
def test_every_kind_of_row_is_trained_and_measured(
    curriculum: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curriculum, "EPISODES", 12)
    monkeypatch.setattr(curriculum, "MATCHES", 2)
    monkeypatch.setattr(curriculum, "GAMES", 4)
    tiny = [row._replace(overrides=(*row.overrides, *TINY)) for row in curriculum.ROWS]
    monkeypatch.setattr(curriculum, "ROWS", tiny)
    done = []
    for row in tiny:
        if row.world.startswith("Foraging") and importlib.util.find_spec("lbforaging") is None:
            continue
        done.append(curriculum.train_row(row, 1))
    text = curriculum.document(done, "## Speed")
    for row, result in zip(tiny, done, strict=False):
        if row.world == "Minefield":
            shown = " | ".join(f"{value:.3f}" for value in result["values"].values())
            assert f"{result['frames']:,} | {shown} | " in text
            continue
        for value in result["values"]:
            assert f"| {row.name} | {result['frames']:,} | {value} | {row.asked} | 1: " in text


def test_intervals_are_of_the_mean_over_seeds(curriculum: Any) -> None:
    assert curriculum.with_interval([0.5]) == "0.500"
    assert curriculum.with_interval([0.5, 0.5, 0.5]) == "0.500 ± 0.000"
    assert curriculum.with_interval([0.0, 1.0]) == "0.500 ± 6.353"
