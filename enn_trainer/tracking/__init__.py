"""Tracking of a run: metric sinks, files and the terminal display."""
