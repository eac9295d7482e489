"""Measuring agents, alone or against others."""
