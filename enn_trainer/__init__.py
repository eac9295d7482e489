"""The run: configuration, state, checkpoints, rollout, PPO, evaluation."""
