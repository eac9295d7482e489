"""Collecting, judging and learning."""
