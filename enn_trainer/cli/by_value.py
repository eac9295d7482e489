"""Returns of evaluations by the value of a varied argument: tables, JSON and plots."""

import io
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from enn_trainer.base.errors import ConfigError
from enn_trainer.base.tables import show_table
from enn_trainer.cli.arguments import writable
from enn_trainer.cli.plot_command import COLOURS, DASHES, add_legend
from enn_trainer.evaluation.eval_metrics import EpisodeResult, mean_over_episodes, with_interval
from enn_trainer.evaluation.evaluation import SuiteResult
from enn_trainer.experience.episodes import Measured
from enn_trainer.experience.varied_envs import is_number
from entity_env.errors import did_you_mean
from entity_env.imports.extras import missing_package
from entity_env.serialization.plain_open import replace_file

RETURN = "episodic_reward"
MOST_VALUES = 20
"""Numbers with more distinct values are binned."""
NUM_BINS = 10


class ValueGroup(NamedTuple):
    """Episodes with one value of an argument, or with numbers of one bin.

    Attributes:
        label: the value or the bin as text.
        fields: fields for JSON: `value`, or `low` and `high` of a bin.
        centre: mean of the numbers; None for other values.
        result: returns of the episodes.
    """

    label: str
    fields: dict[str, Any]
    centre: float | None
    result: Measured


def check_options(
    by: str | None, png: Path | None, samplers: Mapping[str, str]
) -> tuple[str | None, Path | None]:
    """Check `--by` and `--png`; return the argument and the resolved path of the file.

    Args:
        by: argument whose values are compared.
        png: picture to write.
        samplers: samplers of `--vary` by argument.

    Raises:
        ConfigError: the argument does not vary, or the picture cannot be written.
    """
    if by is None:
        if png is not None:
            raise ConfigError("--png: expected --by NAME as well, the values on the x-axis")
        return None, None
    if by not in samplers:
        names = ", ".join(samplers) or "none"
        hint = did_you_mean(by, samplers) if samplers else "; add --vary NAME=SAMPLER"
        raise ConfigError(f"--by: expected an argument of --vary ({names}), got {by}{hint}")
    if png is None:
        return by, None
    if png.suffix != ".png":
        raise ConfigError(f"--png: expected a file named .png, got {png}")
    if missing := missing_package("matplotlib"):
        raise ConfigError(f"--png: {missing}")
    return by, writable(png, "--png")


def groups_by_value(episodes: Sequence[EpisodeResult], argument: str) -> list[ValueGroup]:
    """Group the returns of episodes by the value of an argument.

    Args:
        episodes: played episodes; episodes without the argument are ignored.
        argument: name of the argument.

    Returns:
        Groups of numbers in ascending order, then groups of other values. More than `MOST_VALUES`
        distinct numbers are split into `NUM_BINS` bins of about equal count; all episodes with the
        same number are in one bin.
    """
    samples = [
        (e.arguments[argument], e.metrics[RETURN]) for e in episodes if argument in e.arguments
    ]
    # Numbers.
    numbers = np.array([value for value, _ in samples if is_number(value)], dtype=np.float64)
    returns = np.array([reward for value, reward in samples if is_number(value)], dtype=np.float64)
    exact = {float(value): value for value, _ in samples if is_number(value)}
    values, which, counts = np.unique(numbers, return_inverse=True, return_counts=True)
    group_of = np.arange(len(values))
    is_binned = len(values) > MOST_VALUES
    if is_binned:  # the bin of a value is that of its median episode
        middle = np.cumsum(counts) - counts / 2
        group_of = np.floor(middle * NUM_BINS / len(numbers)).astype(np.int64)
    groups = []
    for group in np.unique(group_of):
        low, high = (exact[float(v)] for v in values[group_of == group][[0, -1]])
        in_group = group_of[which] == group
        fields = {"low": low, "high": high} if is_binned else {"value": low}
        label = _short(low) if low == high else f"{_short(low)} to {_short(high)}"
        groups.append(
            ValueGroup(label, fields, float(numbers[in_group].mean()), _summary(returns[in_group]))
        )
    # Other values.
    returns_by_text: dict[str, list[float]] = {}
    for value, reward in samples:
        if not is_number(value):
            returns_by_text.setdefault(json.dumps(value, ensure_ascii=False), []).append(reward)
    has_text_alone = not groups and all(text.startswith('"') for text in returns_by_text)
    for text, rewards in sorted(returns_by_text.items()):
        value = json.loads(text)
        label = value if has_text_alone else text
        groups.append(ValueGroup(label, {"value": value}, None, _summary(np.array(rewards))))
    return groups


