"""Vectorized environments: batches of observations, and the conversion of their actions."""
