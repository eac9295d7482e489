"""Transformation of positions into the coordinate frame of a reference entity."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rogue_net.relpos.config import TranslationConfig


def rotation_features(
    vec_features: list[str] | None, angle_feature: str | None
) -> tuple[str, list[str]]:
    """Return the name of the orientation setting, and its features; [] without rotation."""
    if angle_feature is not None:
        return "rotation_angle_feature", [angle_feature]
    return "rotation_vec_features", vec_features or []


class Pose(NamedTuple):
    """Position and orientation of the reference entity in each of B frames.

    Attributes:
        origin: (B, axes) float.
        direction: (B, 2) float, cosine and sine of the heading; None for no rotation.
    """

    origin: Tensor
    direction: Tensor | None


def pose(
    position: Tensor, direction: Tensor | None, is_visible: Tensor, frames: Tensor, num_frames: int
) -> Pose:
    """Compute the mean pose of the reference entities of each frame; the identity without any.

    The mean does not depend on the order of the entities.

    Args:
        position: (n, axes) float, of all reference entities.
        direction: (n, 2) float, their unit orientation vectors, or None.
        is_visible: (n,) bool, True for the entities to include.
        frames: (n,) int64, the frame of each.
        num_frames: B.
    """
    is_visible = is_visible.unsqueeze(1)
    count = position.new_zeros(num_frames, 1).index_add(0, frames, is_visible.to(position.dtype))
    total = position.new_zeros(num_frames, position.shape[1])
    total = total.index_add(0, frames, position * is_visible)
    # origin = sum_i p_i / max(1, n) of the n visible references
    origin = total / count.clamp(min=1)
    if direction is None:
        return Pose(origin, None)
    # direction = sum_i u_i / |sum_i u_i|; (1, 0) where the sum is zero
    vector = direction.new_zeros(num_frames, 2).index_add(0, frames, direction * is_visible)
    length = torch.linalg.vector_norm(vector, dim=1, keepdim=True)
    ahead = torch.tensor([1.0, 0.0], dtype=vector.dtype, device=vector.device)
    return Pose(origin, torch.where(length > 0, vector / torch.where(length > 0, length, 1), ahead))


def seen_from(position: Tensor, reference: Pose, frames: Tensor) -> Tensor:
    """Transform positions to the coordinates of a pose: its heading becomes the first axis.

    Args:
        position: (n, axes) float.
        reference: the pose in each frame. It rotates the first two axes.
        frames: (n,) int64, the frame of each position.

    Returns:
        (n, axes).
    """
    relative = position - reference.origin.index_select(0, frames)
    if reference.direction is None:
        return relative
    cos, sin = reference.direction.index_select(0, frames).unbind(1)
    x, y = relative[:, 0], relative[:, 1]
    # Rotate by minus the heading: (x, y) -> (x cos + y sin, y cos - x sin)
    turned = torch.stack([x * cos + y * sin, y * cos - x * sin], dim=1)
    return torch.cat([turned, relative[:, 2:]], dim=1)


class Translation:
    """Translation of the positions of all types, except the reference, to the reference entity.

    Args:
        config: settings.
        features: names of the input features of each type.

    Raises:
        ValueError: the reference is not an entity type, or lacks the features.
    """

    def __init__(self, config: TranslationConfig, features: Mapping[str, Sequence[str]]) -> None:
        self.config = config
        reference = config.reference_entity
        if reference not in features:
            raise ValueError(
                f"translation.reference_entity: expected an entity type, which are {[*features]}, "
                f"got {reference!r}"
            )
        self.position = self._columns("position_features", config.position_features, features)
        field, names = rotation_features(
            config.rotation_vec_features, config.rotation_angle_feature
        )
        self.rotation = self._columns(field, names, features)
        self.columns = columns_of(config.position_features, features)
        del self.columns[reference]

    def _columns(
        self, field: str, names: Sequence[str], features: Mapping[str, Sequence[str]]
    ) -> list[int]:
        """Return the columns of features of the reference entity."""
        available = features[self.config.reference_entity]
        if missing := [name for name in names if name not in available]:
            raise ValueError(
                f"translation.{field}: expected features of {self.config.reference_entity}, which "
                f"has {[*available]}, got {missing}"
            )
        return [available.index(name) for name in names]

    def widths(self, features: Mapping[str, Sequence[str]]) -> dict[str, int]:
        """Return the number of features of each type after the translation."""
        has_distance = self.config.add_dist_feature
        return {n: len(x) + (has_distance and n in self.columns) for n, x in features.items()}

    def __call__(
        self, inputs: Mapping[str, Tensor], frames: Mapping[str, Tensor], visible: Tensor, num: int
    ) -> dict[str, Tensor]:
        """Transform the positions of a batch.

        Args:
            inputs: (n, features) float for each type.
            frames: (n,) int64 for each type, the frame of each entity.
            visible: (n,) bool, True for reference entities that are visible to the policy.
            num: B, the number of frames.
        """
        rows = inputs[self.config.reference_entity]
        direction = columns_from(rows, self.rotation) if self.rotation else None
        if direction is not None and len(self.rotation) == 1:
            direction = torch.cat([direction.cos(), direction.sin()], dim=1)
        position = columns_from(rows, self.position)
        reference = pose(position, direction, visible, frames[self.config.reference_entity], num)
        translated = {
            name: self._translated(inputs[name], columns, reference, frames[name])
            for name, columns in self.columns.items()
        }
        return {**inputs, **translated}

    def _translated(
        self, x: Tensor, columns: Sequence[int], reference: Pose, frames: Tensor
    ) -> Tensor:
        position = seen_from(columns_from(x, columns), reference, frames)
        if list(columns) == [*range(x.shape[1])] and not self.config.add_dist_feature:
            return position
        parts = list(x.unbind(1))
        for column, values in zip(columns, position.unbind(1), strict=True):
            parts[column] = values
        if self.config.add_dist_feature:
            parts.append(torch.linalg.vector_norm(position, dim=1))
        return torch.stack(parts, dim=1)


def columns_of(names: Sequence[str], features: Mapping[str, Sequence[str]]) -> dict[str, list[int]]:
    """Return the columns of features, by type that has all of them."""
    return {
        name: [available.index(feature) for feature in names]
        for name, available in features.items()
        if all(feature in available for feature in names)
    }


def columns_from(x: Tensor, columns: Sequence[int]) -> Tensor:
    """Select columns, (n, features) -> (n, columns); a view if they are adjacent."""
    first = columns[0]
    if list(columns) == [*range(first, first + len(columns))]:
        return x[:, first : first + len(columns)]
    return torch.stack([x[:, c] for c in columns], dim=1)
