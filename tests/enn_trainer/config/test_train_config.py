import dataclasses
import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from enn_trainer.base.errors import CheckpointError, ConfigError, EnnTrainerError
from enn_trainer.config import (
    CheckpointConfig,
    EnvConfig,
    EvalConfig,
    RolloutConfig,
    TrainConfig,
)
from enn_trainer.config.eval_config import EvalSuiteConfig
from enn_trainer.config.field_types import entries
from enn_trainer.config.load import load_config
from enn_trainer.config.ppo_config import OptimizerConfig, ParamGroupConfig, PPOConfig
from enn_trainer.config.ron import loads
from rogue_net.config import RogueNetConfig, ValueBinsConfig

GOLDEN_CONFIG = (
    Path(__file__).parents[2] / "golden" / "checkpoint_enn_trainer_0.1.16" / "config.ron"
)


def build_if_torch_is_there(build: Callable[[], Any]) -> None:
    """Build a configuration; skip if torch is needed and missing."""
    try:
        build()
    except ModuleNotFoundError as error:
        pytest.skip(f"needs {error.name}")


def train_config(**changes: Any) -> TrainConfig:
    sections = {
        "env": EnvConfig(),
        "net": RogueNetConfig(),
        "optim": OptimizerConfig(),
        "ppo": PPOConfig(),
        "rollout": RolloutConfig(),
    }
    return TrainConfig(**{**sections, **changes})


