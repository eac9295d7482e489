"""Attention with a vector for each pair of entities, which are never all there at once.

The vector of a pair is a weighted sum of rows of a table. Vectors are made for some queries at a
time, so that they stay in the cache, and made again in the backward pass: what is kept does not
grow with the number of pairs times the width of a head.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

PIECE = 1 << 20
"""So many numbers are made for pairs at once."""
DENSE_ROWS = 80
"""With at most so many rows for each that a pair has, a product with the whole table is faster than
looking up the rows: 1.7 nanoseconds a pair and row against 140 a pair and row that it has."""


class Piece(NamedTuple):
    """Some queries of some frames."""

    frames: slice
    queries: slice


class PairRows(NamedTuple):
    """Which rows of a table make the vector of each pair: query i, target j.

    Attributes:
        rows: int64 (b, n, n) each, the numbers of the rows.
        weights: float (b, n, n) for each of them; None for a single one, which counts as it is.
        extra: float (b, n, n, e), weights of the last e rows of the table; None when e is 0.
        query_type: int64 (b, n), where each of `num_types` types of queries has e such rows of its
            own, type after type; None where all share them.
        num_types: how many.
    """

    rows: list[Tensor]
    weights: list[Tensor] | None
    extra: Tensor | None
    query_type: Tensor | None
    num_types: int = 1

    def pieces(self, table: Tensor) -> Iterator[Piece]:
        """All queries: whole frames as many as fit, or else some queries of one."""
        b, n, _ = self.rows[0].shape
        width = 3 * table.shape[1] + (table.shape[0] if self._is_dense(table) else 0)
        pairs = max(1, PIECE // width)
        frames, queries = max(1, pairs // (n * n)), min(n, max(1, pairs // n))
        for start in range(0, b, frames):
            for first in range(0, n, queries):
                yield Piece(slice(start, start + frames), slice(first, first + queries))

    def vectors(self, piece: Piece, table: Tensor) -> Tensor:
        """(frames, queries, n, d) of a table (rows, d)."""
        if self._is_dense(table):
            return self._dense(piece, table) @ table
        vectors = self._of_rows(0, piece, table)
        for k in range(1, len(self.rows)):
            vectors += self._of_rows(k, piece, table)
        if self.extra is not None:
            extra = self._extra(piece)
            vectors += extra @ table[len(table) - extra.shape[-1] :]
        return vectors

    def add_gradient(self, piece: Piece, gradient: Tensor, of_table: Tensor) -> None:
        """Add to the gradient of a table what that of the vectors of a piece makes of it."""
        flat = gradient.flatten(0, 2)
        if self._is_dense(of_table):
            of_table.addmm_(self._dense(piece, of_table).flatten(0, 2).T, flat)
            return
        for k, rows in enumerate(self.rows):
            if self.weights is not None:
                flat = (gradient * self.weights[k][piece].unsqueeze(-1)).flatten(0, 2)
            of_table.index_add_(0, rows[piece].flatten(), flat)
        if self.extra is not None:
            extra = self._extra(piece)
            of_table[len(of_table) - extra.shape[-1] :].addmm_(
                extra.flatten(0, 2).T, gradient.flatten(0, 2)
            )

    def _of_rows(self, k: int, piece: Piece, table: Tensor) -> Tensor:
        """(frames, queries, n, d), what the k-th row of each pair adds to its vector."""
        of_row = F.embedding(self.rows[k][piece], table)
        return of_row if self.weights is None else of_row * self.weights[k][piece].unsqueeze(-1)

    def _is_dense(self, table: Tensor) -> bool:
        return table.shape[0] <= DENSE_ROWS * len(self.rows)

    def _dense(self, piece: Piece, table: Tensor) -> Tensor:
        """(frames, queries, n, rows), the weight of every row."""
        rows = self.rows[0][piece]
        dense = table.new_zeros(*rows.shape, table.shape[0])
        for k, of_pair in enumerate(self.rows):
            index = of_pair[piece].unsqueeze(-1)
            if self.weights is None:
                dense.scatter_(3, index, 1.0)
            else:
                dense.scatter_add_(3, index, self.weights[k][piece].unsqueeze(-1))
        if self.extra is not None:
            extra = self._extra(piece)
            dense[..., table.shape[0] - extra.shape[-1] :] = extra
        return dense

    def _extra(self, piece: Piece) -> Tensor:
        """(frames, queries, n, e or types * e), the weights of the last rows."""
        assert self.extra is not None
        extra = self.extra[piece]
        if self.query_type is None:
            return extra
        is_type = F.one_hot(self.query_type[piece], self.num_types).to(extra.dtype)
        return (is_type[:, :, None, :, None] * extra.unsqueeze(3)).flatten(3)


def vector_scores(queries: Tensor, table: Tensor, pairs: PairRows) -> Tensor:
    """Products of each query with the vectors of its pairs.

    Args:
        queries: (b, H, n, d).
        table: (rows, d).
        pairs: their vectors.

    Returns:
        (b, H, n, n).
    """
    scores: Tensor = _VectorScores.apply(queries, table, pairs)  # type: ignore[no-untyped-call]
    return scores


def vector_values(attention: Tensor, table: Tensor, gate: Tensor | None, pairs: PairRows) -> Tensor:
    """Sums over the targets of attention times vector, times a gate.

    Args:
        attention: (b, H, n, n), [b, h, i, j] is how much query i looks at target j.
        table: (rows, d).
        gate: (b, n, d), of the targets; None for none.
        pairs: their vectors.

    Returns:
        (b, H, n, d).
    """
    y: Tensor = _VectorValues.apply(attention, table, gate, pairs)  # type: ignore[no-untyped-call]
    return y


class _VectorScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, table: Tensor, pairs: PairRows) -> Tensor:
        ctx.save_for_backward(queries, table)
        ctx.pairs = pairs
        b, h, n, _ = queries.shape
        scores = queries.new_empty(b, h, n, n)
        for piece in pairs.pieces(table):
            vectors = pairs.vectors(piece, table)
            for head in range(h):
                of_query = queries[piece.frames, head, piece.queries].unsqueeze(2)
                scores[piece.frames, head, piece.queries] = (vectors * of_query).sum(dim=3)
        return scores

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad_scores,) = gradients
        queries, table = ctx.saved_tensors
        grad_queries, grad_table = torch.empty_like(queries), torch.zeros_like(table)
        for piece in ctx.pairs.pieces(table):
            frames, some = piece
            vectors = ctx.pairs.vectors(piece, table)
            grad_vectors = torch.zeros_like(vectors)
            for head in range(queries.shape[1]):
                of_pair = grad_scores[frames, head, some].unsqueeze(3)
                grad_queries[frames, head, some] = (vectors * of_pair).sum(dim=2)
                grad_vectors.addcmul_(of_pair, queries[frames, head, some].unsqueeze(2))
            ctx.pairs.add_gradient(piece, grad_vectors, grad_table)
        return grad_queries, grad_table, None


class _VectorValues(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, attention: Tensor, table: Tensor, gate: Tensor | None, pairs: PairRows
    ) -> Tensor:
        ctx.save_for_backward(attention, table, gate)
        ctx.pairs = pairs
        b, h, n, _ = attention.shape
        y = attention.new_empty(b, h, n, table.shape[1])
        for piece in pairs.pieces(table):
            frames, some = piece
            values = pairs.vectors(piece, table)
            if gate is not None:
                values = values * gate[frames, None]
            for head in range(h):
                weights = attention[frames, head, some].unsqueeze(3)
                y[frames, head, some] = (values * weights).sum(dim=2)
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        (grad_y,) = gradients
        attention, table, gate = ctx.saved_tensors
        grad_attention, grad_table = torch.empty_like(attention), torch.zeros_like(table)
        grad_gate = None if gate is None else torch.zeros_like(gate)
        for piece in ctx.pairs.pieces(table):
            frames, some = piece
            vectors = ctx.pairs.vectors(piece, table)
            values = vectors if gate is None else vectors * gate[frames, None]
            grad_values = torch.zeros_like(values)
            for head in range(attention.shape[1]):
                of_query = grad_y[frames, head, some].unsqueeze(2)
                grad_attention[frames, head, some] = (values * of_query).sum(dim=3)
                grad_values.addcmul_(attention[frames, head, some].unsqueeze(3), of_query)
            if gate is not None and grad_gate is not None:
                grad_gate[frames] += (grad_values * vectors).sum(dim=1)
                grad_values *= gate[frames, None]
            ctx.pairs.add_gradient(piece, grad_values, grad_table)
        return grad_attention, grad_table, grad_gate, None
