"""Attention and blocks in C, for the CPU. `AVAILABLE` is False if they are not compiled."""

from rogue_net.native.compiled import AVAILABLE, INSTRUCTIONS, PROBLEM

__all__ = ["AVAILABLE", "INSTRUCTIONS", "PROBLEM"]
