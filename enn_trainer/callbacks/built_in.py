"""Callbacks of the trainer itself: metrics, tracking, progress and schedules."""

import time
from contextlib import ExitStack
from pathlib import Path

from enn_trainer.callbacks.callback import Callback, RunningTrainer
from enn_trainer.callbacks.callback_list import Callbacks
from enn_trainer.callbacks.progress_display import ProgressDisplay
from enn_trainer.callbacks.run_metrics import MetricsLog, RunMetrics, Stopwatch
from enn_trainer.config.schedules import follow_schedules
from enn_trainer.evaluation.evaluator import RunEvaluator
from enn_trainer.runtime.spans import Spans
from enn_trainer.state_manager import StateManager
from enn_trainer.tracking.track import Track, open_track


def add_built_in(
    callbacks: Callbacks,
    manager: StateManager,
    spans: Spans,
    evaluator: RunEvaluator,
    stack: ExitStack,
) -> tuple[MetricsLog, Stopwatch, ProgressDisplay]:
    """Add the callbacks of the trainer around those of the user: metrics are added before them.

    Args:
        callbacks: callbacks of the run.
        manager: state manager of the run.
        spans: timers of the run.
        evaluator: evaluator of the run.
        stack: closes the trackers.

    Returns:
        Metrics, time and progress display of the run.
    """
    log, watch = MetricsLog(manager), Stopwatch(manager.state)
    numbers = RunMetrics(manager, log, watch, spans)
    progress = ProgressDisplay(manager, numbers, evaluator)
    track, folder = open_track(manager, progress.say)
    stack.enter_context(track)
    tracking = Tracking(track, folder, log, spans, evaluator)
    stack.callback(tracking.save_spans)
    callbacks.first = [numbers]
    callbacks.last = [tracking, progress, Schedules()]
    return log, watch, progress


SAVE_SPANS_EVERY_S = 60.0


class Tracking(Callback):
    """Sends metrics and videos to the trackers of a run, and saves its timers.

    Args:
        track: the trackers.
        folder: folder of the run, for the timers.
        log: metrics of the run.
        spans: timers of the run.
        evaluator: has the results of the last evaluation.
    """

    def __init__(
        self, track: Track, folder: Path, log: MetricsLog, spans: Spans, evaluator: RunEvaluator
    ) -> None:
        self._track, self._folder, self._log = track, folder, log
        self._spans, self._evaluator = spans, evaluator
        self._saved_s = time.monotonic()

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Track the metrics of an update, and save the timers from time to time."""
        with self._spans.span("track"):
            self._log.record(metrics)
            self._track.write(trainer.state.step, metrics)
        if time.monotonic() - self._saved_s >= SAVE_SPANS_EVERY_S:
            self.save_spans()

    def on_eval_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Track the metrics and videos of an evaluation."""
        self._log.record_eval(metrics)
        self._track.write(trainer.state.step, metrics)
        for name, suite in self._evaluator.results.items():
            if suite.film is not None:
                tag = f"eval/{name}/video" if name else "eval/video"
                self._track.video(trainer.state.step, tag, suite.film)

    def save_spans(self) -> None:
        """Save the timers."""
        self._spans.save(self._folder / "spans.json")
        self._saved_s = time.monotonic()


class Schedules(Callback):
    """Sets scheduled settings to their values at the step after an update."""

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Set the values."""
        follow_schedules(trainer.config, trainer.state)
