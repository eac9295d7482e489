"""Relative keys and values in attention, without a vector for each pair of entities.

The encoding of a pair is a row of a table, or a weighted sum of a few rows. With small tables
(`DenseRows`), the products of a query with all rows are summed up for each pair, and attention
weights are summed up per row before the product with the values. With larger tables, or with gated
values, the vectors of pairs are made in pieces.

Source: Shaw et al. 2018, arXiv:1803.02155, for relative keys and values; rogue-net 0.1.9 for the
    gate and the projections.
"""

import math
from typing import NamedTuple

from torch import Tensor

from rogue_net.pair_rows import DenseRows, PairRows
from rogue_net.pair_vectors import pair_products, pair_sums, vector_scores, vector_values


class Pairs(NamedTuple):
    """Relative positions of the pairs of entities of b frames padded to n.

    Attributes:
        keys: the rows of the table of keys of each pair.
        values: the rows of the table of values of each pair.
    """

    keys: PairRows
    values: PairRows


def relative_scores(queries: Tensor, table: Tensor, pairs: PairRows) -> Tensor:
    """Return the products of queries with the relative keys.

    Args:
        queries: (b, H, n, d_head).
        table: (rows, d_head), the keys.
        pairs: the rows of each pair.

    Returns:
        (b, H, n, n), scaled by 1 / sqrt(d_head).
    """
    # q_i . k_ij / sqrt(d_head), with k_ij = sum_r shares[i, j, r] * table[r]
    queries = queries / math.sqrt(queries.shape[3])
    if isinstance(pairs, DenseRows):
        return pair_products(queries @ table.T, pairs.shares)
    return vector_scores(queries, table, pairs)


def relative_values(
    attention: Tensor, table: Tensor, gate: Tensor | None, pairs: PairRows
) -> Tensor:
    """Return the sums of the relative values, weighted by attention.

    Args:
        attention: (b, H, n, n), weights.
        table: (rows, d_head), the values.
        gate: (b, n, d_head), the factors of each target's values; None for no gate. With a gate,
            the value of a pair depends on its target, so that sums per row do not give the result.
        pairs: the rows of each pair.

    Returns:
        (b, H, n, d_head).
    """
    # sum_j attention_ij * gate_j * v_ij, with v_ij = sum_r shares[i, j, r] * table[r]
    if gate is None and isinstance(pairs, DenseRows):
        return pair_sums(attention, pairs.shares) @ table
    return vector_values(attention, table, gate, pairs)
