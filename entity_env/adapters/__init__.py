"""Worlds of Gymnasium and PettingZoo as worlds of ours, and ours as theirs; imports nothing."""
