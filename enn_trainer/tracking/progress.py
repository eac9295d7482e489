"""Progress display of a run: a live panel on a terminal, plain lines otherwise."""

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import nan
from types import MappingProxyType
from typing import NamedTuple, Self, final

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from enn_trainer.base.tables import printable
from enn_trainer.evaluation.eval_metrics import with_interval
from enn_trainer.experience.episodes import Measured

PANEL_EVERY_S = 0.2
"""Least time between panels; drawing one takes a few milliseconds, at most about 2%."""
LINE_EVERY_S = 1.0
"""Least time between lines, which accumulate in log files."""
PANEL_WIDTH = 100
"""Largest width of the panel in columns, for readability."""
TREND_UPDATES = 30
MOST_MEANS = 64
"""Largest number of means in the return history of a run."""
MOST_BARS = 30
SPEED_SAMPLES = 30
SAMPLE_EVERY_S = 1.0
"""Speed is measured over the last 30 seconds, or over 30 updates if these take longer."""
TITLE = "enn-trainer"
RETURN, LENGTH = "episodic_reward.mean", "episode_length.mean"
SCORE, ELO = "selfplay/score", "selfplay/elo"
LABELS = {RETURN: "return", SCORE: "score"}
"""Names of the metrics that show how well the agent plays."""
SPARKS = "▁▂▃▄▅▆▇█"
WIDE, LESS_WIDE = 70, 46
"""Least widths of the panel for three, or two, numbers per line."""
PHASE_STYLES = [("█", "cyan"), ("▓", "magenta"), ("▒", "yellow"), ("░", "green"), ("·", "dim")]
"""Glyphs and colours of phases; the glyphs differ, for terminals without colours."""
_LAYOUTS = [
    (True, 6, True, True, True),
    (True, 2, True, True, True),
    (True, 0, True, True, True),
    (True, 0, True, True, False),
    (True, 0, False, True, False),
    (False, 0, False, True, False),
    (False, 0, False, False, False),
]
"""Layouts in order of preference: with header, number of actions, with phases, with details, with
empty rows."""


class ProgressLine(NamedTuple):
    """Metrics of one update."""

    step: int  # frames over all environments and restarts
    metrics: Mapping[str, float]  # by tag; without episode metrics if no episode ended
    normalised_entropies: Mapping[str, float] = MappingProxyType({})  # by action, at most 1
    phases_ms: Mapping[str, float] = MappingProxyType({})  # duration of each phase


def main_metric(metrics: Mapping[str, float]) -> str:
    """Return the tag of the return, or in self-play, where its mean is constant, of the score."""
    return SCORE if ELO in metrics else RETURN


def format_duration(seconds: float) -> str:
    """Format a duration in at most two units: `45s`, `1m05s`, `2h03m`, `3d04h`."""
    s = round(seconds)
    if s < 60:
        return f"{s}s"
    if s < 3600:
        return f"{s // 60}m{s % 60:02}s"
    if s < 86400:
        return f"{s // 3600}h{s % 3600 // 60:02}m"
    return f"{s // 86400}d{s % 86400 // 3600:02}h"


