"""Returns and advantages, against the published numbers and by hand."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from enn_trainer import PPOConfig
from enn_trainer.algorithms.ppo.returns import advantages, discounted_returns, gae, next_values

GOLDEN = Path(__file__).parents[3] / "golden"


@pytest.mark.parametrize("name", ["advantages_gae", "advantages_returns"])
def test_returns_and_advantages_equal_published_ones(name: str) -> None:
    with np.load(GOLDEN / f"{name}.npz", allow_pickle=False) as file:
        meta = json.loads(str(file["meta"]))
        data = {key: torch.from_numpy(file[key]) for key in file.files if key != "meta"}
    # There, done[t] says that the frame of step t began an episode; here, that step t ended one.
    done = torch.cat([data["done"][1:], data["next_done"][None]]).bool()
    nothing_truncated = torch.zeros_like(done)
    following = next_values(
        data["value"], data["next_value"], done, nothing_truncated, torch.zeros(0)
    )
    if meta["gae"]:
        estimate = gae(
            data["reward"], data["value"], following, done, meta["gamma"], meta["gae_lambda"]
        )
    else:
        estimate = discounted_returns(data["reward"], data["value"], following, done, meta["gamma"])
    torch.testing.assert_close(estimate.returns, data["returns"], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(estimate.advantages, data["advantages"], rtol=1e-5, atol=1e-5)


def test_truncated_episode_bootstraps_from_its_final_observation() -> None:
    values = torch.tensor([[1.0], [2.0], [3.0]])
    truncated = torch.tensor([[False], [True], [False]])
    terminated = torch.zeros_like(truncated)
    following = next_values(
        values, torch.tensor([4.0]), terminated, truncated, torch.tensor([10.0])
    )
    assert following.tolist() == [[2.0], [10.0], [4.0]]
    rewards = torch.tensor([[0.5], [0.25], [0.125]])
    estimate = gae(rewards, values, following, truncated, gamma=0.5, lam=0.5)
    # step 2: 0.125 + 0.5 * 4 - 3 = -0.875
    # step 1: 0.25 + 0.5 * 10 - 2 = 3.25, the episode ends here: nothing of step 2
    # step 0: 0.5 + 0.5 * 2 - 1 = 0.5, + 0.25 * 3.25 = 1.3125
    assert estimate.advantages.flatten().tolist() == [1.3125, 3.25, -0.875]
    plain = discounted_returns(rewards, values, following, truncated, gamma=0.5)
    # step 2: 0.125 + 0.5 * 4; step 1: 0.25 + 0.5 * 10; step 0: 0.5 + 0.5 * 5.25
    assert plain.returns.flatten().tolist() == [3.125, 5.25, 2.125]


def test_terminated_episode_does_not_bootstrap() -> None:
    values = torch.tensor([[5.0], [7.0]])
    terminated = torch.tensor([[True], [True]])
    following = next_values(values, torch.tensor([9.0]), terminated, ~terminated, torch.zeros(0))
    assert following.tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize(
    ("is_gae", "expected"),
    [
        (True, [[2.375, 3.0], [7.0, 2.125], [-1.5, 9.0]]),
        (False, [[5.0, 3.0], [7.0, 5.5], [-1.5, 9.0]]),
    ],
)
def test_advantages_of_a_rollout_with_truncated_episodes(
    is_gae: bool, expected: list[list[float]]
) -> None:
    """Two environments, whose episodes are truncated at different steps and not in their order."""
    rollout: Any = SimpleNamespace(
        values=torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]),
        last_values=torch.tensor([7.0, 8.0]),
        rewards=torch.tensor([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]),
        terminated=torch.zeros(3, 2, dtype=torch.bool),
        truncated=torch.tensor([[False, True], [True, False], [False, True]]),
        final_values=torch.tensor([10.0, 20.0, 30.0]),
    )
    # V(s_{t+1}), first environment: 3, 20, 7; second: 10, 6, 30.
    # delta_t = r_t + V(s_{t+1}) / 2 - V(s_t), first: 1.5, 7, -1.5; second: 3, 1, 9.
    # GAE: A_0 = 1.5 + 7 / 8 in the first, A_1 = 1 + 9 / 8 in the second; the others are deltas.
    # Returns, first: 1 + 10 / 2, 20 / 2, 7 / 2; second: 10 / 2, 2 + 15 / 2, 30 / 2.
    ppo = PPOConfig(gae=is_gae, gamma=0.5, gae_lambda=0.25)
    assert advantages(rollout, ppo).advantages.tolist() == expected
    doubled = advantages(rollout, ppo, 2 * rollout.rewards)
    assert doubled.advantages[1, 1] == expected[1][1] + 2
