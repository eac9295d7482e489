"""Evaluation of agents, alone or against opponents."""
