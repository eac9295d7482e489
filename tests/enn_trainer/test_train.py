"""Runs: what they are a function of, how they are saved, resumed and loaded."""

import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from enn_trainer import (
    CheckpointError,
    ConfigError,
    State,
    StateManager,
    TrainConfig,
    init_train_state,
    load_agent,
    load_checkpoint,
    train,
)
from enn_trainer.algorithms.ppo.ppo import PPO
from enn_trainer.callbacks import run_metrics
from enn_trainer.checkpoints.state import COMMON_PARTS
from entity_env import (
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionSpace,
    InvalidSpace,
    Observation,
    ObsSpace,
)
from entity_env.examples import Xor
from rogue_net import RogueNet, RogueNetConfig
from tests.enn_trainer.builders import SMALL, run_small, weights
from tests.enn_trainer.worlds import Meadow
from tests.fork_server import ENN, start_program


@pytest.mark.slow
def test_a_run_is_a_function_of_its_configuration(tmp_path: Path) -> None:
    first, again = run_small(tmp_path), run_small(tmp_path)
    other = run_small(tmp_path, "seed=2")
    assert torch.equal(weights(first), weights(again))
    assert not torch.equal(weights(first), weights(other))


@pytest.mark.slow
def test_results_are_identical_for_any_number_of_processes(tmp_path: Path) -> None:
    """Of two workers that have three and two environments."""
    five = ["rollout.num_envs=5", "optim.bs=10", "total_timesteps=60"]
    one, two = (run_small(tmp_path, *five, f"rollout.processes={n}") for n in (1, 2))
    assert torch.equal(weights(one), weights(two))


def test_training_leaves_torch_generator_alone(tmp_path: Path) -> None:
    torch.manual_seed(0)
    expected = torch.get_rng_state()
    run_small(tmp_path)
    assert torch.equal(torch.get_rng_state(), expected)


def test_total_that_does_not_divide_rounds_up(tmp_path: Path) -> None:
    assert run_small(tmp_path, "total_timesteps=1").state.step == 24
    assert run_small(tmp_path, "total_timesteps=25").state.step == 48


def test_first_update_learns_during_warm_up(tmp_path: Path) -> None:
    before = run_small(tmp_path, "total_timesteps=24", "optim.lr=0")
    after = run_small(tmp_path, "total_timesteps=24", "optim.lr_warmup_steps=1000")
    assert not torch.equal(weights(before), weights(after))


@pytest.fixture
def _slow_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training clock that advances by a quarter of a second whenever it is read."""
    seconds = itertools.count(step=0.25)
    clock = SimpleNamespace(monotonic=lambda: next(seconds))
    monkeypatch.setattr(run_metrics, "time", clock)


@pytest.mark.usefixtures("_slow_clock")
def test_max_train_time_ends_the_run(tmp_path: Path) -> None:
    manager = run_small(tmp_path, "max_train_time=1", "total_timesteps=100000000")
    assert 0 < manager.state.step < 240
    assert 1 <= manager.state.time_used < 3


@pytest.mark.usefixtures("_slow_clock")
def test_max_train_time_counts_the_time_before_a_restart(tmp_path: Path) -> None:
    where: dict[str, Any] = {"checkpoint_dir": tmp_path / "run"}
    endless = "total_timesteps=100000000"
    first = run_small(tmp_path, "max_train_time=1", endless, **where)
    again = run_small(tmp_path, endless, **where)
    assert again.state.step == first.state.step
    assert again.state.time_used == first.state.time_used >= 1
    longer = run_small(tmp_path, "max_train_time=2", endless, **where)
    assert first.state.step < longer.state.step <= 2 * first.state.step
    assert 2 <= longer.state.time_used < first.state.time_used + 3


def test_training_time_is_wall_time(tmp_path: Path) -> None:
    start = time.monotonic()
    used = run_small(tmp_path).state.time_used
    assert 0 < used <= time.monotonic() - start


def test_run_is_named_after_environment_name_seed_and_trial(tmp_path: Path) -> None:
    """Its metrics are beside its saves, and a resumed run appends to them."""
    where: dict[str, Any] = {"checkpoint_dir": tmp_path / "run"}
    options = ["name=mine", "trial=7", "seed=3"]
    manager = run_small(tmp_path / "data", "total_timesteps=24", *options, **where)
    assert manager.state.run_name.startswith("Meadow__mine__3__7__")
    run_small(tmp_path / "data", "name=yours", "trial=8", **where)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    assert about["run_name"] == manager.state.run_name
    assert len(list((tmp_path / "run").glob("events*"))) == 2, "a file of each process"
    assert not (tmp_path / "data").exists()


def test_input_statistics_change_once_per_update(tmp_path: Path) -> None:
    """The frames of the first reset, then those of each of three rollouts."""
    manager = run_small(tmp_path)
    embedding = manager.state.agent.embedding
    assert embedding.by_type["/__global__"].norm.count.item() == 6 + 3 * 24


def test_input_statistics_include_the_first_rollout_before_learning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What changes with time is the same in all first frames; later rollouts are known after."""
    counts = []

    def optimize(ppo: PPO, *args: Any, **kwargs: Any) -> dict[str, float]:
        counts.append(ppo.agent.embedding.by_type["/__global__"].norm.count.item())
        return real(ppo, *args, **kwargs)

    real = PPO.optimize
    monkeypatch.setattr(PPO, "optimize", optimize)
    run_small(tmp_path, "total_timesteps=24", "max_train_time=0", checkpoint_dir=tmp_path / "run")
    assert counts == []
    run_small(tmp_path, "max_train_time=None", checkpoint_dir=tmp_path / "run")
    assert counts == [6 + 24, 6 + 24, 6 + 48], "also where the run was resumed before its first"


