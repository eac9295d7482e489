"""Display of an update: a panel for a terminal, a line of text for anything else."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

TITLE = "enn-trainer"
SPARKS = "▁▂▃▄▅▆▇█"
WIDE, LESS_WIDE = 70, 46
"""Widths of the panel from which three, or two, numbers fit on a line."""
PHASE_STYLES = [("█", "cyan"), ("▓", "magenta"), ("▒", "yellow"), ("░", "green"), ("·", "dim")]
"""Glyphs and colours of phases; the glyphs differ, for terminals without colours."""


class ProgressLine(NamedTuple):
    """Metrics of one update."""

    step: int  # frames over all environments and restarts
    mean_return: float | None  # of the episodes that ended; None without any
    episode_length: float | None  # mean frames of these episodes
    episodes: int  # number of these episodes
    entropy: float  # of the policy, in nats
    approx_kl: float  # from the policy before the update
    explained_variance: float  # of the returns, by the value function
    learning_rate: float
    frames_per_s: float
    entities_per_s: float
    entities_per_frame: float  # mean
    normalised_entropies: Mapping[str, float] = MappingProxyType({})  # by action, at most 1
    phases_ms: Mapping[str, float] = MappingProxyType({})  # duration of each phase
    memory_mb: float | None = None  # of this process


def format_duration(seconds: float) -> str:
    """Return a duration in at most two units: `45s`, `1m05s`, `2h03m`, `3d04h`."""
    s = round(seconds)
    if s < 60:
        return f"{s}s"
    if s < 3600:
        return f"{s // 60}m{s % 60:02}s"
    if s < 86400:
        return f"{s // 3600}h{s % 3600 // 60:02}m"
    return f"{s // 86400}d{s % 86400 // 3600:02}h"


@dataclass(frozen=True)
class View:
    """Latest update and totals of a run, as shown by a display."""

    line: ProgressLine  # of the latest update
    total_steps: int  # at which the run is complete
    elapsed_s: float  # in this process
    left_s: float | None  # to the end; None while unknown
    returns: Sequence[float]  # mean returns of the latest updates in which episodes ended
    best: float | None  # the highest mean return of all updates
    episodes: int  # that ended
    last_eval: str | None = None  # step and result
    evaluating: float | None = None  # finished share of the running evaluation, from 0 to 1

    @property
    def fraction(self) -> float:
        """The finished share of the run, from 0 to 1."""
        return min(self.line.step / max(self.total_steps, 1), 1.0)

    @property
    def left(self) -> str:
        """Time left, "?" while unknown."""
        return "?" if self.left_s is None else format_duration(self.left_s)

    @property
    def trend(self) -> float | None:
        """Mean of the newer half of the returns minus mean of the older; None for fewer than 2."""
        half = len(self.returns) // 2
        if half == 0:
            return None
        return sum(self.returns[-half:]) / half - sum(self.returns[:half]) / half


def plain(view: View) -> str:
    """Return a view as a line of text."""
    p = view.line
    change = "" if view.trend is None else f" ({view.trend:+.3f})"
    return "  ".join(
        [
            f"step {p.step}/{view.total_steps} ({int(100 * view.fraction)}%)",
            f"left {view.left}",
            f"return {_number(p.mean_return, '.3f')}{change}",
            f"length {_number(p.episode_length, '.1f')}",
            f"entropy {p.entropy:.2f}",
            f"kl {p.approx_kl:.4f}",
            f"explained {p.explained_variance:.2f}",
            f"frames/s {p.frames_per_s:,.0f}",
            f"entities/s {p.entities_per_s:,.0f}",
        ]
    )


def panel(view: View, width: int, height: int) -> Panel:
    """Return a view as a panel with as many details as fit.

    Args:
        view: the latest update and totals.
        width: columns of the panel.
        height: rows of the terminal; a higher panel could not be redrawn in place.
    """
    inner_width = width - 6  # without border and padding
    for num_actions, phases, details, gaps in _LAYOUTS:
        blocks = list(_blocks(view, inner_width, num_actions, phases, details))
        num_rows = 2 + sum(rows for _, rows in blocks) + (len(blocks) + 1 if gaps else 0)
        if num_rows < height:  # a row stays free for the cursor
            break
    parts = [part for block, _ in blocks for part in ((Text(), block) if gaps else (block,))]
    return Panel(
        Group(*parts[int(gaps) :]),
        title=Text(TITLE, "bold"),
        title_align="left",
        subtitle=Text(f"step {view.line.step:,} of {view.total_steps:,}", "dim"),
        subtitle_align="right",
        border_style="cyan",
        padding=(int(gaps), 2),
        width=width,
    )


def waiting(message: str, width: int) -> Panel:
    """Return the panel that is shown before the first update."""
    return Panel(message, title=TITLE, width=width)


# Number of actions, with phases, with details, with empty rows: the first that fits is shown.
_LAYOUTS = [
    (6, True, True, True),
    (2, True, True, True),
    (0, True, True, True),
    (0, True, True, False),
    (0, False, True, False),
    (0, False, False, False),
]


def _blocks(
    view: View, width: int, num_actions: int, phases: bool, details: bool
) -> Iterator[tuple[RenderableType, int]]:
    """Yield the parts of a panel, each with its number of rows."""
    yield _bar(view, width), 1
    if view.evaluating is None and view.last_eval is None:
        yield _return_line(view, width), 1
    else:
        yield Group(_return_line(view, width), _eval_line(view, width)), 2
    if details:
        table = _details(view, width)
        yield table, table.row_count
    entropies, phases_ms = view.line.normalised_entropies, view.line.phases_ms
    if entropies and num_actions:
        table = _entropies(entropies, num_actions)
        title = Text("policy entropy, % of maximum", "dim", no_wrap=True, overflow="ellipsis")
        yield Group(title, table), 1 + table.row_count
    if phases and sum(phases_ms.values()) > 0:
        yield _phases(phases_ms, width), 2


def _bar(view: View, width: int) -> Table:
    """Return a row with the finished share of the run as a bar, and times."""
    row = Table.grid(padding=(0, 3, 0, 0), expand=True)
    row.add_column(ratio=1)
    texts = [Text(f"{100 * view.fraction:.1f}%", "bold"), _labelled("left", view.left)]
    if width >= LESS_WIDE:
        texts.insert(1, _labelled("elapsed", format_duration(view.elapsed_s)))
    for _ in texts:
        row.add_column(justify="right", no_wrap=True)
    bar = ProgressBar(1.0, view.fraction, complete_style="cyan", finished_style="green")
    row.add_row(bar, *texts)
    return row


def _return_line(view: View, width: int) -> Text:
    """Return a line with the return, its trend, and as many of the latest returns as fit."""
    text = _labelled("return", _number(view.line.mean_return, ".3f"), "bold")
    if view.trend is not None:
        spread = max(view.returns) - min(view.returns)
        arrow, style = ("↗", "green") if view.trend > 0 else ("↘", "red")
        if abs(view.trend) <= 0.1 * spread:
            arrow, style = "→", "yellow"
        text.append(f"  {arrow} {view.trend:+.3f}", style)
    best = Text("   ").append(_labelled("best", _number(view.best, ".3f")))
    if text.cell_len + best.cell_len <= width:
        text.append(best)
    text.append("   ")
    room = width - text.cell_len
    return text.append(_sparkline(view.returns)[-room:], "cyan") if room > 0 else text


def _sparkline(values: Sequence[float]) -> str:
    """Return a bar for each value, scaled to the lowest and the highest of them."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((value - low) * scale)] for value in values)


