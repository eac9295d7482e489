"""Returns and advantages of a rollout, by the method in the configuration."""

from enn_trainer.config.ppo_config import PPOConfig
from enn_trainer.ppo.returns import Estimate, discounted_returns, gae, next_values
from enn_trainer.ppo.reward_scaling import RewardScaling
from enn_trainer.ppo.rollout import Rollout


def advantages(rollout: Rollout, ppo: PPOConfig, scaling: RewardScaling | None = None) -> Estimate:
    """Estimate returns and advantages of a rollout, (T, B) each.

    Args:
        rollout: T steps of B environments.
        ppo: method, discount factor and lambda.
        scaling: scales the rewards after adding them to its statistics; None for no scaling.
    """
    following = next_values(
        rollout.values,
        rollout.last_values,
        rollout.terminated,
        rollout.truncated,
        rollout.final_values,
    )
    done = rollout.terminated | rollout.truncated
    rewards = rollout.rewards
    if scaling is not None:
        rewards = scaling.scaled(rewards, done, ppo.gamma)
    if ppo.gae:
        return gae(rewards, rollout.values, following, done, ppo.gamma, ppo.gae_lambda)
    return discounted_returns(rewards, rollout.values, following, done, ppo.gamma)
