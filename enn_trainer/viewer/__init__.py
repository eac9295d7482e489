"""Replay pages of episodes, and live games."""
