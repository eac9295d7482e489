"""Finished episodes of all environments, with their metrics. Does not import torch."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from entity_env.arrays import BoolArray, FloatArray, IntArray
from entity_env.errors import InvalidObservation
from entity_env.frame_data import FrameData, Path
from entity_env.vec.vec_env import VecObs


@dataclass(frozen=True)
class Episodes(FrameData):
    """E finished episodes of all environments, ordered by step and environment.

    Attributes:
        environment: (E,) int64, the environment of each episode.
        metrics: by name (E,) float64, returns, lengths and the metrics of the last observations;
            NaN for missing ones.
        steps: (E,) int64, the step of the rollout in which each ended; empty if unknown.
        is_counted: (E,) bool, True for episodes of the agent, False for episodes of opponents;
            empty if all are counted.
    """

    environment: IntArray
    metrics: Mapping[str, FloatArray]
    steps: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    is_counted: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))

    @staticmethod
    def of(obs: VecObs, step: int = 0, counted: IntArray | None = None) -> "Episodes":
        """Create the episodes that ended in one step; arrays are copied.

        Args:
            obs: the frames after the step.
            step: step of the rollout.
            counted: (n,) int64, the environments of the agent; None for all.
        """
        ended, metrics = np.flatnonzero(obs.done), {}
        for name, rows in obs.env_metrics.items():
            values = np.full(len(obs), math.nan)
            values[rows.lengths > 0] = rows.values
            metrics[name] = values[ended]
        is_counted = np.ones(len(ended), np.bool_)
        if counted is not None:
            is_counted = np.isin(ended, counted)
        return Episodes(ended, metrics, np.full(len(ended), step), is_counted)

    def counted_metrics(self) -> dict[str, FloatArray]:
        """Return the metrics, (E,) float64 each, with NaN for episodes that are not counted."""
        if self.is_counted.all():  # also if empty
            return dict(self.metrics)
        return {n: np.where(self.is_counted, x, math.nan) for n, x in self.metrics.items()}

    def results(
        self, metric: str, sides: int, where: str, counted: BoolArray | None = None
    ) -> FloatArray:
        """Return the metric that compares the sides of matches, (E,) float64.

        Args:
            metric: name of the metric.
            sides: number of sides of a match.
            where: beginning of messages.
            counted: (E,) bool, the episodes that must have the metric; None for all.

        Raises:
            InvalidObservation: the metric of an episode is missing or not finite.
        """
        values = self.metrics.get(metric, np.full(len(self.environment), math.nan))
        wrong = ~np.isfinite(values) if counted is None else counted & ~np.isfinite(values)
        if wrong.any():
            i = int(wrong.argmax())
            match, side = divmod(int(self.environment[i]), sides)
            raise InvalidObservation(
                f"{where}match {match}, side {side}: expected a finite {metric!r} in the metrics "
                f"of the last observation, got {values[i]}; the metrics are "
                f"{', '.join(sorted(self.metrics))}"
            )
        return values

    def missing(self, path: Path, like: FloatArray) -> FloatArray:
        """Return NaN for a missing metric."""
        return np.full(len(self.environment), math.nan)

    @classmethod
    def cat(cls, parts: Sequence["Episodes"]) -> "Episodes":
        """Concatenate the episodes of several steps; the sequence may be empty."""
        return super().cat([NO_EPISODES, *parts])


NO_EPISODES = Episodes(np.zeros(0, np.int64), {})


@dataclass(frozen=True)
class Measured:
    """One metric of one suite.

    Attributes:
        mean: mean of all values; NaN without any.
        ci95: half the width of the 95% confidence interval of the mean, over episodes; None if
            fewer than two episodes have values, or values are not available by episode.
        min: the smallest value.
        max: the largest value.
        count: number of values.
    """

    mean: float
    ci95: float | None
    min: float
    max: float
    count: int
