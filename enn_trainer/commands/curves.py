"""Learning curves: groups of runs that differ in their seeds, their means and charts."""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from enn_trainer.errors import ConfigError
from enn_trainer.evaluation.eval_metrics import t_quantile_975
from entity_env.serialization.plain_open import replace_file

Floats = npt.NDArray[np.float64]

SAME_IN_A_GROUP = ("seed", "trial", "data_dir")
GRID = 1000
"""Points of a mean curve: more could not be seen in a chart."""
# Okabe and Ito 2008, "Color universal design": distinct with every kind of colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
NAMES = {
    "episodic_reward.mean": "return",
    "losses/entropy": "entropy (nats)",
    "losses/approx_kl": "KL from the previous policy",
    "fps": "frames per second",
}


class Run(NamedTuple):
    """Metrics of a run.

    Attributes:
        name: name of its folder.
        config: settings by dotted name; empty if unknown.
        points: values by tag and step.
    """

    name: str
    config: Mapping[str, object]
    points: Mapping[str, Mapping[int, float]]


class Curve(NamedTuple):
    """A line of a chart, with or without a confidence band.

    Attributes:
        label: its name in the legend.
        steps: (n,) float, frames.
        values: (n,) float.
        spread: (n,) float, half the width of the band; None if not every run has its own seed.
        left_out: messages about values of the runs that are not in it.
    """

    label: str
    steps: Floats
    values: Floats
    spread: Floats | None
    left_out: tuple[str, ...] = ()


