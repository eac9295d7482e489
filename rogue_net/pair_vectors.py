"""Attention scores and values from a vector for each pair of entities, computed in pieces.

The vector of a pair is a weighted sum of rows of a table, see `pair_rows.py`. Vectors are
recomputed in the backward pass: the memory does not grow with the number of pairs times the width
of a head.
"""

from typing import Any

import torch
from torch import Tensor

from rogue_net.pair_rows import EVERYTHING, PairRows, pieces

MATRIX_TARGETS = 24
"""Smallest number of targets for which a matrix product for each query is faster than a sum."""
TARGETS, WIDTH = 2, 3
"""Dimensions of the vectors of pairs, (frames, queries, targets, width)."""


def pair_products(x: Tensor, vectors: Tensor) -> Tensor:
    """Return the products of each query with the vectors of its pairs, sum_d x_id * v_ijd.

    Args:
        x: (b, H, n, d).
        vectors: (b, n, n, d), [b, i, j] for query i and target j; without a gradient.

    Returns:
        (b, H, n, n).
    """
    scores: Tensor = _PairContraction.apply(x.to(vectors.dtype), vectors, WIDTH)  # type: ignore[no-untyped-call]
    return scores


def pair_sums(weights: Tensor, vectors: Tensor) -> Tensor:
    """Return the weighted sums over targets of the vectors of pairs, sum_j w_ij * v_ij.

    Args:
        weights: (b, H, n, n), [b, h, i, j] for query i and target j.
        vectors: (b, n, n, d), likewise; without a gradient.

    Returns:
        (b, H, n, d).
    """
    sums: Tensor = _PairContraction.apply(weights.to(vectors.dtype), vectors, TARGETS)  # type: ignore[no-untyped-call]
    return sums


def vector_scores(queries: Tensor, table: Tensor, pairs: PairRows) -> Tensor:
    """Return the products of each query with the vectors of its pairs, q_i . v_ij.

    Args:
        queries: (b, H, n, d).
        table: (rows, d).
        pairs: their vectors.

    Returns:
        (b, H, n, n).
    """
    queries = queries.to(pairs.dtype)
    scores: Tensor = _VectorScores.apply(queries, table, pairs)  # type: ignore[no-untyped-call]
    return scores


def vector_values(attention: Tensor, table: Tensor, gate: Tensor | None, pairs: PairRows) -> Tensor:
    """Return the weighted sums over targets of gated vectors, sum_j a_ij * gate_j * v_ij.

    Args:
        attention: (b, H, n, n), [b, h, i, j] for query i and target j.
        table: (rows, d).
        gate: (b, n, d), the factors of each target; None for no gate.
        pairs: their vectors.

    Returns:
        (b, H, n, d).
    """
    attention = attention.to(pairs.dtype)
    gate = None if gate is None else gate.to(pairs.dtype)
    y: Tensor = _VectorValues.apply(attention, table, gate, pairs)  # type: ignore[no-untyped-call]
    return y


