"""`benchmarks/memory.py`: its rows, a player of `Pairs` that remembers every card, and the page."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import StateManager
from entity_env.named_world import find_world

ROOT = Path(__file__).parents[2]
TINY = ("total_timesteps=128", "rollout.num_envs=4", "rollout.steps=32", "optim.bs=64")


@pytest.fixture
def memory(benchmark: Any) -> Any:
    return benchmark("memory")


def manager_of(row: Any) -> StateManager:
    config = row.config and ROOT / f"configs/{row.config}.ron"
    return StateManager(init_path=config, overrides=row.overrides)


def result_of(row: Any, seed: int, **more: Any) -> dict[str, Any]:
    result = {"row": row.name, "seed": seed, "frames": 1000, "value": 0.5, "seconds": 1.0}
    return {**result, "commit": "abc", **more}


def test_rows_have_unique_names_and_existing_environments(memory: Any) -> None:
    """A long run must not end in a setting that does not exist."""
    names = [row.name for row in memory.ROWS]
    assert len({*names}) == len(names)
    for row in memory.ROWS:
        if row.sb3 is None:
            config = manager_of(row).config
            find_world(config.env.id)(**json.loads(config.env.kwargs)).obs_space()
    kept = (ROOT / "benchmarks/results/memory.jsonl").read_text().splitlines()
    done = [(result["row"], result["seed"]) for result in map(json.loads, kept)]
    assert len({*done}) == len(done)
    assert {name for name, _ in done} <= {*names}


def test_rows_without_memory_disable_it(memory: Any) -> None:
    for row in memory.ROWS:
        if row.sb3 is None:
            assert (manager_of(row).config.net.memory is None) == ("no memory" in row.name), row


def test_control_targets_are_worse_than_row_targets(memory: Any) -> None:
    asked = {row.name: row.asked for row in memory.ROWS}
    assert asked["Shells"] == "0.98"
    assert asked["Shells, no memory"] == "below 0.28"
    assert asked["Pairs"] == "at most 14.0"
    assert asked["Pairs, of frame"] == "above 30.0"
    assert asked["Pairs, seq_len=1"] == ""


def test_both_trainers_have_the_same_budget(memory: Any) -> None:
    """Environments, steps, minibatches, epochs and frames, in the same world."""
    by_name = {row.name: row for row in memory.ROWS}
    of_sb3 = [row for row in memory.ROWS if row.sb3 is not None]
    assert len(of_sb3) == 2
    for row in of_sb3:
        theirs: Mapping[str, Any] = row.sb3
        config = manager_of(by_name[row.name.partition(",")[0]]).config
        rollout, optim = config.rollout, config.optim
        ours = rollout.num_envs, rollout.steps, optim.bs, optim.update_epochs, config.ppo.gamma
        names = ("n_envs", "n_steps", "batch_size", "n_epochs", "gamma")
        assert [*ours] == [theirs[name] for name in names]
        assert config.env.id == f"gymnasium:{theirs['env_id']}"
        assert config.total_timesteps == theirs["frames"]
        assert theirs["frames"] % (rollout.num_envs * rollout.steps) == 0


def test_scripted_player_of_pairs_is_optimal(memory: Any) -> None:
    """9.2 moves, by Velleman and Warrington 2012 (arXiv:1208.4854)."""
    assert memory.moves_of_script(1000) == pytest.approx(9.2, abs=0.15)


@pytest.mark.slow
def test_page_has_medians_and_the_ratio_of_frames(memory: Any) -> None:
    by_name = {row.name: row for row in memory.ROWS}
    row, without = by_name["MoveToOrigin"], by_name["MoveToOrigin, no memory"]
    results = [result_of(row, i, almost=n, value=i / 10) for i, n in enumerate([120, 90, None], 1)]
    results += [result_of(without, i, almost=100) for i in (1, 2, 3)]
    results += [result_of(by_name["FloorIsLava"], 1, almost=None)]  # alone: nothing to compare
    results += [result_of(by_name["Pairs, of frame"], 1, value=36.2)]
    page = memory.document(results, "## Speed\n\nSlow.")
    table = (
        "| MoveToOrigin | 1,000 | episodic_reward | 0.98 | 1: 0.100, 2: 0.200, 3: 0.300 | 0.200 |"
    )
    assert table in page
    assert "| Pairs, of frame | 1,000 | moves | above 30.0 | 1: 36.200 | 36.200 | 1 |" in page
    assert "| Pairs, a script that remembers every card |  | moves |  |  | 9.2" in page
    frames = "| MoveToOrigin | 0.931 | 1: 120, 2: 90, 3: never | 1: 100, 2: 100, 3: 100 | 1.20 |"
    assert frames in page
    assert "| FloorIsLava | 0.9405 |" not in page
    assert page.endswith("\n## Speed\n\nSlow.\n")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["RepeatPreviousEasy", "MoveToOrigin"])
def test_a_row_is_trained_and_measured(
    memory: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole run, with few frames."""
    monkeypatch.setattr(memory, "EPISODES", 8)
    (row,) = [row for row in memory.ROWS if row.name == name]
    result = memory.run(row._replace(overrides=(*row.overrides, *TINY)), 1)
    assert (result["row"], result["seed"], result["frames"]) == (name, 1, 128)
    assert -1 <= result["value"] <= 1
    assert result.get("almost", "not asked") == (None if row.almost else "not asked")


@pytest.mark.slow
def test_sb3_rows_are_skipped_without_sb3(
    memory: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    asked: list[tuple[tuple[str, ...], str]] = []

    def run_all(script: str, todo: Any, kept: Path, jobs: int, python: str = "ours") -> None:
        asked.extend((args, python) for args in todo)

    monkeypatch.setattr(memory, "run_all", run_all)
    monkeypatch.setattr(memory, "RESULTS", tmp_path / "memory.md")
    names = ["RepeatFirstEasy", "RepeatFirstEasy, RecurrentPPO"]
    ours = [(("RepeatFirstEasy", str(seed)), "ours") for seed in (1, 2)]
    monkeypatch.setattr(
        "sys.argv", ["memory.py", "learn", *names, "--seeds", "2", "--sb3", "theirs"]
    )
    for has_sb3, theirs in ((True, [((names[1], "1"), "theirs")]), (False, [])):
        monkeypatch.setattr(memory, "has_sb3", lambda python, has_sb3=has_sb3: has_sb3)
        asked.clear()
        memory.main()
        assert asked == [*ours, *theirs]
        assert ("RecurrentPPO is skipped: theirs lacks" in capsys.readouterr().out) != has_sb3


def test_sb3_learns_in_the_same_environment(memory: Any) -> None:
    pytest.importorskip("sb3_contrib")
    import memory_sb3

    (row,) = [row for row in memory.ROWS if row.name == "RepeatPreviousEasy, RecurrentPPO"]
    small = {**row.sb3, "frames": 64, "n_envs": 2, "n_steps": 32, "batch_size": 32, "n_epochs": 1}
    model = memory_sb3.train(small, 1)
    assert model.num_timesteps == 64
    assert -1 <= memory_sb3.mean_return(model, small, 2) <= 1
