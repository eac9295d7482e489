"""Evaluations whose arguments vary, and those of runs whose arguments do."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from enn_trainer import ConfigError, StateManager
from enn_trainer.cli import run
from enn_trainer.trainer import Trainer
from entity_env import (
    Action,
    ActionSpace,
    Environment,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    Observation,
    ObsSpace,
)
from entity_env.seeding import derive_seed
from entity_env.vec.variation import Variation
from tests.enn_trainer.one_line import refused

SETTINGS = [
    "rollout.num_envs=2",
    "rollout.steps=8",
    "rollout.processes=1",
    "optim.bs=16",
    "net.d_model=8",
    "net.n_layer=1",
    "eval.episodes=8",
    "eval.interval=16",
    "eval.num_envs=4",
    "total_timesteps=32",
    "cuda=false",
]
INT = "int 0 1000"


class Sized(Environment):
    """Pays its size at once."""

    def __init__(self, size: int = 5, offset: int = 0) -> None:
        self.size, self.offset = size, offset

    def obs_space(self) -> ObsSpace:
        return ObsSpace(global_features=["one"])

    def action_space(self) -> Mapping[str, ActionSpace]:
        return {"go": GlobalCategoricalActionSpace(["on", "off"])}

    def set_parameters(self, size: int = 5, offset: int = 0) -> None:
        self.size, self.offset = size, offset

    def reset(self) -> Observation:
        return self._frame(done=False)

    def act(self, actions: Mapping[str, Action]) -> Observation:
        assert isinstance(actions["go"], GlobalCategoricalAction)
        return self._frame(done=True)

    def _frame(self, done: bool) -> Observation:
        mask = {"go": GlobalCategoricalActionMask()}
        reward = float(self.size + self.offset) if done else 0.0
        return Observation(global_features=[1.0], actions=mask, done=done, reward=reward)


def evaluations(folder: Path, *settings: str) -> list[dict[str, float]]:
    """Return the scalars of the evaluations of a run."""
    manager = StateManager(checkpoint_dir=folder, overrides=[*SETTINGS, *settings])
    with Trainer(manager, Sized) as trainer:
        first = trainer.evaluate()
        trainer.run()
        return [first, trainer.evaluate()]


def returns_of(scalars: Mapping[str, float], suite: str = "") -> tuple[float, float]:
    """Return mean and highest return."""
    tag = f"eval/{suite}episodic_reward"
    return scalars[f"{tag}.mean"], scalars[f"{tag}.max"]


def test_arguments_of_training_do_not_change_evaluations(tmp_path: Path) -> None:
    fixed = evaluations(tmp_path / "fixed")
    varied = evaluations(tmp_path / "varied", f'env.vary.size="{INT}"')
    assert [returns_of(one) for one in [*fixed, *varied]] == [(5.0, 5.0)] * 4


@pytest.mark.parametrize("processes", [1, 2])
def test_arguments_of_evaluations_are_drawn_from_their_seed(tmp_path: Path, processes: int) -> None:
    folder = tmp_path / "run"
    first, last = evaluations(folder, f'eval.env.vary.size="{INT}"', f"eval.processes={processes}")
    drawn = [
        Variation.of({"size": INT}).arguments(derive_seed(1, "eval"), match, episode)["size"]
        for match in range(4)
        for episode in range(2)
    ]
    assert returns_of(first) == returns_of(last) == (sum(drawn) / 8, max(drawn))


def test_a_suite_fixes_or_varies_what_eval_env_does_not(tmp_path: Path) -> None:
    suites: dict[str, Any] = {
        "fixed": {"env": {"kwargs": '{"size": 7}'}},
        "moved": {"env": {"vary": {"offset": "2000"}}},
    }
    vary = f'eval.env.vary.size="{INT}"'
    first, last = evaluations(tmp_path, vary, f"eval.suites={json.dumps(suites)}")
    assert first == last
    assert returns_of(first, "fixed/") == (7.0, 7.0)
    mean, highest = returns_of(first)
    assert returns_of(first, "moved/") == (mean + 2000, highest + 2000)


def test_arguments_that_cannot_vary_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"eval\.env\.vary: .*did you mean size"):
        evaluations(tmp_path, 'eval.env.vary.sizes="int 0 9"')


def test_the_command_draws_arguments(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evaluations(tmp_path / "run", f'env.vary.size="{INT}"')
    world = f"{__file__}:Sized"
    command = ["eval", str(tmp_path / "run"), "--env", world, "--episodes", "8", "--num-envs", "4"]

    def report(*options: str) -> tuple[float, float]:
        out = tmp_path / "report.json"
        assert run([*command, "--out", str(out), *options]) == 0
        suite = json.loads(out.read_text())["suites"][""]
        metric = suite["metrics"]["episodic_reward"]
        return metric["mean"], metric["max"]

    assert report() == (5.0, 5.0)
    mean, highest = report("--vary", f"size={INT}")
    assert mean != 5.0
    assert highest > 9
    assert "--vary: expected NAME=SAMPLER" in refused([*command, "--vary", "size"], capsys)
