"""Filter of environment metrics for logging: finite values, and no name of a computed metric."""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass

import numpy as np

from entity_env.arrays import BoolArray, IntArray
from entity_env.errors import unexpected
from entity_env.names import COMPUTED, free_name, is_computed
from entity_env.process import warn_once
from entity_env.ragged import Ragged
from entity_env.vec.vec_obs import Metric, VecObs


def never(name: str) -> bool:
    """Return False."""
    return False


@dataclass
class FiniteMetrics:
    """Filter of metrics: a value that is NaN or infinite counts as missing, with one warning.

    A metric with the name of a computed one is renamed, also with one warning.

    Attributes:
        is_required: returns whether a setting depends on a metric, by its name; a value that is
            not finite is an error then.
        validate: False to leave such values of required metrics to the code that reads them.
        first_env_index: index of the first environment among all of the run, for messages.
        computed: names of the metrics that are computed for every environment.
    """

    is_required: Callable[[str], bool] = never
    validate: bool = True
    first_env_index: int = 0
    computed: Collection[str] = COMPUTED

    def filter(self, obs: VecObs, steps: IntArray, padding: BoolArray) -> None:
        """Rename metrics of a step, and remove values that are not finite.

        Args:
            obs: the frames after the step.
            steps: (B,) int64, the steps of the running episodes before it.
            padding: (B,) bool, environments between two episodes; their values are not read.

        Raises:
            InvalidObservation: a required metric has such a value; names the environment and step.
        """
        renamed = {
            name: free_name(name) for name in obs.metrics if is_computed(name, self.computed)
        }
        if renamed:
            for name, free in renamed.items():
                warn_once(
                    f"metrics[{name!r}]: logged as {free!r}, as {name!r} is computed for every "
                    "environment; give it another name"
                )
            obs.metrics = {renamed.get(name, name): m for name, m in obs.metrics.items()}
            obs.env_metrics = {renamed.get(n, n): rows for n, rows in obs.env_metrics.items()}
        # Sums are finite if all values are.
        for name in [name for name, m in obs.metrics.items() if not math.isfinite(m.sum)]:
            if not self.validate and self.is_required(name):
                continue
            rows, metric = obs.env_metrics.get(name), obs.metrics[name]
            if rows is None:  # only the sum over all environments is known
                self._reject(name, metric.sum)
                obs.metrics = {n: m for n, m in obs.metrics.items() if n != name}
                continue
            is_finite = np.isfinite(rows.values)
            env = np.repeat(np.arange(len(obs)), rows.lengths)
            for row in np.flatnonzero(~is_finite & ~padding[env])[:1].tolist():
                self._reject(name, rows.values[row], int(env[row]), int(steps[env[row]]) + 1)
            lengths = np.bincount(env[is_finite], minlength=len(obs))
            finite = Ragged(rows.values[is_finite], lengths)
            obs.env_metrics = {**obs.env_metrics, name: finite}
            obs.metrics = {**obs.metrics, name: Metric.of(finite.values)}

    def _reject(
        self, name: str, value: float, env: int | None = None, step: int | None = None
    ) -> None:
        """Raise for a value of a required metric, or warn about a missing one."""
        what = f"metrics[{name!r}]"
        if self.is_required(name):
            error = unexpected(None, what, "finite numbers, as a setting uses it", value)
            error.step = step
            if env is not None:
                error.env_index = self.first_env_index + env
            raise error
        warn_once(f"{what}: expected finite numbers, got NaN or infinity, which counts as missing")
