"""Speed of the network: attention with relative positions, and the transformer as a whole.

    python benchmarks/network.py [SECTION ...] [--threads 1] [--repeats 3] [--results FILE.md]

*relpos*: two layers of two heads of width 16, all entities in frames of N. They are compared with a
plain reference that materialises the relative keys and values of all pairs once and shares them
between layers. Both get the same inputs, and their results are compared after the timing.

*transformer*: two layers of two heads, compared with the floor: the same matrix products alone.

*ragged*: frames of 1 to N entities, compared with the same number of entities and pairs in frames
of equal length; and with the reference, which packs short frames into rows of the maximal length.

*memory*: peak memory of forward and backward passes, for heads of width 16 to 128.

*precision*: `precision="bfloat16"`, compared with float32, for acting and for learning. Frames per
second of processor time, which depends less on other programs. ONEDNN_MAX_CPU_ISA=AVX512_CORE
measures a processor without fast bfloat16 products.

Each figure is the median of several alternating repeats.
"""

import argparse
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measured_on import processor, short_revision
from network_sides import (
    HEADS,
    LAYERS,
    Inputs,
    Kind,
    attention_inputs,
    attention_of_network,
    attention_of_reference,
    packed_rows,
    products_of,
)
from torch import Tensor

from entity_env import CategoricalActionSpace, Entity, ObsSpace
from rogue_net import (
    ActionBatch,
    EntityBatch,
    NetOutput,
    RaggedTensor,
    RelposEncodingConfig,
    RogueNet,
    RogueNetConfig,
)
from rogue_net.attention import PaddedContext, attention_mask
from rogue_net.layout import layout_of, make_layout
from rogue_net.native.backend import has_compiled_blocks
from rogue_net.precision import fast_bfloat16_instructions
from rogue_net.transformer import Transformer

KINDS = [
    Kind("polar 8 x 2, interpolated", 16, 4),
    Kind("grid 21 x 21", 441, 1),
    Kind("grid 5 x 5, interpolated", 25, 4),
    Kind("grid 5 x 5 x 5, interpolated", 125, 8),
    Kind("distance 8, interpolated", 8, 2),
    Kind("angle 8", 8, 1),
]
ALL_KINDS_AT = (11, 64)
"""Lengths at which all kinds are measured; at others only the first two."""
MAX_ENTITIES, MAX_PAIRS = 1 << 14, 1 << 21
"""Limits of the size of a minibatch."""

OBS_SPACE = ObsSpace(entities={"unit": Entity(["x", "y"])})
ACTION_SPACE = {"move": CategoricalActionSpace(["left", "right"])}
POLAR = RelposEncodingConfig(
    extent=[8, 2], position_features=["x", "y"], radial=True, distance=True, interpolate=True
)

Lines = Callable[[str], None]