class _PairContraction(torch.autograd.Function):
    """`_contract` of all frames with given vectors; its gradient sums over the other dimension."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, vectors: Tensor, over: int) -> Tensor:
        ctx.save_for_backward(vectors)
        ctx.over = over
        return _contract_all(x, vectors, over)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        other = WIDTH if ctx.over == TARGETS else TARGETS
        (vectors,) = ctx.saved_tensors
        return _contract_all(gradients[0], vectors, other), None, None


def _contract_all(x: Tensor, vectors: Tensor, over: int) -> Tensor:
    (b, n, _, d), h = vectors.shape, x.shape[1]
    out = x.new_empty(b, h, n, n if over == WIDTH else d)
    for piece in [EVERYTHING] if n >= MATRIX_TARGETS else pieces(b, n, d):
        _contract(x[piece.of_heads], vectors[piece], over, out=out[piece.of_heads])
    return out


class _VectorScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, table: Tensor, pairs: PairRows) -> Tensor:
        ctx.save_for_backward(queries, table)
        ctx.pairs = pairs
        b, h, n, d = queries.shape
        scores = queries.new_empty(b, h, n, n)
        for piece in pieces(b, n, d):
            vectors = pairs.vectors(piece, table)
            _contract(queries[piece.of_heads], vectors, WIDTH, out=scores[piece.of_heads])
        return scores

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        (grad_scores,) = gradients
        queries, table = ctx.saved_tensors
        b, _, n, d = queries.shape
        grad_queries, grad_table = torch.empty_like(queries), torch.zeros_like(table)
        for piece in pieces(b, n, d):
            vectors = ctx.pairs.vectors(piece, table)
            of_pair = grad_scores[piece.of_heads]
            _contract(of_pair, vectors, TARGETS, out=grad_queries[piece.of_heads])
            # dL/dv_ij = sum_h dL/dscore_hij * q_hi
            grad_vectors = _spread(of_pair, queries[piece.of_heads], out=vectors)
            ctx.pairs.add_gradient(piece, grad_vectors, grad_table)
        return grad_queries, grad_table, None


class _VectorValues(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, attention: Tensor, table: Tensor, gate: Tensor | None, pairs: PairRows
    ) -> Tensor:
        ctx.save_for_backward(attention, table, gate)
        ctx.pairs = pairs
        (b, h, n, _), d = attention.shape, table.shape[1]
        y = attention.new_empty(b, h, n, d)
        for piece in pieces(b, n, d):
            values = pairs.vectors(piece, table)
            if gate is not None:
                values *= gate[piece.frames, None]
            _contract(attention[piece.of_heads], values, TARGETS, out=y[piece.of_heads])
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        (grad_y,) = gradients
        attention, table, gate = ctx.saved_tensors
        (b, _, n, _), d = attention.shape, table.shape[1]
        grad_attention, grad_table = torch.empty_like(attention), torch.zeros_like(table)
        grad_gate = None if gate is None else torch.zeros_like(gate)
        for piece in pieces(b, n, d):
            vectors = ctx.pairs.vectors(piece, table)
            values = vectors if gate is None else vectors * gate[piece.frames, None]
            _contract(grad_y[piece.of_heads], values, WIDTH, out=grad_attention[piece.of_heads])
            # y_hi = sum_j a_hij * g_j * v_ij, so with u_ij = sum_h a_hij * dL/dy_hi:
            # dL/dg_j = sum_i v_ij * u_ij, dL/dv_ij = g_j * u_ij
            grad_values = _spread(attention[piece.of_heads], grad_y[piece.of_heads], out=values)
            if gate is not None and grad_gate is not None:
                vectors *= grad_values
                grad_gate[piece.frames] += vectors.sum(dim=1)
                grad_values *= gate[piece.frames, None]
            ctx.pairs.add_gradient(piece, grad_values, grad_table)
        return grad_attention, grad_table, grad_gate, None


def _contract(x: Tensor, vectors: Tensor, over: int, out: Tensor) -> None:
    """Write the sums over one dimension of `x` times the vectors of pairs into `out`.

    Args:
        x: (f, H, q, size of `over`), of each query.
        vectors: (f, q, n, d), of its pairs.
        over: `WIDTH` for products with the vectors, `TARGETS` for weighted sums of them.
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


def _spread(weights: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """Write the sums over heads of outer products of `weights` and `x` into `out`.

    Args:
        weights: (f, H, q, n).
        x: (f, H, q, d).
        out: (f, q, n, d), the result.

    Returns:
        `out`.
    """
    torch.mul(weights[:, 0].unsqueeze(3), x[:, 0].unsqueeze(2), out=out)
    for head in range(1, weights.shape[1]):
        out.addcmul_(weights[:, head].unsqueeze(3), x[:, head].unsqueeze(2))
    return out
