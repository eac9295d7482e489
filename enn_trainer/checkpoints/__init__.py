"""Writing, verification and reading of checkpoints."""
