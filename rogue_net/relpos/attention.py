"""Relative keys and values in attention, of which each pair of entities has a vector.

The vector of a pair is a weighted sum of rows of a table. With small tables (`DenseRows`), the
products of a query with all rows are summed up for each pair, and attention weights are summed up
per row before the product with the values. With larger tables, or with gated values, the vectors
are made for some queries at a time, so that they stay in the cache, and made again in the backward
pass: the memory does not grow with the number of pairs times the width of a head.

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
"""Number of elements of vectors of pairs that are computed at once."""
DENSE_ROWS = 8
"""Largest ratio of the rows of a table to those of a pair with which `DenseRows` are used.

A product with the whole table is then faster than looking up the rows.
"""
MATRIX_TARGETS = 24
"""Smallest number of targets for which a matrix product for each query is faster than a sum."""
TARGETS, WIDTH = 2, 3
"""Dimensions of the vectors of pairs, (frames, queries, targets, width)."""


Piece: TypeAlias = tuple[slice, slice]
"""Slices of frames and of queries."""


@dataclass(frozen=True)
class DenseRows:
    """Weights of all rows of a table for each pair, [b, i, j] of query i and target j.

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
        """Return the vectors of a piece, (frames, queries, n, d); of no table the shares."""
        shares = self.shares[piece]
        # v_ij = sum_r shares[i, j, r] * table[r]
        return shares if table is None else shares @ table.to(self.dtype)

    def add_gradient(self, piece: Piece, gradient: Tensor, of_table: Tensor) -> None:
        """Add the gradient of a piece's vectors to `of_table`, the gradient of the table."""
        # dL/dtable[r] = sum_ij shares[i, j, r] * dL/dv_ij
        of_table += self.shares[piece].flatten(0, 2).T @ gradient.flatten(0, 2)


@dataclass(frozen=True)
class SparseRows:
    """Rows of a table and their weights for each pair, [b, i, j] of query i and target j.

    Attributes:
        rows: int64 (b, n, n) each, the indices of the rows; the row after the last cell is zero.
        weights: float (b, n, n) for each of them; None for a single row with weight 1.
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
        """Return the vectors of a piece, (frames, queries, n, d), from a table (rows, d)."""
        table = table.to(self.dtype)
        # v_ij = sum_k weights_k[i, j] * table[rows_k[i, j]] + offsets_ij @ table[-e:]
        vectors = self._of_row(0, piece, table)
        for k in range(1, len(self.rows)):
            vectors += self._of_row(k, piece, table)
        if self.offsets is not None:
            vectors += self.offsets[piece] @ table[len(table) - self.offsets.shape[-1] :]
        return vectors

    def add_gradient(self, piece: Piece, gradient: Tensor, of_table: Tensor) -> None:
        """Add the gradient of a piece's vectors to `of_table`, the gradient of the table."""
        flat = gradient.flatten(0, 2)
        for k, rows in enumerate(self.rows):
            if self.weights is not None:
                flat = (gradient * self.weights[k][piece].unsqueeze(-1)).flatten(0, 2)
            of_table.index_add_(0, rows[piece].flatten(), flat.to(of_table.dtype))
        if self.offsets is not None:
            offsets = self.offsets[piece].flatten(0, 2)
            of_table[len(of_table) - offsets.shape[-1] :] += offsets.T @ gradient.flatten(0, 2)

    def _of_row(self, k: int, piece: Piece, table: Tensor) -> Tensor:
        """Return the weighted k-th row of each pair, (frames, queries, n, d)."""
        of_row = F.embedding(self.rows[k][piece], table)
        return of_row if self.weights is None else of_row.mul_(self.weights[k][piece].unsqueeze(-1))


PairRows = DenseRows | SparseRows


class Pairs(NamedTuple):
    """Relative positions of the pairs of entities of b frames padded to n.

    Attributes:
        keys: the rows of the table of keys of each pair.
        values: the rows of the table of values of each pair.
    """

    keys: PairRows
    values: PairRows