def values_of(config: Any, expected: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are expected, in sections too, without newer ones."""
    result = {name: getattr(config, name) for name in expected}
    return {
        name: values_of(value, expected[name]) if dataclasses.is_dataclass(value) else value
        for name, value in result.items()
    }


def test_minibatches_of_one_frame_are_refused_where_advantages_are_normalised() -> None:
    """The advantage of a single frame, normalised, is 0: nothing would be learnt in silence."""
    rollout, optim = RolloutConfig(steps=1, num_envs=4), OptimizerConfig(bs=1)
    with pytest.raises(ConfigError, match=r"optim.bs: expected at least 2 .*ppo.norm_adv.* got 1"):
        train_config(rollout=rollout, optim=optim)
    assert train_config(rollout=rollout, optim=optim, ppo=PPOConfig(norm_adv=False)).optim.bs == 1


def test_defaults_match_the_published_ones_except_for_listed_changes() -> None:
    """Hand copied from the published signatures; wandb_entity was the authors' own team.

    Rollouts of 128 environments had 16 steps, minibatches 1,024 frames, values were clipped and in
    units of the returns, and the entropy coefficient fell linearly from .1: as in older files.
    Defaults of newer settings are tested in `test_released_schemas.py`.
    """
    expected: dict[str, Any] = {
        "env": {"kwargs": "{}", "id": "MoveToOrigin", "validate": True, "vary": {}},
        "net": dataclasses.asdict(RogueNetConfig()),
        "optim": {
            "lr": 0.001,
            "lr_warmup_steps": None,
            "bs": 128,
            "weight_decay": 0.0,
            "micro_bs": None,
            "anneal_lr": True,
            "update_epochs": 3,
            "max_grad_norm": 2.0,
            "groups": [],
            "name": "AdamW",
            "kwargs": "{}",
            "shuffle": True,
            "max_entities": None,
        },
        "ppo": {
            "gae": True,
            "gamma": 0.99,
            "gae_lambda": 0.9,
            "norm_adv": True,
            "clip_coef": 0.2,
            "clip_vloss": False,
            "ent_coef": 0.2,
            "vf_coef": 0.5,
            "target_kl": None,
            "anneal_entropy": True,
            # Not published; published configurations have "all", False, 0, 1 and "mse".
            "norm_adv_over": "acting",
            "value_norm": True,
            "norm_adv_floor": 0.1,
            "ent_anneal_power": 8.0,
            "value_loss": "huber",
            # Not published; these are the values at which they change nothing.
            "ratio": "actor",
            "weight_by": "actor",
            "dual_clip": None,
            "vf_clip_coef": None,
            "huber_delta": 1.0,
            "value_bins": None,
            "reward_scaling": False,
            "ent_targets": {},
            "ent_target_lr": 0.1,
            "magnet": None,
            "seq_len": None,
        },
        "rollout": {
            "steps": 64,
            "num_envs": 32,
            "processes": 4,
            "recover": "exact",
            "ray": None,
            "ray_resources": {"CPU": 1.0},
            "ray_files": [],
            "ray_env": None,
        },
        "eval": None,
        "vf_net": None,
        "name": "run",
        "seed": 1,
        "total_timesteps": 1_000_000,
        "max_train_time": None,
        "torch_deterministic": True,
        "cuda": True,
        "track": False,
        "wandb_project_name": "enn-ppo",
        "wandb_entity": None,
        "capture_samples": None,
        "capture_logits": False,
        "capture_samples_subsample": 1,
        "trial": None,
        "data_dir": ".",
        "cuda_empty_cache": False,
        "stop": [],  # not published
        "bc": None,  # not published
        "mlflow_tracking_uri": None,  # not published
        "checkpoint": {  # not published
            "every_seconds": 60.0,
            "keep": 3,
            "keep_every_steps": None,
            "keep_every_minutes": None,
            "best": [],
            "keep_best": 1,
        },
        "selfplay": None,  # not published
        "scale": {"shards": None, "timeout_s": 300.0},  # not published
        "curricula": {},  # not published
    }
    assert values_of(train_config(name="run"), expected) == expected
    expected = {
        "steps": 3,
        "interval": 5,
        "num_envs": None,
        "processes": None,
        "env": None,
        "capture_videos": False,
        "capture_samples": "",
        "capture_logits": True,
        "capture_samples_subsample": 1,
        "run_on_first_step": True,
        "opponent": None,
        "opponent_only": False,
        "episodes": None,
        "max_steps": 10000,
        "deterministic": False,
        "seed": None,
        "suites": {},
        "capture_replays": False,
        "ray": None,
        "lag": 0,
    }
    assert values_of(EvalConfig(steps=3, interval=5), expected) == expected


def test_fields_come_in_the_published_order() -> None:
    """Positional arguments are part of the interface; a published file lists all of them."""
    published = loads(GOLDEN_CONFIG.read_text())
    top = ["version", *(f.name for f in dataclasses.fields(TrainConfig))]
    assert list(published) == top[: len(published)]
    kinds = (EnvConfig, RogueNetConfig, OptimizerConfig, PPOConfig, RolloutConfig)
    for section, kind in zip(("env", "net", "optim", "ppo", "rollout"), kinds, strict=True):
        names = [f.name for f in dataclasses.fields(kind)]
        assert names[: len(published[section])] == list(published[section])  # then our own


@pytest.mark.parametrize(
    ("argv0", "name"), [("/a/train_ants.py", "train_ants"), ("", "run"), ("enn", "enn")]
)
def test_a_run_is_named_after_its_script(
    monkeypatch: pytest.MonkeyPatch, argv0: str, name: str
) -> None:
    monkeypatch.setattr(sys, "argv", [argv0])
    assert train_config().name == name


def test_every_field_has_a_description() -> None:
    """They are read from the docstrings."""
    missing = [entry.path for entry in entries(TrainConfig) if not entry.doc]
    assert missing == []


@pytest.mark.parametrize(
    ("build", "problem"),
    [
        (lambda: EnvConfig(kwargs="[1]"), "kwargs: expected a JSON object"),
        (lambda: EnvConfig(kwargs="{"), "kwargs: expected a JSON object"),
        (lambda: EnvConfig(kwargs="[" * 100_000), "kwargs: expected a JSON object"),
        (lambda: OptimizerConfig(lr=-0.1), "lr: .*at least 0.0, got -0.1"),
        (lambda: OptimizerConfig(lr=math.nan), "lr: .*got nan"),
        (lambda: OptimizerConfig(lr=math.inf), "lr: .*got inf"),
        (lambda: OptimizerConfig(lr_warmup_steps=-1), "lr_warmup_steps: .*got -1"),
        (lambda: OptimizerConfig(bs=0), "bs: expected a finite number of at least 1, got 0"),
        (lambda: OptimizerConfig(micro_bs=0), "micro_bs: "),
        (lambda: OptimizerConfig(weight_decay=-1.0), "weight_decay: "),
        (lambda: OptimizerConfig(update_epochs=0), "update_epochs: "),
        (lambda: OptimizerConfig(max_grad_norm=0.0), "max_grad_norm: expected a number above 0"),
        (lambda: OptimizerConfig(max_grad_norm=math.nan), "max_grad_norm: "),
        (lambda: ParamGroupConfig(""), "pattern: expected names such as"),
        (lambda: ParamGroupConfig("*", lr_factor=-1.0), "lr_factor: "),
        (lambda: ParamGroupConfig("*", weight_decay=math.inf), "weight_decay: "),
        (lambda: ParamGroupConfig("*", freeze_from=-1), "freeze_from: "),
        (lambda: ParamGroupConfig("*", freeze_until=0), "freeze_until: .*at least 1, got 0"),
        (lambda: ParamGroupConfig("*", 1.0, None, 5, 5), "freeze_until: .*at least 6, got 5"),
        (lambda: OptimizerConfig(max_entities=0), "max_entities: "),
        (lambda: OptimizerConfig(name="Adamw"), "name: .*NAdam.*got 'Adamw'; did you mean AdamW?"),
        (
            lambda: OptimizerConfig(name="Optimizer"),
            "name: expected one of .*SGD, got 'Optimizer'$",
        ),
        (lambda: OptimizerConfig(name="LBFGS"), "name: LBFGS cannot train .*closure"),
        (lambda: OptimizerConfig(name="SparseAdam"), "name: SparseAdam cannot train .*dense"),
        (lambda: OptimizerConfig(name="Muon"), "name: Muon cannot train .*2D"),
        (lambda: OptimizerConfig(kwargs="[]"), "kwargs: expected a JSON object"),
        (lambda: OptimizerConfig(kwargs='{"beta": 1}'), "kwargs: beta is not .*did you mean betas"),
        (lambda: OptimizerConfig(kwargs='{"zzz": 1}'), "kwargs: zzz is not .*which has betas, eps"),
        (
            lambda: OptimizerConfig(kwargs='{"lr": 1}'),
            "kwargs: lr is set by optim.lr",
        ),
        (
            lambda: OptimizerConfig(kwargs='{"betas": [0.9, 2]}'),
            "kwargs: AdamW rejects .*index 1: 2",
        ),
        (lambda: OptimizerConfig(kwargs='{"betas": 0.9}'), "kwargs: AdamW rejects"),
        (
            lambda: OptimizerConfig(name="SGD", kwargs='{"momentum": NaN}'),
            "kwargs: SGD rejects .* infinite or NaN",
        ),
        (lambda: OptimizerConfig(name="Rprop", weight_decay=0.1), "weight_decay: expected 0.0"),
        (
            lambda: OptimizerConfig(name="Rprop", groups=[ParamGroupConfig("*", 1.0, 0.1)]),
            "weight_decay: expected 0.0",
        ),
        (lambda: PPOConfig(gamma=1.01), "gamma: expected a number from 0.0 to 1.0, got 1.01"),
        (lambda: PPOConfig(gae_lambda=-0.1), "gae_lambda: "),
        (lambda: PPOConfig(clip_coef=0.0), "clip_coef: "),
        (lambda: PPOConfig(ent_coef=math.inf), "ent_coef: expected a finite number, got inf"),
        (lambda: PPOConfig(vf_coef=math.nan), "vf_coef: "),
        (lambda: PPOConfig(target_kl=0.0), "target_kl: "),
        (lambda: PPOConfig(ratio="frames"), "ratio: expected 'actor' or 'frame', got 'frames'"),
        (lambda: PPOConfig(weight_by=""), "weight_by: expected 'actor' or 'frame', got ''"),
        (lambda: PPOConfig(dual_clip=1.0), "dual_clip: expected a finite number above 1.0, got"),
        (lambda: PPOConfig(value_loss="mae"), "value_loss: expected 'mse' or 'huber' or 'hl_ga"),
        (lambda: PPOConfig(vf_clip_coef=0.0), "vf_clip_coef: "),
        (lambda: PPOConfig(value_loss="huber", huber_delta=math.inf), "huber_delta: "),
        (lambda: PPOConfig(ent_targets={"walk": 1.0}), r"ent_targets\['walk'\]: .* 0 and 1, got 1"),
        (lambda: PPOConfig(ent_targets={"walk": math.nan}), r"ent_targets\['walk'\]: .*got nan"),
        (lambda: PPOConfig(ent_targets={"a": 0.5}, ent_target_lr=0.0), "ent_target_lr: "),
        (lambda: RolloutConfig(steps=0), "steps: "),
        (lambda: RolloutConfig(num_envs=0), "num_envs: "),
        (lambda: RolloutConfig(processes=0), "processes: "),
        (lambda: RolloutConfig(ray="here"), "ray: expected auto or HOST:PORT, got 'here'"),
        (lambda: RolloutConfig(ray_resources={"CPU": 0.0}), "ray_resources: expected amounts"),
        (
            lambda: RolloutConfig(recover="never"),  # type: ignore[arg-type]
            "recover: expected 'exact' or 'truncate', got 'never'",
        ),
        (lambda: EvalConfig(steps=0, interval=1), "steps: "),
        (lambda: EvalConfig(steps=1, interval=0), "interval: "),
        (lambda: EvalConfig(1, 1, num_envs=0), "num_envs: "),
        (lambda: EvalConfig(1, 1, processes=0), "processes: "),
        (lambda: EvalConfig(1, 1, capture_samples_subsample=0), "capture_samples_subsample: "),
        (lambda: EvalConfig(1, 1, opponent_only=True), "opponent_only: expected an opponent"),
        (
            lambda: train_config(rollout=RolloutConfig(ray_files=["a"])),
            "rollout.ray_files: expected rollout.ray or eval.ray, got neither",
        ),
        (
            lambda: train_config(rollout=RolloutConfig(ray_env="sim")),
            "rollout.ray_env: expected rollout.ray or eval.ray, got neither",
        ),
        (
            lambda: train_config(
                rollout=RolloutConfig(ray="auto"), eval=EvalConfig(1, 1, ray="far:1")
            ),
            "eval.ray: expected the same cluster as rollout.ray=auto, .*got far:1",
        ),
        (lambda: train_config(seed=-1), "seed: "),
        (lambda: train_config(total_timesteps=0), "total_timesteps: "),
        (lambda: train_config(max_train_time=-1), "max_train_time: "),
        (lambda: train_config(capture_samples_subsample=0), "capture_samples_subsample: "),
    ],
)
def test_a_value_out_of_range_is_refused(build: Callable[[], Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^{problem}"):
        build_if_torch_is_there(build)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"value_loss": "hl_gauss"}, "value_bins: .*set low and high"),
        ({"value_bins": ValueBinsConfig(0, 1)}, "value_bins: .*got 'huber'; remove value_bins"),
        (
            {"value_loss": "hl_gauss", "value_bins": ValueBinsConfig(0, 1), "clip_vloss": True},
            "clip_vloss: expected false with value_loss='hl_gauss'",
        ),
        ({"vf_clip_coef": 1.0}, "vf_clip_coef: expected clip_vloss=true"),
        (
            {"value_loss": "mse", "huber_delta": 2.0},
            "huber_delta: expected value_loss='huber', .*remove huber_delta",
        ),
        ({"ent_target_lr": 1.0}, "ent_target_lr: expected ent_targets"),
        ({"ent_targets": {"walk": 0.5}, "ent_coef": 0.0}, "ent_coef: expected a number above 0"),
    ],
)
def test_loss_settings_without_effect_are_rejected(settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^{problem}"):
        PPOConfig(**settings)


def test_values_at_the_edge_are_accepted() -> None:
    OptimizerConfig(lr=0, lr_warmup_steps=0, bs=1, micro_bs=1, max_grad_norm=math.inf)
    PPOConfig(gamma=1, gae_lambda=0, ent_coef=-1.0, vf_coef=0)
    train_config(max_train_time=0, seed=0, total_timesteps=10**400)


def test_all_problems_of_a_section_are_reported_in_one_line() -> None:
    with pytest.raises(ConfigError) as caught:
        OptimizerConfig(lr=-1.0, bs=0, update_epochs=0)
    assert [problem.split(":")[0] for problem in caught.value.problems] == [
        "lr",
        "bs",
        "update_epochs",
    ]
    assert "\n" not in str(caught.value)


def test_a_batch_larger_than_a_rollout_is_refused_with_the_fix() -> None:
    with pytest.raises(ConfigError, match=r"optim\.bs: .*rollout\.num_envs = 2 \* 8 = 16 .*lower"):
        train_config(optim=OptimizerConfig(bs=17), rollout=RolloutConfig(steps=2, num_envs=8))
    train_config(optim=OptimizerConfig(bs=16), rollout=RolloutConfig(steps=2, num_envs=8))


def test_two_recordings_to_the_same_file_are_rejected(tmp_path: Path) -> None:
    evaluation = EvalConfig(1, 1, capture_samples=str(tmp_path / "a"))
    with pytest.raises(ConfigError, match=r"eval\.capture_samples: expected another file"):
        train_config(data_dir=str(tmp_path), capture_samples="b/../a", eval=evaluation)


@pytest.mark.parametrize("path", ["a\0b", "\ud800", "x" * 256, "x/" * 2048, "é" * 128])
@pytest.mark.parametrize(
    "field",
    [
        *("data_dir", "capture_samples", "eval.capture_samples", "eval.opponent", "bc.path"),
        *("env.id", "eval.env.id", "eval.suites.one.opponent", "eval.suites.one.env.id"),
    ],
)
def test_invalid_path_is_rejected_with_its_field(field: str, path: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_config(TrainConfig, None, ["eval.steps=1", f"{field}={path}"])
    (problem,) = error.value.problems
    named = field.replace(".suites.one", ".suites['one']")
    assert problem.startswith(f"{named}: expected a path of Unicode characters without NUL")
    assert len(problem) < 250


def test_all_invalid_paths_are_reported() -> None:
    evaluation = EvalConfig(1, 1, capture_samples="a")
    with pytest.raises(ConfigError) as error:
        train_config(data_dir="\0", capture_samples="a\0", eval=evaluation)
    assert [problem.split(":")[0] for problem in error.value.problems] == [
        "capture_samples",
        "data_dir",
    ]


def test_paths_of_maximum_length_are_accepted() -> None:
    long = "/".join(["x" * 255] * 15 + ["y" * 253, "z"])  # 4096 bytes with the NUL behind it
    evaluation = EvalConfig(1, 1, opponent="\udc80")
    config = train_config(data_dir=long, capture_samples="é" * 127, eval=evaluation)
    assert config.data_dir == long


@pytest.mark.parametrize(
    "build",
    [
        lambda: EnvConfig(kwargs="x" * 5000),
        lambda: OptimizerConfig(kwargs="x" * 5000),
        lambda: OptimizerConfig(name="x" * 5000),
        lambda: train_config(name="/" * 5000),
        lambda: train_config(stop=["x" * 5000]),
        lambda: CheckpointConfig(best=["x" * 5000]),
        lambda: EvalConfig(1, 1, suites={"/" * 5000: EvalSuiteConfig()}),
    ],
)
def test_a_long_text_is_shortened_in_the_message(build: Callable[[], Any]) -> None:
    with pytest.raises(ConfigError) as error:
        build_if_torch_is_there(build)
    assert len(str(error.value)) < 300


def test_config_error_is_always_one_line() -> None:
    error = ConfigError("a: one\ntwo", "b: three\u2028four")
    assert str(error) == "a: one two; b: three four"
    assert issubclass(ConfigError, EnnTrainerError)
    assert issubclass(ConfigError, ValueError)
    with pytest.raises(ValueError, match="damaged"):
        raise CheckpointError("damaged")


@pytest.mark.parametrize("name", ["../../../esc", "a/b", "a\nb", "a\\b", "a\0"])
def test_invalid_run_name_is_rejected_in_one_line(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^name: expected a name without /") as error:
        train_config(name=name)
    assert "\n" not in str(error.value)


def test_repeated_name_in_json_text_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"^kwargs: expected 'a' once, got it twice$"):
        EnvConfig(kwargs='{"a": 1, "a": 2}')


def test_kwargs_may_be_any_json_object() -> None:
    assert EnvConfig(kwargs=json.dumps({"a": [1, {"b": None}]})).kwargs


def test_conditions_to_stop_are_bounded() -> None:
    config = load_config(TrainConfig, None, [])
    stops = [f"metric{i} >= 1" for i in range(1001)]
    assert len(dataclasses.replace(config, stop=stops[1:]).stop) == 1000
    with pytest.raises(ConfigError, match="stop: expected at most 1000 conditions, got 1001"):
        dataclasses.replace(config, stop=stops)