def plain_by_value(episodes: Sequence[EpisodeResult], argument: str) -> dict[str, Any]:
    """Return groups and episodes as plain data for JSON; episodes are sorted by return.

    Args:
        episodes: episodes of a suite.
        argument: argument to group by.
    """
    groups = groups_by_value(episodes, argument)
    worst = sorted(episodes, key=lambda e: (e.metrics[RETURN], e.environment, e.episode))
    return {
        "argument": argument,
        "values": [{**group.fields, **_finite(vars(group.result))} for group in groups],
        "episodes": [{**e._asdict(), "metrics": _finite(e.metrics)} for e in worst],
    }


def show_by_value(
    results: Mapping[str, SuiteResult],
    argument: str,
    unnamed: str,
    console: Console | None = None,
) -> None:
    """Print a table of the returns of suites by the value of an argument.

    Args:
        results: results by suite.
        argument: argument to group by.
        unnamed: title of the suite without a name.
        console: console to print to; standard output by default.
    """
    rows = []
    for suite, result in results.items():
        for group in groups_by_value(result.played, argument):
            m = group.result
            cells = [with_interval(m), f"{m.min:.4g}", f"{m.max:.4g}", str(m.count)]
            rows.append([suite or unnamed, group.label, *cells])
    columns = ("suite", argument, "return ± 95% ci", "min", "max", "episodes")
    console = Console() if console is None else console
    show_table(columns, rows, console, num_left=2, by_section=True)


def draw_by_value(
    results: Mapping[str, SuiteResult], argument: str, unnamed: str, path: Path
) -> None:
    """Plot the returns of suites by the value of an argument, with 95% intervals, as a PNG file.

    Args:
        results: results by suite.
        argument: argument to group by.
        unnamed: title of the suite without a name.
        path: file to write.

    Raises:
        OSError: the file cannot be written.
    """
    from matplotlib.figure import Figure

    groups = {suite: groups_by_value(result.played, argument) for suite, result in results.items()}
    labels = list(dict.fromkeys(group.label for series in groups.values() for group in series))
    centres = [group.centre for series in groups.values() for group in series]
    is_numeric = None not in centres
    figure = Figure(figsize=(6.4, 4.0 + 0.2 * len(results)), layout="constrained")
    ax = figure.subplots()
    for i, (suite, series) in enumerate(groups.items()):
        if series:
            positions = [
                labels.index(g.label) if g.centre is None or not is_numeric else g.centre
                for g in series
            ]
            means = [group.result.mean for group in series]
            widths = [group.result.ci95 or 0.0 for group in series]
            colour, dash = COLOURS[i % len(COLOURS)], DASHES[i // len(COLOURS) % len(DASHES)]
            style: dict[str, Any] = {"linestyle": dash if is_numeric else "", "marker": "o"}
            style |= {"color": colour, "ms": 4, "lw": 1.6, "capsize": 3, "label": suite or unnamed}
            ax.errorbar(positions, means, yerr=widths, **style)
    if not is_numeric:
        ax.set_xticks(range(len(labels)), labels, parse_math=False)
    ax.set_xlabel(argument, parse_math=False)
    ax.set_title("return, mean and 95% confidence interval", loc="left", fontsize=11)
    ax.grid(alpha=0.25)
    ax.spines[["top", "right"]].set_visible(False)
    if sum(map(bool, groups.values())) > 1:
        add_legend(figure, *ax.get_legend_handles_labels(), title=None)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=150, format="png")
    replace_file(path, picture.getvalue(), path.with_name(f".writing-{path.name}"))


def _short(number: int | float) -> str:
    return str(number) if isinstance(number, int) else f"{number:.4g}"


def _finite(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Replace NaN and infinity by None, because JSON has neither."""
    is_finite = {
        name: value is not None and math.isfinite(value) for name, value in numbers.items()
    }
    return {name: value if is_finite[name] else None for name, value in numbers.items()}


def _summary(returns: np.ndarray[Any, np.dtype[np.float64]]) -> Measured:
    """Return the mean of (n,) returns with its 95% confidence interval."""
    mean, ci95 = mean_over_episodes(returns, np.ones(len(returns)))
    return Measured(mean, ci95, float(returns.min()), float(returns.max()), len(returns))
