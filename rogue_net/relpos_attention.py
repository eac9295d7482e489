"""What relative positions add to attention, without a vector for each pair of entities.

The encoding of a pair is a row of a table, or a weighted sum of a few, found by the pair's cells.
So the product of a query with the keys of all cells is looked up for each pair, and attention
weights are added up per cell before they meet the cells' values: b * H * n * cells numbers instead
of b * n * n * d_head. Where there are more cells than that saves, or where values are gated, the
vectors of pairs are made in pieces, by `pair_vectors.py`.

Source: Shaw et al. 2018, arXiv:1803.02155, for relative keys and values; rogue-net 0.1.9 for the
    gate and the projections.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from rogue_net.pair_vectors import PairRows, vector_scores, vector_values

CELLS_PER_ENTITY = 7
"""With more cells than this for each entity of a frame, the vectors of pairs cost less."""


class Pairs(NamedTuple):
    """How the entities of b frames, padded to n, lie to each other: query i, target j.

    Attributes:
        key_cells: int64 (b, n, n) for each corner, rows of the table of keys.
        value_cells: int64 (b, n, n) for each corner, rows of the table of values.
        weights: float (b, n, n) for each corner; None for a single one.
        offsets: float (b, n, n, axes + 2), normalised relative position and distance, and a 1
            for the bias; zero where a pair has no relative term. None without projections.
        query_type: int64 (b, n), whose projection applies; None where all types share one.
    """

    key_cells: list[Tensor]
    value_cells: list[Tensor]
    weights: list[Tensor] | None
    offsets: Tensor | None
    query_type: Tensor | None


def relative_scores(
    queries: Tensor, table: Tensor, projection: Tensor | None, pairs: Pairs
) -> Tensor:
    """Products of queries with the relative keys.

    Args:
        queries: (b, H, n, d_head).
        table: (cells, d_head), the keys.
        projection: (d_head, axes + 2) or per type (types, d_head, axes + 2), adds to the keys.
        pairs: the entities' positions.

    Returns:
        (b, H, n, n), scaled by 1 / sqrt(d_head).
    """
    b, h, n, d = queries.shape
    queries = queries / math.sqrt(d)
    if not _by_lookup(table, n):
        rows = _pair_rows(pairs, pairs.key_cells, projection)
        return vector_scores(queries, _with_projection(table, projection), rows)
    of_cell = queries @ table.T  # (b, H, n, cells)
    scores = queries.new_zeros(b, h, n, n)
    for k, cells in enumerate(pairs.key_cells):
        of_corner = of_cell.gather(3, cells.unsqueeze(1).expand(b, h, n, n))
        scores = scores + _weighted(of_corner, pairs, k)
    if projection is not None and pairs.offsets is not None:
        per_axis = _project(queries, projection, pairs)  # (b, H, n, axes + 2)
        scores = scores + torch.einsum("bhip,bijp->bhij", per_axis, pairs.offsets)
    return scores


def relative_values(
    attention: Tensor, table: Tensor, projection: Tensor | None, pairs: Pairs
) -> Tensor:
    """Sums of the relative values, weighted by attention.

    Args:
        attention: (b, H, n, n), weights.
        table: (cells, d_head), the values.
        projection: (d_head, axes + 2) or per type (types, d_head, axes + 2), adds to the values.
        pairs: the entities' positions.

    Returns:
        (b, H, n, d_head).
    """
    b, h, n, _ = attention.shape
    if not _by_lookup(table, n):
        rows = _pair_rows(pairs, pairs.value_cells, projection)
        return vector_values(attention, _with_projection(table, projection), None, rows)
    of_cell = attention.new_zeros(b, h, n, len(table))
    for k, cells in enumerate(pairs.value_cells):
        index = cells.unsqueeze(1).expand(b, h, n, n)
        of_cell = of_cell.scatter_add(3, index, _weighted(attention, pairs, k))
    y = of_cell @ table
    if projection is not None and pairs.offsets is not None:
        offsets = torch.einsum("bhij,bijp->bhip", attention, pairs.offsets)
        y = y + _project(offsets, projection.transpose(-1, -2), pairs)
    return y


def gated_relative_values(
    attention: Tensor, table: Tensor, projection: Tensor | None, gate: Tensor, pairs: Pairs
) -> Tensor:
    """`relative_values` in which each target multiplies its values by a gate.

    A pair's value then depends on its target, so that sums per cell do not give the result: the
    values of pairs are made, a few at a time.

    Args:
        attention: (b, H, n, n), weights.
        table: (cells, d_head), the values.
        projection: as in `relative_values`.
        gate: (b, n, d_head), of the targets.
        pairs: the entities' positions.

    Returns:
        (b, H, n, d_head).
    """
    rows = _pair_rows(pairs, pairs.value_cells, projection)
    return vector_values(attention, _with_projection(table, projection), gate, rows)


def _pair_rows(pairs: Pairs, cells: list[Tensor], projection: Tensor | None) -> PairRows:
    """The cells of pairs, and their offsets where a projection applies to these."""
    if projection is None:
        return PairRows(cells, pairs.weights, None, None)
    num_types = len(projection) if projection.dim() == 3 else 1
    return PairRows(cells, pairs.weights, pairs.offsets, pairs.query_type, num_types)


def _with_projection(table: Tensor, projection: Tensor | None) -> Tensor:
    """(cells, d_head), and below it a row for each offset that a projection takes."""
    if projection is None:
        return table
    return torch.cat([table, projection.transpose(-1, -2).reshape(-1, table.shape[1])])


def _by_lookup(table: Tensor, n: int) -> bool:
    """Whether products with all cells cost less than vectors of all pairs."""
    return table.shape[0] <= CELLS_PER_ENTITY * n


def _weighted(x: Tensor, pairs: Pairs, corner: int) -> Tensor:
    """(b, H, n, n), by the weights of a corner."""
    return x if pairs.weights is None else x * pairs.weights[corner].unsqueeze(1)


def _project(x: Tensor, projection: Tensor, pairs: Pairs) -> Tensor:
    """(b, H, n, p) by (p, r), or for each query by that of its type: (b, H, n, r)."""
    if pairs.query_type is None:
        return x @ projection
    of_query = projection[pairs.query_type]  # (b, n, p, r)
    return torch.einsum("bhip,bipr->bhir", x, of_query)