def make_rows(
    cells: Cells, both: Tensor, offsets: Tensor | None, num_cells: int, dtype: torch.dtype
) -> PairRows:
    """Return the rows of all pairs in the faster of the two forms.

    Args:
        cells: int64 (b, n, n) each, the cells of a pair, and their weights.
        both: (b, n, n) bool, True for pairs that have a relative position.
        offsets: float (b, n, n, e), the input of the projection, zero where `both` is False; None
            without projection.
        num_cells: number of cells.
        dtype: of the vectors.
    """
    corners = cells.corners
    weights = None if cells.weights is None else [w.to(dtype) for w in cells.weights]
    offsets = None if offsets is None else offsets.to(dtype)
    num_rows = num_cells + (0 if offsets is None else offsets.shape[-1])
    # Many rows: indices, with the row of zeros for pairs without a relative position.
    if num_rows > DENSE_ROWS * len(corners):
        rows = [corner.masked_fill(~both, num_cells) for corner in corners]
        return SparseRows(rows, weights, offsets, dtype)
    # Few rows: the weights of all, added up where two corners are the same cell.
    shares = torch.empty(*both.shape, num_rows, dtype=dtype, device=both.device)
    for piece in _pieces(len(both), both.shape[1], num_rows):
        of_piece, has_cells = shares[piece].zero_(), both[piece]
        for k, corner in enumerate(corners):
            weight = has_cells.to(dtype) if weights is None else weights[k][piece] * has_cells
            index = corner[piece].masked_fill(~has_cells, 0)
            of_piece.scatter_add_(3, index.unsqueeze(3), weight.unsqueeze(3))
    if offsets is not None:
        shares[..., num_cells:] = offsets
    return DenseRows(shares)


def table_of(cells: Tensor, projection: Tensor | None, has_zeros: bool = True) -> Tensor:
    """Return the table with the cells, a row of zeros, and the rows of a projection.

    Args:
        cells: (cells, d).
        projection: (d, e) or (types, d, e), whose columns become rows; None for none.
        has_zeros: False to leave out the row of zeros.

    Returns:
        (rows, d).
    """
    table = F.pad(cells, (0, 0, 0, 1)) if has_zeros else cells
    if projection is None:
        return table
    return torch.cat([table, projection.transpose(-1, -2).reshape(-1, projection.shape[-2])])


def relative_scores(queries: Tensor, table: Tensor, pairs: PairRows) -> Tensor:
    """Return the products of queries with the relative keys.

    Args:
        queries: (b, H, n, d_head).
        table: (rows, d_head), the keys.
        pairs: the rows of each pair.

    Returns:
        (b, H, n, n), scaled by 1 / sqrt(d_head).
    """
    # score_ij = q_i . k_ij / sqrt(d_head); of shares: sum_r shares[i, j, r] * (q_i . table[r])
    queries = queries / math.sqrt(queries.shape[3])
    if isinstance(pairs, DenseRows):
        return _contract(queries @ table.T, None, None, pairs, WIDTH)
    return _contract(queries, table, None, pairs, WIDTH)


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
    # y_i = sum_j a_ij * g_j * v_ij; of shares: sum_r (sum_j a_ij * shares[i, j, r]) * table[r]
    if gate is None and isinstance(pairs, DenseRows):
        return _contract(attention, None, None, pairs, TARGETS) @ table
    return _contract(attention, table, gate, pairs, TARGETS)


def _contract(
    x: Tensor, table: Tensor | None, gate: Tensor | None, pairs: PairRows, over: int
) -> Tensor:
    """Return the sums over one dimension of `x` times the vectors of pairs.

    Args:
        x: (b, H, n, size of `over`), of each query.
        table: (rows, d); None to take the shares of dense rows for the vectors.
        gate: (b, n, d), the factors of each target's vectors; None for no gate.
        pairs: their rows of the table.
        over: `WIDTH` for products with the vectors, `TARGETS` for weighted sums of them.

    Returns:
        (b, H, n, size of the other dimension).
    """
    gate = None if gate is None else gate.to(pairs.dtype)
    out: Tensor = _Contraction.apply(x.to(pairs.dtype), table, gate, pairs, over)  # type: ignore[no-untyped-call]
    return out


