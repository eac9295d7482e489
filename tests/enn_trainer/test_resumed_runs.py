"""A run that was stopped and resumed is the run that went straight on, bit for bit."""

import dataclasses
import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from enn_trainer import CheckpointError, State, StateManager, Trainer, load_checkpoint, train
from enn_trainer.algorithms.ppo.reward_scaling import RewardScaling
from enn_trainer.callbacks import Callback
from enn_trainer.checkpoints import state_files
from enn_trainer.checkpoints.format import save_name, verify
from enn_trainer.checkpoints.writer import save
from enn_trainer.experience.envs import env_factory
from enn_trainer.run.running_episodes import continue_episodes
from enn_trainer.stop_conditions import AtLeast, Condition, Steps
from enn_trainer.tracking import track
from entity_env import EntityEnvError, EnvList
from entity_env.examples import ENV_REGISTRY
from entity_env.serialization.messages import unpack
from entity_env.vec.vec_env import AddMetricsWrapper
from rogue_net.input_norm import Moments
from tests.enn_trainer.builders import SMALL
from tests.enn_trainer.resuming import (
    assert_same,
    assert_same_clocks,
    go,
    tracked,
)
from tests.enn_trainer.worlds import Meadow, Pasture

TINY = [
    "rollout.num_envs=4",
    "rollout.steps=6",
    "rollout.processes=1",
    "optim.bs=12",
    "optim.update_epochs=1",
    "net.d_model=8",
    "net.n_layer=1",
    "total_timesteps=48",
    "capture_samples=rollouts.rec",
]
"""Two updates."""


def rows(folder: Path) -> list[dict[str, Any]]:
    """What was tracked, without what takes time."""
    return tracked(folder / "run/metrics.jsonl")


@pytest.fixture(autouse=True, scope="module")
def _named_alike() -> Iterator[None]:
    """The name of a run is in its recordings."""

    def name(runs: Path | None, config: Any) -> str:
        return "it"

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(track, "_new_run_name", name)
        yield


