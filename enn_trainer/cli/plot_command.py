"""The command `enn plot`: curves of runs, from their `metrics.jsonl`.

Runs that differ only in their seeds are drawn as their mean, with a confidence band.
"""

import difflib
import io
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from enn_trainer.base.errors import ConfigError
from enn_trainer.checkpoints.format import METRICS_FILE, RUN_FILE, folder_of_metrics
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.saved_state import read_config, read_state
from enn_trainer.cli.arguments import OneLineParser, positive
from enn_trainer.evaluation.eval_metrics import t_quantile_975
from enn_trainer.tracking.track_services import NOT_TAGS, NOTICE, read_lines
from entity_env.arrays import FloatArray
from entity_env.imports.extras import missing_package
from entity_env.serialization.plain_open import replace_file

FORMATS = (".png", ".pdf", ".svg")
SAME_IN_A_GROUP = ("seed", "trial", "data_dir")
MAX_TEXTS = 40
"""Largest number of labelled stage changes; more are drawn without labels."""
_LESSON = re.compile(r"curriculum/(?P<name>.+)/lesson")
GRID = 1000
"""Number of points of a mean curve, about the resolution of a chart."""
# Okabe and Ito 2008, "Color universal design": distinct with every kind of colour vision.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#000000")
DASHES = ("-", "--", ":", "-.")
NAMES = {
    "episodic_reward.mean": "return",
    "losses/entropy": "entropy (nats)",
    "losses/approx_kl": "KL from the previous policy",
    "fps": "frames per second",
}
"""Metrics that are drawn by default, and the titles of their charts."""

_EPILOG = """\
A RUN is the folder of a run, or its metrics.jsonl. Runs that differ only in the seed (or in trial
and data_dir, which do not affect training) are drawn as their mean, with a 95% confidence band of
the mean (Student's t). Without distinct seeds there is no band. Dotted lines are changes of the
stage of a curriculum, with its name and the number of the stage.

examples:
  enn plot runs/xor
  enn plot runs/xor --metric episodic_reward.mean --smooth 10 --out xor.png"""


class Run(NamedTuple):
    """Metrics of a run.

    Attributes:
        name: name of the folder.
        config: settings by dotted name; empty if unknown.
        points: values by tag and step.
    """

    name: str
    config: Mapping[str, object]
    points: Mapping[str, Mapping[int, float]]


class Curve(NamedTuple):
    """A line of a chart, with or without a confidence band.

    Attributes:
        label: name in the legend.
        steps: (n,) float, frames.
        values: (n,) float.
        spread: (n,) float, half the width of the band; None unless all runs have distinct seeds.
        left_out: messages about skipped values of the runs.
        changes: steps at which a run changes its curriculum stage, each with a text.
    """

    label: str
    steps: FloatArray
    values: FloatArray
    spread: FloatArray | None
    left_out: tuple[str, ...] = ()
    changes: tuple[tuple[int, str], ...] = ()


def parser() -> OneLineParser:
    """Return the parser of `enn plot`."""
    description = "Draw return, entropy, KL and speed of runs, or other metrics."
    parser = OneLineParser(prog="enn plot", description=description, epilog=_EPILOG)
    parser.run("runs", "RUN", nargs="+")
    parser.option("--metric", "TAG", "tags to draw, one chart each", nargs="+", action="extend")
    picture = "file to write: .png, .svg, .pdf (default: plot.png)"
    parser.option("--out", "FILE", picture, type=Path, default=Path("plot.png"))
    mean = "draw the moving average of N updates"
    parser.option("--smooth", "N", mean, type=positive, default=1)
    return parser


def plot_command(arguments: Sequence[str]) -> None:
    """Run `enn plot`: draw metrics of runs into a file.

    Raises:
        ConfigError, CheckpointError: a mistake in the arguments.
    """
    options = parser().parse_args(arguments)

    # Check that the file can be written.
    out: Path = options.out
    if missing := missing_package("matplotlib"):
        raise ConfigError(f"enn plot: {missing}")
    if out.suffix not in FORMATS:
        raise ConfigError(f"--out: expected a file that ends in {', '.join(FORMATS)}, got {out}")
    if out.is_dir() or not out.parent.is_dir():
        raise ConfigError(f"--out: expected a file in a folder that exists, got {out}")

    # Choose the metrics.
    runs = [read_run(path) for path in dict.fromkeys(options.runs)]
    available = sorted({tag for run in runs for tag in run.points})
    tags = list(dict.fromkeys(options.metric or [tag for tag in NAMES if tag in available]))
    if not tags:
        raise ConfigError(f"RUN: expected metrics {', '.join(NAMES)}, got none of them")
    for tag in tags:
        if tag not in available:
            near = ", ".join(difflib.get_close_matches(tag, available, n=3, cutoff=0.0))
            raise ConfigError(f"--metric: expected a tag of the runs, such as {near}; got {tag!r}")

    # Draw them.
    groups = grouped(runs)
    curves = {
        tag: [
            curve_of(label, group, tag, options.smooth)._replace(changes=changes_of(group))
            for label, group in groups
        ]
        for tag in tags
    }
    draw(curves, out)
    for tag, lines in curves.items():
        for text in (text for line in lines for text in line.left_out):
            print(f"{tag}: left out: {text}")
    print(f"wrote {out}")


