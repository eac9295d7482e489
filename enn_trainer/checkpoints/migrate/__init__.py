"""Upgrade of checkpoints to changed environments and to the current format."""
