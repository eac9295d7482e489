"""Settings of the translation of positions. No torch."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import List, Optional


@dataclass
class TranslationConfig:
    """Settings for centering all positions on one entity.

    Attributes:
        reference_entity: The entity type whose position becomes the origin. Its own features stay
            as they are. The center of several is taken; where there is none, or none that is
            visible, positions stay as they are.
        position_features: Names of the position features. Types without them stay as they are.
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

    def __post_init__(self) -> None:
        if problems := list(_problems(self)):
            raise ValueError("; ".join(problems))


def _problems(config: TranslationConfig) -> Iterator[str]:
    names = config.position_features
    if not names or len(set(names)) < len(names):
        yield f"position_features: expected names, each once, got {names}"
    yield from rotation_problems(config.rotation_vec_features, config.rotation_angle_feature)
    rotated = config.rotation_vec_features is not None or config.rotation_angle_feature is not None
    if rotated and len(names) < 2:
        yield f"position_features: expected two or more to rotate, got {names}"


def rotation_problems(vec_features: List[str] | None, angle_feature: str | None) -> Iterator[str]:
    """Yield the problems of the two ways to give an orientation."""
    if vec_features is not None and len(vec_features) != 2:
        yield f"rotation_vec_features: expected the names of two features, got {vec_features}"
    if vec_features is not None and angle_feature is not None:
        yield (
            "rotation_vec_features, rotation_angle_feature: expected one of them, got both; "
            "leave one out"
        )
