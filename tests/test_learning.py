"""Agents learn: the fast rows of `benchmarks/learning.py`, one seed each; a negative control."""

from pathlib import Path

import numpy as np
import pytest
import torch

from enn_trainer import StateManager, train
from enn_trainer.evaluate import Seats, play
from enn_trainer.opponents import RandomAgent
from entity_env import AddMetricsWrapper, EnvList
from entity_env.examples import ENV_REGISTRY, Duel

CONFIGS = Path(__file__).parent.parent / "configs"


def trained(tmp_path: Path, name: str, *overrides: str) -> tuple[StateManager, float]:
    manager = StateManager(
        init_path=CONFIGS / f"{name}.ron", overrides=[f"data_dir={tmp_path}", *overrides]
    )
    manager.config.eval = None
    result = train(manager, ENV_REGISTRY[manager.config.env.id])
    return manager, float(result)


@pytest.mark.parametrize("name", ["multi_armed_bandit", "not_hotdog", "count"])
def test_published_result_is_reached(tmp_path: Path, name: str) -> None:
    assert trained(tmp_path, name)[1] >= 0.99


@pytest.mark.parametrize(
    "options",
    [
        "ratio=frame weight_by=frame dual_clip=3 value_loss=huber vf_clip_coef=1",
        "value_loss=hl_gauss clip_vloss=false value_bins.low=-1 value_bins.high=4"
        " reward_scaling=true",
        'ent_targets={"count":0.05}',
    ],
)
def test_options_of_the_loss_learn_as_well(tmp_path: Path, options: str) -> None:
    assert trained(tmp_path, "count", *(f"ppo.{option}" for option in options.split()))[1] >= 0.99


def test_nothing_is_learnt_without_a_learning_rate(tmp_path: Path) -> None:
    assert trained(tmp_path, "count", "optim.lr=0")[1] < 0.95


def test_self_play_beats_random_play(tmp_path: Path) -> None:
    manager, _ = trained(tmp_path, "duel", "total_timesteps=24000", "optim.anneal_lr=false")
    everywhere = np.arange(128)
    agents = manager.state.agent, RandomAgent(Duel().action_space())
    seats = [Seats(agent, everywhere[i::2]) for i, agent in enumerate(agents)]
    envs = AddMetricsWrapper(EnvList(Duel, 128), everywhere % 2 == 0)
    metrics = play(envs, seats, 60, seed=1, device=torch.device("cpu"))
    assert metrics["win"].count > 200
    assert metrics["win"].mean >= 0.8
