"""Learning from recordings, alone or beside PPO."""
