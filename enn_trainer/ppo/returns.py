"""Returns and advantages of a rollout."""

from typing import NamedTuple

import torch
from torch import Tensor


class Estimate(NamedTuple):
    """What each frame was worth.

    Attributes:
        returns: (T, B) float, the targets of the value function.
        advantages: (T, B) float, how much better than its value each frame turned out.
    """

    returns: Tensor
    advantages: Tensor


def next_values(
    values: Tensor,
    last_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    final_values: Tensor,
) -> Tensor:
    """The value of what follows each step.

    It is 0 where the episode terminated, and the value of the episode's own last observation
    where it was truncated: the next frame is the first of another episode.

    Args:
        values: (T, B) float, of the frames of the rollout.
        last_values: (B,) float, of the frames after the rollout.
        terminated: (T, B) bool, the episode ended by itself in this step.
        truncated: (T, B) bool, the episode was cut off in this step.
        final_values: (number of truncated,) float, of the last observations of the truncated
            episodes, step by step and within a step by environment.

    Returns:
        (T, B) float.
    """
    following = torch.cat([values[1:], last_values[None]])
    following = following.masked_fill(terminated, 0.0)
    return following.masked_scatter(truncated, final_values)


def gae(
    rewards: Tensor, values: Tensor, following: Tensor, done: Tensor, gamma: float, lam: float
) -> Estimate:
    """Generalised advantage estimation.

    Args:
        rewards: (T, B) float.
        values: (T, B) float.
        following: (T, B) float, see `next_values`.
        done: (T, B) bool, the episode ended in this step, either way.
        gamma: discount of a step.
        lam: weight of longer looks ahead.

    Source: Schulman et al. 2015, arXiv:1506.02438, equation 16.
    """
    deltas = rewards + gamma * following - values
    decay = gamma * lam * (~done).to(deltas.dtype)
    advantages = torch.empty_like(deltas)
    running = torch.zeros_like(deltas[0])
    for t in range(len(deltas) - 1, -1, -1):
        running = deltas[t] + decay[t] * running
        advantages[t] = running
    return Estimate(advantages + values, advantages)


def discounted_returns(
    rewards: Tensor, values: Tensor, following: Tensor, done: Tensor, gamma: float
) -> Estimate:
    """Discounted sums of the rewards until the end of the episode or of the rollout.

    Args:
        rewards: (T, B) float.
        values: (T, B) float.
        following: (T, B) float, see `next_values`.
        done: (T, B) bool, the episode ended in this step, either way.
        gamma: discount of a step.
    """
    returns = torch.empty_like(rewards)
    running = following[-1]
    for t in range(len(rewards) - 1, -1, -1):
        running = rewards[t] + gamma * torch.where(done[t], following[t], running)
        returns[t] = running
    return Estimate(returns, returns - values)