@dataclass
class ReturnHistory:
    """Returns of all updates of a run, downsampled to a bounded number of means.

    Attributes:
        means: means over `each` updates with finished episodes, at most `MOST_MEANS`.
        each: number of updates per mean, a power of 2.
        total: sum of the returns since the last mean.
        count: number of these returns, below `each`.
    """

    means: list[float] = field(default_factory=list)
    each: int = 1
    total: float = 0.0
    count: int = 0

    @classmethod
    def restored(cls, saved: object) -> "ReturnHistory":
        """Return the history of a save, or an empty history if the value is invalid."""
        history = cls()
        if isinstance(saved, dict) and saved.keys() == vars(history).keys():
            numbers = [*(saved["means"] if isinstance(saved["means"], list) else [None])]
            numbers += [saved["total"], saved["each"], saved["count"]]
            are_finite = all(type(n) in (int, float) and math.isfinite(n) for n in numbers)
            if are_finite and len(numbers) < MOST_MEANS + 3 and 0 <= saved["count"] < saved["each"]:
                history = cls(**{**saved, "means": list(saved["means"])})
        return history

    def add(self, value: float) -> None:
        """Add the mean return of an update, unless it is NaN; merge pairs if there are too many."""
        if not math.isfinite(value):
            return
        self.total, self.count = self.total + value, self.count + 1
        if self.count < self.each:
            return
        self.means.append(self.total / self.count)
        self.total, self.count = 0.0, 0
        if len(self.means) == MOST_MEANS:
            pairs = zip(self.means[::2], self.means[1::2], strict=True)
            self.means = [(first + second) / 2 for first, second in pairs]
            self.each *= 2

    def at_most(self, num: int) -> list[float]:
        """Return at most `num` means of about equally many updates, in order."""
        means = self.means + ([self.total / self.count] if self.count else [])
        num = min(num, len(means))
        ends = [i * len(means) // num for i in range(num + 1)] if num > 0 else []
        return [sum(means[start:end]) / (end - start) for start, end in pairwise(ends)]


@final
class Progress:
    """Progress display; the last panel or line remains after the context.

    A terminal gets one panel, redrawn in place. A file, a pipe or TERM=dumb gets plain lines: the
    first, the last, and at most one per second in between. The numbers are from the latest update,
    except that return and length remain until an episode ends.

    Args:
        total_steps: last step of the run.
        start_step: first step of this process.
        console: console to print to; standard output by default.
        clock: returns a monotonic time in seconds.
        max_seconds: time limit from now; None without a limit.
        header: lines about the run, at the top of the panel or printed first.
        history: returns of earlier processes; updated with the returns of this process.
        random: return of random play; None if it was not measured.
    """

    def __init__(
        self,
        total_steps: int,
        start_step: int,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        max_seconds: float | None = None,
        header: Sequence[str] = (),
        history: ReturnHistory | None = None,
        random: Measured | None = None,
    ) -> None:
        latest = deque[float](maxlen=TREND_UPDATES)
        self._view = _RunTotals(total_steps, latest, history or ReturnHistory(), header, random)
        self._line: ProgressLine | None = None
        self._console = Console() if console is None else console
        self._clock = clock
        self._start_s = clock()
        self._end_s = None if max_seconds is None else self._start_s + max_seconds
        self._samples = deque([(self._start_s, start_step)], maxlen=SPEED_SAMPLES)
        self._is_shown = True
        self._shown_s = -math.inf
        self._live: Live | None = None
        if self._console.is_interactive:
            # Redrawn by `update`, not by a thread: workers may be forked while the panel is active.
            waiting = self._first_panel("waiting for the first update")
            self._live = Live(waiting, console=self._console, auto_refresh=False)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start(refresh=True)
        else:
            random = self._view.random
            played = [] if random is None else [f"random play: return {with_interval(random)}"]
            for line in (*self._view.header, *played):
                self._console.out(printable(line, self._console.encoding), highlight=False)
        return self

    def __exit__(self, *_: object) -> None:
        if not self._is_shown:
            self._show()
        if self._live is not None:
            self._live.stop()

    def update(self, p: ProgressLine) -> None:
        """Add the metrics of an update; display them if the last display is old enough."""
        now, view = self._clock(), self._view
        if now - self._samples[-1][0] >= SAMPLE_EVERY_S:
            self._samples.append((now, p.step))
        view.evaluating = None
        view.episodes += int(p.metrics["episodic_reward.count"])
        value = p.metrics.get(main_metric(p.metrics), nan)
        view.history.add(value)
        if math.isfinite(value):
            view.returns.append(value)
            view.best = value if view.best is None else max(view.best, value)
        before = {} if self._line is None else self._line.metrics
        previous = {tag: before[tag] for tag in (RETURN, SCORE, LENGTH) if tag in before}
        self._line = p._replace(metrics={**previous, **p.metrics})
        self._is_shown = False
        if now - self._shown_s >= (LINE_EVERY_S if self._live is None else PANEL_EVERY_S):
            self._show()

    def evaluating(self, fraction: float) -> None:
        """Display the finished share of an evaluation, from 0 to 1, on a terminal."""
        self._view.evaluating = fraction
        if self._live is not None and self._clock() - self._shown_s >= PANEL_EVERY_S:
            self._show()

    def evaluated(self, step: int, result: str) -> None:
        """Print the result of an evaluation, and keep it in the panel of a terminal."""
        self._view.last_eval, self._view.evaluating = f"step {step:,}  {result}", None
        self.say(f"[eval] step {step}  {result}")

    def say(self, message: str) -> None:
        """Print a line that is not overwritten."""
        if self._live is None:
            self._console.out(message, highlight=False)
        else:
            self._console.print(message, markup=False, highlight=False, emoji=False)

    def _show(self) -> None:
        p, view, now, width = self._line, self._view, self._clock(), self._width()
        self._is_shown, self._shown_s = True, now
        if p is None:  # an evaluation before the first update
            display = self._first_panel(f"evaluating {int(100 * (view.evaluating or 0.0))}%")
        else:
            # Time to the last step, at the speed since the oldest sample, or to the time limit.
            left_s = math.inf if self._end_s is None else max(self._end_s - now, 0.0)
            before_s, before = self._samples[0]
            if now > before_s and p.step > before:
                num_left = max(view.total_steps - p.step, 0)
                left_s = min(left_s, num_left * (now - before_s) / (p.step - before))
            view.left = format_duration(left_s) if math.isfinite(left_s) else "?"
            view.elapsed = format_duration(now - self._start_s)
            view.fraction = min(p.step / max(view.total_steps, 1), 1.0)
            if self._live is None:
                self._console.out(_text(view, p), highlight=False)
                return
            display = _panel(view, p, width, self._console.height)
        if self._live is not None:
            self._live.update(display, refresh=True)

    def _first_panel(self, text: str) -> Panel:
        """Return the panel before the first update: the header, if it fits, and a line."""
        width, header = self._width(), list(_header(self._view, self._width() - 4))
        lines = header if len(header) + 4 < self._console.height else []
        return Panel(Group(*lines, Text(text)), title=TITLE, width=width)

    def _width(self) -> int:
        # Two columns stay free for the "^C" that a terminal echoes: a wrap would shift the panel.
        return min(self._console.width - 2, PANEL_WIDTH)


@dataclass
class _RunTotals:
    """Totals of a run, displayed with the latest update."""

    total_steps: int  # last step of the run
    returns: deque[float]  # mean returns of the latest updates with finished episodes
    history: ReturnHistory  # mean returns of all updates with finished episodes
    header: Sequence[str]  # lines about the run
    random: Measured | None  # return of random play
    best: float | None = None  # the highest mean return of all updates
    episodes: int = 0  # number of finished episodes
    last_eval: str | None = None  # step and result
    evaluating: float | None = None  # finished share of the running evaluation, from 0 to 1
    fraction: float = 0.0  # finished share of the run, from 0 to 1
    elapsed: str = ""  # time in this process
    left: str = "?"  # time to the end, "?" while unknown

    @property
    def trend(self) -> float | None:
        """Mean of the newer half of the returns minus mean of the older; None for fewer than 2."""
        returns, half = list(self.returns), len(self.returns) // 2
        if half == 0:
            return None
        return sum(returns[-half:]) / half - sum(returns[:half]) / half


def _numbers(view: _RunTotals, p: ProgressLine) -> dict[str, str]:
    """Return the numbers to display after an update as text, by name."""
    metrics, fps, eps = p.metrics, p.metrics["fps"], p.metrics["eps"]
    rating = {}
    if (elo := metrics.get(ELO)) is not None:
        rating["Elo"] = f"{elo:.0f} ± {metrics.get('selfplay/elo_ci95', nan):.0f}"
    return {
        **rating,
        "episodes": f"{view.episodes:,}",
        "entropy": f"{metrics.get('losses/entropy', nan):.2f}",
        "frames/s": f"{fps:,.0f}",
        "length": _number(metrics.get(LENGTH), ".1f"),
        "kl": f"{metrics.get('losses/approx_kl', nan):.4f}",
        "entities/s": f"{eps:,.0f}",
        "learning rate": f"{metrics.get('charts/learning_rate', nan):.1e}",
        "explained": f"{metrics.get('losses/explained_variance', nan):.2f}",
        "entities/frame": f"{eps / fps:.1f}",
        "memory": f"{metrics['system/rss_mb']:,.0f} MB",
    }


def _text(view: _RunTotals, p: ProgressLine) -> str:
    """Return the plain line of an update."""
    step = f"step {p.step}/{view.total_steps} ({int(100 * view.fraction)}%)"
    change = "" if view.trend is None else f" ({view.trend:+.3f})"
    tag = main_metric(p.metrics)
    mean = f"{LABELS[tag]} {_number(p.metrics.get(tag), '.3f')}{change}{_episodes(p)}"
    numbers = _numbers(view, p)
    names = ("length", "entropy", "kl", "explained", "frames/s", "entities/s")
    selected = ["Elo", *names] if "Elo" in numbers else names
    texts = [f"{name} {numbers[name]}" for name in selected]
    return "  ".join([step, f"left {view.left}", mean, *texts])


def _episodes(p: ProgressLine) -> str:
    """Return the number of finished episodes, and the length of running ones if they are longer."""
    metrics, count = p.metrics, int(p.metrics.get("episodic_reward.count", 0))
    text = f" of {count:,} episode{'s'[: count != 1]}" if count else ""
    age = metrics.get("running_length.mean", 0.0)
    if age <= metrics.get(LENGTH, 0.0) or not metrics.get("running_length.count"):
        return text
    low, high = (int(metrics[f"running_length.{end}"]) for end in ("min", "max"))
    ages = f"{high:,} steps" if low == high else f"{low:,} to {high:,} steps"
    return f"{text}; {int(metrics['running_length.count']):,} running, {ages}"


def _panel(view: _RunTotals, p: ProgressLine, width: int, height: int) -> Panel:
    """Return a panel in the most detailed layout that fits.

    Args:
        view: totals of the run.
        p: the latest update.
        width: columns of the panel.
        height: rows of the terminal; a higher panel cannot be redrawn in place.
    """
    inner_width = width - 6  # without border and padding
    for header, num_actions, phases, details, gaps in _LAYOUTS:
        blocks = list(_blocks(view, p, inner_width, num_actions, phases, details))
        if lines := list(_header(view, inner_width) if header else ()):
            blocks.insert(0, (Group(*lines), len(lines)))
        num_rows = 2 + sum(rows for _, rows in blocks) + (len(blocks) + 1 if gaps else 0)
        if num_rows < height:  # a row stays free for the cursor
            break
    parts = [part for block, _ in blocks for part in ((Text(), block) if gaps else (block,))]
    return Panel(
        Group(*parts[int(gaps) :]),
        title=Text(TITLE, "bold"),
        title_align="left",
        subtitle=Text(f"step {p.step:,} of {view.total_steps:,}", "dim"),
        subtitle_align="right",
        border_style="cyan",
        padding=(int(gaps), 2),
        width=width,
    )


def _header(view: _RunTotals, width: int) -> Iterator[Text]:
    """Yield the lines about the run, truncated to a width."""
    for line in view.header:
        text = Text(printable(line, "utf-8"), no_wrap=True)
        text.truncate(width, overflow="ellipsis")
        yield text


def _blocks(
    view: _RunTotals, p: ProgressLine, width: int, num_actions: int, phases: bool, details: bool
) -> Iterator[tuple[RenderableType, int]]:
    """Yield the blocks of a panel with their numbers of rows."""
    # Progress bar and times.
    done = view.fraction
    texts = [Text(f"{100 * done:.1f}%", "bold"), _labelled("left", view.left)]
    if width >= LESS_WIDE:
        texts.insert(1, _labelled("elapsed", view.elapsed))
    row = Table.grid(padding=(0, 3, 0, 0), expand=True)
    row.add_column(ratio=1)
    for _ in texts:
        row.add_column(justify="right", no_wrap=True)
    row.add_row(ProgressBar(1.0, done, complete_style="cyan", finished_style="green"), *texts)
    yield row, 1

    # The return, and an evaluation.
    returns = _return_line(view, p, width)
    if view.evaluating is None and view.last_eval is None:
        yield returns, 1
    else:
        text = Text.assemble(("evaluation  ", "dim"), no_wrap=True, overflow="ellipsis")
        if view.evaluating is not None:
            text.append(f"{int(100 * view.evaluating)}%  ", "bold yellow")
        text.append(view.last_eval or "")
        text.truncate(width, overflow="ellipsis")
        yield Group(returns, text), 2

    # Numbers, entropies and phases.
    if details:
        table = _details(view, p, width)
        yield table, table.row_count
    if p.normalised_entropies and num_actions:
        table = _entropies(p.normalised_entropies, num_actions)
        title = Text("policy entropy, % of maximum", "dim", no_wrap=True, overflow="ellipsis")
        yield Group(title, table), 1 + table.row_count
    if phases and sum(p.phases_ms.values()) > 0:
        yield _phases(p.phases_ms, width), 2


def _return_line(view: _RunTotals, p: ProgressLine, width: int) -> Text:
    """Return a line with the return or score, its trend, and a sparkline over the run."""
    tag = main_metric(p.metrics)
    text = _labelled(LABELS[tag], _number(p.metrics.get(tag), ".3f"), "bold")
    low, high = min(view.returns, default=0.0), max(view.returns, default=0.0)
    if view.trend is not None:
        arrow, style = ("↗", "green") if view.trend > 0 else ("↘", "red")
        if abs(view.trend) <= 0.1 * (high - low):
            arrow, style = "→", "yellow"
        text.append(f"  {arrow} {view.trend:+.3f}", style)
    random = None if view.random is None or tag != RETURN else view.random.mean
    for label, value in (("best", view.best), ("random", random)):
        more = Text("   ").append(_labelled(label, _number(value, ".3f")))
        if text.cell_len + more.cell_len <= width and (label == "best" or value is not None):
            text.append(more)
    text.append("   ")

    # Sparkline, scaled to its minimum and maximum.
    means = view.history.at_most(min(width - text.cell_len, MOST_BARS))
    low, high = min(means, default=0.0), max(means, default=0.0)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return text.append("".join(SPARKS[round((value - low) * scale)] for value in means), "cyan")


def _details(view: _RunTotals, p: ProgressLine, width: int) -> Table:
    """Return a table of names and numbers, in the number of columns that fits."""
    numbers = list(_numbers(view, p).items())
    columns = 3 if width >= WIDE else 2 if width >= LESS_WIDE else 1
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    for _ in range(columns):
        grid.add_column(style="dim", no_wrap=True)
        grid.add_column(ratio=1, no_wrap=True)
    for i in range(0, len(numbers), columns):
        grid.add_row(*(text for pair in numbers[i : i + columns] for text in pair))
    return grid


def _entropies(entropies: Mapping[str, float], num_actions: int) -> Table:
    """Return bars of the normalised entropy of each action; a uniform policy has a full bar."""
    grid = Table.grid(padding=(0, 2, 0, 0), expand=True)
    grid.add_column(style="dim", no_wrap=True, max_width=20, overflow="ellipsis")
    grid.add_column(ratio=1)
    grid.add_column(justify="right", no_wrap=True)
    for name, share in list(entropies.items())[:num_actions]:
        done = share if math.isfinite(share) else 0.0
        bar = ProgressBar(1.0, done, complete_style="magenta", finished_style="magenta")
        grid.add_row(name, bar, f"{share:.0%}")
    if len(entropies) > num_actions:
        grid.add_row(f"and {len(entropies) - num_actions} more", "", "")
    return grid


def _phases(phases_ms: Mapping[str, float], width: int) -> Group:
    """Return a stacked bar of the phases of an update, longest first, and its legend."""
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
