"""What `train` takes as an environment: classes, functions that make one, factories of many."""

import functools
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from enn_trainer import ConfigError, EnvConfig, StateManager, Trainer
from enn_trainer.experience.envs import env_factory
from entity_env import (
    Environment,
    EnvList,
    VecEnv,
    check_env,
)
from tests.enn_trainer.builders import SMALL, run_small, weights
from tests.enn_trainer.worlds import Meadow, Pasture, Ring, make_meadow, make_pasture, make_ring


def make_four(a: int = 1, b: int = 2, c: int = 3, d: int = 4):  # type: ignore[no-untyped-def]
    return Meadow()


def make_required(a: int, b: int, c: int, d: int) -> Environment:
    return Meadow()


def make_named(**kwargs: Any):  # type: ignore[no-untyped-def]
    return Meadow()


MAKERS = [
    make_meadow,
    make_pasture,
    make_four,
    make_named,
    lambda: Meadow(),
    lambda **arguments: Meadow(**arguments),
    functools.partial(make_required, 1, 2, 3, 4),
]


SHORT = "total_timesteps=48"


@pytest.fixture(scope="module")
def trained_by_class(tmp_path_factory: pytest.TempPathFactory) -> dict[type, torch.Tensor]:
    """The weights after a run, by the class of its environments."""
    folder = tmp_path_factory.mktemp("class")
    return {cls: weights(run_small(folder, SHORT, env=cls)) for cls in (Meadow, Pasture)}


@pytest.mark.slow
@pytest.mark.parametrize(("make", "processes"), [(make_meadow, 2), *((make, 1) for make in MAKERS)])
def test_function_that_makes_an_environment_trains_like_its_class(
    tmp_path: Path,
    trained_by_class: dict[type, torch.Tensor],
    make: Callable[..., Environment],
    processes: int,
) -> None:
    trained = run_small(tmp_path, SHORT, f"rollout.processes={processes}", env=make)
    cls = Pasture if make is make_pasture else Meadow
    assert torch.equal(weights(trained), trained_by_class[cls])


def test_arguments_of_the_configuration_are_passed_to_a_function(tmp_path: Path) -> None:
    got = []

    def make(size: int, hard: bool = False) -> Environment:
        got.append((size, hard))
        return Meadow()

    run_small(tmp_path, 'env.kwargs={"size": 3, "hard": true}', env=make)
    assert set(got) == {(3, True)}
    with pytest.raises(ConfigError, match=r"env.kwargs: missing a required argument: 'size'"):
        run_small(tmp_path, env=make)


@pytest.mark.slow
@pytest.mark.parametrize(("make", "processes"), [(make_ring, 1), (make_ring, 2), (Ring, 1)])
def test_function_that_makes_a_match_has_its_sides(
    tmp_path: Path, make: Any, processes: int
) -> None:
    settings = ["rollout.num_envs=6", f"rollout.processes={processes}", 'env.kwargs={"n": 3}']
    run_small(tmp_path, *settings, "eval.steps=4", "total_timesteps=24", env=make)
    if processes == 1:
        with pytest.raises(
            ConfigError, match=r"^rollout.num_envs: expected multiples of 3, .*got 8"
        ):
            run_small(tmp_path, *settings, "rollout.num_envs=8", env=make)


def test_suite_with_other_sides_names_the_invalid_num_envs(tmp_path: Path) -> None:
    suite = 'eval.suites={"five": {"env": {"kwargs": "{\\"n\\": 5}"}}}'
    with pytest.raises(
        ConfigError,
        match=r"^eval.num_envs: expected multiples of 5, .* got 6.* set "
        r"eval.suites\['five'\].num_envs$",
    ):
        run_small(tmp_path, "eval.steps=4", "eval.num_envs=6", suite, env=Ring)
    with pytest.raises(ConfigError, match=r"^eval.num_envs: expected multiples of 2, .* got 7"):
        run_small(tmp_path, "eval.steps=4", "eval.num_envs=7", env=make_ring)


