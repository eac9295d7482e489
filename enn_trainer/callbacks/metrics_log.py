"""Metrics of a run: the latest, those of the current step, and those that are new."""

from collections.abc import Mapping

from enn_trainer.checkpoints.retention import measured as measured_at
from enn_trainer.state_manager import StateManager
from enn_trainer.tracking.track_jsonl import EVAL_PREFIX


class MetricsLog:
    """Metrics of a run by tag.

    Args:
        manager: state manager of the run.

    Attributes:
        latest: the latest value of every tag, those of the state.
        last_eval: metrics of the last evaluation.
        last_eval_step: its step; None before the first evaluation.
    """

    def __init__(self, manager: StateManager) -> None:
        # Metrics of this step, of the save that the run resumes.
        saved, measured = manager.resumed_from, dict[str, float]()
        if saved is not None and manager.is_resumed_in_place and saved.step == manager.state.step:
            measured = measured_at(saved.manifest)
        self._state = state = manager.state
        self.latest = state.metrics
        self.last_eval = {t: v for t, v in self.latest.items() if t.startswith(EVAL_PREFIX)}
        is_measured = any(tag.startswith(EVAL_PREFIX) for tag in measured)
        self.last_eval_step = state.step if is_measured else None
        self._measured = (state.step, measured)
        self._fresh: set[str] = set()

    @property
    def measured(self) -> dict[str, float]:
        """Metrics that were measured at exactly this step."""
        step, scalars = self._measured
        return scalars if step == self._state.step else {}

    def measure(self, scalars: Mapping[str, float]) -> None:
        """Add metrics of this step that callbacks may still change."""
        self._measured = (self._state.step, {**self.measured, **scalars})

    def record(self, scalars: Mapping[str, float]) -> None:
        """Add final metrics of this step."""
        self.measure(scalars)
        self.latest.update(scalars)
        self._fresh.update(scalars)

    def record_eval(self, scalars: Mapping[str, float]) -> None:
        """Add the final metrics of an evaluation."""
        self.record(scalars)
        self.last_eval, self.last_eval_step = dict(scalars), self._state.step

    def take_fresh(self) -> frozenset[str]:
        """Return the tags that were recorded since the last call."""
        fresh, self._fresh = frozenset(self._fresh), set()
        return fresh