class _Contraction(torch.autograd.Function):
    """`_contract`, whose vectors are made in pieces, in both passes."""

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
        other = WIDTH if ctx.over == TARGETS else TARGETS
        grad_x, pieces = _output(grad, table, ctx.pairs, other)
        grad_table, grad_gate = (None if y is None else torch.zeros_like(y) for y in (table, gate))
        for frames, queries in pieces:
            heads = frames, slice(None), queries
            vectors = ctx.pairs.vectors((frames, queries), table)
            gated = vectors if gate is None else vectors * gate[frames, None]
            _contract_piece(grad[heads], gated, other, out=grad_x[heads])
            if grad_table is None:
                continue
            # Products: dL/dv_ij = sum_h dL/dscore_hij * q_hi.
            # Sums y_hi = sum_j a_hij * g_j * v_ij, so with u_ij = sum_h a_hij * dL/dy_hi:
            # dL/dg_j = sum_i v_ij * u_ij, dL/dv_ij = g_j * u_ij
            weights, of_query = (grad, x) if ctx.over == WIDTH else (x, grad)
            weights, of_query = weights[heads].unsqueeze(4), of_query[heads].unsqueeze(3)
            grad_vectors = torch.mul(weights[:, 0], of_query[:, 0], out=gated)
            for head in range(1, weights.shape[1]):
                grad_vectors.addcmul_(weights[:, head], of_query[:, head])
            if gate is not None and grad_gate is not None:
                vectors *= grad_vectors
                grad_gate[frames] += vectors.sum(dim=1)
                grad_vectors *= gate[frames, None]
            ctx.pairs.add_gradient((frames, queries), grad_vectors, grad_table)
        return grad_x, grad_table, grad_gate, None, None


def _output(
    x: Tensor, table: Tensor | None, pairs: PairRows, over: int
) -> tuple[Tensor, Iterator[Piece]]:
    """Return memory for the result of `_contract`, and the pieces to compute it in."""
    b, h, n, _ = x.shape
    if table is not None:
        width, pieces = table.shape[1], _pieces(b, n, table.shape[1])
    else:  # the shares are there already: one piece, unless the products are no matrix products
        assert isinstance(pairs, DenseRows)
        width = pairs.shares.shape[WIDTH]
        whole = iter([(slice(None), slice(None))])
        pieces = whole if n >= MATRIX_TARGETS else _pieces(b, n, width)
    return x.new_empty(b, h, n, n if over == WIDTH else width), pieces


def _pieces(num_frames: int, n: int, width: int) -> Iterator[Piece]:
    """Yield pieces of frames of n entities for which three vectors of each pair fit into `PIECE`.

    A piece has whole frames, as many as fit, or some queries of one frame.

    Args:
        num_frames: number of frames.
        n: entities of a frame.
        width: elements of a vector.
    """
    pairs = max(1, PIECE // (3 * width))
    frames, queries = max(1, pairs // n**2), min(n, max(1, pairs // n))
    for start in range(0, num_frames, frames):
        for first in range(0, n, queries):
            yield slice(start, start + frames), slice(first, first + queries)


def _contract_piece(x: Tensor, vectors: Tensor, over: int, out: Tensor) -> None:
    """Write the sums over one dimension of `x` times the vectors of pairs into `out`.

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
        found = x.transpose(1, 2).flatten(0, 1) @ by_query  # (f * q, H, the other)
        out.copy_(found.view(*vectors.shape[:2], *found.shape[1:]).transpose(1, 2))
        return
    the_other = TARGETS if over == WIDTH else WIDTH
    for head in range(x.shape[1]):
        out[:, head] = (vectors * x[:, head].unsqueeze(the_other)).sum(dim=over)
