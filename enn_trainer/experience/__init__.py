"""Rollouts: players, environments, recurrent state and recordings."""
