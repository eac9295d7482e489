"""What a person sees of a run: a live panel on a terminal, plain lines anywhere else."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import NamedTuple, Self, final

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

PANEL_EVERY_S = 0.2
"""Drawing takes a few milliseconds, so a run of tiny updates spends about 2% of its time on it."""
LINE_EVERY_S = 1.0
"""Lines pile up in log files; panels do not."""
PANEL_WIDTH = 100
"""Beyond this the eye has to travel too far."""
TREND_UPDATES = 30
SPEED_SAMPLES = 30
SAMPLE_EVERY_S = 1.0
"""Speed is measured over the last 30 seconds, or over 30 updates where these take longer."""

TITLE = "enn-trainer"
SPARKS = "▁▂▃▄▅▆▇█"


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


@final
class Progress:
    """Shows how a run goes; the last panel or line stays when the context is left.

    On a terminal there is one panel, redrawn in place. Elsewhere (a file, a pipe, TERM=dumb) there
    are plain lines: the first, the last, and at most one per second between them. The numbers shown
    are those of the latest update, except that return and length stay until an episode ends.

    Args:
        total_steps: the step at which the run is complete.
        start_step: the step at which this process begins.
        console: where to show; standard output by default.
        clock: seconds, never going back.
    """

    def __init__(
        self,
        total_steps: int,
        start_step: int,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total_steps = total_steps
        self._console = Console() if console is None else console
        self._clock = clock
        self._start_s = clock()
        self._samples = deque([(self._start_s, start_step)], maxlen=SPEED_SAMPLES)
        self._returns: deque[float] = deque(maxlen=TREND_UPDATES)
        self._best = -float("inf")
        self._episodes = 0
        self._line: ProgressLine | None = None
        self._shown: ProgressLine | None = None
        self._shown_s = -float("inf")
        self._live: Live | None = None
        if self._console.is_interactive:
            # Redrawn by `update`, not by a thread: workers may be forked while the panel is up.
            waiting = Panel("waiting for the first update", title=TITLE, width=self._width())
            self._live = Live(waiting, console=self._console, auto_refresh=False)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._line is not None and self._line is not self._shown:
            self._show(self._line)
        if self._live is not None:
            self._live.stop()

    def update(self, p: ProgressLine) -> None:
        """Take in the numbers of one update, and show them when it is time to."""
        now = self._clock()
        if now - self._samples[-1][0] >= SAMPLE_EVERY_S:
            self._samples.append((now, p.step))
        self._episodes += p.episodes
        if p.mean_return is None:
            if self._line is not None:
                p = p._replace(
                    mean_return=self._line.mean_return, episode_length=self._line.episode_length
                )
        elif isfinite(p.mean_return):
            self._returns.append(p.mean_return)
            self._best = max(self._best, p.mean_return)
        self._line = p
        if now - self._shown_s >= (LINE_EVERY_S if self._live is None else PANEL_EVERY_S):
            self._show(p)

    def say(self, message: str) -> None:
        """Print a line that stays."""
        if self._live is None:
            self._console.out(message, highlight=False)
        else:
            self._console.print(message, markup=False, highlight=False, emoji=False)

    def _show(self, p: ProgressLine) -> None:
        now = self._clock()
        view = _View(
            line=p,
            total_steps=self._total_steps,
            elapsed_s=now - self._start_s,
            left_s=_seconds_left(self._samples[0], (now, p.step), self._total_steps),
            returns=list(self._returns),
            best=self._best if self._returns else None,
            episodes=self._episodes,
        )
        if self._live is None:
            self._console.out(_plain(view), highlight=False)
        else:
            self._live.update(_panel(view, self._width()), refresh=True)
        self._shown, self._shown_s = p, now

    def _width(self) -> int:
        # Two columns stay free: a terminal echoes "^C" there, and would wrap and shift the panel.
        return min(self._console.width - 2, PANEL_WIDTH)


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
class _View:
    """All that is shown: the latest update and what the updates before it add to it."""

    line: ProgressLine
    total_steps: int
    elapsed_s: float
    left_s: float | None
    returns: Sequence[float]
    best: float | None
    episodes: int

    @property
    def fraction(self) -> float:
        """How much of the run is done, from 0 to 1."""
        return min(self.line.step / max(self.total_steps, 1), 1.0)

    @property
    def left(self) -> str:
        """Time left, "?" while unknown."""
        return "?" if self.left_s is None else format_duration(self.left_s)


def _seconds_left(
    before: tuple[float, int], now: tuple[float, int], total_steps: int
) -> float | None:
    """Time to `total_steps` at the speed between two moments; None when nothing moved.

    Args:
        before: time and step.
        now: time and step.
        total_steps: where the run ends.
    """
    seconds, steps = now[0] - before[0], now[1] - before[1]
    if seconds <= 0 or steps <= 0:
        return None
    return max(total_steps - now[1], 0) * seconds / steps


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


def _plain(view: _View) -> str:
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


def _panel(view: _View, width: int) -> Panel:
    inner_width = width - 6  # without border and padding
    return Panel(
        Group(_bar(view), Text(), _return_line(view, inner_width), Text(), _details(view)),
        title=Text(TITLE, "bold"),
        title_align="left",
        subtitle=Text(f"step {view.line.step:,} of {view.total_steps:,}", "dim"),
        subtitle_align="right",
        border_style="cyan",
        padding=(1, 2),
        width=width,
    )


def _bar(view: _View) -> Table:
    row = Table.grid(padding=(0, 3, 0, 0), expand=True)
    row.add_column(ratio=1)
    for _ in range(3):
        row.add_column(justify="right", no_wrap=True)
    row.add_row(
        ProgressBar(1.0, view.fraction, complete_style="cyan", finished_style="green"),
        Text(f"{100 * view.fraction:.1f}%", "bold"),
        _labelled("elapsed", format_duration(view.elapsed_s)),
        _labelled("left", view.left),
    )
    return row


def _return_line(view: _View, width: int) -> Text:
    """The return and its course; where that does not fit, its latest part."""
    text = Text.assemble(
        ("return  ", "dim"), (_number(view.line.mean_return, ".3f"), "bold"), no_wrap=True
    )
    trend = _trend(view.returns)
    if trend is not None:
        arrow, style = _trend_arrow(view.returns, trend)
        text.append(f"  {arrow} {trend:+.3f}", style)
    text.append("   best  ", "dim").append(_number(view.best, ".3f"))
    text.append("   ")
    room = max(width - text.cell_len, 1)
    return text.append(_sparkline(view.returns)[-room:], "cyan")


def _details(view: _View) -> Table:
    p = view.line
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for _ in range(3):
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(ratio=1, no_wrap=True)
    grid.add_row(
        *("episodes", f"{view.episodes:,}"),
        *("entropy", f"{p.entropy:.2f}"),
        *("frames/s", f"{p.frames_per_s:,.0f}"),
    )
    grid.add_row(
        *("length", _number(p.episode_length, ".1f")),
        *("kl", f"{p.approx_kl:.4f}"),
        *("entities/s", f"{p.entities_per_s:,.0f}"),
    )
    grid.add_row(
        *("learning rate", f"{p.learning_rate:.1e}"),
        *("explained", f"{p.explained_variance:.2f}"),
        *("entities/frame", f"{p.entities_per_frame:.1f}"),
    )
    return grid


def _labelled(label: str, value: str) -> Text:
    return Text.assemble((f"{label}  ", "dim"), value, no_wrap=True)
