"""Heads and distributions of actions."""
