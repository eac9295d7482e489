"""Relative positions of entities in attention."""

from rogue_net.relpos.config import RelposEncodingConfig

__all__ = ["RelposEncodingConfig"]
