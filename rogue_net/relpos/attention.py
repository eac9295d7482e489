"""Attention with relative keys and values, a vector for each pair of entities.

The vector of a pair is a weighted sum of rows of a table. With small tables (`DenseRows`), the
products of a query with all rows are summed for each pair, and attention weights are summed per row
before the product with the values. With larger tables, or with gated values, the vectors are
computed for some queries at a time, so that they fit into the cache, and recomputed in the backward
pass: memory does not grow with the number of pairs times the width of a head.

Source: Shaw et al. 2018, arXiv:1803.02155, for relative keys and values; rogue-net 0.1.9 for the
    gate and the projections.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from rogue_net.relpos.cells import Cells

PIECE = 1 << 21
"""Number of elements of the pair vectors of a microbatch."""
DENSE_ROWS = 8
"""Largest ratio of table rows to rows per pair for `DenseRows`.

Up to this ratio, a product with the whole table is faster than a lookup of rows.
"""
MATRIX_TARGETS = 24
"""Smallest number of targets for which a matrix product per query is faster than a sum."""
TARGETS, WIDTH = 2, 3
"""Dimensions of the vectors of pairs, (frames, queries, targets, width)."""


Piece: TypeAlias = tuple[slice, slice]
"""Slices of frames and of queries."""


@dataclass(frozen=True)
class DenseRows:
    """Weights of all table rows for each pair; [b, i, j] is query i and target j.

    Attributes:
        shares: float (b, n, n, rows).
        has_zeros: True if the table has a row of zeros after the cells.
    """

    shares: Tensor
    has_zeros: ClassVar[bool] = False

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the vectors."""
        return self.shares.dtype

    def vectors(self, piece: Piece, table: Tensor | None) -> Tensor:
        """Compute pair vectors of a microbatch, (frames, queries, n, d); shares without a table."""
        shares = self.shares[piece]
        # v_ij = sum_r shares[i, j, r] * table[r]
        return shares if table is None else shares @ table.to(self.dtype)

    def add_gradient(self, piece: Piece, gradient: Tensor, table_grad: Tensor) -> None:
        """Accumulate the gradient of a microbatch's pair vectors in `table_grad`, (rows, d)."""
        # dL/dtable[r] = sum_ij shares[i, j, r] * dL/dv_ij
        table_grad += self.shares[piece].flatten(0, 2).T @ gradient.flatten(0, 2)


@dataclass(frozen=True)
class SparseRows:
    """Indices and weights of table rows for each pair; [b, i, j] is query i and target j.

    Attributes:
        rows: int64 (b, n, n) each, row indices; the row after the last cell is zero.
        weights: float (b, n, n) for each index; None for a single row with weight 1.
        offsets: float (b, n, n, e), the weights of the last e rows; None without a projection.
        dtype: of the vectors.
        has_zeros: True if the table has a row of zeros after the cells.
    """

    rows: Sequence[Tensor]
    weights: Sequence[Tensor] | None
    offsets: Tensor | None
    dtype: torch.dtype
    has_zeros: ClassVar[bool] = True

    def vectors(self, piece: Piece, table: Tensor) -> Tensor:
        """Compute pair vectors of a microbatch, (frames, queries, n, d), from a table (rows, d)."""
        table = table.to(self.dtype)
        # v_ij = sum_k weights_k[i, j] * table[rows_k[i, j]] + offsets_ij @ table[-e:]
        vectors = self._of_row(0, piece, table)
        for k in range(1, len(self.rows)):
            vectors += self._of_row(k, piece, table)
        if self.offsets is not None:
            vectors += self.offsets[piece] @ table[len(table) - self.offsets.shape[-1] :]
        return vectors

    def add_gradient(self, piece: Piece, gradient: Tensor, table_grad: Tensor) -> None:
        """Accumulate the gradient of a microbatch's pair vectors in `table_grad`, (rows, d)."""
        flat = gradient.flatten(0, 2)
        for k, rows in enumerate(self.rows):
            if self.weights is not None:
                flat = (gradient * self.weights[k][piece].unsqueeze(-1)).flatten(0, 2)
            table_grad.index_add_(0, rows[piece].flatten(), flat.to(table_grad.dtype))
        if self.offsets is not None:
            offsets = self.offsets[piece].flatten(0, 2)
            table_grad[len(table_grad) - offsets.shape[-1] :] += offsets.T @ gradient.flatten(0, 2)

    def _of_row(self, k: int, piece: Piece, table: Tensor) -> Tensor:
        """Look up the weighted k-th row of each pair, (frames, queries, n, d)."""
        row = F.embedding(self.rows[k][piece], table)
        return row if self.weights is None else row.mul_(self.weights[k][piece].unsqueeze(-1))


PairRows = DenseRows | SparseRows


