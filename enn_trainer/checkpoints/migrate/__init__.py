"""Upgrade of saves to changed worlds and to the current format."""
