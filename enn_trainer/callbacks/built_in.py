"""Callbacks of the trainer itself: metrics, tracking, progress and schedules."""

from contextlib import ExitStack

from enn_trainer.callbacks.callback_list import Callbacks
from enn_trainer.callbacks.metrics_log import MetricsLog
from enn_trainer.callbacks.progress_display import ProgressDisplay
from enn_trainer.callbacks.run_metrics import RunMetrics, Stopwatch
from enn_trainer.callbacks.schedules import Schedules
from enn_trainer.callbacks.tracking import Tracking
from enn_trainer.evaluation.evaluator import RunEvaluator
from enn_trainer.state_manager import StateManager
from enn_trainer.tracking.spans import Spans
from enn_trainer.tracking.track import open_track


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