def test_resumed_run_continues(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = run_small(tmp_path, "total_timesteps=48", checkpoint_dir=folder)
    resumed = run_small(tmp_path, checkpoint_dir=folder)
    assert resumed.state.step == 72
    assert resumed.state.restart == 1
    assert resumed.state.run_name == first.state.run_name
    assert resumed.state.time_used > first.state.time_used
    fresh = load_checkpoint(folder)
    assert torch.equal(weights(fresh), weights(resumed))
    for (_, saved), (name, live) in zip(
        fresh.state.agent.named_parameters(), resumed.state.agent.named_parameters(), strict=True
    ):
        expected = resumed.state.optimizer.state[live]
        moments = fresh.state.optimizer.state[saved]
        assert moments.keys() == expected.keys()
        assert all(torch.equal(moments[key], expected[key]) for key in expected), name


@pytest.mark.slow
def test_resumed_run_is_deterministic(tmp_path: Path) -> None:
    run_small(tmp_path, "total_timesteps=48", checkpoint_dir=tmp_path / "run")
    results = [weights(run_small(tmp_path, init_path=tmp_path / "run")) for _ in range(2)]
    assert torch.equal(*results)


def test_checkpoint_restores_state_exactly(tmp_path: Path) -> None:
    manager = run_small(tmp_path, checkpoint_dir=tmp_path / "run")
    loaded = load_checkpoint(tmp_path / "run")
    assert loaded.config == manager.config
    state, expected = loaded.state, manager.state
    assert (state.step, state.restart, state.obs_space, state.action_space) == (
        expected.step,
        expected.restart,
        expected.obs_space,
        expected.action_space,
    )
    for name, tensor in expected.agent.state_dict().items():
        assert torch.equal(state.agent.state_dict()[name], tensor), name


def test_no_file_of_a_checkpoint_is_a_pickle(tmp_path: Path) -> None:
    run_small(tmp_path, checkpoint_dir=tmp_path / "run")
    files = list((tmp_path / "run").glob("step-*/*"))
    assert {p.suffix for p in files} == {".json", ".ron", ".safetensors", ".msgpack"}


def test_loaded_agent_acts_without_side_effects(tmp_path: Path) -> None:
    run_small(tmp_path, checkpoint_dir=tmp_path / "run")
    env = Meadow()
    env.seed(1)
    obs = env.reset()
    agents = [load_agent(tmp_path / "run", seed=5) for _ in range(2)]
    before = {k: v.clone() for k, v in agents[0].agent.state_dict().items()}
    torch.manual_seed(0)
    for _ in range(5):
        actions, value = agents[0].act(obs)
        again = agents[1].act(obs)
        assert again.value == value
        assert repr(again.actions) == repr(actions)
        obs = env.act(actions)
        if obs.done:
            obs = env.reset()
    after = agents[0].agent.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_agent_returns_probabilities_of_legal_choices(tmp_path: Path) -> None:
    run_small(tmp_path, checkpoint_dir=tmp_path / "run")
    agent = load_agent(tmp_path / "run", deterministic=True)
    env = Meadow()
    env.seed(3)
    for _ in range(20):
        for name, action in agent.act(env.reset()).actions.items():
            probs = action.probs
            assert probs is not None, name
            if probs.size:
                np.testing.assert_allclose(probs.reshape(-1, probs.shape[-1]).sum(-1), 1, rtol=1e-5)


@pytest.mark.slow
def test_hyperstate_manager_is_accepted_and_shows_the_result(
    hyperstate: Any, tmp_path: Path
) -> None:
    theirs = hyperstate.StateManager(
        TrainConfig, State, init_train_state, overrides=[*SMALL, f"data_dir={tmp_path}"]
    )
    assert theirs.config.rollout.num_envs == 6
    theirs.config.seed = 2
    result = train(theirs, Meadow)
    assert theirs.state.step == result.step == 72
    assert torch.equal(weights(theirs), weights(run_small(tmp_path, "seed=2")))


def test_state_of_a_hyperstate_manager_gets_the_common_parts(
    hyperstate: Any, tmp_path: Path
) -> None:
    def initial_state(config: TrainConfig, ctx: dict[str, Any]) -> State:
        state = init_train_state(config, ctx)
        return replace(state, parts={"algorithm": state.algorithm})

    settings = [*SMALL, f"data_dir={tmp_path}"]
    theirs = hyperstate.StateManager(TrainConfig, State, initial_state, overrides=settings)
    theirs.set_deserialize_ctx("obs_space", Meadow().obs_space())
    theirs.set_deserialize_ctx("action_space", Meadow().action_space())
    assert theirs.state.parts.keys() == {"algorithm"}
    train(theirs, Meadow)
    assert COMMON_PARTS.keys() < theirs.state.parts.keys()


def test_result_is_the_mean_return(tmp_path: Path) -> None:
    manager = StateManager(overrides=[*SMALL, f"data_dir={tmp_path}"])
    result = train(manager, Meadow)
    assert isinstance(result, float)
    assert 0 <= result <= 5
    assert result.checkpoint is None


def test_another_environment_than_the_checkpoint_is_refused_with_the_difference(
    tmp_path: Path,
) -> None:
    run_small(tmp_path, checkpoint_dir=tmp_path / "run")

    class Larger(Meadow):
        def obs_space(self) -> ObsSpace:
            space = super().obs_space()
            space.entities["wolf"] = Entity(["x", "teeth"])
            return space

    with pytest.raises(CheckpointError, match=r"features of wolf: added \['teeth'\]"):
        run_small(tmp_path, env=Larger, checkpoint_dir=tmp_path / "run")


@pytest.mark.slow
def test_resumed_run_ignores_the_order_of_types_and_features(tmp_path: Path) -> None:
    """A network is wired by name: the same is learnt in a world that lists them otherwise."""

    class Turned(Meadow):
        def obs_space(self) -> ObsSpace:
            space = super().obs_space()
            entities = {n: Entity(e.features[::-1]) for n, e in space.entities.items()}
            return ObsSpace(space.global_features[::-1], dict(reversed(entities.items())))

        def _observe(self, reward: float) -> Observation:
            obs = super()._observe(reward)
            known = Meadow().obs_space().entities
            obs.features = {
                n: np.reshape(rows, (len(rows), len(known[n].features)))[:, ::-1]
                for n, rows in obs.features.items()
            }
            obs.global_features = np.asarray(obs.global_features)[::-1]
            return obs

    assert any(len(e.features) > 1 for e in Meadow().obs_space().entities.values())
    run_small(tmp_path, "total_timesteps=24", checkpoint_dir=tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    evaluation = ["eval.steps=6", "eval.interval=24", "eval.capture_samples=frames"]
    learnt, measured = [], []
    for env, folder in ((Meadow, "run"), (Turned, "copy")):
        manager = StateManager(
            overrides=[*SMALL, f"data_dir={tmp_path / folder}", *evaluation],
            checkpoint_dir=tmp_path / folder,
        )
        measured.append(train(manager, env).eval)
        learnt.append(weights(manager))
        assert manager.state.step == 72
    assert torch.equal(*learnt)
    assert measured[0] == measured[1]


def test_custom_network_is_trained_saved_and_resumed(tmp_path: Path) -> None:
    env = Meadow()

    def network() -> RogueNet:
        torch.manual_seed(0)
        return RogueNet(
            RogueNetConfig(d_model=12, n_head=3), env.obs_space(), env.action_space(), {"value": 1}
        )

    mine = network()
    before = torch.cat([p.detach().flatten().clone() for p in mine.parameters()])
    manager = run_small(tmp_path, "total_timesteps=48", agent=mine, checkpoint_dir=tmp_path / "run")
    assert manager.state.agent is mine
    assert not torch.equal(before, weights(manager))
    resumed = run_small(tmp_path, agent=network(), checkpoint_dir=tmp_path / "run")
    assert resumed.state.step == 72


def test_dropout_is_off_while_acting(tmp_path: Path) -> None:
    """From the first rollout on: else the policy that learns is not the one that acted."""
    seen = set()

    class Watched(RogueNet):
        def forward(self, batch: Any, actions: Any = None, uniforms: Any = None, **_: Any) -> Any:
            seen.add(("judges" if uniforms is None else "acts", self.training))
            return super().forward(batch, actions, uniforms)

    env = Meadow()
    config = RogueNetConfig(d_model=8, resid_pdrop=0.5)
    run_small(tmp_path, agent=Watched(config, env.obs_space(), env.action_space(), {"value": 1}))
    assert seen == {("acts", False), ("judges", True)}


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("net.pooling=most", "net.pooling"),
        ("net.resid_pdrop=1", "net.resid_pdrop"),
        (
            'net.translation={"reference_entity": "Sun", "position_features": ["x"]}',
            "net: translation.reference_entity: .*got 'Sun'",
        ),
        ("capture_logits=true", "capture_logits"),
        ("optim.bs=25", "optim.bs"),
        ('env.kwargs={"speed": 3}', "env.kwargs"),
    ],
)
def test_invalid_settings_are_refused_in_one_line(
    tmp_path: Path, override: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as error:
        run_small(tmp_path, override, env=Xor)
    assert "\n" not in str(error.value)


def test_environment_that_raises_keeps_its_traceback_and_is_located(tmp_path: Path) -> None:
    class Broken(Xor):
        def act(self, actions: Any) -> Any:
            raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine") as error:
        run_small(tmp_path, env=Broken)
    assert error.value.__notes__ == ["in environment 0, episode 0, step 1"]


@pytest.mark.alone
@pytest.mark.slow
def test_ctrl_c_saves_and_prints_the_path(tmp_path: Path) -> None:
    process = start_program(
        [
            *[*ENN, "train", "env.id=MoveToOrigin", *SMALL],
            *["total_timesteps=100000000", f"data_dir={tmp_path}"],
            *["--checkpoint-dir", str(tmp_path / "run")],
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    timer = threading.Timer(100, process.kill)
    timer.start()
    with process.stdout:
        lines = [next(line for line in process.stdout if line.startswith("step "))]
        process.send_signal(signal.SIGINT)
        lines += process.stdout.readlines()
    timer.cancel()
    assert process.wait() == 130
    assert any(f"interrupted, saved {tmp_path}/run/step-" in line for line in lines), lines
    assert load_checkpoint(tmp_path / "run").state.step > 0


def test_environment_that_draws_from_the_global_generator_is_reproducible(tmp_path: Path) -> None:
    class Global(Xor):
        def reset(self) -> Any:
            super().seed(random.getrandbits(32))
            return super().reset()

        def seed(self, seed: int) -> None:
            """As an environment that has no seed."""

    first, again = run_small(tmp_path, env=Global), run_small(tmp_path, env=Global)
    assert torch.equal(weights(first), weights(again))


def test_run_leaves_global_generators_unchanged(tmp_path: Path) -> None:
    random.seed(3)
    expected = random.getstate()
    run_small(tmp_path)
    assert random.getstate() == expected


@pytest.mark.slow
def test_settings_of_the_optimizer_can_change_at_resume(tmp_path: Path) -> None:
    run_small(tmp_path, "total_timesteps=48", checkpoint_dir=tmp_path / "run")
    results = [
        run_small(tmp_path, f"optim.weight_decay={decay}", init_path=tmp_path / "run")
        for decay in (0.0, 0.9)
    ]
    assert not torch.equal(*map(weights, results))


def test_network_of_a_resumed_run_cannot_change(tmp_path: Path) -> None:
    run_small(tmp_path, checkpoint_dir=tmp_path / "run")
    with pytest.raises(CheckpointError, match=r"net.d_model: expected 8 .* got 12") as error:
        run_small(tmp_path, "net.d_model=12", checkpoint_dir=tmp_path / "run")
    assert "\n" not in str(error.value)


def test_mismatched_weights_are_refused_in_one_line(tmp_path: Path) -> None:
    run_small(tmp_path, checkpoint_dir=tmp_path / "run")
    env = Meadow()
    other = RogueNet(RogueNetConfig(d_model=4), env.obs_space(), env.action_space(), {"value": 1})
    with pytest.raises(CheckpointError, match="weights do not fit") as error:
        run_small(tmp_path, agent=other, checkpoint_dir=tmp_path / "run")
    assert "\n" not in str(error.value)


def test_folder_that_cannot_be_written_is_refused_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="--checkpoint-dir"):
        run_small(tmp_path, "total_timesteps=100000000", checkpoint_dir=tmp_path / "file")
    with pytest.raises(ConfigError, match="data_dir"):
        run_small(tmp_path, f"data_dir={tmp_path / 'file'}", "total_timesteps=100000000")


def test_statistics_start_once(tmp_path: Path) -> None:
    """A save of step 0 has seen the first frames; those of the resumed run are not added."""
    folder = tmp_path / "run"
    run_small(tmp_path, "total_timesteps=24", "max_train_time=0", checkpoint_dir=folder)
    manager = run_small(
        tmp_path, "max_train_time=None", "total_timesteps=24", checkpoint_dir=folder
    )
    embedding = manager.state.agent.embedding
    assert embedding.by_type["/__global__"].norm.count.item() == 6 + 24


def test_unchanged_hyperstate_configuration_yields_to_the_saved_one(
    hyperstate: Any, tmp_path: Path
) -> None:
    run_small(tmp_path, checkpoint_dir=tmp_path / "run")
    theirs = hyperstate.StateManager(
        TrainConfig, State, init_train_state, checkpoint_dir=tmp_path / "run"
    )
    assert theirs.config.net.d_model == 32
    train(theirs, Meadow)
    assert theirs.config.net.d_model == 8


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    names = {run_small(tmp_path, "total_timesteps=24").state.run_name for _ in range(3)}
    assert len(names) == 3


@pytest.mark.parametrize("what", ["actions", "entities"])
def test_environment_without_entities_or_actions_is_refused(tmp_path: Path, what: str) -> None:
    class Empty(Meadow):
        def obs_space(self) -> ObsSpace:
            return ObsSpace() if what == "entities" else super().obs_space()

        def action_space(self) -> dict[str, Any]:
            space = super().action_space()
            return {} if what == "actions" else {"walk": space["walk"]}

    with pytest.raises(ConfigError, match=f"env: expected .*{what}"):
        run_small(tmp_path, env=Empty)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("kind", [CategoricalActionSpace, GlobalCategoricalActionSpace])
def test_action_without_labels_is_refused_before_a_network_is_created(
    tmp_path: Path, kind: Any, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Speechless(Meadow):
        def action_space(self) -> dict[str, Any]:
            return {**super().action_space(), "walk": kind([])}

    monkeypatch.setattr(RogueNet, "__init__", lambda *_, **__: pytest.fail("made a network"))
    with pytest.raises(InvalidSpace, match=r"action_space: \['walk'\].index_to_label: expected at"):
        run_small(tmp_path, f"rollout.processes={processes}", env=Speechless)


def test_environment_may_have_an_attribute_named_seed(tmp_path: Path) -> None:
    class Seeded(Xor):
        def __init__(self) -> None:
            self.seed = 3  # type: ignore[assignment,method-assign]

    assert run_small(tmp_path, env=Seeded).state.step == 72


@pytest.mark.alone
@pytest.mark.slow
def test_group_that_is_terminated_saves(tmp_path: Path) -> None:
    """Service managers signal all processes of a run at once, workers included."""
    process = start_program(
        [
            *[*ENN, "train", "env.id=MoveToOrigin", *SMALL],
            *["total_timesteps=100000000", f"data_dir={tmp_path}", "rollout.processes=2"],
            *["--checkpoint-dir", str(tmp_path / "run")],
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    timer = threading.Timer(100, process.kill)
    timer.start()
    with process.stdout:
        lines = [next(line for line in process.stdout if line.startswith("step "))]
        os.killpg(process.pid, signal.SIGTERM)
        lines += process.stdout.readlines()
    timer.cancel()
    assert process.wait() == 143, lines
    assert load_checkpoint(tmp_path / "run").state.step > 0
