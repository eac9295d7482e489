"""Runs of several processes: shards of the environments, ranks, and what they exchange."""
