"""Adapters between our environments and those of Gymnasium and PettingZoo. Imports nothing."""
