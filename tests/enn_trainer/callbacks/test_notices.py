"""Notices: sums against loops, each fault with a world that has it and one that has not."""

import json
import math
import os
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from enn_trainer import StateManager, train
from enn_trainer.callbacks import notices, notices_of_updates
from enn_trainer.callbacks.notice import PAGE, Notice, Sums
from enn_trainer.callbacks.notices import (
    EXAMINE_EVERY,
    LEAST_WINDOW,
    MOST_WINDOW,
    NOTICES,
    PATIENCE,
    choice_sums,
    is_examined,
    new_memory,
    new_sums,
    restored,
    run_sums,
    update_constants,
    window_frames,
)
from enn_trainer.cli import run
from entity_env import Entity, Flag, Kind, ObsSpace
from entity_env.examples import ENV_REGISTRY
from entity_env.kinds import label_dtype
from entity_env.testing import Identity
from rogue_net.ragged import EntityBatch, RaggedTensor
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
from tests.enn_trainer.tracking.rollouts import SPACE, collected

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
def test_a_fault_is_told_once_and_a_world_without_it_has_no_notice(
    fault: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    worlds: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, faulty, sound, keys, settings = FAULTS[fault]
    monkeypatch.setattr(notices, "LEAST_WINDOW", 1024 if settings is LEARNING else 512)
    monkeypatch.setattr(notices, "EXAMINE_EVERY", 512)
    env = partial(getattr(worlds, world), **faulty)
    _, rows = trained(tmp_path / "faulty", env, *settings)
    assert sorted(row["notice"] for row in rows) == sorted(keys)
    lines = [line for line in capsys.readouterr().out.splitlines() if "notice: " in line]
    assert lines == [f"notice: {row['text']}; see {row['page']}" for row in rows]
    env = partial(getattr(worlds, world), **sound)
    assert trained(tmp_path / "sound", env, *settings)[1] == []


@pytest.mark.slow
def test_an_environment_whose_episode_holds_up_a_round_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Episodes of all other environments end, which measure nothing until its own does."""
    monkeypatch.setattr(notices, "LEAST_WINDOW", 512)
    monkeypatch.setattr(notices, "LONG_EPISODE", 100)
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
def test_a_flat_return_of_both_sides_of_a_match_is_no_sign(
    processes: int, env: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "LEAST_WINDOW", 256)
    monkeypatch.setattr(notices, "EXAMINE_EVERY", 256)
    settings = ["total_timesteps=2560", "optim.bs=128", "rollout.num_envs=16"]
    manager, rows = trained(tmp_path, env, *settings, f"rollout.processes={processes}")
    assert rows == []
    state = manager.state
    of_one = notices.notices(state.memory[NOTICES], state.obs_space, state.action_space)
    assert {notice.key for notice in of_one} == {"explained", "feature/__global__"}


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
    told = manager.state.memory[NOTICES]["told"]
    # Another processor learns something else by rounding, and may not lose it again.
    assert {*told} - {"collapse"} == {*TOLD.get(name, [])} - {"collapse"}


@pytest.mark.parametrize("name", [*SHARES, *CORRIDORS])
def test_recorded_sums_have_the_expected_notices(name: str) -> None:
    """The windows of the same training, of which the rules are tested without it."""
    recorded = json.loads(RECORDED.read_text())[name]
    env, manager = run_of(name)
    assert recorded["total_timesteps"] == manager.config.total_timesteps
    world = env(**json.loads(manager.config.env.kwargs)) if name in SHARES else env()
    assert recorded["told"] == replay(recorded, world, manager.config) == TOLD.get(name, [])


@pytest.mark.slow
def test_recorded_windows_have_the_sums_of_their_training() -> None:
    """By name, and the numbers of frames: processors differ in what is drawn and learnt."""
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


def test_the_page_explains_every_notice() -> None:
    """Each under a heading, whose anchor is in the text of the module."""
    text = "".join(Path(m.__file__).read_text() for m in (notices, notices_of_updates))
    anchors = set(re.findall(r'^ +"([a-z]+(?:-[a-z]+){2,})",$', text, re.MULTILINE))
    headings = re.findall(r"^#+ (.*)$", (ROOT / PAGE).read_text(), re.MULTILINE)
    slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert len(anchors) == 13
    assert anchors <= slugs


# -- Saves and files -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("stop", [1536, 3072])
def test_a_resumed_run_tells_the_same_notices_at_the_same_steps(
    stop: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, worlds: Any
) -> None:
    """The first stop is in the window before the notice, the second one after the notice."""
    monkeypatch.setattr(notices, "LEAST_WINDOW", 1024)
    monkeypatch.setattr(notices, "EXAMINE_EVERY", 512)
    settings = [*QUICK, "rollout.num_envs=64", "optim.bs=256", "total_timesteps=4096"]
    straight = go(tmp_path / "straight", lambda: worlds.Steps(scale=0), *settings)
    go(tmp_path / "resumed", lambda: worlds.Steps(scale=0), *settings, stops=stop)
    resumed = go(tmp_path / "resumed", lambda: worlds.Steps(scale=0), *settings)
    assert resumed.state.restart == 1
    assert resumed.state.memory[NOTICES] == straight.state.memory[NOTICES]
    assert resumed.state.memory[NOTICES]["told"] == ["reward"]
    rows = [tracked(tmp_path / name / "run/metrics.jsonl") for name in ("straight", "resumed")]
    told = [[row for row in of_run if row["kind"] == "notice"] for of_run in rows]
    assert told[0] == told[1]
    assert [row["step"] for row in told[0]] == [2048]


@pytest.mark.slow
def test_a_save_made_before_the_notice_drops_its_row_when_it_is_resumed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    worlds: Any,
) -> None:
    monkeypatch.setattr(notices, "LEAST_WINDOW", 1024)
    monkeypatch.setattr(notices, "EXAMINE_EVERY", 512)
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
def test_anything_else_in_a_save_begins_anew(saved: Any) -> None:
    assert restored(saved) == new_memory()


def test_the_memory_of_a_run_is_restored() -> None:
    memory = {**new_memory(), "told": ["reward"], "constants": {"Mark": {"x": 1.0}}}
    memory["windows"] = [new_sums(), new_sums()]
    assert restored(json.loads(json.dumps(memory))) == memory
    before = {name: part for name, part in memory.items() if name != "kls"}  # of earlier releases
    assert restored(before) == memory


def test_enn_inspect_tells_the_notices_of_a_run(
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
def test_enn_inspect_tells_the_notices_of_a_run_without_saves(
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


def test_differences_of_saves_have_no_sums_of_notices(
    meadow_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["checkpoints", "diff", f"{meadow_run}@48", f"{meadow_run}@72"]) == 1
    out = capsys.readouterr().out
    assert "memory.returns" in out
    assert "notices" not in out


# -- Sums ------------------------------------------------------------------------------------------


def choices_by_loops(rollout: Any) -> Sums:
    """The sums of `choice_sums`, actor by actor."""
    idle = sum(
        all(action.actors.lengths[frame] == 0 for action in rollout.batch.actions.values())
        for frame in range(rollout.num_frames)
    )
    sums: Sums = {"run": {"examined": rollout.num_frames, "idle": idle}}
    for name, space in SPACE.items():
        labels = getattr(space, "labels", [])
        chosen, mask = rollout.actions[name].values, rollout.batch.actions[name].mask
        if not labels or not len(chosen):
            continue
        policy = sums[f"policy/{name}"] = {"choosing": 0.0, "entropy": 0.0}
        chance, taken = (
            sums.setdefault(f"{kind}/{name}", dict.fromkeys(labels, 0.0))
            for kind in ("chance", "taken")
        )
        for actor, choice in enumerate(chosen.tolist()):
            row = [True] * len(labels) if mask is None else mask.values[actor].tolist()
            legal = [label for label, allowed in zip(labels, row, strict=True) if allowed]
            if len(legal) < 2:
                continue
            policy["choosing"] += 1
            policy["entropy"] += float(rollout.entropies[name].values[actor])
            for label in legal:
                chance[label] += 1 / len(legal)
            taken[labels[choice]] += 1
    return sums


def assert_close(got: Sums, expected: Sums) -> None:
    assert got.keys() == expected.keys()
    for kind, numbers in expected.items():
        assert got[kind] == pytest.approx(numbers, rel=1e-5), kind


@pytest.mark.slow
@settings(max_examples=15)
@given(st.integers(0, 99))
def test_sums_of_choices_are_those_of_loops(seed: int) -> None:
    _, rollout = collected(seed)
    assert_close(choice_sums(rollout, SPACE), choices_by_loops(rollout))  # type: ignore[arg-type]


def test_actions_with_very_many_labels_are_not_examined(monkeypatch: pytest.MonkeyPatch) -> None:
    """As saves would have numbers of each of them, and be too large to be read."""
    _, rollout = collected(0)
    assert {"taken/walk", "taken/call"} <= choice_sums(rollout, SPACE).keys()  # type: ignore[arg-type]
    monkeypatch.setattr(notices, "MOST_LABELS", 2)
    found = choice_sums(rollout, SPACE)  # type: ignore[arg-type]
    assert "taken/walk" not in found
    assert "taken/call" in found


def test_sums_of_a_run_are_those_of_its_metrics() -> None:
    _, rollout = collected(0)
    assert "reward.min" not in run_sums(rollout)["run"]  # without `AddMetricsWrapper`
    assert run_sums(rollout)["run"]["frames"] == rollout.num_frames
    actors = {name: len(rows.values) for name, rows in rollout.actions.items()}
    assert run_sums(rollout)["actors"] == actors


NUMBER, FLAG = st.sampled_from([0.0, 0.5]), st.integers(0, 1)
ROWS: dict[str, Any] = {
    "A": st.tuples(NUMBER, NUMBER, FLAG),
    "B": st.tuples(),
    "C": st.tuples(FLAG, st.sampled_from([0, 299])),
    "__global__": st.tuples(NUMBER, FLAG),
}


@pytest.mark.slow
@given(st.data())
def test_constants_are_the_features_without_a_second_value(data: st.DataObject) -> None:
    many = Kind("word", [*map(str, range(300))])
    space = ObsSpace(
        ["hour", Flag("wet")],
        {"A": Entity(["x", "y", Flag("open")]), "B": Entity([]), "C": Entity([Flag("on"), many])},
    )
    types = {**space.entities, "__global__": space.global_entity}
    constants: Sums = {}
    seen: dict[str, list[Any]] = {name: [] for name in types}
    for _ in range(data.draw(st.integers(1, 4))):
        features, kinds = {}, {}
        for name, entity in types.items():
            lengths = data.draw(st.lists(st.integers(0, 2), min_size=3, max_size=3))
            rows = [data.draw(ROWS[name]) for _ in range(sum(lengths))]
            values = np.array(rows, np.float32).reshape(len(rows), len(entity.columns))
            numbers, labels = np.split(values, [len(entity.features)], axis=1)
            features[name] = RaggedTensor(torch.from_numpy(numbers), np.array(lengths))
            if entity.kinds:
                indices = torch.from_numpy(labels.astype(label_dtype(entity.kinds)))
                kinds[name] = RaggedTensor(indices, np.array(lengths))
            seen[name] += values.tolist()
        update_constants(constants, EntityBatch(features, {}, {}, 3, kinds=kinds), space)
    expected = {
        name: {
            column: rows[0][i]
            for i, column in enumerate(types[name].columns)
            if len({row[i] for row in rows}) == 1
        }
        for name, rows in seen.items()
        if rows
    }
    assert constants == expected


def test_labels_that_never_vary_are_named() -> None:
    space = ObsSpace([Flag("wet")], {"Key": Entity(["x", Kind("color", ["red", "blue"])])})
    constants: Sums = {"Key": {"x": 0.5, "color": 1}, "__global__": {"wet": 0}}
    texts = [notice.text for notice in notices.notices_of_features(constants, space, 100)]
    assert [text.partition(" the same")[0] for text in texts] == [
        "Key: x and color are",
        "global features: wet is",
    ]
    assert "(0.5, blue)" in texts[0]
    assert "(False)" in texts[1]
    constants["Key"] = {"color": 7}  # of a save from before a label was removed
    [of_globals] = notices.notices_of_features(constants, space, 100)
    assert of_globals.key == "feature/__global__"


@given(st.integers(1, 5000), st.integers(1, 60))
def test_a_rollout_is_examined_in_each_of_the_stretches_that_it_ends(size: int, num: int) -> None:
    examined = [step for step in range(0, size * num, size) if is_examined(step, size)]
    assert len(examined) == len({(step + size) // EXAMINE_EVERY for step in examined})
    assert len(examined) == min(num, size * num // EXAMINE_EVERY) or size > EXAMINE_EVERY


def test_windows_are_a_twentieth_of_the_run_within_limits() -> None:
    totals = [1, 60_000, 1_000_000, 2**60]
    expected = [LEAST_WINDOW, LEAST_WINDOW, 50_000, MOST_WINDOW]
    assert [window_frames(total) for total in totals] == expected


def window(mean: float, explained: float, taken: int = 500) -> Sums:
    """Sums of a window of episodes of 10 steps, with the number of times that `c` was taken."""
    return {
        "run": {
            **new_sums()["run"],
            **{"frames": 5000.0, "examined": 5000.0, "episodes": 500.0, "return.sum": 500 * mean},
            **{
                "updates": 5.0,
                "length.sum": 5000.0,
                "explained.sum": 10 * explained,
                "explained.count": 10.0,
            },
        },
        "actors": {"do": 5000.0},
        "policy/do": {"choosing": 5000.0, "entropy": 5000 * math.log(2)},
        "chance/do": dict.fromkeys("abc", 5000 / 3),
        "taken/do": {"a": 2500.0 - taken, "b": 2500.0, "c": float(taken)},
    }


def noticed(windows: list[Sums], first: float = 0.0, best: float = 1.0) -> set[str]:
    """The keys of the notices of windows, after a first one with this return."""
    whole = notices.total_of(windows)
    whole["run"] |= {"return.min": -1.0, "return.max": best}
    whole["first"] = {"return": first}
    found: list[Notice] = [
        *notices.notices_of_choices(windows, whole, {"do": list("abc")}),
        *notices.notices_of_values(windows, whole),
    ]
    return {notice.key for notice in found}


FAULTY = [window(0.0, 0.0, 20)] * PATIENCE
ALL = {"choice/do", "entropy/do", "explained"}


@pytest.mark.parametrize(
    ("windows", "expected"),
    [
        (FAULTY, ALL),
        (FAULTY[1:], set()),  # too early
        ([window(-0.5, 0.0, 20), *FAULTY[1:]], set()),  # the return rises
        ([window(0.9, 0.0, 20)] * PATIENCE, {"entropy/do"}),  # hardly anything is left
        ([*FAULTY[1:], window(0.0, 0.3, 20)], ALL - {"explained"}),
        ([*FAULTY[1:], window(0.0, 0.0, 500)], {"explained"}),  # taken again
    ],
)
def test_signs_have_to_last_while_the_return_is_flat(
    windows: list[Sums], expected: set[str]
) -> None:
    assert noticed(windows) == expected


@pytest.mark.parametrize("entropy", [0.5, 0.1])
def test_a_policy_that_depends_on_the_frame_has_no_entropy_of_fewer_choices(entropy: float) -> None:
    """And may do without a choice, once it has learnt something and knows what comes of it."""
    windows = [window(0.0, 0.5, 20) for _ in range(PATIENCE)]
    for one in windows:
        one["policy/do"] = {"choosing": 5000.0, "entropy": 5000 * entropy}
    assert noticed(windows) == {"choice/do"}
    assert noticed(windows, first=-0.5) == set()
    for one in windows:
        one["run"]["explained.sum"] = 0.0
    assert noticed(windows, first=-0.5) == {"choice/do", "explained"}
    assert noticed(FAULTY, first=-0.5) == ALL


def test_one_choice_everywhere_is_a_choice_given_up_but_no_entropy_of_fewer() -> None:
    windows = [window(0.0, 0.5, 0)] * PATIENCE
    for one in windows:
        one["policy/do"] = {"choosing": 5000.0, "entropy": 0.0}
        one["taken/do"] = {"a": 5000.0, "b": 0.0, "c": 0.0}
    assert noticed(windows, first=-0.5) == {"choice/do"}


@pytest.mark.parametrize(
    ("explained", "expected"), [(-1.0, {"choice/do", "entropy/do"}), (-0.05, {"entropy/do"})]
)
def test_a_choice_whose_loss_has_the_best_return_so_far_is_told_if_values_are_misled(
    explained: float, expected: set[str]
) -> None:
    windows = [window(0.0, explained, 2)] * PATIENCE
    assert noticed(windows, first=-1.0, best=0.0) == expected
    for one in windows:
        one["policy/do"] = {"choosing": 5000.0, "entropy": 0.0}  # knows what to do, and is right
    assert noticed(windows, first=-1.0, best=0.0) == set()


def test_episodes_of_several_windows_are_counted_together() -> None:
    """As those of a policy that fears the end are cut off in the same windows."""

    def of_episodes(numbers: list[int]) -> list[Sums]:
        about = ({"episodes": n, "length.sum": 100.0 * n, "return.sum": 0.0} for n in numbers)
        return [
            {**one, "run": {**one["run"], **run}} for one, run in zip(FAULTY, about, strict=True)
        ]

    assert noticed(of_episodes([5, 34, 84, 11, 18, 95, 0, 7])) == ALL
    assert noticed(of_episodes([5, 34, 84, 11, 7, 18, 7, 7])) == set()


def test_equal_returns_are_told_once_they_last() -> None:
    for num in range(1, PATIENCE + 1):
        windows = [window(-1.0, 0.0)] * num
        whole = notices.total_of(windows)
        whole["run"] |= {"return.min": -1.0, "return.max": -1.0}
        told = [notice.key for notice in notices.notices_of_rewards(windows, whole)]
        assert told == (["return"] if num == PATIENCE else [])


CURVES = ROOT / "benchmarks/results/learning.jsonl"


def test_no_committed_learning_curve_is_stuck_where_it_began() -> None:
    """Also those of configurations whose training takes too long for a test.

    The mean return of all sides of a match says nothing, and no notice rests on it.
    """
    rows = [json.loads(line) for line in CURVES.read_text().splitlines()]
    rows = [row for row in rows if row.get("sides", 1) == 1 and "without" not in row["row"]]
    rows = [row for row in rows if "curve" in row]
    assert len(rows) > 20
    for row in rows:
        curve = row["curve"]
        length = max(row.get("planned", curve[-1][0]) / notices.WINDOWS_OF_RUN, LEAST_WINDOW)
        returns = [mean for _, mean in curve]
        whole: Sums = {"run": {"return.min": min(returns), "return.max": max(1.0, *returns)}}
        windows: dict[int, list[float]] = {}
        for step, mean in curve:
            windows.setdefault(int((step - 1) // length), []).append(mean)
        sums = [window(sum(means) / len(means), 0.0) for means in windows.values()]
        whole["first"] = {"return": sums[0]["run"]["return.sum"] / sums[0]["run"]["episodes"]}
        for end in range(PATIENCE, len(sums) + 1):
            assert not notices.nothing_learnt(sums[end - PATIENCE : end], whole)


def test_no_committed_run_that_learns_has_a_notice(benchmark: Any) -> None:
    controls = {row.name for row in benchmark("learning").ROWS if row.control}
    rows = [json.loads(line) for line in CURVES.read_text().splitlines()]
    assert controls < {row["row"] for row in rows}
    of_learners = [row for row in rows if row["row"] not in controls]
    assert [row["row"] for row in of_learners if row.get("notices")] == []


def test_values_of_episodes_of_one_step_may_explain_nothing() -> None:
    windows = [{**one, "run": {**one["run"], "length.sum": 500.0}} for one in FAULTY]
    assert noticed(windows) == ALL - {"explained"}


def test_choices_that_are_hardly_legal_are_not_judged() -> None:
    windows = [{**one, "chance/do": {"a": 2500.0, "b": 2500.0, "c": 40.0}} for one in FAULTY]
    assert noticed(windows) == {"explained"}