def test_suite_with_other_sides_rounds_num_envs_up(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of six environments to two matches of five sides, as nobody chose a number for it."""
    suite = 'eval.suites={"five": {"env": {"kwargs": "{\\"n\\": 5}"}}}'
    run_small(tmp_path, "eval.steps=4", suite, env=Ring)
    assert "[eval five]" in capsys.readouterr().out


@pytest.mark.slow
def test_run_of_a_function_resumes_like_a_run_of_the_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    resumed = []
    for env, processes in ((make_pasture, 2), (Pasture, 1)):
        folder = tmp_path / env.__name__
        run_small(tmp_path, "total_timesteps=48", env=env, checkpoint_dir=folder)
        capsys.readouterr()
        more = f"rollout.processes={processes}"
        resumed.append(weights(run_small(tmp_path, more, env=env, checkpoint_dir=folder)))
        assert "its episodes go on" in capsys.readouterr().out
    assert torch.equal(*resumed)


def test_trainer_takes_a_function(tmp_path: Path) -> None:
    manager = StateManager(overrides=[*SMALL, f"data_dir={tmp_path}", "eval.episodes=6"])
    with Trainer(manager, make_meadow) as trainer:
        trainer.step()
        assert trainer.evaluate()["eval/episode_length.mean"] > 0


def factory(config: EnvConfig, num_envs: int, processes: int, first: int):  # type: ignore[no-untyped-def]
    return EnvList(Meadow, num_envs, first)


def factory_with_defaults(
    config: Any, num_envs: int = 1, processes: int = 1, first: int = 0
) -> VecEnv:
    return EnvList(Meadow, num_envs, first)


@pytest.mark.parametrize(
    "env",
    [factory, factory_with_defaults, lambda *args: factory(*args), functools.partial(factory)],
)
def test_documented_factory_is_detected(env: Any) -> None:
    envs = env_factory(env)(EnvConfig(), 4, 1, 0)
    assert len(envs) == 4


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (lambda: 3, r"env: expected .* an Environment or a Match, .*which returns int"),
        (
            lambda a, b, c: Meadow(),
            r"required argument: 'a'.*factory .*takes \(EnvConfig",
        ),
        (lambda c, n, p, f: Meadow(), r"expected a VecEnv from .*, got Meadow"),
        (lambda c, n, p, f: None, r"expected a VecEnv from .*, got NoneType"),
        (lambda: EnvList(Meadow, 2), r"env: expected .* an Environment or a Match"),
        (3, "env: expected a class, a factory or a function that creates one environment, got 3"),
        (int, "expected a subclass of Environment, Match or VecEnv"),
    ],
)
def test_other_types_are_one_line_errors(env: Any, message: str) -> None:
    with pytest.raises((TypeError, ConfigError), match=message) as error:
        env_factory(env)(EnvConfig(), 4, 1, 0)
    assert "\n" not in str(error.value)


def test_check_env_accepts_a_function() -> None:
    assert check_env(make_meadow).ok


@pytest.mark.parametrize(
    ("argument", "adapter"),
    [
        ("environment", 'FromGymnasium.of("CartPole-v1")'),
        ("environments", 'FromGymnasium.of("CartPole-v1")'),
        ("class", "FromGymnasium.of(CartPoleEnv)"),
        ("function", "FromGymnasium.of(MAKE_ENV)"),
    ],
)
def test_environment_of_gymnasium_is_answered_by_its_adapter(argument: str, adapter: str) -> None:
    gymnasium = pytest.importorskip("gymnasium")

    def make():  # type: ignore[no-untyped-def]
        return gymnasium.make("CartPole-v1")

    env: Any = {
        "environment": make,
        "environments": lambda: gymnasium.make_vec("CartPole-v1", 2),
        "class": lambda: type(make().unwrapped),
        "function": lambda: make,
    }[argument]()
    with pytest.raises(TypeError) as error:
        env_factory(env)(EnvConfig(), 2, 1, 0)
    line = "from entity_env.adapters.from_gymnasium import FromGymnasium"
    assert str(error.value).endswith(f"; adapt it: {line}, and pass {adapter}")


def test_environment_of_pettingzoo_is_answered_by_its_adapter() -> None:
    tictactoe = pytest.importorskip("pettingzoo.classic.tictactoe.tictactoe")
    with pytest.raises(TypeError, match=r"pass FromPettingZooTurns\.of\(MAKE_ENV\)$"):
        env_factory(tictactoe.env())


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("treasure_hunt", "from entity_env.examples import TreasureHunt"),
        ("CartPole-v1", 'FromGymnasium.of("CartPole-v1")'),
        ("nothing like it", "got 'nothing like it'"),
    ],
)
def test_name_of_an_environment_is_answered_by_its_class(name: str, hint: str) -> None:
    with pytest.raises(TypeError, match=re.escape(hint)):
        env_factory(name)  # type: ignore[arg-type]