def frames_of(n: int) -> int:
    """Return the number of frames of n entities in a minibatch."""
    return max(1, min(MAX_ENTITIES // n, MAX_PAIRS // n**2))


def in_turns(
    sides: Sequence[Callable[[], object]],
    repeats: int,
    clock: Callable[[], float] = time.perf_counter,
) -> list[list[float]]:
    """Measure the milliseconds of each side, `repeats` times alternately after a warm-up."""
    times: list[list[float]] = [[] for _ in sides]
    for side in sides:
        side()
    for _ in range(repeats):
        for side, side_times in zip(sides, times, strict=True):
            start = clock()
            side()
            side_times.append(1e3 * (clock() - start))
    return times


def shown(times: Sequence[float]) -> str:
    return f"{statistics.median(times):.1f} ({min(times):.1f}-{max(times):.1f})"


def ratio(above: Sequence[float], below: Sequence[float]) -> str:
    return f"{statistics.median(above) / statistics.median(below):.2f}"


def gradients(attend: Callable[[Inputs], Tensor], x: Inputs) -> list[Tensor]:
    """Return the output of attention and its gradients."""
    result = attend(x)
    return [result.detach(), *torch.autograd.grad(result.square().sum(), x.parameters())]


@torch.no_grad()
def without_gradients(run: Callable[..., Tensor], *arguments: object) -> Tensor:
    return run(*arguments)


def backward(run: Callable[..., Tensor], *arguments: object) -> None:
    torch.autograd.backward(run(*arguments).sum())


def relpos(add: Lines, options: argparse.Namespace) -> None:
    add("| relative positions | value_gate | N | frames | ours | reference | reference / ours |")
    add("| --- | --- | --- | --- | --- | --- | --- |")
    for k, kind in enumerate(KINDS):
        for gated in (True, False):
            for n in options.lengths:
                if k < 2 or n in ALL_KINDS_AT:
                    add(relpos_row(kind, n, gated, options.repeats))


def relpos_row(kind: Kind, n: int, gated: bool, repeats: int) -> str:
    x = attention_inputs(kind, frames_of(n), n, gated)
    sides = [attention_of_network, attention_of_reference]
    forward = in_turns([partial(without_gradients, side, x) for side in sides], repeats)
    full = in_turns([partial(gradients, side, x) for side in sides], repeats)
    for a, b in zip(*(gradients(side, x) for side in sides), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))
    ratios = f"{ratio(full[1], full[0])} (forward {ratio(forward[1], forward[0])})"
    gate = "relu" if gated else "None"
    frames = frames_of(n)
    return f"| {kind.name} | {gate} | {n} | {frames} | {' | '.join(map(shown, full))} | {ratios} |"


def transformer(add: Lines, options: argparse.Namespace) -> None:
    add("| d_model | N | ours | matrix products alone | ours / products |")
    add("| --- | --- | --- | --- | --- |")
    for d_model in options.widths:
        for n in options.lengths:
            net, context, x = transformer_over([n] * frames_of(n), d_model)
            products = products_of(d_model, frames_of(n), n)
            sides: list[tuple[Any, ...]] = [(net, x, context), (products, x)]
            forward = in_turns([partial(without_gradients, *s) for s in sides], options.repeats)
            full = in_turns([partial(backward, *s) for s in sides], options.repeats)
            ratios = f"{ratio(*full)} (forward {ratio(*forward)})"
            add(f"| {d_model} | {n} | {' | '.join(map(shown, full))} | {ratios} |")


def transformer_over(
    lengths: Sequence[int], d_model: int
) -> tuple[Transformer, PaddedContext, Tensor]:
    """Create a transformer and a padded batch of frames of these lengths."""
    torch.manual_seed(0)
    layout = make_layout({"entity": np.array(lengths)}, torch.device("cpu"))
    masks = [attention_mask(bucket, None) for bucket in layout.buckets]
    x = torch.randn(layout.num_rows, d_model, requires_grad=True)
    config = RogueNetConfig(n_layer=LAYERS, n_head=HEADS, d_model=d_model)
    return Transformer(config), PaddedContext(layout.buckets, None, masks), x


def ragged(add: Lines, options: argparse.Namespace) -> None:
    add("| network | longest | ragged | equal lengths | ragged / equal |")
    add("| --- | --- | --- | --- | --- |")
    for positions in (None, POLAR):
        for d_model in (32, 128):
            for longest in (20, 64, 256):
                lengths = ragged_lengths(longest)
                net = network_of(d_model, positions)
                batches = [batch_of(lengths), batch_of(equal_to(lengths))]
                runs = [partial(backward, answers, net, batch) for batch in batches]
                full = in_turns(runs, options.repeats)
                name = f"d_model {d_model}{'' if positions is None else f', {KINDS[0].name}'}"
                add(f"| {name} | {longest} | {' | '.join(map(shown, full))} | {ratio(*full)} |")
    add("")
    add(f"{KINDS[0].name}, value_gate relu:")
    add("")
    add("| longest | ragged | equal lengths | ragged / equal | reference | reference / ragged |")
    add("| --- | --- | --- | --- | --- | --- |")
    for longest in (20, 64):
        lengths = ragged_lengths(longest)
        equal = equal_to(lengths)
        layout = layout_of(batch_of(lengths), ["unit"], has_relpos=True)
        buckets = [
            attention_inputs(KINDS[0], bucket.num_frames, bucket.length, True)
            for bucket in layout.buckets
        ]
        padded = attention_inputs(KINDS[0], len(equal), equal[0], True)
        packed = attention_inputs(KINDS[0], packed_rows(lengths), longest, True)
        full = in_turns(
            [
                partial(all_gradients, attention_of_network, buckets),
                partial(gradients, attention_of_network, padded),
                partial(gradients, attention_of_reference, packed),
            ],
            options.repeats,
        )
        ours, same, reference = map(shown, full)
        by_equal, by_reference = ratio(full[0], full[1]), ratio(full[2], full[0])
        add(f"| {longest} | {ours} | {same} | {by_equal} | {reference} | {by_reference} |")


def network_of(d_model: int, positions: RelposEncodingConfig | None) -> RogueNet:
    config = RogueNetConfig(d_model=d_model, relpos_encoding=positions)
    return RogueNet(config, OBS_SPACE, ACTION_SPACE, {"value": 1})


def batch_of(lengths: Sequence[int]) -> EntityBatch:
    """Create a batch of frames with these numbers of units; all units act."""
    generator = torch.Generator().manual_seed(0)
    features = 4 * torch.randn(sum(lengths), 2, generator=generator)
    actors = torch.cat([torch.arange(n) for n in lengths])
    counts = np.array(lengths)
    return EntityBatch(
        features={"unit": RaggedTensor(features, counts)},
        visible={},
        actions={"move": ActionBatch(RaggedTensor(actors, counts), None, None)},
        num_frames=len(lengths),
    )


def answers(net: RogueNet, batch: EntityBatch) -> Tensor:
    out: NetOutput = net(batch)
    total: Tensor = out.logprobs["move"].sum() + out.values["value"].sum()
    return total


def all_gradients(attend: Callable[[Inputs], Tensor], inputs: Sequence[Inputs]) -> None:
    for x in inputs:
        gradients(attend, x)


def ragged_lengths(longest: int) -> list[int]:
    """Draw lengths from 1 to `longest` for a minibatch."""
    generator = np.random.default_rng(0)
    count = min(MAX_ENTITIES * 2 // longest, MAX_PAIRS * 3 // longest**2)
    return [int(n) for n in generator.integers(1, longest + 1, size=count)]


def equal_to(lengths: Sequence[int]) -> list[int]:
    """Return equal lengths with about the same total number of entities and pairs."""
    entities, pairs = sum(lengths), sum(n * n for n in lengths)
    n = round(pairs / entities)
    return [n] * round(entities / n)


def memory(add: Lines, options: argparse.Namespace) -> None:
    add("| relative positions | value_gate | N | width of a head | ours, MB | reference, MB |")
    add("| --- | --- | --- | --- | --- | --- |")
    for k in (0, 1):
        for gated in (True, False):
            for d_head in (16, 64, 128):
                peaks = " | ".join(str(peak_of(side, k, gated, d_head)) for side in (0, 1))
                gate = "relu" if gated else "None"
                add(f"| {KINDS[k].name} | {gate} | 256 | {d_head} | {peaks} |")


def peak_of(side: int, kind: int, gated: bool, d_head: int) -> int:
    """Measure peak memory in megabytes in a separate process."""
    command = [sys.executable, __file__, "--peak", *map(str, (side, kind, int(gated), d_head))]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure_peak(side: int, kind: int, gated: int, d_head: int) -> int:
    """Measure the peak memory of this process in megabytes, without the inputs."""
    torch.set_num_threads(1)
    attend = (attention_of_network, attention_of_reference)[side]
    gradients(attend, attention_inputs(KINDS[kind], 1, 4, bool(gated), d_head))
    x = attention_inputs(KINDS[kind], 8, 256, bool(gated), d_head)
    before = resident("VmRSS")
    gradients(attend, x)
    return (resident("VmHWM") - before) // 1024


def resident(what: str) -> int:
    """Return the resident memory of this process in kilobytes, now or at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(what)))


def precision(add: Lines, options: argparse.Namespace) -> None:
    add(f"Instructions for bfloat16: {fast_bfloat16_instructions() or 'none'}.")
    add("")
    add("| d_model | compiled blocks | frames | bfloat16 | float32 | bfloat16 / float32 |")
    add("| --- | --- | --- | --- | --- | --- |")
    for d_model in (64, 80, 96, 128, 256):
        configs = [RogueNetConfig(d_model=d_model, precision=p) for p in ("bfloat16", "float32")]
        nets = [RogueNet(config, OBS_SPACE, ACTION_SPACE, {"value": 1}) for config in configs]
        blocks = "yes" if has_compiled_blocks(configs[0]) else "no"
        for frames, run in ((64, torch.no_grad()(answers)), (1024, partial(backward, answers))):
            batch = batch_of([16] * frames)
            sides = [partial(run, net, batch) for net in nets]
            half, full = in_turns(sides, options.repeats, time.process_time)
            speeds = [f"{1e3 * frames / statistics.median(times):,.0f}" for times in (half, full)]
            ratios = [b / a for a, b in zip(half, full, strict=True)]
            spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
            name = f"{frames}, {'acting' if frames == 64 else 'learning'}"
            add(f"| {d_model} | {blocks} | {name} | {' | '.join(speeds)} | {spread} |")


SECTIONS = {
    "relpos": ("Attention with relative positions", relpos),
    "transformer": ("Transformer without relative positions", transformer),
    "ragged": ("Frames of different lengths", ragged),
    "memory": ("Memory", memory),
    "precision": ("Precision", precision),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=", ".join(SECTIONS))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--lengths", type=int, nargs="+", default=[4, 11, 20, 64, 128, 256, 512])
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 128, 256])
    parser.add_argument("--results", type=Path)
    parser.add_argument("--peak", nargs=4, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        print(measure_peak(*options.peak))
        return
    if unknown := {*options.sections} - {*SECTIONS}:
        parser.error(f"expected some of {', '.join(SECTIONS)}, got {', '.join(sorted(unknown))}")
    torch.set_num_threads(options.threads)
    lines: list[str] = []

    def add(line: str) -> None:
        lines.append(line)
        print(line, flush=True)

    add("# The network, forward and backward")
    add("")
    add(
        f"`{' '.join(['python', *sys.argv])}`, {os.cpu_count()} cores of {processor()}, "
        f"{options.threads} threads, torch {torch.__version__}, Python "
        f"{platform.python_version()}, commit {short_revision()}. Milliseconds, median "
        f"(smallest to largest) of {options.repeats}."
    )
    for name in options.sections or SECTIONS:
        title, measure = SECTIONS[name]
        for line in ("", f"## {title}", ""):
            add(line)
        measure(add, options)
    if options.results:
        options.results.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