@pytest.fixture(scope="module")
def pasture_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in `Pasture` that is over."""
    folder = tmp_path_factory.mktemp("pasture")
    go(folder, Pasture, *SMALL)
    return folder / "run"


def assert_same_runs(one: Path, other: Path) -> None:
    """All that they leave: states, numbers, recordings."""
    first, second = (load_checkpoint(folder / "run").state for folder in (one, other))
    assert_same(first, second)
    assert_same_clocks(first, second)
    assert rows(other) == rows(one)
    files = [path.relative_to(one) for path in one.glob("*.rec")]
    assert files
    for file in files:
        assert (other / file).read_bytes() == (one / file).read_bytes(), file


WORKERS = [("Minefield", 1, 2), ("Duel", 2, 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "first", "second"), [*((name, 1, 1) for name in ENV_REGISTRY), *WORKERS]
)
def test_every_example_resumes_bit_for_bit(
    tmp_path: Path, name: str, first: int, second: int
) -> None:
    """From the save of the first of two updates."""
    env = ENV_REGISTRY[name]
    every_update = ["checkpoint.every_seconds=0", f"rollout.processes={first}"]
    go(tmp_path / "straight", env, *TINY, *every_update)
    shutil.copytree(tmp_path / "straight", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed/run" / save_name(48))
    assert load_checkpoint(tmp_path / "resumed/run").state.step == 24
    resumed = go(tmp_path / "resumed", env, f"rollout.processes={second}")
    assert resumed.state.restart == 1
    assert_same_runs(tmp_path / "straight", tmp_path / "resumed")


EVERYTHING = [
    *SMALL,
    "total_timesteps=144",
    "capture_samples=rollouts.rec",
    "eval.steps=3",
    "eval.interval=48",
    "eval.num_envs=4",
    "eval.processes=1",
    "eval.opponent=random",
    "eval.capture_samples=evals.rec",
    "eval.suites={other: (steps: 4)}",
    "optim.lr=step: 0.01@0 lin 0.001@144",
    "optim.bs=step: 6@0 step 12@96",
    "ppo.reward_scaling=true",
    'ppo.ent_targets={"walk": 0.5}',
    "ppo.magnet.every=96",
    "vf_net.d_model=8",
    "vf_net.n_layer=1",
]


class Straight(NamedTuple):
    """A run that went straight on."""

    folder: Path
    settings: list[str]
    numbers: Any


@pytest.fixture(scope="module")
def run_with_everything(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    folder = tmp_path_factory.mktemp("everything")
    shown = go(folder / "shown", Pasture, *SMALL, "capture_samples=shown.rec")
    assert shown.state.step == 72
    settings = [*EVERYTHING, f"bc.path={folder / 'shown/shown.rec'}", "bc.bs=3"]
    straight: Any = go(folder / "straight", Pasture, *settings)
    return Straight(folder / "straight", settings, straight.numbers)


@pytest.mark.slow
@pytest.mark.parametrize(("stops", "processes"), [(24, 2), (48, 1), (72, 1)])
def test_run_with_all_features_resumes_bit_for_bit(
    tmp_path: Path, run_with_everything: Straight, stops: int, processes: int
) -> None:
    """Stopped before, at and after an evaluation; with others before and after."""
    straight = run_with_everything
    halves = [
        go(tmp_path, Pasture, *straight.settings, stops=stops),
        go(tmp_path, Pasture, f"rollout.processes={processes}", stops=stops + 24),
        go(tmp_path, Pasture),
    ]
    assert halves[-1].state.restart == 2
    assert_same_runs(straight.folder, tmp_path)
    told = [numbers for half in halves for numbers in half.numbers]  # type: ignore[attr-defined]
    assert repr(told) == repr(straight.numbers)
    assert any(row["kind"] == "eval" for row in rows(straight.folder))


@pytest.mark.slow
def test_resumed_run_stops_where_it_would_have_stopped(tmp_path: Path) -> None:
    """A condition looks at an evaluation of before the run was resumed."""
    settings = [*SMALL, "total_timesteps=240", "eval.steps=3", "eval.interval=1000"]
    first = ["eval.run_on_first_step=true", "capture_samples=rollouts.rec"]
    stop: Condition = AtLeast("eval/step.mean", 0.0) & Steps(96)
    go(tmp_path / "straight", Pasture, *settings, *first, stop=stop)
    go(tmp_path / "resumed", Pasture, *settings, *first, stops=24, stop=stop)
    go(tmp_path / "resumed", Pasture, stop=stop)
    assert load_checkpoint(tmp_path / "resumed/run").state.step == 96
    assert_same_runs(tmp_path / "straight", tmp_path / "resumed")


@pytest.mark.slow
def test_tensorboard_has_no_duplicate_values(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    go(tmp_path, Pasture, *SMALL, stops=0)
    folder = tmp_path / "run"
    go(tmp_path, Pasture)
    for path in folder.glob("step-*72"):
        path.rename(tmp_path / "lost")
    go(tmp_path, Pasture)  # from step 24 again
    events = EventAccumulator(str(tmp_path / "run")).Reload()
    assert [e.step for e in events.Scalars("losses/entropy")] == [24, 48, 72]


def pastures(config: Any, num_envs: int, processes: int, first: int) -> EnvList:
    """A factory, which may read `env.id`."""
    return EnvList(Pasture, num_envs, first)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("env", "change", "why"),
    [
        (Meadow, "seed=1", "Meadow cannot save its state; derive it from PlainState to resume"),
        (Pasture, "rollout.num_envs=8", "rollout.num_envs was 6"),
        (pastures, "env.id=Other", "env.id was "),
    ],
)
def test_episodes_restart_if_they_cannot_continue(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], env: Any, change: str, why: str
) -> None:
    """They are a function of the save, and this is said."""
    go(tmp_path, env, *SMALL, "ppo.reward_scaling=true", stops=0)
    results = []
    for name in ("a", "b"):
        manager = StateManager(
            init_path=tmp_path / "run", overrides=[change, f"data_dir={tmp_path / name}"]
        )
        train(manager, env)
        results.append(manager.state)
        assert f"at step 24; episodes restart, because {why}" in capsys.readouterr().out
    assert_same(*results)


EDITED = """
from tests.enn_trainer.worlds import Meadow
from entity_env import PlainState

class Edited(PlainState, Meadow):
    def __init__(self):
        self.bonus = 2.0

    def _observe(self, reward):
        return super()._observe(reward + self.bonus)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("old", "new", "processes"),
    [("bonus = 2.0", "bonus = 50.0", 1), ("= 2.0", "= 2.0\n        self.more = 1", 2)],
)
def test_edited_environment_code_restarts_episodes(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    old: str,
    new: str,
    processes: int,
) -> None:
    """A state has also the attributes that `__init__` sets, as they were."""
    monkeypatch.syspath_prepend(tmp_path)

    def edited(code: str) -> Any:
        (tmp_path / "edited_world.py").write_text(code)
        monkeypatch.delitem(sys.modules, "edited_world", raising=False)
        importlib.invalidate_caches()
        return importlib.import_module("edited_world").Edited

    go(tmp_path, edited(EDITED), *SMALL, f"rollout.processes={processes}", stops=0)
    capsys.readouterr()
    go(tmp_path, edited(EDITED), stops=24)
    assert "its episodes go on" in capsys.readouterr().out
    resumed = go(tmp_path, edited(EDITED.replace(old, new)))
    why = "episodes restart, because the environment's code changed (edited_world.Edited)"
    assert why in capsys.readouterr().out
    assert ("50.0" in new) == (resumed.state.metrics["reward.max"] > 40)


