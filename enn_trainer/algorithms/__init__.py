"""Algorithms: what learns, from rollouts or recordings."""
