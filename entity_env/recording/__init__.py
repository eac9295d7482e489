"""Recordings: files of frames, actions, rewards and ends of episodes."""
