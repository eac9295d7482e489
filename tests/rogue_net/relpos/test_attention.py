"""Relative attention in microbatches against all pair vectors at once, with gradients."""

from typing import Any

import pytest
import torch
from torch import Tensor

import rogue_net.relpos.attention
from rogue_net.relpos.attention import (
    DenseRows,
    make_rows,
    relative_scores,
    relative_values,
    table_of,
)
from rogue_net.relpos.cells import Cells

B, H, N, D, CELLS, OFFSETS = 3, 2, 5, 4, 6, 3


def rand(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("dense_rows", [0, 80], ids=["sparse", "dense"])
@pytest.mark.parametrize("matrix_targets", [1, 80], ids=["by matrix", "by sum"])
@pytest.mark.parametrize("piece", [1, 200, 1 << 20])
@pytest.mark.parametrize("projected", [False, True])
@pytest.mark.parametrize("corners", [1, 4])
def test_microbatches_equal_the_whole_batch(
    corners: int,
    projected: bool,
    piece: int,
    matrix_targets: int,
    dense_rows: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rogue_net.relpos.attention, "PIECE", piece)
    monkeypatch.setattr(rogue_net.relpos.attention, "DENSE_ROWS", dense_rows)
    monkeypatch.setattr(rogue_net.relpos.attention, "MATRIX_TARGETS", matrix_targets)
    generator = torch.Generator().manual_seed(0)
    cells = [torch.randint(0, CELLS, (B, N, N), generator=generator) for _ in range(corners)]
    weights = None if corners == 1 else [rand(generator, B, N, N) for _ in range(corners)]
    both = rand(generator, B, N, N) < 0.8
    offsets = rand(generator, B, N, N, OFFSETS) if projected else None
    given = None if offsets is None else offsets * both.unsqueeze(-1)
    pairs = make_rows(Cells(cells, weights), both, given, CELLS, torch.float64)
    assert isinstance(pairs, DenseRows) == (dense_rows > 0)

    attention, of_cells, projection, gate, queries = (
        rand(generator, *shape).requires_grad_()
        for shape in ((B, H, N, N), (CELLS, D), (D, OFFSETS), (B, N, D), (B, H, N, D))
    )
    vectors = torch.stack(
        [
            vector_of((b, i, j), cells, weights, offsets, of_cells, projection)
            if both[b, i, j]
            else torch.zeros(D, dtype=torch.float64)
            for b in range(B)
            for i in range(N)
            for j in range(N)
        ]
    ).view(B, N, N, D)
    table = table_of(of_cells, projection if projected else None, pairs.has_zeros)
    expected: dict[str, Any] = {
        "scores": torch.einsum("bhid,bijd->bhij", queries, vectors) / D**0.5,
        "values": torch.einsum("bhij,bijd->bhid", attention, vectors),
        "gated": torch.einsum("bhij,bijd,bjd->bhid", attention, vectors, gate),
    }
    got = {
        "scores": relative_scores(queries, table, pairs),
        "values": relative_values(attention, table, None, pairs),
        "gated": relative_values(attention, table, gate, pairs),
    }
    inputs = [attention, of_cells, projection, gate, queries]
    for name, result in got.items():
        torch.testing.assert_close(result, expected[name])
        theirs, actual = (
            torch.autograd.grad(x.square().sum(), inputs, retain_graph=True, allow_unused=True)
            for x in (expected[name], result)
        )
        for a, b in zip(actual, theirs, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b)


def vector_of(
    pair: tuple[int, int, int],
    cells: list[Tensor],
    weights: list[Tensor] | None,
    offsets: Tensor | None,
    of_cells: Tensor,
    projection: Tensor,
) -> Tensor:
    """(d,), by definition."""
    vector = torch.zeros(D, dtype=torch.float64)
    for k, of_corner in enumerate(cells):
        weight = 1.0 if weights is None else weights[k][pair]
        vector = vector + weight * of_cells[of_corner[pair]]
    return vector if offsets is None else vector + projection @ offsets[pair]
