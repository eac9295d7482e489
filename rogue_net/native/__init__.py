"""Attention and blocks in C, for the CPU. Where it was not compiled, `AVAILABLE` is False."""

from rogue_net.native.compiled import AVAILABLE, INSTRUCTIONS, PROBLEM

__all__ = ["AVAILABLE", "INSTRUCTIONS", "PROBLEM"]
