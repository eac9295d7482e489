"""What an environment overwrites or returns again changes nothing of what is learnt."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch

from entity_env import Match, Observation
from entity_env.examples import Duel
from tests.enn_trainer.builders import SMALL, run_small, weights
from tests.enn_trainer.chains_world import Camp
from tests.enn_trainer.resuming import go, tracked
from tests.enn_trainer.worlds import Meadow
from tests.entity_env.hostile import HostileEnv, HostileMatch

EVALUATED = ["eval.episodes=3", "eval.interval=24", "eval.num_envs=4", "eval.processes=1"]


def run(folder: Path, env: Any, processes: int) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    manager = go(folder, env, *SMALL, *EVALUATED, f"rollout.processes={processes}")
    return weights(manager), tracked(folder / "run" / "metrics.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("cls", [Camp, Duel])
def test_an_environment_that_overwrites_trains_as_its_twin(cls: Any, tmp_path: Path) -> None:
    """In one process and in two, and with the evaluations."""
    expected, rows = run(tmp_path / "twin", cls, 1)
    assert any("eval/episodic_reward.mean" in row for row in rows)
    twin = functools.partial(HostileMatch if issubclass(cls, Match) else HostileEnv, cls)
    for processes in (1, 2):
        learnt, got = run(tmp_path / f"{processes}", twin, processes)
        assert torch.equal(learnt, expected)
        assert repr(got) == repr(rows)


class Levels(Meadow):
    """Every environment takes its rewards from a list that it uses up."""

    def __init__(self, levels: Any) -> None:
        super().__init__()
        self.levels = levels["rewards"]

    def _observe(self, reward: float) -> Observation:
        return super()._observe(float(self.levels.pop() if self.levels else 0))


@pytest.mark.slow
def test_lists_in_kwargs_belong_to_each_environment(tmp_path: Path) -> None:
    settings = ["total_timesteps=48", 'env.kwargs={"levels": {"rewards": [1, 2, 3, 4, 5, 6]}}']
    here, in_workers = (
        run_small(tmp_path / f"{n}", *settings, f"rollout.processes={n}", env=Levels)
        for n in (1, 3)
    )
    assert torch.equal(weights(here), weights(in_workers))