def _eval_line(view: View, width: int) -> Text:
    text = Text.assemble(("evaluation  ", "dim"), no_wrap=True, overflow="ellipsis")
    if view.evaluating is not None:
        text.append(f"{int(100 * view.evaluating)}%  ", "bold yellow")
    text.append(view.last_eval or "")
    text.truncate(width, overflow="ellipsis")
    return text


def _details(view: View, width: int) -> Table:
    """Return names and numbers in as many columns as fit without truncation."""
    p = view.line
    numbers = [
        ("episodes", f"{view.episodes:,}"),
        ("entropy", f"{p.entropy:.2f}"),
        ("frames/s", f"{p.frames_per_s:,.0f}"),
        ("length", _number(p.episode_length, ".1f")),
        ("kl", f"{p.approx_kl:.4f}"),
        ("entities/s", f"{p.entities_per_s:,.0f}"),
        ("learning rate", f"{p.learning_rate:.1e}"),
        ("explained", f"{p.explained_variance:.2f}"),
        ("entities/frame", f"{p.entities_per_frame:.1f}"),
    ]
    if p.memory_mb is not None:
        numbers.append(("memory", f"{p.memory_mb:,.0f} MB"))
    beside = 3 if width >= WIDE else 2 if width >= LESS_WIDE else 1
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for _ in range(beside):
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(ratio=1, no_wrap=True)
    for i in range(0, len(numbers), beside):
        grid.add_row(*(text for pair in numbers[i : i + beside] for text in pair))
    return grid


def _entropies(entropies: Mapping[str, float], num_actions: int) -> Table:
    """Return a bar for the normalised entropy of each action, full for a uniform policy."""
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(style="dim", no_wrap=True, max_width=20, overflow="ellipsis")
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    for name, share in list(entropies.items())[:num_actions]:
        done = share if isfinite(share) else 0.0
        bar = ProgressBar(1.0, done, complete_style="magenta", finished_style="magenta")
        grid.add_row(name, bar, f"{share:.0%}")
    if len(entropies) > num_actions:
        grid.add_row(f"and {len(entropies) - num_actions} more", "", "")
    return grid


def _phases(phases_ms: Mapping[str, float], width: int) -> Group:
    """Return a bar of the phases of the update, the longest first, and its legend."""
    whole = sum(phases_ms.values())
    longest = sorted(phases_ms.items(), key=lambda phase: -phase[1])
    shares = [(name, ms / whole) for name, ms in longest[: len(PHASE_STYLES) - 1]]
    if len(longest) > len(shares):
        shares.append(("other", 1 - sum(share for _, share in shares)))
    bar, legend = Text(no_wrap=True), Text(no_wrap=True)
    end, filled = 0.0, 0
    for (name, share), (glyph, style) in zip(shares, PHASE_STYLES, strict=False):
        end += share
        bar.append(glyph * (round(end * width) - filled), style)
        filled = round(end * width)
        legend.append(f"{glyph} ", style).append(f"{name} ", "dim").append(f"{share:.0%}   ")
    legend.truncate(width)
    return Group(bar, legend)


def _labelled(label: str, value: str, style: str = "") -> Text:
    return Text.assemble((f"{label}  ", "dim"), (value, style), no_wrap=True)


def _number(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)
