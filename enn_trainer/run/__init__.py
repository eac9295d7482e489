"""Training runs: the loop, sessions, stopping, saving, and coordination of ranks."""
