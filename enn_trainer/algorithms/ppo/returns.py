"""Returns and advantages of a rollout."""

from typing import NamedTuple

import torch
from torch import Tensor

from enn_trainer.config.ppo_config import PPOConfig
from enn_trainer.experience.collector import Rollout


class Estimate(NamedTuple):
    """Returns and advantages of the frames of a rollout.

    Attributes:
        returns: (T, B) float, the targets of the value function.
        advantages: (T, B) float, returns minus values.
    """

    returns: Tensor
    advantages: Tensor


def advantages(rollout: Rollout, ppo: PPOConfig, rewards: Tensor | None = None) -> Estimate:
    """Estimate returns and advantages of a rollout by the method in the configuration.

    Args:
        rollout: T steps of B environments.
        ppo: method, discount factor and lambda.
        rewards: (T, B) float, transformed rewards; None for the rewards of the rollout.
    """
    terminated, truncated = rollout.terminated, rollout.truncated
    following = next_values(
        rollout.values, rollout.last_values, terminated, truncated, rollout.final_values
    )
    done = terminated | truncated
    rewards = rollout.rewards if rewards is None else rewards
    if ppo.gae:
        return gae(rewards, rollout.values, following, done, ppo.gamma, ppo.gae_lambda)
    return discounted_returns(rewards, rollout.values, following, done, ppo.gamma)


def next_values(
    values: Tensor, last_values: Tensor, terminated: Tensor, truncated: Tensor, final_values: Tensor
) -> Tensor:
    """Return the value V(s_{t+1}) of the state that follows each step.

    It is 0 where the episode terminated, and the value of the episode's own final observation where
    it was truncated, as the next frame is the first of another episode.

    Args:
        values: (T, B) float, values of the frames of the rollout.
        last_values: (B,) float, values of the frames after the rollout.
        terminated: (T, B) bool, True if the episode terminated in this step.
        truncated: (T, B) bool, True if the episode was truncated in this step.
        final_values: (number of truncated,) float, values of the final observations of truncated
            episodes, by step and then by environment.

    Returns:
        (T, B) float.
    """
    following = torch.cat([values[1:], last_values[None]])
    following = following.masked_fill(terminated, 0.0)
    return following.masked_scatter(truncated, final_values)


def gae(
    rewards: Tensor, values: Tensor, following: Tensor, done: Tensor, gamma: float, lam: float
) -> Estimate:
    """Estimate advantages by generalised advantage estimation (GAE).

    Args:
        rewards: (T, B) float.
        values: (T, B) float.
        following: (T, B) float, see `next_values`.
        done: (T, B) bool, True if the episode terminated or was truncated in this step.
        gamma: discount factor per step.
        lam: lambda, from 0 (low variance, biased by the values) to 1 (discounted returns).

    Source: Schulman et al. 2015, arXiv:1506.02438, equation 16.
    """
    # TD error: delta_t = r_t + gamma * V(s_{t+1}) - V(s_t)
    deltas = rewards + gamma * following - values
    # A_t = delta_t + gamma * lambda * (1 - done_t) * A_{t+1}
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
    """Return the discounted sums of rewards, bootstrapped at truncations and after the rollout.

    Args:
        rewards: (T, B) float.
        values: (T, B) float.
        following: (T, B) float, see `next_values`.
        done: (T, B) bool, True if the episode terminated or was truncated in this step.
        gamma: discount factor per step.
    """
    # R_t = r_t + gamma * R_{t+1} within an episode, r_t + gamma * V(s_{t+1}) where it ends
    returns = torch.empty_like(rewards)
    running = following[-1]
    for t in range(len(rewards) - 1, -1, -1):
        running = rewards[t] + gamma * torch.where(done[t], following[t], running)
        returns[t] = running
    return Estimate(returns, returns - values)
