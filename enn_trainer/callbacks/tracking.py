"""Tracking of metrics, videos and timers."""

import time
from pathlib import Path

from enn_trainer.callbacks.callback import Callback, RunningTrainer
from enn_trainer.callbacks.metrics_log import MetricsLog
from enn_trainer.evaluation.evaluator import RunEvaluator
from enn_trainer.tracking.spans import Spans
from enn_trainer.tracking.track import Track

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