class Pairs(NamedTuple):
    """Relative positions of the pairs of entities of b frames padded to n.

    Attributes:
        keys: rows of the key table.
        values: rows of the value table.
    """

    keys: PairRows
    values: PairRows


def make_rows(
    cells: Cells, has_position: Tensor, offsets: Tensor | None, num_cells: int, dtype: torch.dtype
) -> PairRows:
    """Represent the table rows of all pairs as `DenseRows` or `SparseRows`, whichever is faster.

    Args:
        cells: int64 (b, n, n) each, the cells of a pair, and their weights.
        has_position: (b, n, n) bool, True for pairs that have a relative position.
        offsets: float (b, n, n, e), the input of the projection, zero where `has_position` is
            False; None without projection.
        num_cells: number of cells.
        dtype: of the vectors.
    """
    corners = cells.corners
    weights = None if cells.weights is None else [w.to(dtype) for w in cells.weights]
    offsets = None if offsets is None else offsets.to(dtype)
    num_rows = num_cells + (0 if offsets is None else offsets.shape[-1])
    # Large table: indices, with the zero row for pairs without a relative position.
    if num_rows > DENSE_ROWS * len(corners):
        rows = [corner.masked_fill(~has_position, num_cells) for corner in corners]
        return SparseRows(rows, weights, offsets, dtype)
    # Small table: weights of all rows, (b, n, n, rows), summed if corners share a cell.
    shares = torch.empty(*has_position.shape, num_rows, dtype=dtype, device=has_position.device)
    for piece in _pieces(len(has_position), has_position.shape[1], num_rows):
        part, has_cells = shares[piece].zero_(), has_position[piece]
        for k, corner in enumerate(corners):
            weight = has_cells.to(dtype) if weights is None else weights[k][piece] * has_cells
            index = corner[piece].masked_fill(~has_cells, 0)
            part.scatter_add_(3, index.unsqueeze(3), weight.unsqueeze(3))
    if offsets is not None:
        shares[..., num_cells:] = offsets
    return DenseRows(shares)


def table_of(cells: Tensor, projection: Tensor | None, has_zeros: bool = True) -> Tensor:
    """Concatenate cells, a zero row, and the columns of a projection.

    Args:
        cells: (cells, d).
        projection: (d, e) or (types, d, e), or None.
        has_zeros: False to omit the zero row.

    Returns:
        (rows, d).
    """
    table = F.pad(cells, (0, 0, 0, 1)) if has_zeros else cells
    if projection is None:
        return table
    return torch.cat([table, projection.transpose(-1, -2).reshape(-1, projection.shape[-2])])


def relative_scores(queries: Tensor, table: Tensor, pairs: PairRows) -> Tensor:
    """Compute the products of queries with relative keys.

    Args:
        queries: (b, H, n, d_head).
        table: (rows, d_head), the keys.
        pairs: the rows of each pair.

    Returns:
        (b, H, n, n), scaled by 1 / sqrt(d_head).
    """
    # score_ij = q_i . k_ij / sqrt(d_head); dense: sum_r shares[i, j, r] * (q_i . table[r])
    queries = queries / math.sqrt(queries.shape[3])
    if isinstance(pairs, DenseRows):
        return _contract(queries @ table.T, None, None, pairs, WIDTH)
    return _contract(queries, table, None, pairs, WIDTH)


def relative_values(
    attention: Tensor, table: Tensor, gate: Tensor | None, pairs: PairRows
) -> Tensor:
    """Compute the sums of relative values, weighted by attention.

    Args:
        attention: (b, H, n, n), weights.
        table: (rows, d_head), the values.
        gate: (b, n, d_head), factors of each target's values; None for no gate. Gated values
            depend on the target, so weights cannot be summed per row.
        pairs: the rows of each pair.

    Returns:
        (b, H, n, d_head).
    """
    # y_i = sum_j a_ij * g_j * v_ij; dense: sum_r (sum_j a_ij * shares[i, j, r]) * table[r]
    if gate is None and isinstance(pairs, DenseRows):
        return _contract(attention, None, None, pairs, TARGETS) @ table
    return _contract(attention, table, gate, pairs, TARGETS)


def _contract(
    x: Tensor, table: Tensor | None, gate: Tensor | None, pairs: PairRows, over: int
) -> Tensor:
    """Sum `x` times the pair vectors over a dimension of the pair vectors.

    Args:
        x: (b, H, n, size of `over`), of each query.
        table: (rows, d); None to use the shares of dense rows as pair vectors.
        gate: (b, n, d), factors of each target's vectors; None for no gate.
        pairs: table rows of each pair.
        over: `WIDTH` for products with the vectors, `TARGETS` for weighted sums of the vectors.

    Returns:
        (b, H, n, size of the other dimension).
    """
    gate = None if gate is None else gate.to(pairs.dtype)
    out: Tensor = _Contraction.apply(x.to(pairs.dtype), table, gate, pairs, over)  # type: ignore[no-untyped-call]
    return out


