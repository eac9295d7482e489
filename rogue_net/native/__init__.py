"""Attention and blocks in C, for the CPU. Where it was not compiled, `AVAILABLE` is False."""

from rogue_net.native.library import AVAILABLE, INSTRUCTIONS

__all__ = ["AVAILABLE", "INSTRUCTIONS"]
