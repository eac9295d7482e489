"""Attention with a vector for each pair of entities, which are never all there at once.

The vector of a pair is a weighted sum of rows of a table, see `pair_rows.py`. Vectors are made in
pieces, and again in the backward pass: what is kept does not grow with the number of pairs times
the width of a head.
"""

from typing import Any

import torch
from torch import Tensor

from rogue_net.pair_rows import EVERYTHING, PairRows, pieces

MATRIX_TARGETS = 24
"""From so many targets on, a small matrix product for each query is faster than a sum."""


def pair_products(x: Tensor, vectors: Tensor) -> Tensor:
    """Products of what each query has with the vectors of its pairs.

    Args:
        x: (b, H, n, d).
        vectors: (b, n, n, d), [b, i, j] is that of query i and target j; without a gradient.

    Returns:
        (b, H, n, n).
    """
    scores: Tensor = _PairProducts.apply(x.to(vectors.dtype), vectors)  # type: ignore[no-untyped-call]
    return scores


def pair_sums(weights: Tensor, vectors: Tensor) -> Tensor:
    """Sums over the targets of weights times the vectors of pairs.

    Args:
        weights: (b, H, n, n), [b, h, i, j] is that of query i and target j.
        vectors: (b, n, n, d), likewise; without a gradient.

    Returns:
        (b, H, n, d).
    """
    sums: Tensor = _PairSums.apply(weights.to(vectors.dtype), vectors)  # type: ignore[no-untyped-call]
    return sums


def vector_scores(queries: Tensor, table: Tensor, pairs: PairRows) -> Tensor:
    """Products of each query with the vectors of its pairs.

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
    """Sums over the targets of attention times vector, times a gate.

    Args:
        attention: (b, H, n, n), [b, h, i, j] is how much query i looks at target j.
        table: (rows, d).
        gate: (b, n, d), of the targets; None for none.
        pairs: their vectors.

    Returns:
        (b, H, n, d).
    """
    attention = attention.to(pairs.dtype)
    gate = None if gate is None else gate.to(pairs.dtype)
    y: Tensor = _VectorValues.apply(attention, table, gate, pairs)  # type: ignore[no-untyped-call]
    return y


class _PairProducts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, vectors: Tensor) -> Tensor:
        ctx.save_for_backward(vectors)
        return _all_products(x, vectors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _all_sums(gradients[0], *ctx.saved_tensors), None


class _PairSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, weights: Tensor, vectors: Tensor) -> Tensor:
        ctx.save_for_backward(vectors)
        return _all_sums(weights, vectors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _all_products(gradients[0], *ctx.saved_tensors), None


def _all_products(x: Tensor, vectors: Tensor) -> Tensor:
    """`_products` of everything: (b, H, n, n)."""
    b, h, n, d = x.shape
    out = x.new_empty(b, h, n, n)
    for piece in [EVERYTHING] if n >= MATRIX_TARGETS else pieces(b, n, d):
        _products(x[piece.of_heads], vectors[piece], out=out[piece.of_heads])
    return out


def _all_sums(weights: Tensor, vectors: Tensor) -> Tensor:
    """`_sums` of everything: (b, H, n, d)."""
    (b, h, n, _), d = weights.shape, vectors.shape[3]
    out = weights.new_empty(b, h, n, d)
    for piece in [EVERYTHING] if n >= MATRIX_TARGETS else pieces(b, n, d):
        _sums(weights[piece.of_heads], vectors[piece], out=out[piece.of_heads])
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
            _products(queries[piece.of_heads], vectors, out=scores[piece.of_heads])
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
            _sums(of_pair, vectors, out=grad_queries[piece.of_heads])
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
            _sums(attention[piece.of_heads], values, out=y[piece.of_heads])
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
            _products(grad_y[piece.of_heads], values, out=grad_attention[piece.of_heads])
            grad_values = _spread(attention[piece.of_heads], grad_y[piece.of_heads], out=values)
            if gate is not None and grad_gate is not None:
                vectors *= grad_values
                grad_gate[piece.frames] += vectors.sum(dim=1)
                grad_values *= gate[piece.frames, None]
            ctx.pairs.add_gradient(piece, grad_values, grad_table)
        return grad_attention, grad_table, grad_gate, None


def _products(x: Tensor, vectors: Tensor, out: Tensor) -> None:
    """Products of what each query has, (f, H, q, d), with the vectors of its pairs, (f, q, n, d).

    Args:
        x: one operand.
        vectors: the other.
        out: (f, H, q, n), where they are written.
    """
    if vectors.shape[2] >= MATRIX_TARGETS:
        of_query = x.transpose(1, 2).flatten(0, 1)  # (f * q, H, d)
        products = of_query @ vectors.flatten(0, 1).transpose(1, 2)
        out.copy_(products.view(*vectors.shape[:2], *products.shape[1:]).transpose(1, 2))
        return
    for head in range(x.shape[1]):
        out[:, head] = (vectors * x[:, head].unsqueeze(2)).sum(dim=3)


def _sums(weights: Tensor, vectors: Tensor, out: Tensor) -> None:
    """Sums over the targets of weights, (f, H, q, n), times vectors of pairs, (f, q, n, d).

    Args:
        weights: one operand.
        vectors: the other.
        out: (f, H, q, d), where they are written.
    """
    if vectors.shape[2] >= MATRIX_TARGETS:
        of_query = weights.transpose(1, 2).flatten(0, 1)  # (f * q, H, n)
        sums = of_query @ vectors.flatten(0, 1)
        out.copy_(sums.view(*vectors.shape[:2], *sums.shape[1:]).transpose(1, 2))
        return
    for head in range(weights.shape[1]):
        out[:, head] = (vectors * weights[:, head].unsqueeze(3)).sum(dim=2)


def _spread(weights: Tensor, x: Tensor, out: Tensor) -> Tensor:
    """Sums over the heads of weights, (f, H, q, n), times what each query has, (f, H, q, d).

    Args:
        weights: one operand.
        x: the other.
        out: (f, q, n, d), where they are written.

    Returns:
        `out`.
    """
    torch.mul(weights[:, 0].unsqueeze(3), x[:, 0].unsqueeze(2), out=out)
    for head in range(1, weights.shape[1]):
        out.addcmul_(weights[:, head].unsqueeze(3), x[:, head].unsqueeze(2))
    return out
