"""Curriculum stages, and the rounds of episodes that their bounds read."""
