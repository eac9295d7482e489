"""Runs whose settings follow schedules: obeyed, told, saved, resumed and handed on."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from enn_trainer import (
    Callback,
    ConfigError,
    State,
    StateManager,
    TrainConfig,
    Trainer,
    init_train_state,
    load_checkpoint,
    train,
)
from enn_trainer.algorithms.optimizers import rates_at
from enn_trainer.algorithms.ppo.entropy_targets import tuned_coef
from enn_trainer.config.field_types import entries
from enn_trainer.config.load import load_config
from enn_trainer.config.schedules import follow_schedules, scheduled_fields
from enn_trainer.tracking.track import flatten_config
from entity_env.examples import MultiArmedBandit
from tests.enn_trainer.builders import SMALL, run_small, weights
from tests.enn_trainer.tracking.builders import hyperparameters, read
from tests.enn_trainer.worlds import Meadow

# Each may follow a schedule and changes what is learnt: from one value to another.
EFFECTS = {
    "optim.lr": (0.001, 0.01),
    "optim.bs": (10, 24),
    "optim.weight_decay": (0.0, 0.5),
    "optim.micro_bs": (10, 1),  # only rounding, but of every weight
    "optim.update_epochs": (3, 1),
    "optim.max_grad_norm": (2.0, 0.01),
    "ppo.gamma": (0.99, 0.5),
    "ppo.gae_lambda": (0.95, 0.5),
    "ppo.clip_coef": (0.2, 0.0001),
    "ppo.ent_coef": (0.1, 0.9),
    "ppo.vf_coef": (0.5, 0.01),
    "ppo.target_kl": (1.0, 1e-8),
}
# What the others need, to have an effect.
BESIDE = {
    "optim.max_entities": [],
    "ppo.dual_clip": ["optim.lr=0.1", "optim.update_epochs=8"],
    "ppo.vf_clip_coef": ["ppo.clip_vloss=true"],
    "ppo.huber_delta": ["ppo.value_loss=huber"],
    "ppo.ent_target_lr": ['ppo.ent_targets={"walk": 0.1}'],
    "ppo.magnet.coef": ["ppo.magnet.every=24", "optim.lr=0.01"],
}
EFFECTS |= {
    "optim.max_entities": (1000, 1),
    "ppo.dual_clip": (50.0, 1.0001),
    "ppo.vf_clip_coef": (10.0, 0.0001),
    "ppo.huber_delta": (10.0, 0.0001),
    "ppo.norm_adv_floor": (0.0, 9.0),
    "ppo.ent_target_lr": (0.1, 10.0),
    "ppo.magnet.coef": (0.01, 10.0),
}
# Each may follow a schedule and has a test of its own.
ELSEWHERE = {"eval.interval", "bc.coef"}


def at(config: TrainConfig, step: int, time_used: float = 0.0) -> TrainConfig:
    follow_schedules(config, SimpleNamespace(step=step, time_used=time_used))
    return config


def configured(*overrides: str) -> TrainConfig:
    return load_config(TrainConfig, None, [*SMALL, *overrides])


def test_every_numeric_setting_can_be_scheduled_or_has_a_reason() -> None:
    """A new one is added to EFFECTS if updates read it, else to `TrainConfig.fixed_during_run`."""
    fixed = tuple(TrainConfig.fixed_during_run())
    numbers = {
        entry.path
        for entry in entries(TrainConfig)
        if entry.type in ("int", "float", "Optional[int]", "Optional[float]")
        and "[" not in entry.path  # what is in a list never can
    }
    sections = tuple(f"{path}." for path in fixed)
    assert {p for p in numbers if p not in fixed and not p.startswith(sections)} == {
        *EFFECTS,
        *ELSEWHERE,
    }


FIXED = ["optim.anneal_lr=false", "ppo.anneal_entropy=false"]


class WeightsOfUpdates(Callback):
    """The weights of the network after each update, by step."""

    def __init__(self) -> None:
        self.weights: dict[int, torch.Tensor] = {}

    def on_update_end(self, trainer: Trainer, metrics: Mapping[str, float]) -> None:
        self.weights[trainer.state.step] = weights(trainer.manager)


def trained(tmp_path: Path, *overrides: str) -> dict[int, torch.Tensor]:
    """Return the weights after each of the updates of a run."""
    run_small(tmp_path, *FIXED, *overrides, callbacks=[seen := WeightsOfUpdates()])
    return seen.weights


@pytest.fixture(scope="module")
def constant(
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[str], tuple[list[str], dict[int, torch.Tensor]]]:
    """Return settings in which a field has the first value of `EFFECTS`, and the weights of a run.

    Fields that need no others share a run, in which all of them have their first values.
    """
    folder = tmp_path_factory.mktemp("constant")
    firsts = [f"{path}={first}" for path, (first, _) in EFFECTS.items() if not BESIDE.get(path)]
    shared = trained(folder, *firsts)

    def settings_and_weights(path: str) -> tuple[list[str], dict[int, torch.Tensor]]:
        if not BESIDE.get(path):
            return firsts, shared
        settings = [*BESIDE[path], f"{path}={EFFECTS[path][0]}"]
        return settings, trained(folder, *settings)

    return settings_and_weights


@pytest.mark.slow
@pytest.mark.parametrize("path", EFFECTS)
def test_a_schedule_applies_from_its_step(
    tmp_path: Path,
    path: str,
    constant: Callable[[str], tuple[list[str], dict[int, torch.Tensor]]],
) -> None:
    """Until the jump the run is that of the one number, after it that of neither."""
    settings, expected = constant(path)
    first, then = EFFECTS[path]
    scheduled = trained(tmp_path, *settings, f"{path}=step: {first}@0 step {then}@48")
    assert scheduled.keys() == expected.keys() == {24, 48, 72}
    assert torch.equal(scheduled[24], expected[24])
    assert torch.equal(scheduled[48], expected[48])
    assert not torch.equal(scheduled[72], expected[72])


@pytest.mark.slow
def test_a_resumed_run_evaluates_at_the_same_steps(tmp_path: Path) -> None:
    """The clock goes by the interval of now, not by that of the beginning."""
    schedule = "eval.interval=step: 24@0 step 96@40"
    settings = ["eval.steps=2", schedule, "total_timesteps=120"]
    run_small(tmp_path, *settings, "total_timesteps=48", checkpoint_dir=tmp_path / "run")
    resumed = run_small(tmp_path, *settings, checkpoint_dir=tmp_path / "run")
    assert (
        run_small(tmp_path, *settings).state.next_eval_step == resumed.state.next_eval_step == 144
    )


def test_a_new_entropy_target_in_a_resumed_run_starts_with_the_current_coefficient(
    tmp_path: Path,
) -> None:
    schedule = "ppo.ent_coef=step: 0.5@0 step 0.01@24"
    run_small(tmp_path, schedule, "total_timesteps=48", checkpoint_dir=tmp_path / "run")
    saves = StateManager(
        overrides=['ppo.ent_targets={"walk": 0.5}'], checkpoint_dir=tmp_path / "run"
    )
    assert tuned_coef(saves.state.ent_tunings["walk"]).item() == pytest.approx(0.01)


def test_the_first_update_has_the_initial_value(tmp_path: Path) -> None:
    still = run_small(tmp_path, "total_timesteps=24", "optim.lr=0")
    scheduled = run_small(tmp_path, "total_timesteps=24", "optim.lr=step: 0@0 lin 0.1@24")
    assert torch.equal(weights(still), weights(scheduled))
    assert scheduled.config.optim.lr == 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "extra", [(), ("max_train_time=1000",), ("optim.lr_warmup_steps=60",)], ids=str
)
def test_a_schedule_is_not_annealed_as_well(tmp_path: Path, extra: tuple[str, ...]) -> None:
    """Annealing is on by default; who writes a schedule means its values. Warm-up is never on
    unless it is asked for, and is obeyed."""
    constant = run_small(tmp_path, *extra, "optim.anneal_lr=false", "ppo.anneal_entropy=false")
    scheduled = run_small(tmp_path, *extra, "optim.lr=step: 0.001@0", "ppo.ent_coef=step: 0.2@0")
    assert torch.equal(weights(constant), weights(scheduled))


@pytest.mark.parametrize("step", [0, 24, 48])
def test_a_linear_schedule_equals_annealing(step: int) -> None:
    scheduled = configured("optim.lr=step: 0.001@0 0@72", "ppo.ent_coef=step: 0.2@0 0@72")
    annealed = configured("ppo.ent_anneal_power=1")
    assert rates_at(at(scheduled, step), step, 0.0) == pytest.approx(
        rates_at(annealed, step, 0.0), rel=1e-12
    )


def test_warm_up_rises_to_the_value_of_the_schedule() -> None:
    config = configured("optim.lr=step: 0.4@0 lin 0.2@48", "optim.lr_warmup_steps=48")
    assert rates_at(at(config, 0), 0, 0.0).lr == pytest.approx(0.4 * 24 / 48)
    assert rates_at(at(config, 24), 24, 0.0).lr == pytest.approx(0.3)
    assert rates_at(at(config, 48), 48, 0.0).lr == 0.2


def test_a_negative_coefficient_is_allowed() -> None:
    """It makes a policy more certain; annealing brings it to 0 all the same."""
    assert rates_at(configured("ppo.ent_coef=-0.5"), 24, 0.0).ent_coef == pytest.approx(
        -0.5 * (2 / 3) ** 8
    )
    config = configured("ppo.ent_coef=step: 0.1@0 lin -0.1@48")
    assert rates_at(at(config, 48), 48, 0.0).ent_coef == -0.1


def test_a_schedule_of_the_time_counts_seconds_of_training(tmp_path: Path) -> None:
    schedule = "optim.lr=time_used: 0.001@0 step 0@1e-9"
    one = run_small(tmp_path, schedule, "total_timesteps=24")
    more = run_small(tmp_path, schedule)
    assert torch.equal(weights(one), weights(more))
    assert more.config.optim.lr == 0.0


@pytest.mark.slow
def test_evaluations_come_at_scheduled_intervals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_small(
        tmp_path, "eval.steps=2", "eval.interval=step: 24@0 step 48@24", "total_timesteps=144"
    )
    evaluated = [
        line.split()[2] for line in capsys.readouterr().out.splitlines() if "[eval]" in line
    ]
    assert evaluated == ["0", "24", "72", "120", "144"]


def test_trackers_log_the_schedule_once_and_every_value(tmp_path: Path) -> None:
    manager = run_small(tmp_path, "optim.lr=step: 0.75@0 lin 0@96", "optim.bs=step: 4@0 lin 12@96")
    log_dir = tmp_path / "runs" / manager.state.run_name
    events = read(log_dir)
    for tag in ("schedule/optim.lr", "charts/learning_rate"):
        assert [(e.step, e.value) for e in events.Scalars(tag)] == [
            (24, 0.75),
            (48, 0.5625),
            (72, 0.375),
        ]
    assert [e.value for e in events.Scalars("schedule/optim.bs")] == [4, 6, 8]
    assert "| optim.lr | step: 0.75@0 lin 0@96 |" in hyperparameters(log_dir)
    assert flatten_config(manager.config)["optim.bs"] == "step: 4@0 lin 12@96"


# Saved and resumed

BANDIT = [
    *("rollout.steps=32", "rollout.num_envs=2", "rollout.processes=1", "total_timesteps=256"),
    *("net.d_model=8", "net.n_layer=1"),
]
SCHEDULES = [
    "optim.lr=step: 0.001@0 cos 0.01@100 exp 0.001@200",
    "optim.bs=step: 8@0 lin 32@200",
    "optim.weight_decay=step: 0@0 lin 0.5@256",
    "ppo.ent_coef=step: 0.1@0 quad 0@256",
    "ppo.gamma=step: 0.9@0 poly(3) 0.99@130 repeat",
]


@pytest.mark.slow
def test_a_resumed_run_follows_the_same_schedules(tmp_path: Path) -> None:
    """To the last bit. In this world nothing is random, and every rollout is one episode."""
    settings = [*BANDIT, *SCHEDULES, f"data_dir={tmp_path}"]
    straight = StateManager(overrides=settings, checkpoint_dir=tmp_path / "straight")
    straight.save_interval_s = 0.0
    train(straight, MultiArmedBandit)
    save = tmp_path / "straight" / "step-000000000128"
    resumed = StateManager(init_path=save, overrides=[f"data_dir={tmp_path}"])
    train(resumed, MultiArmedBandit)
    assert resumed.state.step == straight.state.step == 256
    assert torch.equal(weights(resumed), weights(straight))
    other = StateManager(init_path=save, overrides=[f"data_dir={tmp_path}", "optim.lr=0.001"])
    train(other, MultiArmedBandit)
    assert not torch.equal(weights(other), weights(straight))
    assert flatten_config(resumed.config) == flatten_config(straight.config)


def test_a_save_contains_the_schedule_not_its_current_value(tmp_path: Path) -> None:
    run_small(tmp_path, SCHEDULES[0], checkpoint_dir=tmp_path / "run")
    *_, save = sorted((tmp_path / "run").glob("step-*"))
    text = SCHEDULES[0].split("=")[1]
    assert f'lr: "{text}",' in (save / "config.ron").read_text()
    assert scheduled_fields(load_checkpoint(save).config)["optim.lr"].schedule.text == text


@pytest.mark.slow
def test_only_a_changed_schedule_is_reported_on_resume(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of these begin with the same value."""
    file = tmp_path / "config.ron"
    content = """(version: 5, net: (d_model: 8, n_layer: 1), optim: (bs: 10, lr: "{}"),
        rollout: (num_envs: 6, steps: 4, processes: 1), name: "run", data_dir: "{}",
        total_timesteps: {})"""
    said = []
    for total, schedule in [
        (48, "step: 0.1@0 0@48"),
        (72, "step: 0.1@0 0@48"),
        (96, "step: 0.1@0"),
    ]:
        file.write_text(content.format(schedule, tmp_path, 48))
        manager = StateManager(
            init_path=file,
            checkpoint_dir=tmp_path / "run",
            overrides=[f"total_timesteps={total}"],
        )
        train(manager, Meadow)
        said.append("differs in optim.lr" in capsys.readouterr().out)
        assert manager.config.optim.lr == 0.0
    assert said == [False, False, True]


