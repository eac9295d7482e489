"""Behavioural cloning of recordings, alone or as an auxiliary loss of PPO."""
