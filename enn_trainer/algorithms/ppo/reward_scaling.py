"""Reward scaling: rewards divided by the standard deviation of discounted returns.

Source: Engstrom et al. 2020, arXiv:2005.12729, "Reward scaling".
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from enn_trainer.algorithms.algorithm import RewardTransform
from enn_trainer.base.state_part import StateDict, check_tensor
from enn_trainer.experience.collector import Rollout
from rogue_net.input_norm import Moments


@dataclass
class RewardScaling(RewardTransform):
    """Rewards divided by the running standard deviation of discounted returns.

    Attributes:
        moments: moments of the discounted return over all frames, (1,) float64 each.
        returns: (B,) float64, discounted return of the running episode of each environment.
    """

    moments: Moments
    returns: Tensor

    @staticmethod
    def fresh(num_envs: int) -> "RewardScaling":
        """Return the statistics before the first frame."""
        returns = torch.zeros(num_envs, dtype=torch.float64)
        return RewardScaling(Moments.of(returns[:0, None]), returns)

    def begin_episodes(self, num_envs: int) -> None:
        """Reset the discounted returns, as all environments begin new episodes."""
        self.returns = self.returns.new_zeros(num_envs)

    def transform(self, rewards: Tensor, rollout: Rollout, gamma: float) -> Tensor:
        """Scale the rewards of a rollout, see `scaled`."""
        done = rollout.terminated | rollout.truncated
        return self.scaled(rewards, done, gamma, rollout.of_played)

    def begin(self, returns: Tensor) -> None:
        """Initialise the statistics with discounted returns, (n,), for example of a recording."""
        self.moments = self.moments.merged(Moments.of(returns.double().cpu()[:, None]))

    def metrics(self) -> dict[str, float]:
        """Return the divisor of the rewards."""
        return {"charts/reward_deviation": self.deviation().item()}

    def state_dict(self) -> StateDict:
        """Return the statistics."""
        return {**self.moments._asdict(), "returns": self.returns}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the statistics, of any number of environments.

        Raises:
            ValueError: a tensor is missing, or has the wrong shape or type.
        """
        saved = dict(state)
        if not saved:  # the run began without reward scaling
            return
        parts = (*Moments._fields, "returns")
        if saved.keys() != {*parts}:
            raise ValueError(f"expected {', '.join(parts)}, got {', '.join(sorted(saved))}")
        if not all(isinstance(value, Tensor) for value in saved.values()):
            raise ValueError(f"{', '.join(parts)}: expected tensors")
        if saved["num_rows"].ndim == 0:  # older saves have one count for all features
            saved["num_rows"] = saved["num_rows"][None]
        for name in Moments._fields:
            check_tensor(name, saved[name], getattr(self.moments, name).dtype, (1,))
        returns = saved.pop("returns")
        check_tensor("returns", returns, torch.float64, (returns.numel(),))
        self.moments, self.returns = Moments(**saved), returns

    def scaled(
        self,
        rewards: Tensor,
        done: Tensor,
        gamma: float,
        select_played: Callable[[Tensor], Tensor] = torch.flatten,
    ) -> Tensor:
        """Add a rollout to the statistics, then divide its rewards by the standard deviation.

        Args:
            rewards: (T, B) float.
            done: (T, B) bool, True if the episode ended in this step.
            gamma: discount factor per step.
            select_played: `Rollout.of_played`; by default all frames are selected.

        Returns:
            (T, B), of the dtype of `rewards`.
        """
        running_returns, self.returns = returns_so_far(rewards, done, self.returns, gamma)
        self.moments = self.moments.merged(Moments.of(select_played(running_returns)[:, None]))
        return (rewards / self.deviation()).to(rewards.dtype)

    def deviation(self) -> Tensor:
        """Return the standard deviation of the returns, () float64; 1 while all are equal."""
        variance = self.moments.squares_sum / self.moments.num_rows.clamp(min=1)
        deviation = variance.sqrt().squeeze(0)
        # A relative threshold: equal returns differ by rounding, which must not become the scale.
        differ = deviation > 1e-6 * self.moments.mean.abs().squeeze(0)
        return torch.where(differ, deviation, 1.0)


def returns_so_far(
    rewards: Tensor, done: Tensor, before: Tensor, gamma: float
) -> tuple[Tensor, Tensor]:
    """Return the running discounted return of each episode up to each step.

    Args:
        rewards: (T, B) float.
        done: (T, B) bool, True if the episode ended in this step; the next one starts at 0.
        before: (B,) float64, running returns before the rollout.
        gamma: discount factor per step.

    Returns:
        (T, B) float64; and (B,) float64, running returns after the rollout.
    """
    # R_t = gamma * R_{t-1} + r_t
    seen, running = [], before
    for reward, ended in zip(rewards, done, strict=True):
        running = gamma * running + reward
        seen.append(running)
        running = running.masked_fill(ended, 0.0)
    return torch.stack(seen), running
