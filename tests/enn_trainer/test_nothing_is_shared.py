"""What an environment overwrites or returns again changes nothing of what is learnt."""

from pathlib import Path
from typing import Any

import pytest
import torch

from entity_env import Observation
from tests.enn_trainer.builders import run_small, weights
from tests.enn_trainer.worlds import Meadow


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
