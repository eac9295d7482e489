"""Learning diagnostics: each fault with an environment that has it and one without, and saves."""

import json
import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer import StateManager, train
from enn_trainer.callbacks import learning_diagnostics, learning_rules
from enn_trainer.callbacks.learning_diagnostics import (
    EXAMINE_EVERY,
    LEAST_WINDOW,
    MOST_WINDOW,
    NOTICES,
    is_examined,
    new_memory,
    restored,
    window_frames,
)
from enn_trainer.callbacks.learning_rules import WINDOW_RULES
from enn_trainer.callbacks.learning_sums import PATIENCE, Evidence, Sums, new_sums
from enn_trainer.cli import run
from entity_env.examples import ENV_REGISTRY
from entity_env.testing import Identity
from tests.enn_trainer.builders import logs_of
from tests.enn_trainer.callbacks.coin import Coin
from tests.enn_trainer.callbacks.lesson_worlds import Endless
from tests.enn_trainer.callbacks.notice_runs import (
    CORRIDORS,
    ELSEWHERE,
    RECORDED,
    SHARES,
    record,
    replay,
    run_of,
)
from tests.enn_trainer.resuming import go, tracked

ROOT = Path(__file__).parents[3]
QUICK = [
    *("rollout.num_envs=128", "rollout.steps=8", "rollout.processes=1", "optim.bs=256"),
    *("optim.lr=0.01", "net.d_model=16", "net.n_layer=1", "ppo.value_norm=true"),
]


@pytest.fixture
def worlds(benchmark: Any) -> Any:
    """Import the environments with faults."""
    return benchmark("symptom_worlds")


def trained(tmp_path: Path, env: Any, *settings: str) -> tuple[StateManager, list[Any]]:
    """Train, and return the rows of the notices."""
    manager = StateManager(overrides=[*QUICK, f"data_dir={tmp_path}", *settings])
    train(manager, env)
    lines = (logs_of(tmp_path, manager) / "metrics.jsonl").read_text().splitlines()
    rows = map(json.loads, lines)
    return manager, [row for row in rows if row["kind"] == "notice"]


# -- Worlds with a fault, and without ------------------------------------------------------------

