"""Rewards divided by how much discounted returns differ, so that their unit does not matter.

Source: Engstrom et al. 2020, arXiv:2005.12729, "Reward scaling".
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from rogue_net.input_norm import Moments


@dataclass
class RewardScaling:
    """What is known of the returns of a run so far.

    Attributes:
        moments: of the discounted return at every frame, (1,) float64 each.
        returns: (B,) float64, the discounted return of the running episode of each environment.
    """

    moments: Moments
    returns: Tensor

    @staticmethod
    def fresh(num_envs: int) -> "RewardScaling":
        """Nothing seen yet."""
        returns = torch.zeros(num_envs, dtype=torch.float64)
        return RewardScaling(Moments.of(returns[:0, None]), returns)

    def to(self, device: torch.device) -> None:
        """Move it to a device."""
        self.moments = Moments(*(part.to(device) for part in self.moments))
        self.returns = self.returns.to(device)

    def begin_episodes(self, num_envs: int) -> None:
        """Forget the running episodes, as all environments begin new ones."""
        self.returns = self.returns.new_zeros(num_envs)

    def scaled(self, rewards: Tensor, done: Tensor, gamma: float) -> Tensor:
        """Take a rollout into the statistics, and divide its rewards by the deviation then.

        Args:
            rewards: (T, B) float.
            done: (T, B) bool, the episode ended in this step.
            gamma: discount of a step.

        Returns:
            (T, B) of the type of `rewards`.
        """
        seen, self.returns = returns_so_far(rewards, done, self.returns, gamma)
        self.moments = self.moments.merged(Moments.of(seen.reshape(-1, 1)))
        return (rewards / self.deviation()).to(rewards.dtype)

    def deviation(self) -> Tensor:
        """() float64, the standard deviation of the returns; 1 as long as they are all the same."""
        variance = self.moments.squares_sum / self.moments.num_rows.clamp(min=1)
        deviation = variance.sqrt().squeeze(0)
        # Relative: what equal returns differ by in rounding is no unit to measure rewards with.
        differ = deviation > 1e-6 * self.moments.mean.abs().squeeze(0)
        return torch.where(differ, deviation, 1.0)


def reward_scalars(scaling: RewardScaling | None) -> dict[str, float]:
    """What to report: what rewards are divided by."""
    return {} if scaling is None else {"charts/reward_deviation": scaling.deviation().item()}


def returns_so_far(
    rewards: Tensor, done: Tensor, before: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """The discounted return of each episode up to each step: gamma times the last, plus the reward.

    Args:
        rewards: (T, B) float.
        done: (T, B) bool, the episode ended in this step; the next one begins at 0.
        before: (B,) float64, of the episodes that were running.
        gamma: discount of a step.

    Returns:
        (T, B) float64; and (B,) float64, of the episodes that run afterwards.
    """
    seen, running = [], before
    for reward, ended in zip(rewards, done, strict=True):
        running = gamma * running + reward
        seen.append(running)
        running = running.masked_fill(ended, 0.0)
    return torch.stack(seen), running
