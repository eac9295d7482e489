"""Progress display of a run: a live panel on a terminal, plain lines anywhere else."""

import time
from collections import deque
from collections.abc import Callable
from math import isfinite
from typing import Self, final

from rich.console import Console
from rich.live import Live

from enn_trainer.tracking.panel import ProgressLine, View, format_duration, panel, plain, waiting

__all__ = ["Progress", "ProgressLine", "format_duration"]

PANEL_EVERY_S = 0.2
"""Minimal time between panels, each of which takes a few milliseconds, at most about 2%."""
LINE_EVERY_S = 1.0
"""Minimal time between lines, which accumulate in log files."""
PANEL_WIDTH = 100
"""Maximal width of the panel in columns; wider ones are tiring to read."""
TREND_UPDATES = 30
SPEED_SAMPLES = 30
SAMPLE_EVERY_S = 1.0
"""Speed is measured over the last 30 seconds, or over 30 updates where these take longer."""


@final
class Progress:
    """Progress display; the last panel or line stays when the context is left.

    On a terminal there is one panel, redrawn in place. Elsewhere (a file, a pipe, TERM=dumb) there
    are plain lines: the first, the last, and at most one per second between them. The numbers shown
    are those of the latest update, except that return and length stay until an episode ends.

    Args:
        total_steps: the step at which the run is complete.
        start_step: the step at which this process begins.
        console: console to print to; standard output by default.
        clock: monotonic time in seconds.
        max_seconds: time limit from now; None without a limit.
    """

    def __init__(
        self,
        total_steps: int,
        start_step: int,
        console: Console | None = None,
        clock: Callable[[], float] = time.monotonic,
        max_seconds: float | None = None,
    ) -> None:
        self._total_steps = total_steps
        self._console = Console() if console is None else console
        self._clock = clock
        self._start_s = clock()
        self._end_s = None if max_seconds is None else self._start_s + max_seconds
        self._samples = deque([(self._start_s, start_step)], maxlen=SPEED_SAMPLES)
        self._returns: deque[float] = deque(maxlen=TREND_UPDATES)
        self._best: float | None = None
        self._episodes = 0
        self._line: ProgressLine | None = None
        self._shown: ProgressLine | None = None
        self._shown_s = -float("inf")
        self._last_eval: str | None = None
        self._evaluating: float | None = None
        self._live: Live | None = None
        if self._console.is_interactive:
            # Redrawn by `update`, not by a thread: workers may be forked while the panel is up.
            shown = waiting("waiting for the first update", self._width())
            self._live = Live(shown, console=self._console, auto_refresh=False)

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
        """Add the numbers of one update, and show them if the last display is old enough."""
        now = self._clock()
        self._evaluating = None
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
            self._best = p.mean_return if self._best is None else max(self._best, p.mean_return)
        self._line = p
        if now - self._shown_s >= (LINE_EVERY_S if self._live is None else PANEL_EVERY_S):
            self._show(p)

    def evaluating(self, fraction: float) -> None:
        """Show on a terminal the finished share of an evaluation, from 0 to 1."""
        self._evaluating = fraction
        if self._live is None or self._clock() - self._shown_s < PANEL_EVERY_S:
            return
        if self._line is not None:
            self._show(self._line)
        else:
            message = f"evaluating {int(100 * fraction)}%"
            self._live.update(waiting(message, self._width()), refresh=True)
            self._shown_s = self._clock()

    def evaluated(self, step: int, result: str) -> None:
        """Print the result of an evaluation, which also stays in the panel of a terminal."""
        self._last_eval, self._evaluating = f"step {step:,}  {result}", None
        self.say(f"[eval] step {step}  {result}")

    def say(self, message: str) -> None:
        """Print a line that stays."""
        if self._live is None:
            self._console.out(message, highlight=False)
        else:
            self._console.print(message, markup=False, highlight=False, emoji=False)

    def _show(self, p: ProgressLine) -> None:
        now = self._clock()
        view = View(
            line=p,
            total_steps=self._total_steps,
            elapsed_s=now - self._start_s,
            left_s=self._seconds_left(now, p.step),
            returns=list(self._returns),
            best=self._best,
            episodes=self._episodes,
            last_eval=self._last_eval,
            evaluating=self._evaluating,
        )
        if self._live is None:
            self._console.out(plain(view), highlight=False)
        else:
            self._live.update(panel(view, self._width(), self._console.height), refresh=True)
        self._shown, self._shown_s = p, now

    def _seconds_left(self, now: float, step: int) -> float | None:
        """Return the time to the last step or to the time limit; None while both are unknown."""
        limit_s = None if self._end_s is None else max(self._end_s - now, 0.0)
        before_s, before = self._samples[0]
        if now <= before_s or step <= before:
            return limit_s
        # Steps that are left, divided by the speed since the oldest sample.
        left_s = max(self._total_steps - step, 0) * (now - before_s) / (step - before)
        return left_s if limit_s is None else min(left_s, limit_s)

    def _width(self) -> int:
        # Two columns stay free: a terminal echoes "^C" there, and would wrap and shift the panel.
        return min(self._console.width - 2, PANEL_WIDTH)
