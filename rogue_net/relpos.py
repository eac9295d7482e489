"""Relative positions: how the difference of two positions enters the attention."""

from dataclasses import dataclass, field
from typing import List, Literal, Optional


@dataclass
class RelposEncodingConfig:
    """Relative position encoding settings.

    Attributes:
        extent: Each integer relative position in [-extent, extent] receives a positional
            embedding, with positions outside the interval snapped to the closest end.
        position_features: Names of the position features.
        scale: Relative positions are divided by the scale before being assigned an embedding.
        per_entity_values: Whether to use per-entity embeddings for relative positional values.
        exclude_entities: Entity types to exclude from relative position encoding.
        value_relpos_projection: Adds a learnable projection from the relative position/distance to
            the relative positional values.
        key_relpos_projection: Adds a learnable projection from the relative position/distance to
            the relative positional keys.
        per_entity_projections: Uses a different learned projection per entity type.
        radial: Buckets all relative positions by their angle. The extent is the number of buckets.
        distance: Buckets all relative positions by their distance. The extent is the number of
            buckets.
        rotation_vec_features: Names of features that give a unit orientation vector for each
            entity by which to rotate relative positions.
        rotation_angle_feature: Name of the feature that gives an angle in radians by which to
            rotate relative positions.
        interpolate: Whether to interpolate between the embeddings of neighboring positions.
        value_gate: The gate on relative positional values.
        enable_negative_distance_weight_bug: Keeps the behaviour that networks saved before version
            4 were trained with.
    """

    extent: List[int]
    position_features: List[str]
    scale: float = 1.0
    per_entity_values: bool = False
    exclude_entities: List[str] = field(default_factory=list)
    value_relpos_projection: bool = False
    key_relpos_projection: bool = False
    per_entity_projections: bool = False
    radial: bool = False
    distance: bool = False
    rotation_vec_features: Optional[List[str]] = None
    rotation_angle_feature: Optional[str] = None
    interpolate: bool = False
    value_gate: Literal["linear", "relu", "gelu", "sigmoid", None] = "relu"
    enable_negative_distance_weight_bug: bool = False
