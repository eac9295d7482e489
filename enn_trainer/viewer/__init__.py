"""Replays of episodes as pages, and what the agent made of each frame."""
