"""What relative positions add to attention, without a vector for each pair of entities.

The encoding of a pair is a row of a table, or a weighted sum of a few. Where the shares of all rows
are written out, the product of a query with the keys of all rows is added up for each pair, and
attention weights are added up per row before they meet the values. Where there are more rows than
that saves, or where values are gated, the vectors of pairs are made in pieces.

Source: Shaw et al. 2018, arXiv:1803.02155, for relative keys and values; rogue-net 0.1.9 for the
    gate and the projections.
"""

import math
from typing import NamedTuple

from torch import Tensor

from rogue_net.pair_rows import DenseRows, PairRows
from rogue_net.pair_vectors import pair_products, pair_sums, vector_scores, vector_values


class Pairs(NamedTuple):
    """How the entities of b frames, padded to n, lie to each other.

    Attributes:
        keys: which rows of the table of keys each pair has.
        values: which of the table of values.
    """

    keys: PairRows
    values: PairRows


def relative_scores(queries: Tensor, table: Tensor, pairs: PairRows) -> Tensor:
    """Products of queries with the relative keys.

    Args:
        queries: (b, H, n, d_head).
        table: (rows, d_head), the keys.
        pairs: which of them each pair has.

    Returns:
        (b, H, n, n), scaled by 1 / sqrt(d_head).
    """
    queries = queries / math.sqrt(queries.shape[3])
    if isinstance(pairs, DenseRows):
        return pair_products(queries @ table.T, pairs.shares)
    return vector_scores(queries, table, pairs)


def relative_values(
    attention: Tensor, table: Tensor, gate: Tensor | None, pairs: PairRows
) -> Tensor:
    """Sums of the relative values, weighted by attention.

    Args:
        attention: (b, H, n, n), weights.
        table: (rows, d_head), the values.
        gate: (b, n, d_head), by what each target multiplies its values; None for nothing. With a
            gate a pair's value depends on its target, so that sums per row do not give the result.
        pairs: which of them each pair has.

    Returns:
        (b, H, n, d_head).
    """
    if gate is None and isinstance(pairs, DenseRows):
        return pair_sums(attention, pairs.shares) @ table
    return vector_values(attention, table, gate, pairs)
