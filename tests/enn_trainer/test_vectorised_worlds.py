"""Vectorised environments, as a class: trained in, resumed, named by `env.id`."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from enn_trainer import ConfigError, StateManager, train
from enn_trainer.cli import run as enn
from enn_trainer.config import EnvConfig
from enn_trainer.experience.envs import env_factory
from entity_env.examples import VecMinefield, VecMultiSnake
from tests.enn_trainer.builders import SMALL, run_small
from tests.enn_trainer.resuming import assert_same, assert_same_clocks

EVAL = ["eval.steps=4", "eval.interval=48", "eval.num_envs=2"]


@pytest.mark.slow
@pytest.mark.parametrize("env", [VecMinefield, VecMultiSnake])
def test_a_resumed_varied_run_equals_the_uninterrupted_run(tmp_path: Path, env: Any) -> None:
    """In the middle of its episodes."""
    settings = [*SMALL, *EVAL, "total_timesteps=96", f"data_dir={tmp_path}"]
    manager = StateManager(overrides=settings, checkpoint_dir=tmp_path / "straight")
    manager.save_interval_s = 0.0
    train(manager, env)
    save = tmp_path / "straight" / "step-000000000048"
    resumed = run_small(
        tmp_path, "total_timesteps=96", env=env, init_path=save, checkpoint_dir=tmp_path / "resumed"
    )
    assert manager.state.step == resumed.state.step == 96
    assert_same(manager.state, resumed.state)
    assert_same_clocks(manager.state, resumed.state)


@pytest.mark.slow
def test_a_vectorised_environment_of_a_module_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    name = "env.id=entity_env.examples:VecMultiSnake"
    kwargs = 'env.kwargs={"num_snakes": 3, "board_size": 5}'
    assert enn(["train", name, kwargs, *SMALL, *EVAL, "--checkpoint-dir", "run"]) == 0
    assert "step 72/72 (100%)" in capsys.readouterr().out
    assert enn(["eval", "run", "--episodes", "4"]) == 0, capsys.readouterr().err
    assert enn(["train", name, 'env.kwargs={"snakes": 3}', *SMALL]) == 2
    assert "env.kwargs: got an unexpected keyword argument 'snakes'; VecMultiSnake takes (" in (
        capsys.readouterr().err
    )


def test_a_vectorised_environment_cannot_be_played_by_hand(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert enn(["play", "entity_env.examples:VecMinefield"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == (
        "error: ENV: expected a class or function that creates an Environment or a Match, got "
        "entity_env.examples:VecMinefield, which is vectorised"
    )
    assert enn(["check", "entity_env.examples:VecMinefield"]) == 1
    assert "expected an Environment or a Match, got VecMinefield" in capsys.readouterr().out


def test_the_number_of_processes_and_partial_arguments() -> None:
    """However many processes there may be, they step in this one."""
    made = env_factory(functools.partial(VecMinefield, max_mines=3))(EnvConfig(), 4, 3, 2)
    obs = made.reset(made.obs_space())
    assert len(obs) == 4
    assert (obs.features["Mine"].lengths <= 3).all()
    whole = env_factory(VecMinefield)(EnvConfig(kwargs='{"max_mines": 3}'), 6, 1, 0)
    for envs in (made, whole):
        envs.seed(1)
    part, all_six = (envs.reset(envs.obs_space()) for envs in (made, whole))
    expected = all_six.features["Vehicle"][2:].values
    np.testing.assert_array_equal(part.features["Vehicle"].values, expected)


def test_reserved_arguments_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"env\.kwargs: multiple values for argument 'num_envs'"):
        env_factory(VecMinefield)(EnvConfig(kwargs='{"num_envs": 3}'), 4, 1, 0)