def read_run(path: Path) -> Run:
    """Read the metrics of a run.

    Args:
        path: folder of the run, or its `metrics.jsonl`.

    Raises:
        ConfigError: the metrics are missing or damaged.
        CheckpointError: the path is a checkpoint folder that cannot be read.
    """
    # Find the file.
    file = path
    if path.is_dir():
        if not (path / METRICS_FILE).is_file() and any(path.glob("step-*")):
            saved = find(path, lambda message: print(message, file=sys.stderr))
            run_name: str = read_state(saved).get("run_name", "")  # absent from the oldest saves
            path = folder_of_metrics(path, read_config(saved).data_dir, run_name)
        file = path / METRICS_FILE
    if not file.is_file():
        expected = f"the folder of a run or its {METRICS_FILE}"
        raise ConfigError(f"RUN: expected {expected}, got {path} without {file.name}")

    # Read the metrics.
    points: dict[str, dict[int, float]] = {}
    lines = list(read_lines(file))
    for number, _, row in lines:
        if row is None and number == len(lines):  # an incomplete line
            break
        if row is None:
            raise ConfigError(f"RUN: {file}: line {number} is damaged: expected JSON with a step")
        for tag, value in row.items() if row.get("kind") != NOTICE else ():
            if tag not in NOT_TAGS:
                points.setdefault(tag, {})[row["step"]] = float(value)

    # Read the settings.
    settings: dict[str, object] = {}
    run_file = file.with_name(RUN_FILE)
    if run_file.is_file():
        try:
            settings = json.loads(run_file.read_text())["config"]
        except (ValueError, KeyError, TypeError, RecursionError):
            raise ConfigError(f"RUN: {run_file} is damaged: expected JSON with a config") from None
    return Run(file.parent.resolve().name, settings, points)


def grouped(runs: Sequence[Run]) -> list[tuple[str, list[Run]]]:
    """Group runs that differ only in the settings `SAME_IN_A_GROUP`, with a label for each group.

    A run without settings is a group of its own. If groups have the same label, the settings in
    which they differ are added to it.
    """
    groups: dict[object, list[Run]] = {}
    for i, run in enumerate(runs):
        same = sorted((n, repr(v)) for n, v in run.config.items() if n not in SAME_IN_A_GROUP)
        groups.setdefault(tuple(same) or i, []).append(run)

    # Labels.
    labels = []
    for group in groups.values():
        seeds, first_config = _num_seeds(group), group[0].config
        number = f"{len(group)} seeds" if seeds == len(group) else f"{len(group)} runs"
        if 1 < seeds < len(group):
            number += f" of {seeds} seeds"
        label = f"{first_config.get('env.id')} {first_config.get('name')}, {number}"
        labels.append(group[0].name if len(group) == 1 else label)

    # Settings that differ between groups.
    configs = [group[0].config for group in groups.values()]
    names = sorted({name for config in configs for name in config} - {*SAME_IN_A_GROUP, "name"})
    varied = [n for n in names if len({repr(config.get(n)) for config in configs}) > 1]
    named = []
    for label, group in zip(labels, groups.values(), strict=True):
        different = varied if labels.count(label) > 1 else []
        settings = [f"{name}={group[0].config.get(name)}" for name in different]
        named.append((", ".join([label, *settings]), group))
    return named


def _num_seeds(runs: Sequence[Run]) -> int:
    """Return the number of distinct seeds; each run with an unknown seed counts as one."""
    return len({repr(run.config["seed"]) if "seed" in run.config else id(run) for run in runs})


