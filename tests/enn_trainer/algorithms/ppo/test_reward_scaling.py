"""Rewards in units of what returns differ by."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer.algorithms.ppo.reward_scaling import RewardScaling, returns_so_far
from rogue_net.input_norm import Moments


def test_returns_so_far_by_hand() -> None:
    rewards = torch.tensor([[1.0, 0.0], [2.0, 4.0], [3.0, 1.0]])
    done = torch.tensor([[False, False], [True, False], [False, True]])
    seen, running = returns_so_far(rewards, done, torch.tensor([8.0, 2.0]).double(), gamma=0.5)
    # left: 0.5 * 8 + 1 = 5; 0.5 * 5 + 2 = 4.5 and over; 3 of a new episode
    # right: 0.5 * 2 = 1; 0.5 * 1 + 4 = 4.5; 0.5 * 4.5 + 1 = 3.25 and over
    assert seen.tolist() == [[5.0, 1.0], [4.5, 4.5], [3.0, 3.25]]
    assert running.tolist() == [3.0, 0.0]


def test_rewards_are_divided_by_the_deviation_of_all_returns_so_far() -> None:
    scaling = RewardScaling.fresh(num_envs=1)
    over = torch.tensor([[True], [True]])
    first = scaling.scaled(torch.tensor([[1.0], [3.0]]), over, gamma=0.9)
    # returns 1 and 3: deviation 1
    assert first.tolist() == [[1.0], [3.0]]
    second = scaling.scaled(torch.tensor([[6.0], [10.0]]), over, gamma=0.9)
    # returns 1, 3, 6, 10: mean 5, squares 16 + 4 + 1 + 25 = 46, deviation sqrt(46 / 4)
    assert second.flatten().tolist() == pytest.approx([6 / 11.5**0.5, 10 / 11.5**0.5])
    assert second.dtype == torch.float32


@given(
    unit=st.floats(1e-6, 1e6),
    num_steps=st.integers(1, 20),
    cut=st.integers(0, 20),
    seed=st.integers(0, 100),
)
def test_reward_scaling_does_not_depend_on_units_and_rollout_length(
    unit: float, num_steps: int, cut: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    rewards = torch.from_numpy(rng.normal(size=(num_steps, 3)))
    done = torch.from_numpy(rng.random((num_steps, 3)) < 0.2)
    whole, pieces = RewardScaling.fresh(3), RewardScaling.fresh(3)
    expected = whole.scaled(rewards, done, 0.9)
    for part in (slice(0, min(cut, num_steps)), slice(min(cut, num_steps), num_steps)):
        if len(rewards[part]):
            last = pieces.scaled(unit * rewards[part], done[part], 0.9)
    torch.testing.assert_close(last, expected[-len(last) :])
    assert pieces.deviation().item() == pytest.approx(unit * whole.deviation().item())


@pytest.mark.parametrize("reward", [0.0, 0.1, 1e9])
def test_equal_returns_do_not_scale_rewards(reward: float) -> None:
    """What they differ by in rounding must not blow up every reward."""
    scaling = RewardScaling.fresh(num_envs=7)
    rewards, over = torch.full((30, 7), reward), torch.ones(30, 7, dtype=torch.bool)
    for _ in range(3):
        assert torch.equal(scaling.scaled(rewards, over, 0.9), rewards)


def test_discounted_returns_are_reset_with_new_episodes() -> None:
    scaling = RewardScaling.fresh(num_envs=2)
    scaling.scaled(torch.ones(1, 2), torch.zeros(1, 2, dtype=torch.bool), 0.9)
    assert scaling.returns.tolist() == [1.0, 1.0]
    scaling.begin_episodes(3)
    assert scaling.returns.tolist() == [0.0, 0.0, 0.0]
    assert scaling.moments.num_rows.item() == 2


def test_padding_is_excluded_from_reward_statistics() -> None:
    """They have no reward, which would make returns look smaller than they are."""
    rewards, done = torch.tensor([[1.0, 1.0], [2.0, 0.0], [0.0, 3.0]]), torch.zeros(3, 2).bool()
    done[1, 0] = done[0, 1] = True
    padding = torch.tensor([[False, False], [False, True], [True, False]])
    scaling, expected = RewardScaling.fresh(2), RewardScaling.fresh(2)
    scaled = scaling.scaled(rewards, done, 0.5, lambda x: x[~padding])
    # Returns so far: 1 and 0.5 * 1 + 2 of the first environment, 1 and 3 of the second one.
    moments = Moments.of(torch.tensor([[1.0], [1.0], [2.5], [3.0]]))
    expected.moments = expected.moments.merged(moments)
    assert scaling.moments.num_rows.tolist() == [4]
    torch.testing.assert_close(scaling.deviation(), expected.deviation())
    torch.testing.assert_close(scaled, (rewards / expected.deviation()).float())
    assert scaling.returns.tolist() == [0.0, 3.0]
