"""`benchmarks/actions.py`: its worlds, scripts, rows and page."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from entity_env import check_env

ROOT = Path(__file__).parents[2]
TINY = ("total_timesteps=128", "rollout.num_envs=4", "rollout.steps=32", "optim.bs=64")


@pytest.fixture
def actions(benchmark: Any) -> Any:
    return benchmark("actions")


def test_stored_results_belong_to_existing_rows(actions: Any) -> None:
    names = [row.name for row in actions.ROWS]
    assert len({*names}) == len(names)
    kept = (ROOT / "benchmarks/results/actions.jsonl").read_text().splitlines()
    done = [(result["row"], result["seed"]) for result in map(json.loads, kept)]
    assert len({*done}) == len(done)
    assert {name for name, _ in done} <= {*names}


@pytest.mark.parametrize("chained", [True, False])
def test_benchmark_environments_satisfy_the_contract(actions: Any, chained: bool) -> None:
    assert check_env(lambda: actions.Post(chained)).ok
    assert check_env(actions.Thrust).ok


def test_scripted_players_have_high_returns(actions: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tugs begin at distance 1.04 on average; the worst of several ailments is near 1."""
    monkeypatch.setattr(actions, "EPISODES", 200)
    actions.return_of_script.cache_clear()
    actions.best_return.cache_clear()
    assert 0.9 < actions.return_of_script(0) < 1.2
    assert 4.5 < actions.best_return() < 8
    actions.return_of_script.cache_clear()
    actions.best_return.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["Pendulum", "Pendulum, 5 values", "Tugs", "Medics, independent", "Cloning"]
)
def test_a_row_is_trained_and_measured(
    actions: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole run, with few frames."""
    monkeypatch.setattr(actions, "EPISODES", 8)
    monkeypatch.setattr(actions, "_MANY", actions.EvalConfig(episodes=8, num_envs=4))
    monkeypatch.setattr(actions, "_GREEDY", actions.EvalConfig(episodes=8, num_envs=4))
    (row,) = [row for row in actions.ROWS if row.name == name]
    few: tuple[str, ...] = TINY
    if name == "Cloning":
        few, row = ("clone.epochs=1",), row._replace(train=partial(row.train, steps=16))
    result = actions.run(row._replace(overrides=(*row.overrides, *few)), 1)
    assert (result["row"], result["seed"]) == (name, 1)
    assert isinstance(json.loads(json.dumps(result))["value"], float)
    assert ("unseen" in result) == (name == "Tugs")


@pytest.mark.slow
def test_page_has_medians_and_the_ratio_of_frames(actions: Any) -> None:
    results = [
        {"row": name, "seed": seed, "frames": 1000, "value": seed / 10, "seconds": 1.0}
        | {"almost": frames * seed, "commit": "abc"}
        for name, frames in (("Medics", 100), ("Medics, independent", 400))
        for seed in (1, 2, 3)
    ]
    page = actions.document(results, "## Speed\n\nSlow.")
    shown = "1: 0.1, 2: 0.2, 3: 0.3 | 0.2 | 1, 1, 1 |"
    assert f"| Medics | 1,000 | share of the best | 0.95 in 0.7 of the frames | {shown}" in page
    assert "the ratio of medians is 0.25 (at most 0.7" in page
    assert page.endswith("\n## Speed\n\nSlow.\n")
