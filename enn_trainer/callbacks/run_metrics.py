"""Metrics and time of a run."""

import time
from collections.abc import Mapping

from enn_trainer.callbacks.callback import RolloutCallback, RunningTrainer
from enn_trainer.checkpoints.retention import measured as measured_at
from enn_trainer.checkpoints.state import State
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.config.schedules import scheduled_fields
from enn_trainer.runtime.exchange import Exchange
from enn_trainer.runtime.spans import Spans
from enn_trainer.tracking.metrics import (
    action_sums,
    memory_sums,
    metric_scalars,
    scalars_of_sums,
    system_numbers,
)
from enn_trainer.tracking.track_services import EVAL_PREFIX


class MetricsLog:
    """Metrics of a run by tag.

    Args:
        manager: state manager of the run.

    Attributes:
        latest: latest values of all tags, part of the state.
        last_eval: metrics of the last evaluation.
        last_eval_step: step of the evaluated weights; None before the first evaluation.
    """

    def __init__(self, manager: StateManager) -> None:
        # Metrics of this step, from the save that the run resumes.
        saved, measured = manager.resumed_from, dict[str, float]()
        if saved is not None and manager.is_resumed_in_place and saved.step == manager.state.step:
            measured = measured_at(saved.manifest)
        self._state = state = manager.state
        self.latest = state.metrics
        self.last_eval = {t: v for t, v in self.latest.items() if t.startswith(EVAL_PREFIX)}
        is_measured = any(tag.startswith(EVAL_PREFIX) for tag in measured)
        has_lag = manager.config.eval is not None and manager.config.eval.lag > 0
        self.last_eval_step = state.step if is_measured and not has_lag else None
        self._measured = (state.step, measured)
        self._fresh: set[str] = set()

    @property
    def measured(self) -> dict[str, float]:
        """Metrics of the current step."""
        step, scalars = self._measured
        return scalars if step == self._state.step else {}

    def measure(self, scalars: Mapping[str, float]) -> None:
        """Add preliminary metrics of this step, which callbacks may change."""
        self._measured = (self._state.step, {**self.measured, **scalars})

    def record(self, scalars: Mapping[str, float]) -> None:
        """Add final metrics of this step."""
        self.measure(scalars)
        self.latest.update(scalars)
        self._fresh.update(scalars)

    def record_eval(self, scalars: Mapping[str, float], step: int | None) -> None:
        """Add the final metrics of an evaluation, with the step of the evaluated weights."""
        self.record(scalars)
        self.last_eval, self.last_eval_step = dict(scalars), step

    def pop_fresh(self) -> frozenset[str]:
        """Return the tags recorded since the last call."""
        fresh, self._fresh = frozenset(self._fresh), set()
        return fresh


class Stopwatch:
    """Stopwatch for the training time of a run, which adds to `State.time_used`.

    Attributes:
        seconds: training time in this process.
    """

    def __init__(self, state: State) -> None:
        self._state = state
        self.seconds = 0.0
        self._tick_s = self._update_start_s = time.monotonic()

    def start(self) -> None:
        """Start counting time."""
        self._tick_s = time.monotonic()

    def tick(self) -> None:
        """Count the time since the last tick."""
        now = time.monotonic()
        self._state.time_used += now - self._tick_s
        self.seconds += now - self._tick_s
        self._tick_s = now

    def begin_update(self) -> None:
        """Store the start time of an update."""
        self._update_start_s = time.monotonic()

    def end_update(self) -> float:
        """Count the time of an update and return its duration in seconds."""
        self.tick()
        return max(self._tick_s - self._update_start_s, 1e-9)


class RunMetrics(RolloutCallback):
    """Adds the metrics of environments, actions, schedules, speed, memory and saves.

    Attributes:
        phases_ms: duration of each phase of the last update.
    """

    def __init__(
        self,
        manager: StateManager,
        log: MetricsLog,
        watch: Stopwatch,
        spans: Spans,
        exchange: Exchange,
    ) -> None:
        self._manager, self._log, self._watch, self._spans = manager, log, watch, spans
        self._exchange = exchange
        self._first_step = manager.state.step
        self.phases_ms: dict[str, float] = {}

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Count the time of the update, and add its metrics."""
        seconds = self._watch.end_update()
        own_ms, self.phases_ms = self._spans.since_last()
        state, rollout, learnt = trainer.state, self.take_rollout(), dict(metrics)
        with self._spans.span("track"):
            fps = rollout.num_frames / seconds
            scheduled = scheduled_fields(trainer.config).items()
            numbers = {
                "charts/SPS": (state.step - self._first_step) / max(self._watch.seconds, 1e-9),
                "restart": state.restart,
                "throughput": fps,
                "fps": fps,
                "eps": rollout.batch.num_entities() / seconds,
                **system_numbers(rollout.values.device),
                **self._manager.pop_save_metrics(),
                **{f"trace/{path}": ms for path, ms in own_ms.items()},
            }
            sums = [
                {**action_sums(one, state.action_space), **memory_sums(one.batch.past)}
                for one in rollout.shard_rollouts
            ]
            sums, numbers = self._exchange.metrics(state, sums, numbers)
            metrics.clear()  # for the order of tags
            metrics |= {
                **metric_scalars(rollout.metrics),
                **learnt,
                **scalars_of_sums(sums),
                **{f"schedule/{path}": value for path, value in scheduled},
                **numbers,
            }
        self._log.measure(metrics)
