"""Frames of environments: who acts in them, and what is kept."""
