"""Runs whose arguments vary: the same bits in any number of processes, resumed, and in matches."""

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import StateManager, train
from enn_trainer.callbacks import Callback
from enn_trainer.run.trainer import Trainer
from entity_env.examples import Duel, Minefield
from entity_env.recording.read_recording import Recording
from entity_env.seeding import derive_seed
from entity_env.vec.variation import Variation
from entity_env.vec.worker import RestartQuota, WorkerProcess
from tests.enn_trainer.builders import POOL, SMALL, run_small
from tests.enn_trainer.resuming import StopsAt, assert_same, assert_same_clocks, go, tracked
from tests.enn_trainer.worlds import MadeAnew

SAMPLERS = {"max_mines": "int 0 20", "width": "uniform 150 250"}
VARY = [f"env.vary={json.dumps(SAMPLERS)}", 'env.kwargs={"max_steps": 7}']
SQUADS = 'env.vary.squad="int 1 4"'


class Changes(Callback):
    """Draws other numbers of mines from an update on."""

    def __init__(self, step: int) -> None:
        self.step = step

    def on_update_start(self, trainer: Any) -> None:
        if trainer.state.step == self.step:
            trainer.set_parameters({"max_mines": "int 30 40"})


def parameters(path: Path) -> dict[int, list[Mapping[str, Any]]]:
    """Return the arguments of the episodes of each environment, in order."""
    of_envs: dict[int, list[Mapping[str, Any]]] = {}
    for one in sorted(Recording.open(path).episodes(), key=lambda one: one.number):
        assert one.env is not None
        of_envs.setdefault(one.env, []).append(one.parameters)
    return of_envs


@pytest.mark.slow
def test_a_varied_run_is_reproducible_with_any_number_of_processes(tmp_path: Path) -> None:
    runs = []
    for name, env, processes in [
        ("one", Minefield, 1),
        ("two", Minefield, 2),
        ("anew", MadeAnew, 1),
        ("anew in two", MadeAnew, 2),
    ]:
        settings = [*VARY, f"rollout.processes={processes}", "capture_samples=a.rec"]
        manager = run_small(tmp_path / name, *settings, env=env, callbacks=[Changes(48)])
        runs.append((manager.state, parameters(tmp_path / name / "a.rec")))
    for state, drawn in runs[1:]:
        assert_same(state, runs[0][0])
        assert drawn == runs[0][1]


def test_the_first_episodes_of_a_run_have_different_arguments(tmp_path: Path) -> None:
    run_small(tmp_path, *VARY, "capture_samples=a.rec", env=Minefield)
    first = [drawn[0] for drawn in parameters(tmp_path / "a.rec").values()]
    variation, seed = Variation.of(SAMPLERS), derive_seed(1, "rollout", 0)
    assert first == [variation.arguments(seed, match, 0) for match in range(6)]
    assert len({drawn["width"] for drawn in first}) == 6


@pytest.mark.slow
@pytest.mark.parametrize(("env", "stop"), [(Minefield, 24), (MadeAnew, 48), (MadeAnew, 72)])
def test_a_run_ended_by_sigterm_mid_episode_resumes_bit_for_bit(
    tmp_path: Path, env: type[Minefield], stop: int
) -> None:
    """Before, at and after a change of what is drawn."""
    settings = [*SMALL, *VARY, "total_timesteps=120", "capture_samples=a.rec"]

    def run(folder: Path, *overrides: str, stops: int = -1) -> StateManager:
        manager = StateManager(
            overrides=[*overrides, f"data_dir={folder}"], checkpoint_dir=folder / "run"
        )
        train(manager, env, callbacks=[Changes(48), StopsAt(stops)])
        return manager

    straight = run(tmp_path / "straight", *settings)
    stopped = run(tmp_path / "resumed", *settings, stops=stop)
    assert stopped.state.step == stop + 24
    assert stopped.state.envs is not None
    resumed = run(tmp_path / "resumed")
    assert_same(straight.state, resumed.state)
    assert_same_clocks(straight.state, resumed.state)
    files = [tmp_path / name for name in ("straight", "resumed")]
    assert tracked(files[0] / "run/metrics.jsonl") == tracked(files[1] / "run/metrics.jsonl")
    assert parameters(files[0] / "a.rec") == parameters(files[1] / "a.rec")
    part = resumed.state.parts["curriculum"].state_dict()
    assert part["parameters"] == {"max_mines": "int 30 40"}


