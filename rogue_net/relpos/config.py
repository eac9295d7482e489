"""Settings of positions: the relative position encoding, and translation. No torch."""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import List, Literal, Optional

from entity_env.strict_fields import StrictFields

GATES = ("linear", "relu", "gelu", "sigmoid")


@dataclass
class RelposEncodingConfig(StrictFields):
    """Settings of the relative position encoding.

    Attributes:
        extent: Each integer relative position in [-extent, extent] receives a positional
            embedding, with positions outside the interval snapped to the closest end; one extent
            for each position feature.
        position_features: Names of the position features. Entities without them take part in
            attention, without a relative position.
        scale: Relative positions are divided by the scale before being assigned an embedding.
        per_entity_values: Whether to use per-entity embeddings for relative positional values.
        exclude_entities: Entity types to exclude from relative position encoding.
        value_relpos_projection: Adds a learnable projection from the relative position/distance to
            the relative positional values.
        key_relpos_projection: Adds a learnable projection from the relative position/distance to
            the relative positional keys.
        per_entity_projections: Uses a different learned projection per type of the entity that
            attends.
        radial: Buckets all relative positions by their angle, in the plane of the first two
            position features. The extent is the number of buckets.
        distance: Buckets all relative positions by their distance. The extent is the number of
            buckets. Together with radial, the extent is [angles, distances].
        rotation_vec_features: Names of features that give a unit orientation vector for each
            entity by which to rotate relative positions (radial only).
        rotation_angle_feature: Name of the feature that gives an angle in radians by which to
            rotate relative positions (radial only).
        interpolate: Whether to interpolate between the embeddings of neighboring positions.
        value_gate: The gate on relative positional values.
        enable_negative_distance_weight_bug: Reproduces networks saved before version 4. It has no
            effect on the result: beyond the last bucket, they used two weights for the same
            embedding, one of them negative, that sum to 1.
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

    def __post_init__(self) -> None:
        if problems := list(_problems(self)):
            raise ValueError("; ".join(problems))


def _problems(config: RelposEncodingConfig) -> Iterator[str]:
    names, extent = config.position_features, config.extent
    # Names and numbers of axes.
    if not names or len(set(names)) < len(names):
        yield f"position_features: expected names, each once, got {names}"
    if config.radial and len(names) < 2:
        yield f"position_features: expected two or more for angles (radial), got {names}"
    expected = len(names)
    entries = "one number for each position feature"
    if config.radial or config.distance:
        expected = config.radial + config.distance
        entries = ["[buckets]", "[angles, distances]"][expected - 1]
    least = 1 if config.radial or config.distance else 0
    if len(extent) != expected or any(e < least for e in extent):
        yield f"extent: expected {entries}, each at least {least}, got {extent}"
    # Scale and gate.
    if not 0 < config.scale < math.inf:
        yield f"scale: expected a finite number above 0, got {config.scale}"
    if config.value_gate not in (None, *GATES):
        yield f"value_gate: expected None or one of {list(GATES)}, got {config.value_gate!r}"
    # Settings that need another one.
    yield from _rotation_problems(config.rotation_vec_features, config.rotation_angle_feature)
    rotated = config.rotation_vec_features is not None or config.rotation_angle_feature is not None
    if rotated and not config.radial:
        yield (
            "rotation_vec_features, rotation_angle_feature: expected radial=true, as only angles "
            "are rotated; set it, or leave them out"
        )
    projected = config.value_relpos_projection or config.key_relpos_projection
    if config.per_entity_projections and not projected:
        yield (
            "per_entity_projections: expected value_relpos_projection or key_relpos_projection; "
            "enable one of them, or leave it out"
        )


@dataclass
class TranslationConfig(StrictFields):
    """Settings of the transformation of positions into the coordinates of an entity.

    Attributes:
        reference_entity: The entity type whose position becomes the origin. Its features are not
            transformed. The origin is the center of several reference entities; without a visible
            one, positions are not transformed.
        position_features: Names of the position features. Types without them are not transformed.
        rotation_vec_features: Names of the features with a unit orientation vector of the
            reference entity, to rotate positions.
        rotation_angle_feature: Name of the feature with the heading in radians of the reference
            entity, to rotate positions.
        add_dist_feature: Adds the distance to the reference entity as a feature.
    """

    reference_entity: str
    position_features: List[str]
    rotation_vec_features: Optional[List[str]] = None
    rotation_angle_feature: Optional[str] = None
    add_dist_feature: bool = False

    def __post_init__(self) -> None:
        if problems := list(_translation_problems(self)):
            raise ValueError("; ".join(problems))


def _translation_problems(config: TranslationConfig) -> Iterator[str]:
    names = config.position_features
    if not names or len(set(names)) < len(names):
        yield f"position_features: expected names, each once, got {names}"
    yield from _rotation_problems(config.rotation_vec_features, config.rotation_angle_feature)
    rotated = config.rotation_vec_features is not None or config.rotation_angle_feature is not None
    if rotated and len(names) < 2:
        yield f"position_features: expected two or more to rotate, got {names}"


def _rotation_problems(vec_features: List[str] | None, angle_feature: str | None) -> Iterator[str]:
    """Yield the problems of the two settings for an orientation."""
    if vec_features is not None and len(vec_features) != 2:
        yield f"rotation_vec_features: expected the names of two features, got {vec_features}"
    if vec_features is not None and angle_feature is not None:
        yield (
            "rotation_vec_features, rotation_angle_feature: expected one of them, got both; "
            "leave one out"
        )
