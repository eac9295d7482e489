"""The commands of `enn`."""
