"""Vectors of pairs of entities as weighted sums of rows of a table.

The vectors are computed for some queries at a time, so that they stay in the cache, and are not
kept.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

PIECE = 1 << 21
"""Number of elements of vectors of pairs that are computed at once."""
DENSE_ROWS = 8
"""Largest ratio of the rows of a table to those of a pair with which `DenseRows` are used.

A product with the whole table is then faster than looking up the rows.
"""


class Piece(NamedTuple):
    """Slice of frames and queries."""

    frames: slice
    queries: slice

    @property
    def of_heads(self) -> tuple[slice, slice, slice]:
        """The index of a tensor that has a dimension of heads between frames and queries."""
        return self.frames, slice(None), self.queries


EVERYTHING = Piece(slice(None), slice(None))


class DenseRows(NamedTuple):
    """Weights of all rows of a table for each pair, [b, i, j] of query i and target j.

    Attributes:
        shares: float (b, n, n, rows).
    """

    shares: Tensor

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the vectors."""
        return self.shares.dtype

    def table(self, cells: Tensor, projection: Tensor | None) -> Tensor:
        """Return the table, (rows, d): the cells and the rows of a projection, see `make_rows`."""
        return cells if projection is None else torch.cat([cells, _as_rows(projection)])

    def vectors(self, piece: Piece, table: Tensor) -> Tensor:
        """Return the vectors of a piece, (frames, queries, n, d), from a table (rows, d)."""
        return self.shares[piece] @ table.to(self.dtype)

    def add_gradient(self, piece: Piece, gradient: Tensor, of_table: Tensor) -> None:
        """Add the gradient of a piece's vectors to `of_table`, the gradient of the table."""
        # dL/dtable[r] = sum_ij shares[i, j, r] * dL/dvector_ij
        of_table += self.shares[piece].flatten(0, 2).T @ gradient.flatten(0, 2)


class SparseRows(NamedTuple):
    """Rows of a table and their weights for each pair, [b, i, j] of query i and target j.

    Attributes:
        rows: int64 (b, n, n) each, the indices of the rows; the row after the last cell is zero.
        weights: float (b, n, n) for each of them; None for a single row with weight 1.
        offsets: float (b, n, n, e), the weights of the last e rows; None without a projection.
        dtype: of the vectors.
    """

    rows: Sequence[Tensor]
    weights: Sequence[Tensor] | None
    offsets: Tensor | None
    dtype: torch.dtype

    def table(self, cells: Tensor, projection: Tensor | None) -> Tensor:
        """Return the table, (rows, d), see `table_of`."""
        return table_of(cells, projection)

    def vectors(self, piece: Piece, table: Tensor) -> Tensor:
        """Return the vectors of a piece, (frames, queries, n, d), from a table (rows, d)."""
        table = table.to(self.dtype)
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


def make_rows(
    corners: Sequence[Tensor],
    weights: Sequence[Tensor] | None,
    both: Tensor,
    offsets: Tensor | None,
    num_cells: int,
    dtype: torch.dtype,
) -> PairRows:
    """Return the rows of all pairs in the faster of the two forms.

    Args:
        corners: int64 (b, n, n) each, the cells of a pair.
        weights: float (b, n, n) for each of them; None for a single cell with weight 1.
        both: (b, n, n) bool, True for pairs that have a relative position.
        offsets: float (b, n, n, e), the input of the projection; None without projection.
        num_cells: number of cells.
        dtype: of the vectors.
    """
    if weights is not None:
        weights = [w.to(dtype) for w in weights]
    if offsets is not None:
        offsets = (offsets * both.unsqueeze(-1)).to(dtype)
    num_offsets = 0 if offsets is None else offsets.shape[-1]
    # Many rows: indices, with the row of zeros for pairs without a relative position.
    if num_cells + num_offsets > DENSE_ROWS * len(corners):
        rows = [cells.masked_fill(~both, num_cells) for cells in corners]
        return SparseRows(rows, weights, offsets, dtype)
    # Few rows: the weights of all, added up where two corners are the same cell.
    shares = torch.empty(*both.shape, num_cells + num_offsets, dtype=dtype, device=both.device)
    for piece in pieces(len(both), both.shape[1], shares.shape[3]):
        of_piece, has_cells = shares[piece].zero_(), both[piece]
        for k, cells in enumerate(corners):
            weight = has_cells.to(dtype) if weights is None else weights[k][piece] * has_cells
            index = cells[piece].masked_fill(~has_cells, 0)
            of_piece.scatter_add_(3, index.unsqueeze(3), weight.unsqueeze(3))
    if offsets is not None:
        shares[..., num_cells:] = offsets
    return DenseRows(shares)


def pieces(num_frames: int, n: int, width: int) -> Iterator[Piece]:
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
            yield Piece(slice(start, start + frames), slice(first, first + queries))


def table_of(cells: Tensor, projection: Tensor | None) -> Tensor:
    """Return the table with the cells, a row of zeros, and the rows of a projection, (rows, d)."""
    table = F.pad(cells, (0, 0, 0, 1))
    return table if projection is None else torch.cat([table, _as_rows(projection)])


def _as_rows(projection: Tensor) -> Tensor:
    """Return the columns of a projection, (d, e) or (types, d, e), as rows of width d."""
    return projection.transpose(-1, -2).reshape(-1, projection.shape[-2])
