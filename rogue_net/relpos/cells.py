"""Discretisation of relative positions into cells, which index learnt encodings.

Cells are numbered from 0. A position has one cell or, with interpolation, several cells, its
corners, with weights that sum to 1.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rogue_net.relpos.config import RelposEncodingConfig


class Cells(NamedTuple):
    """Cells of relative positions, and their interpolation weights.

    Attributes:
        corners: int64 tensors of the same shape, the cells of each position.
        weights: float tensors of that shape, for each corner; None for a single corner.
    """

    corners: list[Tensor]
    weights: list[Tensor] | None


def cells_of(config: RelposEncodingConfig, relative: Tensor, heading: Tensor) -> Cells:
    """Compute the cells of relative positions (..., axes), rotated by headings (...)."""
    extent, scale, interpolate = config.extent, config.scale, config.interpolate
    if not config.radial and not config.distance:
        return grid_cells(relative, extent, scale, interpolate)
    along = []
    if config.radial:
        along.append(angle_cells(relative, heading, extent[0], interpolate))
    if config.distance:
        along.append(distance_cells(relative, extent[-1], scale, interpolate))
    return combined(along, extent)


def grid_cells(relative: Tensor, extent: Sequence[int], scale: float, interpolate: bool) -> Cells:
    """Compute cells of a grid from -extent to extent per axis; the first axis varies fastest.

    Positions outside the grid are clamped to its border.

    Args:
        relative: (..., axes) float, differences of positions.
        extent: for each axis, the number of cells on either side of the middle one.
        scale: width of a cell.
        interpolate: True to interpolate between the 2**axes cells around the position.

    Source: rogue-net 0.1.9. It rounds the index of the cell instead of the position along each
        axis: between whole positions, the cell along one axis depends on the remaining axes.
        Published networks were trained with this.
    """
    top = torch.tensor(extent, dtype=relative.dtype, device=relative.device)
    position = (relative * (1.0 / scale)).clamp(-top, top) + top
    sizes = [2 * e + 1 for e in extent]
    if interpolate:
        axes = zip(position.unbind(-1), sizes, strict=True)
        return combined([between(x, size) for x, size in axes], sizes)
    # round(sum_k position_k * stride_k), with stride_k = prod_(i<k) size_i
    strides = torch.tensor(_strides(sizes), dtype=relative.dtype, device=relative.device)
    return Cells([whole((position * strides).sum(dim=-1).round())], None)


def angle_cells(relative: Tensor, heading: Tensor, sectors: int, interpolate: bool) -> Cells:
    """Compute cells by the angle of the first two axes, counterclockwise from the heading.

    Args:
        relative: (..., axes) float, differences of positions.
        heading: angle in radians, broadcast to (...).
        sectors: number of cells of a full turn.
        interpolate: True to interpolate between the two cells around the angle.
    """
    # Add a full turn before the remainder: a tiny negative angle would be rounded to a full turn.
    angle = angle_of(relative[..., 0], relative[..., 1]) - heading + 2 * math.pi
    position = angle / (2 * math.pi) * sectors % sectors
    low = whole(position).clamp(max=sectors - 1)
    if not interpolate:
        return Cells([low], None)
    fraction = position - low
    return Cells([low, (low + 1) % sectors], [1 - fraction, fraction])


def angle_of(x: Tensor, y: Tensor) -> Tensor:
    """Compute the angle of a vector in radians; 0 with gradient 0 for the zero vector."""
    return torch.atan2(y, torch.where((x == 0) & (y == 0), 1.0, x))


def distance_cells(relative: Tensor, rings: int, scale: float, interpolate: bool) -> Cells:
    """Compute cells by distance; the last one includes all larger distances.

    Args:
        relative: (..., axes) float, differences of positions.
        rings: number of cells.
        scale: width of a cell.
        interpolate: True to interpolate between the two cells around the distance.
    """
    distance = torch.linalg.vector_norm(relative, dim=-1) * (1.0 / scale)
    position = distance.clamp(max=rings - 1)  # before the conversion to int, which may overflow
    return between(position, rings) if interpolate else Cells([whole(position)], None)


def between(position: Tensor, size: int) -> Cells:
    """Return the cells below and above positions from 0 to size - 1, for linear interpolation."""
    low = whole(position)
    fraction = position - low
    # (1 - t) * cell[floor(x)] + t * cell[floor(x) + 1], t = x - floor(x)
    return Cells([low, (low + 1).clamp(max=size - 1)], [1 - fraction, fraction])


def whole(position: Tensor) -> Tensor:
    """Truncate positions to int64; NaN becomes 0, as its conversion is undefined."""
    return position.detach().nan_to_num(nan=0.0).long()


def combined(axes: Sequence[Cells], sizes: Sequence[int]) -> Cells:
    """Combine cells along several axes into cells of their product; the first axis varies fastest.

    Args:
        axes: cells along each axis.
        sizes: number of cells along each axis.
    """
    strides = _strides(sizes)
    corners, weights = axes[0].corners, axes[0].weights
    for axis, stride in zip(axes[1:], strides[1:], strict=True):
        if weights is not None and axis.weights is not None:
            weights = [w * v for v in axis.weights for w in weights]
        corners = [c + stride * d for d in axis.corners for c in corners]
    return Cells(corners, weights)


def _strides(sizes: Sequence[int]) -> list[int]:
    return [math.prod(sizes[:k]) for k in range(len(sizes))]
