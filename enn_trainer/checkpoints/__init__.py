"""Saves: written, verified and read."""
