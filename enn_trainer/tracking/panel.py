"""How the numbers of an update look: a panel for a terminal, a line of text for anything else."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from types import MappingProxyType
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

TITLE = "enn-trainer"
SPARKS = "▁▂▃▄▅▆▇█"
MOST_ACTIONS = 6
NAME_WIDTH = 20
WIDE, LESS_WIDE = 70, 46
"""Columns within the panel in which three numbers, or two, fit beside each other."""
PHASE_STYLES = [("█", "cyan"), ("▓", "magenta"), ("▒", "yellow"), ("░", "green"), ("·", "dim")]
"""Told apart by their shapes, too, where there are no colours."""


class ProgressLine(NamedTuple):
    """The numbers of one update.

    Attributes:
        step: frames over all environments and restarts.
        mean_return: of the episodes that ended; None when none did.
        episode_length: mean frames of the episodes that ended; None when none did.
        episodes: how many episodes ended in this update.
        entropy: of the policy, in nats.
        approx_kl: from the policy before the update.
        explained_variance: of the returns, by the value function.
        learning_rate: of this update.
        frames_per_s: speed.
        entities_per_s: speed.
        entities_per_frame: mean.
        normalised_entropies: of each action, from 0 to 1: how much of its freedom is still used.
        phases_ms: how long each phase took.
        memory_mb: of this process.
    """

    step: int
    mean_return: float | None
    episode_length: float | None
    episodes: int
    entropy: float
    approx_kl: float
    explained_variance: float
    learning_rate: float
    frames_per_s: float
    entities_per_s: float
    entities_per_frame: float
    normalised_entropies: Mapping[str, float] = MappingProxyType({})
    phases_ms: Mapping[str, float] = MappingProxyType({})
    memory_mb: float | None = None


def format_duration(seconds: float) -> str:
    """Two units at most: `45s`, `1m05s`, `2h03m`, `3d04h`."""
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
    """All that is shown: the latest update and what the updates before it add to it.

    Attributes:
        line: the latest update.
        total_steps: the step at which the run is complete.
        elapsed_s: seconds in this process.
        left_s: seconds to the end; None while unknown.
        returns: of the latest updates in which episodes ended.
        best: of all of them.
        episodes: how many ended.
        last_eval: step and result of the last evaluation.
        evaluating: how much of an evaluation that is going on is done, from 0 to 1.
    """

    line: ProgressLine
    total_steps: int
    elapsed_s: float
    left_s: float | None
    returns: Sequence[float]
    best: float | None
    episodes: int
    last_eval: str | None = None
    evaluating: float | None = None

    @property
    def fraction(self) -> float:
        """How much of the run is done, from 0 to 1."""
        return min(self.line.step / max(self.total_steps, 1), 1.0)

    @property
    def left(self) -> str:
        """Time left, "?" while unknown."""
        return "?" if self.left_s is None else format_duration(self.left_s)


def _trend(returns: Sequence[float]) -> float | None:
    """Mean of the newer half less mean of the older half; None for fewer than two."""
    half = len(returns) // 2
    if half == 0:
        return None
    return sum(returns[-half:]) / half - sum(returns[:half]) / half


def _trend_arrow(returns: Sequence[float], trend: float) -> tuple[str, str]:
    """An arrow and its style, level while the trend is small beside the spread of the returns."""
    if abs(trend) <= 0.1 * (max(returns) - min(returns)):
        return "→", "yellow"
    return ("↗", "green") if trend > 0 else ("↘", "red")


def _sparkline(values: Sequence[float]) -> str:
    """A bar for each value, between the lowest and the highest of them."""
    low, high = min(values, default=0.0), max(values, default=0.0)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((value - low) * scale)] for value in values)


def _number(value: float | None, spec: str) -> str:
    return "-" if value is None else format(value, spec)


def plain(view: View) -> str:
    """A line of text."""
    p, trend = view.line, _trend(view.returns)
    change = "" if trend is None else f" ({trend:+.3f})"
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


def panel(view: View, width: int) -> RenderableType:
    """A panel of so many columns, with as much in it as the console has rows for."""
    return _Fitted(view, width)


class _Shown(NamedTuple):
    """What of a panel is shown: how many actions, and which other parts."""

    actions: int
    phases: bool
    details: bool
    gaps: bool


_LESS_AND_LESS = [
    _Shown(MOST_ACTIONS, phases=True, details=True, gaps=True),
    _Shown(2, phases=True, details=True, gaps=True),
    _Shown(0, phases=True, details=True, gaps=True),
    _Shown(0, phases=True, details=True, gaps=False),
    _Shown(0, phases=False, details=True, gaps=False),
    _Shown(0, phases=False, details=False, gaps=False),
]


@dataclass(frozen=True)
class _Fitted:
    """A panel that is higher than the terminal could not be redrawn in place."""

    view: View
    width: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for shown in _LESS_AND_LESS:
            lines = console.render_lines(_panel(self.view, self.width, shown), options, pad=False)
            if len(lines) < options.size.height:  # a row is for what is typed
                break
        for line in lines:
            yield from line
            yield Segment.line()


def _panel(view: View, width: int, shown: _Shown) -> Panel:
    inner_width = width - 6  # without border and padding
    blocks: list[RenderableType] = [_bar(view, inner_width)]
    latest = [_return_line(view, inner_width)]
    if view.evaluating is not None or view.last_eval is not None:
        latest.append(_eval_line(view, inner_width))
    blocks.append(Group(*latest))
    if shown.details:
        blocks.append(_details(view, inner_width))
    if view.line.normalised_entropies and shown.actions:
        blocks.append(_freedom(view.line.normalised_entropies, inner_width, shown.actions))
    if sum(view.line.phases_ms.values()) > 0 and shown.phases:
        blocks.append(_phases(view.line.phases_ms, inner_width))
    parts = [part for block in blocks for part in ((Text(), block) if shown.gaps else (block,))]
    return Panel(
        Group(*parts[int(shown.gaps) :]),
        title=Text(TITLE, "bold"),
        title_align="left",
        subtitle=Text(f"step {view.line.step:,} of {view.total_steps:,}", "dim"),
        subtitle_align="right",
        border_style="cyan",
        padding=(int(shown.gaps), 2),
        width=width,
    )


def waiting(message: str, width: int) -> Panel:
    """What is shown before the first update."""
    return Panel(message, title=TITLE, width=width)


def _bar(view: View, width: int) -> Table:
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
    """The return and its course; where that does not fit, its latest part, or none."""
    text = Text.assemble(
        ("return  ", "dim"), (_number(view.line.mean_return, ".3f"), "bold"), no_wrap=True
    )
    trend = _trend(view.returns)
    if trend is not None:
        arrow, style = _trend_arrow(view.returns, trend)
        text.append(f"  {arrow} {trend:+.3f}", style)
    best = Text.assemble(("   best  ", "dim"), _number(view.best, ".3f"))
    if text.cell_len + best.cell_len <= width:
        text.append(best)
    text.append("   ")
    room = width - text.cell_len
    return text.append(_sparkline(view.returns)[-room:], "cyan") if room > 0 else text


def _details(view: View, width: int) -> Table:
    """Names and numbers, as many beside each other as fit whole."""
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


def _eval_line(view: View, width: int) -> Text:
    text = Text.assemble(("evaluation  ", "dim"), no_wrap=True, overflow="ellipsis")
    if view.evaluating is not None:
        text.append(f"{int(100 * view.evaluating)}%  ", "bold yellow")
    if view.last_eval is not None:
        text.append(view.last_eval)
    text.truncate(width, overflow="ellipsis")
    return text


def _freedom(entropies: Mapping[str, float], width: int, most: int) -> Table:
    """How undecided the policy is in each action: a full bar for choices at random."""
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(style="dim", no_wrap=True, max_width=NAME_WIDTH, overflow="ellipsis")
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_row("entropy of", "", Text("share of the most" if width >= LESS_WIDE else "", "dim"))
    shown = list(entropies.items())[:most]
    for name, share in shown:
        done = share if isfinite(share) else 0.0
        bar = ProgressBar(1.0, done, complete_style="magenta", finished_style="magenta")
        grid.add_row(name, bar, f"{share:.2f}")
    if len(entropies) > len(shown):
        grid.add_row(f"and {len(entropies) - len(shown)} more", "", "")
    return grid


def _phases(phases_ms: Mapping[str, float], width: int) -> Group:
    """What the time of the update went to: a bar of parts, the longest first, and what they are."""
    whole = sum(phases_ms.values())
    longest = sorted(phases_ms.items(), key=lambda phase: -phase[1])
    shares = [(name, ms / whole) for name, ms in longest[: len(PHASE_STYLES) - 1]]
    rest = 1 - sum(share for _, share in shares)
    if len(longest) > len(shares):
        shares.append(("other", rest))
    bar, legend = Text(no_wrap=True), Text(no_wrap=True)
    end, filled = 0.0, 0
    for (name, share), (glyph, style) in zip(shares, PHASE_STYLES, strict=False):
        end += share
        bar.append(glyph * (round(end * width) - filled), style)
        filled = round(end * width)
        legend.append(f"{glyph} ", style).append(f"{name} ", "dim").append(f"{share:.0%}   ")
    legend.truncate(width)
    return Group(bar, legend)


def _labelled(label: str, value: str) -> Text:
    return Text.assemble((f"{label}  ", "dim"), value, no_wrap=True)