def grouped(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Group runs whose settings differ in nothing but `SAME_IN_A_GROUP`, with a label for each.

    A run whose settings are not known is a group of its own.
    """
    groups: dict[object, list[Run]] = {}
    for i, run in enumerate(runs):
        same = {name: v for name, v in run.config.items() if name not in SAME_IN_A_GROUP}
        key = tuple(sorted((name, repr(v)) for name, v in same.items())) or i
        groups.setdefault(key, []).append(run)
    labels = [group[0].name if len(group) == 1 else _label(group) for group in groups.values()]
    different = _differences([group[0].config for group in groups.values()])
    return [
        (label if labels.count(label) == 1 or not extra else f"{label}, {extra}", group)
        for label, extra, group in zip(labels, different, groups.values(), strict=True)
    ]


def curve_of(label: str, runs: Sequence[Run], tag: str, smooth: int = 1) -> Curve:
    """Return the mean of a group of runs, over the steps that all of them have.

    There is no band if several runs have one seed, as these are not independent samples.

    Args:
        label: name of the group.
        runs: runs of the group, at least one.
        tag: tag of the metric.
        smooth: number of points of the moving average, which ends at each point.
    """
    # Smoothed values of each run.
    found = [(run, *_line(run.points.get(tag, {}), smooth)) for run in runs]
    left_out = list(_not_finite(found, tag))
    used = [(run, steps, values) for run, steps, values in found if len(steps)]
    if not used:
        return Curve(label, np.zeros(0), np.zeros(0), None, tuple(left_out))
    if len(used) == 1:
        return Curve(label, *used[0][1:], None, tuple(left_out))

    # Steps that all runs have.
    first, last = max(steps[0] for _, steps, _ in used), min(steps[-1] for _, steps, _ in used)
    if first > last:
        left_out.append(f"{label}: its runs have no steps in common")
        return Curve(label, np.zeros(0), np.zeros(0), None, tuple(left_out))
    steps = np.unique(np.concatenate([steps for _, steps, _ in used]))
    if (steps[0], steps[-1]) != (first, last):
        left_out.append(
            f"{label}: steps outside {first:.0f} to {last:.0f}, which not all runs have"
        )
    steps = steps[(steps >= first) & (steps <= last)]
    if len(steps) > GRID:
        steps = steps[np.linspace(0, len(steps) - 1, GRID).astype(int)]

    # Interpolate, and average.
    values = np.stack([np.interp(steps, s, v) for _, s, v in used])  # (runs, n)
    spread = confidence(values) if _num_seeds([run for run, _, _ in used]) == len(used) else None
    return Curve(label, steps, values.mean(axis=0), spread, tuple(left_out))


def confidence(values: Floats) -> Floats:
    """Return half the width of the 95% confidence interval of the mean: (runs, n) -> (n,)."""
    k = len(values)
    # t_(k-1) * s / sqrt(k)
    return np.asarray(t_quantile_975(k - 1) * values.std(axis=0, ddof=1) / math.sqrt(k))


def smoothed(values: Floats, n: int) -> Floats:
    """Return the mean of each value and of up to n - 1 values before it: (m,) -> (m,)."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - n, 0)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))


def draw(
    curves: Mapping[str, Sequence[Curve]], path: Path, against: str = "frames", log: bool = False
) -> None:
    """Draw a chart for each tag into one picture.

    Args:
        curves: the lines by tag.
        path: the file; its suffix is the format.
        against: the name of the x-axis.
        log: both axes are logarithmic.

    Raises:
        ConfigError: nothing can be drawn for a tag.
    """
    from matplotlib.figure import Figure
    from matplotlib.ticker import EngFormatter

    # Check that there are points.
    for tag, lines in curves.items():
        if not any(len(line.steps) for line in lines):
            why = "; ".join(text for line in lines for text in line.left_out)
            raise ConfigError(f"--metric: expected finite values of {tag}, got none ({why})")
    # Lay out the charts.
    columns = 1 if len(curves) == 1 else 2
    rows = math.ceil(len(curves) / columns)
    labels = [line.label for line in next(iter(curves.values()))]
    figure = Figure(figsize=(6.4 * columns, 3.8 * rows + 0.25 * len(labels)), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    # Draw lines and bands.
    for ax, (tag, lines) in zip(axes, curves.items(), strict=False):
        for i, line in enumerate(lines):
            style = {
                "color": COLOURS[i % len(COLOURS)],
                "linestyle": DASHES[i // len(COLOURS) % len(DASHES)],
            }
            marker = "o" if len(line.steps) == 1 else ""
            ax.plot(line.steps, line.values, label=line.label, lw=1.6, marker=marker, **style)
            if line.spread is not None:
                low, high = line.values - line.spread, line.values + line.spread
                ax.fill_between(line.steps, low, high, color=style["color"], alpha=0.2, lw=0)
        ax.set_title(NAMES.get(tag, tag), loc="left", fontsize=11)
        if log:
            ax.loglog()
        ax.set_xlabel(against)
        ax.xaxis.set_major_formatter(EngFormatter(sep=""))
        ax.grid(alpha=0.25)
        ax.spines[["top", "right"]].set_visible(False)
    for ax in axes[len(curves) :]:
        ax.set_visible(False)
    # One legend for all charts.
    handles, texts = axes[0].get_legend_handles_labels()
    banded = any(line.spread is not None for lines in curves.values() for line in lines)
    title = "mean and 95% confidence band of the mean" if banded else None
    where: Literal["outside lower center"] = "outside lower center"
    figure.legend(handles, texts, loc=where, fontsize=9, frameon=False, title=title)
    # Save the picture.
    drawn = io.BytesIO()
    figure.savefig(drawn, dpi=150, format=path.suffix.removeprefix("."))
    try:
        replace_file(path, drawn.getvalue(), path.with_name(f".writing-{path.name}"))
    except OSError as error:
        raise ConfigError(f"--out: {path} cannot be written: {error.strerror}") from None


def _label(group: Sequence[Run]) -> str:
    seeds = _num_seeds(group)
    number = f"{len(group)} seeds" if seeds == len(group) else f"{len(group)} runs"
    if 1 < seeds < len(group):
        number += f" of {seeds} seeds"
    return f"{group[0].config.get('env.id')} {group[0].config.get('name')}, {number}"


def _num_seeds(runs: Sequence[Run]) -> int:
    """Return the number of seeds; a run whose seed is not known counts as one more."""
    return len({repr(run.config["seed"]) if "seed" in run.config else id(run) for run in runs})


def _not_finite(found: Sequence[tuple[Run, Floats, Floats]], tag: str) -> Iterator[str]:
    """Yield a message for each run with missing, NaN or infinite values."""
    for run, steps, _ in found:
        missing = len(run.points.get(tag, {})) - len(steps)
        if not len(steps):
            yield f"{run.name}: {'no finite values' if missing else 'no values'}"
        elif missing:
            yield f"{run.name}: values that are not finite ({missing})"


def _line(points: Mapping[int, float], smooth: int) -> tuple[Floats, Floats]:
    """Return the steps and the smoothed values of all finite points."""
    finite = sorted((step, value) for step, value in points.items() if math.isfinite(value))
    table = np.array(finite, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], smoothed(table[:, 1], smooth)


def _differences(configs: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the settings of each configuration that are not the same in all, as text."""
    names = sorted({name for config in configs for name in config} - {*SAME_IN_A_GROUP, "name"})
    varied = [n for n in names if len({repr(config.get(n)) for config in configs}) > 1]
    return [", ".join(f"{n}={config.get(n)}" for n in varied) for config in configs]