# hyperstate's manager

THEIRS = [
    *('optim.lr="step: 0.001@0 lin 0.01@72"', 'optim.bs="step: 8@0 lin 20@72"'),
    *('optim.weight_decay="step: 0@0 cos 0.5@72"', "eval=(steps: 1, interval: 100)"),
]


@pytest.mark.slow
@pytest.mark.parametrize("changed", [False, True], ids=["as loaded", "changed after loading"])
def test_a_hyperstate_manager_passes_its_schedules_and_gets_them_back(
    hyperstate: Any, tmp_path: Path, changed: bool
) -> None:
    overrides = [*SMALL, f"data_dir={tmp_path}", *THEIRS]
    theirs = hyperstate.StateManager(TrainConfig, State, init_train_state, overrides=overrides)
    assert theirs.config.optim.lr == 0.001
    if changed:
        theirs.config.seed = 2
    train(theirs, Meadow)
    expected = run_small(tmp_path, *THEIRS, f"seed={theirs.config.seed}")
    assert torch.equal(weights(theirs), weights(expected))  # type: ignore[arg-type]
    assert (theirs.config.seed, theirs.config.optim.lr, theirs.config.optim.bs) == (
        2 if changed else 1,
        0.01,
        20,
    )
    assert theirs._schedules["optim"]["lr"].unparsed == "step: 0.001@0 lin 0.01@72"
    theirs.state.step = 36
    hyperstate.hyperstate._apply_schedules(theirs.state, theirs.config, theirs._schedules)
    assert theirs.config.optim.bs == 14
    hyperstate.hyperstate._typed_dump(theirs.config, tmp_path / "config.ron", theirs._schedules)
    again = load_config(TrainConfig, tmp_path / "config.ron")
    assert flatten_config(again) == flatten_config(theirs.config)


def test_a_hyperstate_schedule_of_a_fixed_setting_is_refused(
    hyperstate: Any, tmp_path: Path
) -> None:
    overrides = [*SMALL, f"data_dir={tmp_path}", 'rollout.steps="step: 4@0 lin 8@72"']
    theirs = hyperstate.StateManager(TrainConfig, State, init_train_state, overrides=overrides)
    assert theirs.config.rollout.steps == 4
    with pytest.raises(ConfigError, match=r"rollout\.steps='step: .* environments are created"):
        train(theirs, Meadow)
