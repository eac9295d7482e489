"""Runs that are started from Python, with a configuration or settings by keyword."""

import dataclasses
import inspect
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from enn_trainer import (
    CheckpointError,
    ConfigError,
    EvalConfig,
    OptimizerConfig,
    RogueNetConfig,
    RolloutConfig,
    StateManager,
    TrainConfig,
    Trainer,
    TrainResult,
    train,
)
from enn_trainer.cli.runs_command import runs_command
from enn_trainer.config.field_types import strip_optional
from enn_trainer.config.load import DEFAULT, as_overrides, load_config
from enn_trainer.config.schedules import settings_of
from entity_env.examples import Xor
from tests.fork_server import run_program

ROLLOUT = {"num_envs": 4, "steps": 16, "processes": 1}
SMALL: dict[str, Any] = {
    **{f"rollout.{name}": value for name, value in ROLLOUT.items()},
    **{"optim.bs": 64, "net": RogueNetConfig(d_model=16, n_layer=1, n_head=2)},
}
NOTEBOOK = """
from enn_trainer import train
from entity_env.examples import Xor

class Orchard(Xor):
    pass

settings = {"rollout.num_envs": 4, "rollout.steps": 16, "rollout.processes": 1, "optim.bs": 64}
train(Orchard, total_timesteps=64, settings=settings)
"""


def small_config(**settings: Any) -> TrainConfig:
    return TrainConfig(rollout=RolloutConfig(**ROLLOUT), optim=OptimizerConfig(bs=64), **settings)


@pytest.fixture(autouse=True)
def _in_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_settings_by_keyword_are_those_of_the_configuration() -> None:
    evaluation = EvalConfig(steps=8, interval=64, processes=1)
    result = train(
        Xor, total_timesteps=np.int64(64), lr=3e-4, seed=5, eval=evaluation, settings=SMALL
    )
    assert result.checkpoint == Path("runs/Xor-1/step-000000000064")
    assert "eval/episodic_reward.mean" in result.eval
    config = StateManager(init_path=result.checkpoint).config
    assert (config.optim.lr, config.seed, config.total_timesteps) == (3e-4, 5, 64)
    assert (config.rollout.num_envs, config.net, config.eval) == (4, SMALL["net"], evaluation)


