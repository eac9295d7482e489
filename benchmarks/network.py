"""How fast the network is: attention with relative positions, and the transformer as a whole.

    python benchmarks/network.py [--threads 1] [--tokens 4096] [--repeats 5] [--results FILE.md]

*Attention* is two layers of two heads of width 16, all entities in frames of N, forward and
backward. It is compared with a plain reference that writes out the relative keys and values of all
pairs once and shares them between the layers. Both take the same numbers, and their results are
compared after the timing.

*Transformer* is two layers of two heads. It is compared with its floor: the matrix products alone.

Each figure is the median of several repeats, in which both sides take turns.
"""

import argparse
import math
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from rogue_net.attention import Context, attention_mask
from rogue_net.layout import make_layout
from rogue_net.pair_rows import make_rows
from rogue_net.relpos_attention import relative_scores, relative_values
from rogue_net.transformer import Transformer

LAYERS, HEADS, D_HEAD = 2, 2, 16


class Kind(NamedTuple):
    """A kind of relative positions: the cells of its table, and how many of them a pair has."""

    name: str
    cells: int
    corners: int


KINDS = [Kind("polar 8 x 2, interpolated", 16, 4), Kind("grid 21 x 21", 441, 1)]


class Inputs(NamedTuple):
    """What both sides of a comparison take: queries, keys and values (3, b, H, n, d) a layer."""

    qkv: list[Tensor]
    gates: list[Tensor] | None
    key_table: Tensor
    value_table: Tensor
    corners: list[Tensor]
    weights: list[Tensor] | None

    def parameters(self) -> list[Tensor]:
        """What gradients are asked for."""
        return [*self.qkv, *(self.gates or []), self.key_table, self.value_table]


def random_inputs(kind: Kind, n: int, gated: bool, tokens: int) -> Inputs:
    b = max(1, tokens // n)
    generator = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).requires_grad_()

    cells = [
        torch.randint(0, kind.cells, (b, n, n), generator=generator) for _ in range(kind.corners)
    ]
    weights = None
    if kind.corners > 1:
        weights = list(torch.rand(kind.corners, b, n, n, generator=generator).softmax(dim=0))
    return Inputs(
        [rand(3, b, HEADS, n, D_HEAD) for _ in range(LAYERS)],
        [rand(b, n, D_HEAD) for _ in range(LAYERS)] if gated else None,
        rand(kind.cells, D_HEAD),
        rand(kind.cells, D_HEAD),
        cells,
        weights,
    )


def ours(x: Inputs) -> Tensor:
    """(layers, b, H, n, d_head)."""
    both = torch.ones_like(x.corners[0], dtype=torch.bool)
    pairs = make_rows(x.corners, x.weights, both, None, len(x.key_table), torch.float32)
    keys, values = (pairs.table(table, None) for table in (x.key_table, x.value_table))
    results = []
    for layer, (q, k, v) in enumerate(x.qkv):
        scores = q @ k.transpose(2, 3) / math.sqrt(D_HEAD)
        attention = (scores + relative_scores(q, keys, pairs)).softmax(dim=-1)
        gate = None if x.gates is None else x.gates[layer].relu()
        results.append(attention @ v + relative_values(attention, values, gate, pairs))
    return torch.stack(results)


def reference(x: Inputs) -> Tensor:
    """The same with (b, n, n, d_head) keys and values, made once."""
    keys, values = written_out(x.key_table, x), written_out(x.value_table, x)
    results = []
    for layer, (q, k, v) in enumerate(x.qkv):
        scores = q @ k.transpose(2, 3) + torch.einsum("bhid,bijd->bhij", q, keys)
        attention = (scores / math.sqrt(D_HEAD)).softmax(dim=-1)
        gated = values
        if x.gates is not None:
            gated = torch.einsum("bijd,bjd->bijd", values, x.gates[layer].relu())
        results.append(attention @ v + torch.einsum("bhij,bijd->bhid", attention, gated))
    return torch.stack(results)


def written_out(table: Tensor, x: Inputs) -> Tensor:
    """(b, n, n, d_head)."""
    vectors = torch.zeros(())
    for k, cells in enumerate(x.corners):
        weight = 1.0 if x.weights is None else x.weights[k].unsqueeze(-1)
        vectors = vectors + F.embedding(cells, table) * weight
    return vectors


