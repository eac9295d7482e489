"""Positions as seen from one entity."""

from dataclasses import dataclass
from typing import List, Optional


@dataclass
class TranslationConfig:
    """Settings for centering all positions on one entity.

    Attributes:
        reference_entity: The entity type whose position becomes the origin.
        position_features: Names of the position features.
        rotation_vec_features: Names of features that give a unit orientation vector of the
            reference entity, by which positions are rotated.
        rotation_angle_feature: Name of the feature that gives the angle in radians of the
            reference entity, by which positions are rotated.
        add_dist_feature: Adds the distance to the reference entity as a feature.
    """

    reference_entity: str
    position_features: List[str]
    rotation_vec_features: Optional[List[str]] = None
    rotation_angle_feature: Optional[str] = None
    add_dist_feature: bool = False