def test_failed_run_begins_new_episodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Fails(Callback):
        def on_update_end(self, trainer: Any, metrics: dict[str, float]) -> None:
            raise OSError("as if the disk were full")

    with pytest.raises(OSError, match="disk"):
        train(
            StateManager(
                overrides=[*SMALL, f"data_dir={tmp_path}"], checkpoint_dir=tmp_path / "run"
            ),
            Pasture,
            callbacks=[Fails()],
        )
    assert load_checkpoint(tmp_path / "run").state.envs is None
    go(tmp_path, Pasture)
    assert "resumed" in (said := capsys.readouterr().out)
    assert "at step 24; episodes restart, because the checkpoint has none: " in said
    assert "error" in said.partition("the checkpoint has none: ")[2]


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
def test_resumed_run_names_the_environment_without_state_and_a_remedy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], processes: int
) -> None:
    def make(config: Any, num_envs: int, processes: int, first: int) -> Any:
        return env_factory(Meadow)(config, num_envs, processes, first)

    cured = "cannot save its state; derive it from PlainState to resume mid-episode\n"
    go(tmp_path, Meadow, *SMALL, f"rollout.processes={processes}", stops=0)
    for env, setting, name in (
        (Meadow, "seed=0", "Meadow"),
        (make, "env.id=tests/enn_trainer/worlds.py:Meadow", "Meadow"),
        (make, "env.id=another", "this environment"),
    ):
        capsys.readouterr()
        go(tmp_path, env, setting, "total_timesteps=24")
        assert f"episodes restart, because {name} {cured}" in capsys.readouterr().out


class NotPlain(Pasture):
    def get_state(self) -> dict[str, Any]:
        return super().get_state() | {"what": (1, 2)}


def test_unserializable_state_fails_the_run_before_it_begins(tmp_path: Path) -> None:
    with pytest.raises(EntityEnvError, match=r"environment 0 \(NotPlain\): get_state: .* tuple"):
        go(tmp_path, NotPlain, *SMALL, stops=24)
    assert not list((tmp_path / "run").glob("step-*"))


@pytest.mark.slow
def test_custom_vectorised_environments_resume(tmp_path: Path) -> None:
    class Own(EnvList):
        def get_state(self) -> dict[str, Any] | None:
            state = super().get_state()
            return None if state is None else {**state, "mine": 2**70}

        def set_state(self, state: Any, obs_config: Any) -> Any:
            assert state["mine"] == 2**70
            return super().set_state(state, obs_config)

    def make(config: Any, num_envs: int, processes: int, first: int) -> Own:
        return Own(Pasture, num_envs, first)

    settings = [*SMALL, "capture_samples=rollouts.rec"]
    go(tmp_path / "straight", make, *settings)
    go(tmp_path / "resumed", make, *settings, stops=24)
    go(tmp_path / "resumed", make)
    assert_same_runs(tmp_path / "straight", tmp_path / "resumed")


@pytest.mark.slow
def test_trainer_continues_episodes_that_another_saved(tmp_path: Path) -> None:
    """In the same process, and from no older save than the state is of."""
    go(tmp_path / "straight", Pasture, *SMALL)
    for steps_unsaved in (0, 1):
        folder = tmp_path / str(steps_unsaved)
        manager = StateManager(overrides=[*SMALL, f"data_dir={folder}"], checkpoint_dir=folder)
        with Trainer(manager, Pasture) as trainer:
            trainer.step()
            trainer.save()
            for _ in range(steps_unsaved):
                trainer.step()
        with Trainer(manager, Pasture) as trainer:
            trainer.run()
        straight = load_checkpoint(tmp_path / "straight/run").state
        same = all(
            torch.equal(a, b)
            for a, b in zip(
                straight.agent.parameters(), manager.state.agent.parameters(), strict=True
            )
        )
        assert same == (steps_unsaved == 0)


