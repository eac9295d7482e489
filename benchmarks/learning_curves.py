"""Learning curves: read from the files of runs, and drawn with one panel per environment."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

POINTS = 60
WIDTH, HEIGHT, MARGIN, COLUMNS = 260, 150, 40, 3
COLOURS = ["#1f77b4", "#d62728", "#2ca02c", "#9467bd"]

Points = Sequence[Sequence[float]]


class Line(NamedTuple):
    """Curves of one row, one per seed, and an optional target."""

    name: str
    curves: Sequence[Points]
    bar: float | None = None


def read_curve(folder: Path, scale: float, size: int | None = None) -> list[list[float]]:
    """Return the learning curve of the single run in a folder, downsampled by `thinned`.

    Updates without finished episodes are skipped.
    """
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (logs,) = {path.parent for path in folder.rglob("events.out.tfevents.*")}
    events = EventAccumulator(str(logs), size_guidance={"scalars": 0})  # 0: all of them
    events.Reload()
    scalars = events.Scalars("episodic_reward.mean")
    return thinned([[scalar.step, scalar.value] for scalar in scalars], scale, size)


def thinned(points: Points, scale: float, size: int | None = None) -> list[list[float]]:
    """Downsample a learning curve to at most 60 points: [frames, mean return times `scale`].

    Args:
        points: frames and mean return of each update; a result is the mean over consecutive ones.
        scale: factor of the returns.
        size: number of updates per result; None for 60 points.
    """
    size = size or max(1, math.ceil(len(points) / POINTS))
    pieces = [points[i : i + size] for i in range(0, len(points), size)]
    return [
        [piece[-1][0], round(scale * float(np.mean([y for _, y in piece])), 4)] for piece in pieces
    ]


def draw(panels: Mapping[str, Sequence[Line]]) -> str:
    """Return an SVG picture: panels with the mean return by frames; bars are dashed."""
    rows = math.ceil(len(panels) / COLUMNS)
    wide, high = WIDTH + MARGIN + 20, HEIGHT + 2 * MARGIN
    body = [
        f'<g transform="translate({MARGIN + i % COLUMNS * wide},{MARGIN + i // COLUMNS * high})">'
        f"{_panel(title, lines)}</g>"
        for i, (title, lines) in enumerate(panels.items())
    ]
    size = f'width="{COLUMNS * wide + 20}" height="{rows * high}"'
    style = 'font-family="sans-serif" font-size="11"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} {style}>',
            '<rect width="100%" height="100%" fill="white"/>',
            *body,
            "</svg>\n",
        ]
    )


def _panel(title: str, lines: Sequence[Line]) -> str:
    points = [p for line in lines for curve in line.curves for p in curve]
    bars = [line.bar for line in lines if line.bar is not None]
    frames = max(x for x, _ in points)
    low, high = min(0.0, *(y for _, y in points)), max([*bars, *(y for _, y in points)])
    high = high if high > low else low + 1.0

    def at(x: float, y: float) -> str:
        return f"{x / frames * WIDTH:.1f},{HEIGHT - (y - low) / (high - low) * HEIGHT:.1f}"

    drawn = [f'<rect width="{WIDTH}" height="{HEIGHT}" fill="none" stroke="#999"/>']
    for line, colour in zip(lines, COLOURS, strict=False):
        pen = f'fill="none" stroke="{colour}"'
        if line.bar is not None:
            bar = f"{at(0, line.bar)} {at(frames, line.bar)}"
            drawn.append(f'<polyline {pen} stroke-dasharray="4" points="{bar}"/>')
        for curve in line.curves:
            path = " ".join(at(x, y) for x, y in curve)
            drawn.append(f'<polyline {pen} points="{path}"/>')
    names = [
        f'<tspan fill="{colour}">{line.name.removeprefix(title) or title}</tspan>'
        for line, colour in zip(lines, COLOURS, strict=False)
    ]
    drawn += [
        f'<text y="-8">{" ".join(names)}</text>',
        f'<text x="-4" y="10" text-anchor="end">{high:.3g}</text>',
        f'<text x="-4" y="{HEIGHT}" text-anchor="end">{low:.3g}</text>',
        f'<text x="{WIDTH}" y="{HEIGHT + 14}" text-anchor="end">{frames:,.0f} frames</text>',
    ]
    return "\n".join(drawn)
