"""Judging of runs: scores, pruning, the race of seeds, and the comparison on fresh seeds.

Values are larger for better settings: of a metric to minimise, they are the negated ones.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean, median, stdev
from typing import NamedTuple, TypeAlias

from enn_trainer.evaluation.eval_metrics import t_quantile_975

Curve: TypeAlias = Mapping[int, float]
"""Values of a run by step."""

LAST_SHARE = 5
"""A score is the mean over the last 1/5 of the values of a run."""
STARTUP_TRIALS = 5
"""Number of completed trials before the first one is pruned."""
NUM_BEST = 3
"""Number of trials that are trained again with fresh seeds."""


class Score(NamedTuple):
    """Mean over seeds.

    Attributes:
        mean: the mean.
        error: standard error of the mean; None for one seed.
        seeds: number of seeds.
    """

    mean: float
    error: float | None
    seeds: int

    @staticmethod
    def of(scores: Sequence[float]) -> "Score":
        """Return the score of a trial from the scores of its runs, at least one."""
        many = len(scores) > 1
        error = stdev(scores) / math.sqrt(len(scores)) if many else None
        return Score(fmean(scores), error, len(scores))

    @property
    def interval(self) -> tuple[float, float]:
        """95% confidence interval of the mean, by Student's t; unbounded for one seed."""
        if self.error is None:
            return -math.inf, math.inf
        half = t_quantile_975(self.seeds - 1) * self.error
        return self.mean - half, self.mean + half


def score_of_run(curve: Curve) -> float:
    """Return the mean over the last fifth of the values of a run, rounded up, at least one."""
    values = [value for _, value in sorted(curve.items())]
    return fmean(values[-math.ceil(len(values) / LAST_SHARE) :])


def is_pruned(step: int, curve: Curve, completed: Iterable[Curve]) -> bool:
    """Return True if a run is below the median of completed ones, as Optuna's `MedianPruner`.

    Args:
        step: step of the newest value of the run.
        curve: its values so far; the best one counts.
        completed: values of completed runs; their newest ones at or before the step count, as steps
            of evaluations differ if the size of rollouts is searched.
    """
    values = []
    for other in completed:
        newest = max((at for at in other if at <= step), default=None)
        values += [] if newest is None else [other[newest]]
    return len(values) >= STARTUP_TRIALS and max(curve.values()) < median(values)


def has_next_seed(scores: Sequence[float], completed: Iterable[Sequence[float]], most: int) -> bool:
    """Return True if a trial is trained with one more seed.

    Args:
        scores: scores of the seeds of the trial so far, at least one.
        completed: scores of the seeds of completed trials, in the same order of seeds.
        most: largest number of seeds.
    """
    count = len(scores)
    means = [fmean(other[:count]) for other in completed if len(other) >= count]
    return count < most and (not means or fmean(scores) >= median(means))


def best_trials(scores: Mapping[int, Score], count: int = NUM_BEST) -> list[int]:
    """Return the numbers of the trials with the largest means, best first."""
    return sorted(scores, key=lambda number: (-scores[number].mean, number))[:count]


def is_better(score: Score, reference: Score) -> bool:
    """Return True if the confidence interval of a score lies above the one of the reference."""
    return score.interval[0] > reference.interval[1]