SHORT, LONG = (
    [f"total_timesteps={num * 512}", "rollout.num_envs=32", "rollout.steps=8"]
    for num in (4, PATIENCE + 2)
)
"""Frames, more than the windows of 512 frames that notices of facts and equal returns take."""
LEARNING = [f"total_timesteps={(PATIENCE + 2) * 1024}", "rollout.num_envs=64", "optim.bs=128"]
"""As long in windows of 1024 frames, in which something is learnt."""
FEW = ["total_timesteps=2560", "rollout.num_envs=2", "rollout.steps=128"]
FAULTS: dict[str, tuple[str, dict[str, Any], dict[str, Any], set[str], list[str]]] = {
    "choice": ("Gate", {"shown": False}, {}, {"choice/do", "entropy/do"}, LEARNING),
    "value": ("Luck", {"shown": False}, {}, {"explained"}, LEARNING),
    "feature": ("Marked", {"shown": False}, {}, {"feature/Mark", "offered/never"}, LEARNING),
    "reward": ("Steps", {"scale": 0}, {}, {"reward"}, SHORT),
    "return": ("Steps", {"scale": 0, "cost": 1}, {"length": 1, "cost": 1}, {"return"}, LONG),
    "episodes": ("Steps", {"length": 0}, {"length": 20}, {"episodes"}, FEW),
    "actors": (
        *("Steps", {"length": 20, "every": 20}, {"length": 20, "every": 5}, {"actors"}, SHORT),
    ),
}
"""Environment, its arguments with the fault and without it, notices, and settings."""


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_fault_is_reported_once_and_only_in_a_faulty_environment(
    fault: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    worlds: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, faulty, sound, keys, settings = FAULTS[fault]
    monkeypatch.setattr(learning_diagnostics, "LEAST_WINDOW", 1024 if settings is LEARNING else 512)
    monkeypatch.setattr(learning_diagnostics, "EXAMINE_EVERY", 512)
    env = partial(getattr(worlds, world), **faulty)
    _, rows = trained(tmp_path / "faulty", env, *settings)
    assert sorted(row["notice"] for row in rows) == sorted(keys)
    lines = [line for line in capsys.readouterr().out.splitlines() if "notice: " in line]
    assert lines == [f"notice: {row['text']}; see {row['page']}" for row in rows]
    env = partial(getattr(worlds, world), **sound)
    assert trained(tmp_path / "sound", env, *settings)[1] == []


@pytest.mark.slow
def test_environment_that_delays_a_round_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes of all other environments end, which measure nothing until its own does."""
    monkeypatch.setattr(learning_diagnostics, "LEAST_WINDOW", 512)
    monkeypatch.setattr(learning_rules, "LONG_EPISODE", 100)
    monkeypatch.setattr(Endless, "num_made", 0)
    settings = ["total_timesteps=2048", "rollout.num_envs=8", "rollout.steps=32"]
    _, rows = trained(tmp_path, Endless, *settings, "optim.bs=256", 'stop=["reward.max >= 2"]')
    (row,) = [row for row in rows if row["notice"] == "rounds"]
    assert row["text"].startswith("environment 0: no episode has ended in 1,024 frames")
    assert row["page"].endswith("#an-episode-that-never-ends")
    assert capsys.readouterr().out.count(row["text"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("processes", "env"),
    [(1, Coin), (2, Coin), pytest.param(1, lambda: Coin(), id="1-factory")],
)
def test_flat_return_of_a_match_has_no_notice(
    processes: int, env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(learning_diagnostics, "LEAST_WINDOW", 256)
    monkeypatch.setattr(learning_diagnostics, "EXAMINE_EVERY", 256)
    settings = ["total_timesteps=2560", "optim.bs=128", "rollout.num_envs=16"]
    manager, rows = trained(tmp_path, env, *settings, f"rollout.processes={processes}")
    assert rows == []
    state = manager.state
    memory = state.memory[NOTICES]
    evidence = Evidence(
        manager.config,
        whole=memory["whole"],
        windows=memory["windows"],
        constants=memory["constants"],
        obs_space=state.obs_space,
        action_space=state.action_space,
    )
    keys = {notice.key for rule in WINDOW_RULES for notice in rule(evidence)}
    assert keys == {"explained", "feature/__global__"}


def test_recorded_configurations_are_shipped() -> None:
    names = {path.stem for path in (ROOT / "configs").glob("*.ron")}
    assert names >= {*SHARES, *ELSEWHERE}
    assert json.loads(RECORDED.read_text()).keys() == {*SHARES, *CORRIDORS}


TOLD = {"a collapse to few long episodes": ["choice/do", "entropy/do"], "xor": ["collapse"]}
"""Notices of runs; the others have none. The return of Xor is 1, .75 for half of the run, and 1."""


@pytest.mark.soak
@pytest.mark.parametrize("name", [*SHARES, *CORRIDORS])
def test_training_has_the_expected_notices(name: str, tmp_path: Path) -> None:
    env, manager = run_of(name, tmp_path)
    train(manager, env)
    keys = {*manager.state.memory[NOTICES]["told"]}
    if SHARES.get(name, 1.0) < 1:
        # Values and policy of a shortened run had no time to reach returns and to decide.
        keys -= {"reach", *(key for key in keys if key.startswith("late/"))}
    # Single updates, and what a run loses again, depend on the rounding of the processor.
    assert keys - {"collapse", "kl"} == {*TOLD.get(name, [])} - {"collapse"}


@pytest.mark.parametrize("name", [*SHARES, *CORRIDORS])
def test_recorded_sums_have_the_expected_notices(name: str) -> None:
    """The recorded windows match a training, so that rules can be tested without training."""
    recorded = json.loads(RECORDED.read_text())[name]
    env, manager = run_of(name)
    assert recorded["total_timesteps"] == manager.config.total_timesteps
    world = env(**json.loads(manager.config.env.kwargs)) if name in SHARES else env()
    assert recorded["told"] == replay(recorded, world, manager.config) == TOLD.get(name, [])


@pytest.mark.slow
def test_recorded_windows_have_the_sums_of_their_training() -> None:
    """Compares names and numbers of frames; samples and losses depend on the processor."""
    recorded = json.loads(RECORDED.read_text())["rock_paper_scissors"]
    result = record("rock_paper_scissors")
    assert result.keys() == recorded.keys()
    assert result["told"] == recorded["told"] == []
    assert [*map(sum_names, result["windows"])] == [*map(sum_names, recorded["windows"])]
    frames = [[window["run"]["frames"] for window, _ in x["windows"]] for x in (result, recorded)]
    assert frames[0] == frames[1]


def sum_names(pair: list[Sums]) -> list[dict[str, set[str]]]:
    """Return the names of the sums of a window and of its constants, by kind."""
    return [{kind: set(part) for kind, part in sums.items()} for sums in pair]


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARES)
def test_committed_configuration_trains(name: str, tmp_path: Path) -> None:
    """For one update with few frames."""
    few = ["rollout.num_envs=8", "rollout.steps=32", "rollout.processes=1", "optim.bs=160"]
    few += ["optim.update_epochs=1", "total_timesteps=1", f"data_dir={tmp_path}"]
    manager = StateManager(init_path=ROOT / f"configs/{name}.ron", overrides=few)
    config = manager.config
    config.eval = None
    train(manager, ENV_REGISTRY[config.env.id])
    assert manager.state.step > 0


# -- Saves and files -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1536, 3072])
def test_resumed_run_has_the_same_notices_at_the_same_steps(
    stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worlds: Any
) -> None:
    """The first stop is in the window before the notice, the second one after the notice."""
    monkeypatch.setattr(learning_diagnostics, "LEAST_WINDOW", 1024)
    monkeypatch.setattr(learning_diagnostics, "EXAMINE_EVERY", 512)
    settings = [*QUICK, "rollout.num_envs=64", "optim.bs=256", "total_timesteps=4096"]
    straight = go(tmp_path / "straight", lambda: worlds.Steps(scale=0), *settings)
    go(tmp_path / "resumed", lambda: worlds.Steps(scale=0), *settings, stops=stop)
    resumed = go(tmp_path / "resumed", lambda: worlds.Steps(scale=0), *settings)
    assert resumed.state.restart == 1
    assert resumed.state.memory[NOTICES] == straight.state.memory[NOTICES]
    assert resumed.state.memory[NOTICES]["told"] == ["reward"]
    rows = [tracked(tmp_path / name / "run/metrics.jsonl") for name in ("straight", "resumed")]
    output = [[row for row in run_notices if row["kind"] == "notice"] for run_notices in rows]
    assert output[0] == output[1]
    assert [row["step"] for row in output[0]] == [2048]


@pytest.mark.slow
def test_resuming_an_earlier_save_drops_the_row_of_a_notice(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    worlds: Any,
) -> None:
    monkeypatch.setattr(learning_diagnostics, "LEAST_WINDOW", 1024)
    monkeypatch.setattr(learning_diagnostics, "EXAMINE_EVERY", 512)
    settings = [*QUICK, "rollout.num_envs=64", "optim.bs=256", "total_timesteps=2048"]
    settings += ["checkpoint.every_seconds=0", "checkpoint.keep=9"]
    run_dir = tmp_path / "run"
    go(tmp_path, lambda: worlds.Steps(scale=0), *settings)
    for path in run_dir.glob("step-000000002048*"):
        path.rename(tmp_path / "gone")
    go(tmp_path, lambda: worlds.Steps(scale=0), *settings)
    rows = tracked(run_dir / "metrics.jsonl")
    assert [row["step"] for row in rows if row["kind"] == "notice"] == [2048]
    capsys.readouterr()
    assert run(["inspect", str(run_dir)]) == 0
    line = (
        "step 2048: the reward was 0 in all 2,048 frames: there is nothing to learn from; see docs/"
    )
    assert capsys.readouterr().out.count(line) == 1


WRONG: list[Any] = [
    *(None, 3, [], {}, {"told": []}),
    {**new_memory(), "told": [1]},
    {**new_memory(), "told": "reward"},
    {**new_memory(), "more": 1},
    {**new_memory(), "windows": [{}]},
    {**new_memory(), "windows": [new_sums()] * (PATIENCE + 1)},
    {**new_memory(), "windows": {"run": {}}},
    {**new_memory(), "whole": {"run": 1}},
    {**new_memory(), "whole": {"run": {**new_sums()["run"], "frames": "1"}}},
    {**new_memory(), "window": {"run": {**new_sums()["run"], "frames": math.inf}}},
    {**new_memory(), "constants": [1]},
    {**new_memory(), "constants": {"Mark": {"x": None}}},
    {**new_memory(), "constants": {"Mark": ["x"]}},
    {**new_memory(), "kls": [math.nan]},
    {**new_memory(), "kls": ["1"]},
    {**new_memory(), "kls": {}},
    {**new_memory(), "kls": [0.0] * 99},
]


@pytest.mark.parametrize("saved", WRONG, ids=str)
def test_invalid_memory_in_a_save_is_reset(saved: Any) -> None:
    assert restored(saved) == new_memory()


def test_memory_of_a_run_is_restored() -> None:
    memory = {**new_memory(), "told": ["reward"], "constants": {"Mark": {"x": 1.0}}}
    memory["windows"] = [new_sums(), new_sums()]
    assert restored(json.loads(json.dumps(memory))) == memory
    before = {name: part for name, part in memory.items() if name != "kls"}  # of earlier releases
    assert restored(before) == memory


def test_enn_inspect_lists_the_notices_of_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    manager = StateManager(
        overrides=[*QUICK, "total_timesteps=2048", f"data_dir={tmp_path}"], checkpoint_dir=folder
    )
    train(manager, Identity)
    metrics = folder / "metrics.jsonl"
    assert run(["inspect", str(folder)]) == 0
    assert "notices:" not in capsys.readouterr().out
    row = {"step": 7, "kind": "notice", "notice": "reward", "text": "a\x1b[31mb", "page": "p.md#x"}
    torn = ['{"kind": "notice"', '[{"kind": "notice"}]', json.dumps({**row, "text": 1})]
    before = metrics.read_text()
    line = "notices:\nstep 7: a\\x1b[31mb; see p.md#x\n"
    metrics.write_text("\n".join([*torn, before + json.dumps(row), "x" * 99]))
    for path in (folder, f"{folder}@latest"):
        assert run(["inspect", str(path)]) == 0
        assert line in capsys.readouterr().out
    metrics.unlink()
    os.mkfifo(metrics)
    assert run(["inspect", str(folder)]) == 0
    assert "notices:" not in capsys.readouterr().out


@pytest.mark.slow
def test_enn_inspect_lists_the_notices_of_a_run_without_saves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], worlds: Any
) -> None:
    manager, [row] = trained(tmp_path, partial(worlds.Steps, scale=0), "total_timesteps=6144")
    capsys.readouterr()
    folder = logs_of(tmp_path, manager)
    assert run(["inspect", str(folder)]) == 0
    out = capsys.readouterr().out
    assert out.startswith(f"{folder}: a run without saves\n\nnotices:\nstep 6144: {row['text']}")
    (folder / "metrics.jsonl").unlink()
    assert run(["inspect", str(folder)]) == 1


def test_diff_of_saves_ignores_sums_of_notices(
    meadow_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["checkpoints", "diff", f"{meadow_run}@48", f"{meadow_run}@72"]) == 1
    out = capsys.readouterr().out
    assert "memory.returns" in out
    assert "notices" not in out


# -- Windows ---------------------------------------------------------------------------------------


@given(st.integers(1, 5000), st.integers(1, 60))
def test_rollouts_are_examined_once_per_interval(size: int, num: int) -> None:
    examined = [step for step in range(0, size * num, size) if is_examined(step, size)]
    assert len(examined) == len({(step + size) // EXAMINE_EVERY for step in examined})
    assert len(examined) == min(num, size * num // EXAMINE_EVERY) or size > EXAMINE_EVERY


def test_windows_are_a_twentieth_of_the_run_within_limits() -> None:
    totals = [1, 60_000, 1_000_000, 2**60]
    expected = [LEAST_WINDOW, LEAST_WINDOW, 50_000, MOST_WINDOW]
    assert [window_frames(total) for total in totals] == expected