def test_folder_of_a_run_is_refused_continued_or_replaced() -> None:
    def run(total_timesteps: int, **options: Any) -> TrainResult:
        settings = {} if options.get("resume") is True else SMALL
        return train(Xor, total_timesteps=total_timesteps, settings=settings, **options)

    assert run(64, folder="mine", resume="if exists").step == 64
    with pytest.raises(CheckpointError, match=r"resume=True.*overwrite=True"):
        run(64, folder="mine")
    assert run(128, folder=Path("mine"), resume=True).step == 128
    assert run(192, folder="mine", resume="if exists").step == 192
    assert run(64, folder="mine", overwrite=True).step == 64
    with pytest.raises(CheckpointError, match="expected a run to continue in other"):
        run(64, folder="other", resume=True)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: train(Xor, learning_rate=1), r"learning_rate=1: no such field.*optim\.lr"),
        (lambda: train(Xor, steps=1), r"steps: expected .*'rollout\.steps' or 'eval\.steps'"),
        (lambda: train(Xor, lr="fast"), r"optim\.lr: expected float, got 'fast'"),
        (lambda: train(Xor, lr=object()), "lr: expected plain data, got <object"),
        (lambda: train(Xor, lr=1, settings={"optim.lr": 2}), r"value of optim\.lr, got two"),
        (lambda: train(Xor, seed=1, settings={"seed": 2}), "seed: expected one value"),
        (lambda: train(Xor, resume=True), "resume: expected the folder"),
        (lambda: train(Xor, folder="a", resume="yes"), "resume: expected True, False or 'if"),  # type: ignore[arg-type]
        (lambda: train(Xor, folder="a", resume=True, overwrite=True), "resume, overwrite: "),
        (lambda: train(lr=3), "env: expected the class of an environment, got none"),
        (lambda: train(TrainConfig()), "env: expected the class of an environment, got none"),
        (lambda: train("runs", Xor), "state_manager: expected a StateManager .*got 'runs'"),  # type: ignore[arg-type]
        (lambda: train(StateManager(), Xor, lr=3, folder="a"), "folder, lr: .*got a StateManager"),
        (lambda: train(StateManager(), Xor, seed=0, track=False), "seed, track: .*StateManager"),
        (lambda: train(Xor, checkpoint_dir="a"), "checkpoint_dir: no argument .*pass folder"),
        (lambda: train(Xor, config=TrainConfig()), r"config: .*train\(config, env\)"),
        (lambda: train(Xor, init_from="a"), r"init_from: .*StateManager\(init_from=\.\.\.\)"),
        (lambda: StateManager(TrainConfig(), init_path="a.ron"), "config, init_path: "),
    ],
)
def test_invalid_arguments_are_one_error(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert not Path("runs").exists()


def test_configuration_made_in_python_is_copied_and_used() -> None:
    config = small_config(total_timesteps=64, seed=7)
    managers = [StateManager(config), StateManager(config=config, overrides=["seed=8"])]
    config.seed = 9
    assert [manager.config.seed for manager in managers] == [7, 8]
    assert managers[0].config == small_config(total_timesteps=64, seed=7)
    with Trainer(config, Xor) as trainer:
        assert trainer.run().step == 64
        assert trainer.config.seed == 9
    assert train(config, Xor, folder="mine").checkpoint == Path("mine/step-000000000064")


def test_values_that_differ_from_defaults_are_choices() -> None:
    sources = StateManager(small_config()).sources
    assert sources.of("rollout.num_envs") != DEFAULT
    assert sources.of("ppo.gamma") == DEFAULT, "so that it is rounded up to whole matches"


def test_resumed_run_keeps_its_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    train(small_config(total_timesteps=64, seed=7), Xor, folder="mine")
    capsys.readouterr()
    train(small_config(total_timesteps=64, seed=8), Xor, folder="mine", resume=True)
    out = capsys.readouterr().out
    assert "differs in seed" in out
    assert "nothing was trained: total_timesteps of 64 reached in mine" in out
    manager = StateManager(checkpoint_dir="mine")
    train(manager, Xor)
    assert manager.config.seed == 7
    out = capsys.readouterr().out
    assert "nothing was trained" in out
    assert "differs" not in out, "nothing else was passed"


def test_every_setting_of_python_is_read_as_it_is() -> None:
    config = TrainConfig(eval=EvalConfig(steps=8, interval=64), name='a "b"', track=True)
    for values in (
        {name: getattr(config, name) for name in vars(config)},
        dict(settings_of(config)),
    ):
        assert load_config(TrainConfig, None, as_overrides(TrainConfig, values)) == config
    arguments = {"size": 3, "wrap": True, "seed": None, "label": "None"}
    overrides = as_overrides(TrainConfig, {"env.kwargs": arguments, "wandb_entity": "None"})
    config = load_config(TrainConfig, None, overrides)
    assert (json.loads(config.env.kwargs), config.wandb_entity) == (arguments, "None")


def sections(cls: Any = TrainConfig) -> list[Any]:
    """Return the classes of a configuration."""
    kinds = map(strip_optional, get_type_hints(cls).values())
    inner = [kind for kind in kinds if dataclasses.is_dataclass(kind)]
    return [cls, *(section for kind in inner for section in sections(kind))]


@pytest.mark.parametrize("cls", sections(), ids=lambda cls: cls.__name__)
def test_misspelled_attribute_of_a_section_is_an_error(cls: Any) -> None:
    section = cls.__new__(cls)
    name = dataclasses.fields(cls)[0].name
    setattr(section, name, 3)
    with pytest.raises(AttributeError, match=f"{cls.__name__}.{name}z: no such setting.*{name}"):
        setattr(section, f"{name}z", 3)


def test_class_of_a_notebook_is_called_by_its_name(capsys: pytest.CaptureFixture[str]) -> None:
    done = run_program(["-c", NOTEBOOK], text=True, check=True)
    assert done.stdout.startswith("Orchard  entities")
    run = Path("runs/Orchard-1")
    assert json.loads((run / "run.json").read_text())["config"]["env.id"] == "__main__:Orchard"
    runs_command([])
    assert "Orchard-1  Orchard" in capsys.readouterr().out
    done = run_program(
        ["-c", "from enn_trainer.cli import main; main()", "eval", str(run)], text=True
    )
    assert done.returncode == 2
    assert "passed from Python" in done.stderr
    assert "import" not in done.stderr


def test_signature_of_train_is_short() -> None:
    signature = inspect.signature(train)
    assert len(signature.parameters) <= 20
    assert max(len(str(parameter)) for parameter in signature.parameters.values()) < 90