CHANGED: dict[str, Any] = {
    "step": 7,
    "restart": 3,
    "next_eval_step": 11,
    "time_used": 2.5,
    "run_name": "another",
    "tracker_ids": {"wandb": "abc"},
    "memory": {"asked": 4},
    "metrics": {"a": float("nan"), "b": -float("inf"), "c": 0.1},
    "envs": b"\0\1",
}
CHANGED_IN_PPO: dict[str, Any] = {
    "ent_tunings": {"walk": torch.tensor([1.5, -0.5])},
    "reward_scaling": RewardScaling(
        Moments(torch.tensor([3]), *torch.tensor([[1.0], [2.0]], dtype=torch.float64)),
        torch.arange(6, dtype=torch.float64),
    ),
}
OF_THE_NETWORK = ("agent", "parts")
"""The rest of the tests compares these."""
OF_THE_WORLD = ("obs_space", "action_space")
"""They are compared when a run is resumed."""


@pytest.mark.slow
def test_every_field_of_a_state_is_saved(tmp_path: Path) -> None:
    names = {f.name for f in dataclasses.fields(State)}
    assert names == {*CHANGED, *OF_THE_NETWORK, *OF_THE_WORLD}, "say how a new field is saved"
    extra = ["ppo.reward_scaling=true", 'ppo.ent_targets={"walk": 0.5}', "vf_net.d_model=8"]
    manager = go(tmp_path, Pasture, *SMALL, *extra)
    for name, value in {**CHANGED, **CHANGED_IN_PPO}.items():
        state = dataclasses.replace(manager.state)
        if name == "reward_scaling":
            state.algorithm.reward_transforms[name] = value
        else:
            setattr(state, name, value)
        files = state_files.to_files(manager.config, state)
        (tmp_path / name).mkdir()
        saved = save(tmp_path / name, state.step, files, "test")
        read = state_files.restore(saved, manager.config)
        np.testing.assert_equal(as_plain(getattr(read, name)), as_plain(value), name)
        assert_same(read, manager.state)
        for space in OF_THE_WORLD:
            assert repr(getattr(read, space)) == repr(getattr(manager.state, space))


def as_plain(value: Any) -> Any:
    if isinstance(value, RewardScaling):
        return [*(m.numpy() for m in value.moments), value.returns.numpy()]
    if isinstance(value, dict):
        return {k: v.numpy() if isinstance(v, torch.Tensor) else v for k, v in value.items()}
    return value


@pytest.mark.slow
@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        state_files.pack([]),
        state_files.pack({"version": 99}),
        state_files.pack(np.zeros(0)),
        state_files.pack({"version": np.zeros(0), "metrics": {}, "envs": None}),
        state_files.pack({"version": 1, "metrics": {"a": "b"}, "envs": None}),
        state_files.pack({"version": 1, "metrics": {}, "envs": "text"}),
        b"\xdd\xff\xff\xff\xff" * 100,
    ],
)
def test_damaged_rest_is_refused(tmp_path: Path, pasture_run: Path, data: bytes) -> None:
    manager = load_checkpoint(pasture_run)
    files = state_files.to_files(manager.config, manager.state)
    (tmp_path / "x").mkdir()
    saved = save(tmp_path / "x", 72, {**files, state_files.REST: data}, "test")
    with pytest.raises(CheckpointError, match=r"state\.rest\.msgpack"):
        state_files.restore(verify(saved.path), manager.config)


@pytest.mark.parametrize(
    "envs", [{}, {"step": 72}, {"step": 72, "settings": {}, "envs": {"steps": 3}}, [1]]
)
def test_damaged_episodes_are_refused(tmp_path: Path, pasture_run: Path, envs: Any) -> None:
    manager = StateManager(init_path=pasture_run)
    manager.state.envs = state_files.pack(envs)
    (tmp_path / "x").mkdir()
    manager.checkpoint(str(tmp_path / "x"))
    damaged = StateManager(init_path=tmp_path / "x", overrides=[f"data_dir={tmp_path / 'x'}"])
    with pytest.raises(CheckpointError, match=r"step-0*72: the saved episodes cannot be read"):
        train(damaged, Pasture)


def test_counts_that_are_too_large_are_refused(pasture_run: Path) -> None:
    state, config = (manager := load_checkpoint(pasture_run)).state, manager.config
    assert state.envs is not None
    saved = unpack(state.envs)
    saved["envs"]["episode_totals"]["steps"] = 2**300
    state.envs = state_files.pack(saved)
    envs = AddMetricsWrapper(EnvList(Pasture, 6))
    with pytest.raises(CheckpointError, match=r"^x: the saved episodes cannot be read"):
        continue_episodes(envs, state, config, "x")