def curve_of(label: str, runs: Sequence[Run], tag: str, smooth: int = 1) -> Curve:
    """Return the mean of a group of runs, over the range of steps that all of them cover.

    Runs with the same seed are not independent samples, so that there is no band.

    Args:
        label: name of the group.
        runs: runs of the group, at least one.
        tag: tag of the metric.
        smooth: number of points of the moving average, over each point and previous ones.
    """
    # Finite values of each run, smoothed.
    left_out, used = list[str](), list[tuple[Run, FloatArray, FloatArray]]()
    for run in runs:
        points = run.points.get(tag, {})
        finite = sorted((step, value) for step, value in points.items() if math.isfinite(value))
        missing = len(points) - len(finite)
        if finite:
            steps, values = np.array(finite, dtype=np.float64).T
            used.append((run, steps, smoothed(values, smooth)))
            if missing:
                left_out.append(f"{run.name}: values that are not finite ({missing})")
        else:
            left_out.append(f"{run.name}: {'no finite values' if missing else 'no values'}")
    if len(used) == 1:
        return Curve(label, *used[0][1:], None, tuple(left_out))

    # Steps that all runs cover.
    first = max((steps[0] for _, steps, _ in used), default=math.inf)
    last = min((steps[-1] for _, steps, _ in used), default=-math.inf)
    if first > last:
        if used:
            left_out.append(f"{label}: its runs have no steps in common")
        return Curve(label, np.zeros(0), np.zeros(0), None, tuple(left_out))
    steps = np.unique(np.concatenate([steps for _, steps, _ in used]))
    if (steps[0], steps[-1]) != (first, last):
        span = f"{first:.0f} to {last:.0f}"
        left_out.append(f"{label}: steps outside {span}, which not all runs cover")
    steps = steps[(steps >= first) & (steps <= last)]
    if len(steps) > GRID:
        steps = steps[np.linspace(0, len(steps) - 1, GRID).astype(int)]

    # Interpolate and average.
    all_values = np.stack([np.interp(steps, s, v) for _, s, v in used])  # (runs, n)
    is_independent = _num_seeds([run for run, _, _ in used]) == len(used)
    spread = confidence(all_values) if is_independent else None
    return Curve(label, steps, all_values.mean(axis=0), spread, tuple(left_out))


def changes_of(runs: Sequence[Run]) -> tuple[tuple[int, str], ...]:
    """Return the steps at which runs change their curriculum stage, each with a label."""
    changes: dict[int, set[str]] = {}
    for run in runs:
        for tag, points in run.points.items():
            if match := _LESSON.fullmatch(tag):
                steps = sorted(points)
                for before, step in pairwise(steps):
                    if points[before] != points[step]:
                        text = f"{match['name']}: {points[step]:.0f}"
                        changes.setdefault(step, set()).add(text)
    return tuple((step, ", ".join(sorted(texts))) for step, texts in sorted(changes.items()))


def confidence(values: FloatArray) -> FloatArray:
    """Return half the width of the 95% confidence interval of the mean: (runs, n) -> (n,).

    Student's t: t_{0.975, k - 1} * std / sqrt(k), for k runs.
    """
    k = len(values)
    return np.asarray(t_quantile_975(k - 1) * values.std(axis=0, ddof=1) / math.sqrt(k))


def smoothed(values: FloatArray, n: int) -> FloatArray:
    """Return the moving average over each value and up to n - 1 previous ones: (m,) -> (m,)."""
    sums = np.concatenate([[0.0], np.cumsum(values)])
    ends = np.arange(1, len(values) + 1)
    starts = np.maximum(ends - n, 0)
    return np.asarray((sums[ends] - sums[starts]) / (ends - starts))


def add_legend(
    figure: Any, handles: Sequence[Any], texts: Sequence[str], title: str | None
) -> None:
    """Draw a legend below a figure, without parsing its texts as formulas."""
    look = {"fontsize": 9, "frameon": False, "title": title}
    legend = figure.legend(handles, texts, loc="outside lower center", **look)
    for text in legend.get_texts():
        text.set_parse_math(False)


def draw(
    curves: Mapping[str, Sequence[Curve]], path: Path, against: str = "frames", log: bool = False
) -> None:
    """Draw a chart for each tag into one file.

    Args:
        curves: curves by tag.
        path: file to write; its suffix is the format.
        against: label of the x-axis.
        log: use logarithmic axes.

    Raises:
        ConfigError: a tag has no finite values, or the file cannot be written.
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
            colour, dash = COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]
            style = {"lw": 1.6, "linestyle": dash, "marker": "o" if len(line.steps) == 1 else ""}
            ax.plot(line.steps, line.values, label=line.label, color=colour, **style)
            if line.spread is not None:
                low, high = line.values - line.spread, line.values + line.spread
                ax.fill_between(line.steps, low, high, color=colour, alpha=0.2, lw=0)
            for step, text in line.changes:
                ax.axvline(step, color=colour, linestyle=":", lw=0.8, alpha=0.6)
                if len(lines) == 1 and len(line.changes) <= MAX_TEXTS:
                    place = {"xy": (step, 1), "xycoords": ax.get_xaxis_transform()}
                    place["parse_math"] = False
                    ax.annotate(text, **place, rotation=90, fontsize=6, va="top", ha="right")
        ax.set_title(NAMES.get(tag, tag), loc="left", fontsize=11, parse_math=False)
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
    add_legend(figure, handles, texts, title)

    # Save the picture.
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150, format=path.suffix.removeprefix("."))
    try:
        replace_file(path, picture.getvalue(), path.with_name(f".writing-{path.name}"))
    except OSError as error:
        raise ConfigError(f"--out: {path} cannot be written: {error.strerror}") from None