class _Contraction(torch.autograd.Function):
    """Autograd function of `_contract`; both passes compute pair vectors in microbatches."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, table: Tensor | None, gate: Tensor | None, pairs: Any, over: int
    ) -> Tensor:
        ctx.save_for_backward(None if table is None else x, table, gate)
        ctx.pairs, ctx.over = pairs, over
        out, pieces = _output(x, table, pairs, over)
        for frames, queries in pieces:
            heads = frames, slice(None), queries
            vectors = pairs.vectors((frames, queries), table)
            if gate is not None:
                vectors *= gate[frames, None]
            _contract_piece(x[heads], vectors, over, out=out[heads])
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (grad,) = gradients
        x, table, gate = ctx.saved_tensors
        other_dim = WIDTH if ctx.over == TARGETS else TARGETS
        grad_x, pieces = _output(grad, table, ctx.pairs, other_dim)
        grad_table, grad_gate = (None if y is None else torch.zeros_like(y) for y in (table, gate))
        for frames, queries in pieces:
            heads = frames, slice(None), queries
            vectors = ctx.pairs.vectors((frames, queries), table)
            gated = vectors if gate is None else vectors * gate[frames, None]
            _contract_piece(grad[heads], gated, other_dim, out=grad_x[heads])
            if grad_table is None:
                continue
            # Products: dL/dv_ij = sum_h dL/dscore_hij * q_hi.
            # Sums y_hi = sum_j a_hij * g_j * v_ij, so with u_ij = sum_h a_hij * dL/dy_hi:
            # dL/dg_j = sum_i v_ij * u_ij, dL/dv_ij = g_j * u_ij
            weights, query_side = (grad, x) if ctx.over == WIDTH else (x, grad)
            weights, query_side = weights[heads].unsqueeze(4), query_side[heads].unsqueeze(3)
            grad_vectors = torch.mul(weights[:, 0], query_side[:, 0], out=gated)
            for head in range(1, weights.shape[1]):
                grad_vectors.addcmul_(weights[:, head], query_side[:, head])
            if gate is not None and grad_gate is not None:
                vectors *= grad_vectors
                grad_gate[frames] += vectors.sum(dim=1)
                grad_vectors *= gate[frames, None]
            ctx.pairs.add_gradient((frames, queries), grad_vectors, grad_table)
        return grad_x, grad_table, grad_gate, None, None


def _output(
    x: Tensor, table: Tensor | None, pairs: PairRows, over: int
) -> tuple[Tensor, Iterator[Piece]]:
    """Allocate the result of `_contract`, and return the microbatches."""
    b, h, n, _ = x.shape
    if table is not None:
        width, pieces = table.shape[1], _pieces(b, n, table.shape[1])
    else:  # the shares are stored: one microbatch is enough for matrix products
        assert isinstance(pairs, DenseRows)
        width = pairs.shares.shape[WIDTH]
        whole = iter([(slice(None), slice(None))])
        pieces = whole if n >= MATRIX_TARGETS else _pieces(b, n, width)
    return x.new_empty(b, h, n, n if over == WIDTH else width), pieces


def _pieces(num_frames: int, n: int, width: int) -> Iterator[Piece]:
    """Split frames into microbatches, such that three vectors of each pair fit into `PIECE`.

    A microbatch has whole frames, or some queries of a single frame.

    Args:
        num_frames: number of frames.
        n: number of entities of a frame.
        width: number of elements of a vector.
    """
    pairs = max(1, PIECE // (3 * width))
    frames, queries = max(1, pairs // n**2), min(n, max(1, pairs // n))
    for start in range(0, num_frames, frames):
        for first in range(0, n, queries):
            yield slice(start, start + frames), slice(first, first + queries)


def _contract_piece(x: Tensor, vectors: Tensor, over: int, out: Tensor) -> None:
    """Sum `x` times pair vectors over a dimension, and write the result to `out`.

    Args:
        x: (f, H, q, size of `over`), of each query.
        vectors: (f, q, n, d), of its pairs.
        over: see `_contract`.
        out: (f, H, q, size of the other dimension), the result.
    """
    if vectors.shape[TARGETS] >= MATRIX_TARGETS:
        by_query = vectors.flatten(0, 1)
        if over == WIDTH:
            by_query = by_query.transpose(1, 2)
        products = x.transpose(1, 2).flatten(0, 1) @ by_query  # (f * q, H, other dimension)
        out.copy_(products.view(*vectors.shape[:2], *products.shape[1:]).transpose(1, 2))
        return
    other_dim = TARGETS if over == WIDTH else WIDTH
    for head in range(x.shape[1]):
        out[:, head] = (vectors * x[:, head].unsqueeze(other_dim)).sum(dim=over)
