"""Implementations compared by `network.py`: the network, a reference, and matrix products alone."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from rogue_net.relpos.attention import make_rows, relative_scores, relative_values, table_of
from rogue_net.relpos.cells import Cells

LAYERS, HEADS, D_HEAD = 2, 2, 16


class Kind(NamedTuple):
    """Relative positions: name, number of cells, and number of cells per pair."""

    name: str
    cells: int
    corners: int


class Inputs(NamedTuple):
    """Inputs of both sides: queries, keys and values (3, b, H, n, d) per layer."""

    qkv: list[Tensor]
    gates: list[Tensor] | None
    key_table: Tensor
    value_table: Tensor
    corners: list[Tensor]
    weights: list[Tensor] | None

    def parameters(self) -> list[Tensor]:
        """Return the inputs that have gradients."""
        return [*self.qkv, *(self.gates or []), self.key_table, self.value_table]


def attention_inputs(kind: Kind, b: int, n: int, gated: bool, d_head: int = D_HEAD) -> Inputs:
    """Draw random inputs for b frames of n entities."""
    generator = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).requires_grad_()

    corners = [
        torch.randint(0, kind.cells, (b, n, n), generator=generator) for _ in range(kind.corners)
    ]
    weights = None
    if kind.corners > 1:
        weights = list(torch.rand(kind.corners, b, n, n, generator=generator).softmax(dim=0))
    return Inputs(
        [rand(3, b, HEADS, n, d_head) for _ in range(LAYERS)],
        [rand(b, n, d_head) for _ in range(LAYERS)] if gated else None,
        rand(kind.cells, d_head),
        rand(kind.cells, d_head),
        corners,
        weights,
    )


def attention_of_network(x: Inputs) -> Tensor:
    """Compute attention as the network does, (layers, b, H, n, d_head)."""
    both = torch.ones_like(x.corners[0], dtype=torch.bool)
    cells = Cells(x.corners, x.weights)
    pairs = make_rows(cells, both, None, len(x.key_table), torch.float32)
    keys, values = (table_of(x, None, pairs.has_zeros) for x in (x.key_table, x.value_table))
    results = []
    for layer, (q, k, v) in enumerate(x.qkv):
        scores = q @ k.transpose(2, 3) / math.sqrt(q.shape[3])
        attention = (scores + relative_scores(q, keys, pairs)).softmax(dim=-1)
        gate = None if x.gates is None else x.gates[layer].relu()
        results.append(attention @ v + relative_values(attention, values, gate, pairs))
    return torch.stack(results)


def attention_of_reference(x: Inputs) -> Tensor:
    """Compute attention with (b, n, n, d_head) relative keys and values, materialised once."""
    keys, values = materialise(x.key_table, x), materialise(x.value_table, x)
    results = []
    for layer, (q, k, v) in enumerate(x.qkv):
        scores = q @ k.transpose(2, 3) + torch.einsum("bhid,bijd->bhij", q, keys)
        attention = (scores / math.sqrt(q.shape[3])).softmax(dim=-1)
        gated = values
        if x.gates is not None:
            gated = torch.einsum("bijd,bjd->bijd", values, x.gates[layer].relu())
        results.append(attention @ v + torch.einsum("bhij,bijd->bhid", attention, gated))
    return torch.stack(results)


def materialise(table: Tensor, x: Inputs) -> Tensor:
    """Materialise the vectors of all pairs, (b, n, n, d_head)."""
    vectors = torch.zeros(())
    for k, cells in enumerate(x.corners):
        weight = 1.0 if x.weights is None else x.weights[k].unsqueeze(-1)
        vectors = vectors + F.embedding(cells, table) * weight
    return vectors


def packed_rows(lengths: Sequence[int]) -> int:
    """Return the number of rows needed for all frames, by first-fit decreasing packing."""
    longest = max(lengths)
    free: list[int] = []
    for n in sorted(lengths, reverse=True):
        fits = next((i for i, room in enumerate(free) if room >= n), None)
        if fits is None:
            free.append(longest - n)
        else:
            free[fits] -= n
    return len(free)


def products_of(d_model: int, b: int, n: int) -> Callable[[Tensor], Tensor]:
    """Return a function that computes only the matrix products of a transformer."""
    shapes = [(d_model, 3 * d_model), (d_model, d_model), (d_model, 4 * d_model)]
    weights = [
        [torch.randn(*s, requires_grad=True) for s in (*shapes, (4 * d_model, d_model))]
        for _ in range(LAYERS)
    ]

    def products(x: Tensor) -> Tensor:
        for qkv, project, up, down in weights:
            q, k, v = (x @ qkv).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            x = ((q @ k.transpose(2, 3)) @ v).transpose(1, 2).reshape(b * n, d_model) @ project
            x = x @ up @ down
        return x

    return products
