"""`RogueNet`: a ragged batch of entities in, actions and values out."""

from dataclasses import dataclass
from typing import Literal, Optional

from rogue_net.relpos import RelposEncodingConfig
from rogue_net.translate import TranslationConfig


@dataclass
class RogueNetConfig:
    """RogueNet network parameters.

    Attributes:
        embd_pdrop: Dropout probability for embedding layer.
        resid_pdrop: Dropout probability for residual branches.
        attn_pdrop: Dropout probability for attention.
        n_layer: Number of transformer layers.
        n_head: Number of attention heads.
        d_model: Dimension of embedding.
        pooling: Replace attention layer with "mean", "max", or "meanmax" pooling.
        relpos_encoding: Relative positional encoding settings.
        d_qk: Dimension of keys and queries in select-entity action heads.
        translation: Settings for transforming all position features to be centered on one entity.
    """

    embd_pdrop: float = 0.0
    resid_pdrop: float = 0.0
    attn_pdrop: float = 0.0
    n_layer: int = 2
    n_head: int = 2
    d_model: int = 32
    pooling: Optional[Literal["mean", "max", "meanmax"]] = None
    relpos_encoding: Optional[RelposEncodingConfig] = None
    d_qk: int = 16
    translation: Optional[TranslationConfig] = None
