"""The network: a ragged batch of entities through a transformer to actions and values."""