class KillsWorker(Callback):
    """Kills the newest worker after each rollout."""

    def __init__(self) -> None:
        self.started: list[WorkerProcess] = []

    def on_rollout_end(self, trainer: Any, rollout: Any) -> None:
        os.kill(self.started[-1].process.pid, signal.SIGKILL)


@pytest.mark.slow
def test_replaced_workers_draw_the_same_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kills, begin = KillsWorker(), WorkerProcess.__init__

    def counted(self: WorkerProcess, setup: Any) -> None:
        begin(self, setup)
        kills.started.append(self)

    monkeypatch.setattr(WorkerProcess, "__init__", counted)
    monkeypatch.setattr(RestartQuota, "take", lambda self: None)  # more than one in a minute
    settings = [*VARY, "rollout.processes=2", "capture_samples=a.rec"]
    calm = run_small(tmp_path / "calm", *settings, env=Minefield)
    first = len(kills.started)
    lost = run_small(tmp_path / "lost", *settings, env=Minefield, callbacks=[kills])
    assert len(kills.started) > first + 3
    assert_same(calm.state, lost.state)
    assert parameters(tmp_path / "calm/a.rec") == parameters(tmp_path / "lost/a.rec")


@pytest.mark.slow
def test_all_sides_of_matches_against_a_pool_have_the_same_arguments(tmp_path: Path) -> None:
    runs = []
    for processes in 1, 2:
        folder = tmp_path / str(processes)
        settings = [*POOL, SQUADS, "total_timesteps=576", f"rollout.processes={processes}"]
        runs.append(go(folder, Duel, *settings, "capture_samples=a.rec"))
    one, two = runs
    assert_same(one.state, two.state)
    drawn = parameters(tmp_path / "1/a.rec")
    assert drawn == parameters(tmp_path / "2/a.rec")
    for match in range(8):
        assert drawn[2 * match] == drawn[2 * match + 1]
    assert {each["squad"] for of_env in drawn.values() for each in of_env} == {1, 2, 3, 4}
    for episode in Recording.open(tmp_path / "1/a.rec").episodes():
        if episode.steps[0] == 0:
            allies = episode.decisions.obs.features["Ally"].lengths[0]
            assert allies == episode.parameters["squad"]
    tags = tracked(tmp_path / "1/run/metrics.jsonl")[0]
    assert 1 <= tags["parameters/squad.min"] <= tags["parameters/squad.max"] <= 4


@pytest.mark.slow
def test_a_run_against_a_pool_resumes_with_its_arguments_bit_for_bit(tmp_path: Path) -> None:
    settings = [*POOL, SQUADS, "total_timesteps=864"]
    straight = go(tmp_path / "straight", Duel, *settings)
    stopped = go(tmp_path / "resumed", Duel, *settings, stops=288)
    assert stopped.state.step < 864
    assert_same(straight.state, go(tmp_path / "resumed", Duel).state)


@pytest.mark.slow
def test_an_evaluation_is_independent_of_varied_training_arguments(tmp_path: Path) -> None:
    evals = ["eval.episodes=12", "eval.interval=1000", "eval.num_envs=4"]
    found = []
    for more in [], VARY[:1], ['env.vary.max_mines="0"']:
        settings = [*SMALL, VARY[1], *evals, *more, f"data_dir={tmp_path}"]
        with Trainer(StateManager(overrides=settings), Minefield) as trainer:
            before = trainer.evaluate()
            trainer.set_parameters({"max_mines": "int 1 2"})
            found += [before, trainer.evaluate()]
    assert all(scalars == found[0] for scalars in found)


@pytest.mark.slow
def test_a_run_without_samplers_is_unchanged(tmp_path: Path) -> None:
    """Also where the arguments vary by nothing."""
    plain, constant, empty = (
        run_small(tmp_path / name, VARY[1], *more, env=Minefield)
        for name, more in [
            ("plain", []),
            ("constant", ['env.vary.max_mines="int 10 10"']),
            ("empty", ["env.vary={}"]),
        ]
    )
    assert_same(plain.state, constant.state)
    assert_same(plain.state, empty.state)
