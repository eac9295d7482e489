"""Vectors of pairs made in pieces, against all of them written out; and their gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor

from rogue_net import pair_vectors
from rogue_net.pair_vectors import PairRows, vector_scores, vector_values

B, H, N, D, ROWS, EXTRA, TYPES = 3, 2, 5, 4, 6, 3, 2


def pairs_of(corners: int, extra: bool, typed: bool) -> PairRows:
    generator = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    def below(high: int, *shape: int) -> Tensor:
        return torch.randint(0, high, shape, generator=generator)

    return PairRows(
        [below(ROWS, B, N, N) for _ in range(corners)],
        None if corners == 1 else [rand(B, N, N) for _ in range(corners)],
        rand(B, N, N, EXTRA) if extra else None,
        below(TYPES, B, N) if typed else None,
        TYPES,
    )


def written_out(pairs: PairRows, table: Tensor) -> Tensor:
    """(b, n, n, d), one pair at a time."""
    vectors = []
    for b in range(B):
        for i in range(N):
            for j in range(N):
                vector = torch.zeros(D, dtype=table.dtype)
                for k, rows in enumerate(pairs.rows):
                    weight = 1.0 if pairs.weights is None else pairs.weights[k][b, i, j]
                    vector = vector + weight * table[rows[b, i, j]]
                if pairs.extra is not None:
                    of_type = 0 if pairs.query_type is None else int(pairs.query_type[b, i])
                    first = ROWS + of_type * EXTRA
                    vector = vector + pairs.extra[b, i, j] @ table[first : first + EXTRA]
                vectors.append(vector)
    return torch.stack(vectors).view(B, N, N, D)


@pytest.mark.parametrize("dense_rows", [0, 80], ids=["looked up", "by product"])
@pytest.mark.parametrize("piece", [1, 200, 1 << 20])
@pytest.mark.parametrize(("extra", "typed"), [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("corners", [1, 4])
def test_pieces_give_what_all_vectors_give(
    corners: int,
    extra: bool,
    typed: bool,
    piece: int,
    dense_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pair_vectors, "PIECE", piece)
    monkeypatch.setattr(pair_vectors, "DENSE_ROWS", dense_rows)
    pairs = pairs_of(corners, extra, typed)
    num_rows = ROWS + (EXTRA * (TYPES if typed else 1) if extra else 0)
    generator = torch.Generator().manual_seed(1)
    attention, table, gate, queries = (
        torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)
        for shape in ((B, H, N, N), (num_rows, D), (B, N, D), (B, H, N, D))
    )
    vectors = written_out(pairs, table)
    expected: dict[str, Any] = {
        "scores": torch.einsum("bhid,bijd->bhij", queries, vectors),
        "values": torch.einsum("bhij,bijd->bhid", attention, vectors),
        "gated": torch.einsum("bhij,bijd,bjd->bhid", attention, vectors, gate),
    }
    got = {
        "scores": vector_scores(queries, table, pairs),
        "values": vector_values(attention, table, None, pairs),
        "gated": vector_values(attention, table, gate, pairs),
    }
    inputs = [attention, table, gate, queries]
    for name, result in got.items():
        torch.testing.assert_close(result, expected[name])
        theirs = torch.autograd.grad(
            expected[name].square().sum(), inputs, retain_graph=True, allow_unused=True
        )
        ours = torch.autograd.grad(result.square().sum(), inputs, allow_unused=True)
        for a, b in zip(ours, theirs, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b)
