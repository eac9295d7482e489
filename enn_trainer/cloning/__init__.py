"""Learning from recordings."""