def forward_and_backward(run: Callable[[], Tensor], parameters: list[Tensor]) -> list[Tensor]:
    result = run()
    return [result.detach(), *torch.autograd.grad(result.square().sum(), parameters)]


def in_turns(sides: list[Callable[[], object]], repeats: int) -> list[list[float]]:
    """Seconds of each side, `repeats` times each, after one run that does not count."""
    times: list[list[float]] = [[] for _ in sides]
    for side in sides:
        side()
    for _ in range(repeats):
        for side, of_side in zip(sides, times, strict=True):
            start = time.perf_counter()
            side()
            of_side.append(time.perf_counter() - start)
    return times


def attention_row(kind: Kind, n: int, gated: bool, tokens: int, repeats: int) -> str:
    x = random_inputs(kind, n, gated, tokens)
    sides = [
        lambda: forward_and_backward(lambda: ours(x), x.parameters()),
        lambda: forward_and_backward(lambda: reference(x), x.parameters()),
    ]
    times = in_turns(sides, repeats)
    for a, b in zip(sides[0](), sides[1](), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))
    gate = "relu" if gated else "None"
    return f"| {kind.name} | {gate} | {n} | {' | '.join(cells(times))} |"


def transformer_row(d_model: int, n: int, tokens: int, repeats: int) -> str:
    b = max(1, tokens // n)
    net = Transformer(LAYERS, HEADS, d_model)
    layout = make_layout({"entity": np.full(b, n)}, torch.device("cpu"))
    context = Context(layout, None, [attention_mask(bucket, None) for bucket in layout.buckets])
    x = torch.randn(b * n, d_model, requires_grad=True)
    weights = [
        [torch.randn(d_model, out, requires_grad=True) for out in (3 * d_model, d_model)]
        + [torch.randn(d_model, 4 * d_model, requires_grad=True)]
        + [torch.randn(4 * d_model, d_model, requires_grad=True)]
        for _ in range(LAYERS)
    ]

    def products() -> Tensor:
        y = x
        for qkv, project, up, down in weights:
            q, k, v = (y @ qkv).view(b, n, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
            y = ((q @ k.transpose(2, 3)) @ v).transpose(1, 2).reshape(b * n, d_model) @ project
            y = y @ up @ down
        return y

    sides = [lambda: net(x, context).sum().backward(), lambda: products().sum().backward()]
    return f"| {d_model} | {n} | {' | '.join(cells(in_turns(sides, repeats), inverse=True))} |"


def cells(times: list[list[float]], inverse: bool = False) -> list[str]:
    """Milliseconds of both sides, and the ratio of their medians."""
    ours_s, other_s = (statistics.median(t) for t in times)
    ratio = ours_s / other_s if inverse else other_s / ours_s
    return [
        *(
            f"{1e3 * statistics.median(t):.1f} ({1e3 * min(t):.1f}-{1e3 * max(t):.1f})"
            for t in times
        ),
        f"{ratio:.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--tokens", type=int, default=4096, help="entities in all frames")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--lengths", type=int, nargs="+", default=[11, 64, 128])
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    lines = [
        "# The network, forward and backward",
        "",
        f"`{' '.join(['python', *sys.argv])}`, {os.cpu_count()} cores, {options.threads} threads, "
        f"float32, torch {torch.__version__}, Python {platform.python_version()}, commit {commit}. "
        f"Milliseconds, median (smallest to largest) of {options.repeats}; {options.tokens} "
        f"entities.",
        "",
        "## Attention with relative positions",
        "",
        "| relative positions | value_gate | N | ours | reference | reference / ours |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    print("\n".join(lines), flush=True)

    def add(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    for kind in KINDS:
        for gated in (True, False):
            for n in options.lengths:
                add(attention_row(kind, n, gated, options.tokens, options.repeats))
    for line in (
        "",
        "## Transformer without relative positions",
        "",
        "| d_model | N | ours | matrix products alone | ours / products |",
        "| --- | --- | --- | --- | --- |",
    ):
        add(line)
    for d_model in (32, 128):
        for n in options.lengths:
            add(transformer_row(d_model, n, options.tokens, options.repeats))
    if options.results:
        options.results.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
