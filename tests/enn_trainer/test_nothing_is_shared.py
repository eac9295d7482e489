"""What an environment overwrites or returns again changes nothing of what is learnt."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from entity_env import Match, Observation, PlainState
from entity_env.examples import Duel
from tests.enn_trainer.builders import SMALL, run_small, weights
from tests.enn_trainer.chains_world import Camp
from tests.enn_trainer.resuming import go, tracked
from tests.enn_trainer.worlds import Levels, Meadow
from tests.entity_env.hostile import HostileEnv, HostileMatch
from tests.entity_env.worlds import Repeats

EVALUATED = ["eval.episodes=3", "eval.interval=24", "eval.num_envs=4", "eval.processes=1"]


def run(folder: Path, env: Any, processes: int) -> tuple[torch.Tensor, list[dict[str, Any]]]:
    manager = go(folder, env, *SMALL, *EVALUATED, f"rollout.processes={processes}")
    return weights(manager), tracked(folder / "run" / "metrics.jsonl")


@pytest.mark.slow
@pytest.mark.parametrize("cls", [Camp, Duel])
def test_an_environment_that_reuses_arrays_trains_like_its_twin(cls: Any, tmp_path: Path) -> None:
    """In one process and in two, and with the evaluations."""
    expected, rows = run(tmp_path / "twin", cls, 1)
    assert any("eval/episodic_reward.mean" in row for row in rows)
    twin = functools.partial(HostileMatch if issubclass(cls, Match) else HostileEnv, cls)
    for processes in (1, 2):
        learnt, got = run(tmp_path / f"{processes}", twin, processes)
        assert torch.equal(learnt, expected)
        assert repr(got) == repr(rows)


@pytest.mark.slow
def test_lists_in_kwargs_belong_to_each_environment(tmp_path: Path) -> None:
    settings = ["total_timesteps=48", 'env.kwargs={"levels": {"rewards": [1, 2, 3, 4, 5, 6]}}']
    here, in_workers = (
        run_small(tmp_path / f"{n}", *settings, f"rollout.processes={n}", env=Levels)
        for n in (1, 2)
    )
    assert torch.equal(weights(here), weights(in_workers))


@pytest.mark.parametrize("processes", [1, 2])
def test_unserializable_state_is_reported_at_the_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], processes: int
) -> None:
    """The run goes on, and begins new episodes where it is resumed."""
    settings = [*SMALL, "total_timesteps=48", f"rollout.processes={processes}"]
    manager = go(tmp_path, Repeats, *settings)
    assert manager.state.envs is None
    said = capsys.readouterr().out
    assert said.count("Repeats: get_state: row and table: expected") == 1
    assert said.index("row and table") < said.index("step")
    resumed = go(tmp_path, Repeats, "total_timesteps=72")
    assert resumed.state.step == 72
    assert "episodes restart, because their state cannot be saved" in capsys.readouterr().out


class SharesLater(PlainState, Meadow):
    """A view that repeats an array, from the second step on."""

    def _observe(self, reward: float) -> Observation:
        self.row = np.zeros(3)
        self.table = np.broadcast_to(self.row, (4, 3)) if self.is_begun else None
        self.is_begun = True
        return super()._observe(reward)

    is_begun = False


def test_sharing_that_begins_later_disables_saving_of_episodes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    manager = go(tmp_path, SharesLater, *SMALL, "total_timesteps=48")
    assert manager.state.envs is None
    assert caplog.text.count("SharesLater: get_state: row and table: expected") == 1
