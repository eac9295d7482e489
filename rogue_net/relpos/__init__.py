"""Positions of entities, relative to each other in attention or to a reference entity."""

from rogue_net.relpos.config import RelposEncodingConfig, TranslationConfig

__all__ = ["RelposEncodingConfig", "TranslationConfig"]
