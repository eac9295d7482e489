"""What evaluations measure: metrics of episodes, with confidence intervals."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from enn_trainer.evaluation.student_t import t_quantile_975
from entity_env.spaces import GLOBAL, ObsSpace
from entity_env.vec_env import Metric, VecEnv, VecEnvWrapper, VecObs, add_metrics

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
NO_END = np.iinfo(np.int64).max
"""A number of episodes that is never reached."""


@dataclass(frozen=True)
class Measured:
    """One metric of one suite.

    Attributes:
        mean: of all values; NaN without any.
        ci95: half the width of the 95% confidence interval of the mean, over episodes; None where
            fewer than two episodes gave values, or it is not known which episode gave which.
        min: the smallest value.
        max: the largest one.
        count: how many values there are.
    """

    mean: float
    ci95: float | None
    min: float
    max: float
    count: int


def quotas(episodes: int, counted: npt.NDArray[np.bool_]) -> Ints:
    """How many episodes of each environment count.

    Args:
        episodes: in all.
        counted: (B,) bool, the environments that count at all.

    Returns:
        (B,) int64 that add up to `episodes`, equal but for a rest that the first ones get.
    """
    share, rest = divmod(episodes, int(counted.sum()))
    quota = np.zeros(len(counted), dtype=np.int64)
    quota[counted] = share + (np.arange(counted.sum()) < rest)
    return quota


class EpisodeStatistics(VecEnvWrapper):
    """Measures the first whole episodes of environments, or all that happens in them.

    The metrics are those of `AddMetricsWrapper` and of the environments. Whatever ends within a
    number of steps are mostly short episodes, so as many of each environment should count. The
    numbers of entities are those of the frames in which somebody acted.

    Args:
        env: B environments.
        quota: (B,) int64, how many episodes of each count; `NO_END` for everything that happens.
    """

    def __init__(self, env: VecEnv, quota: Ints) -> None:
        super().__init__(env)
        self.quota = quota
        self.num_ended = np.zeros(len(env), dtype=np.int64)
        self._return = np.zeros(len(env), dtype=np.float64)
        self._length = np.zeros(len(env), dtype=np.int64)
        self._entities: dict[str, Ints] = {}
        self._tallies: dict[str, _Tally] = {}
        self._of_all: dict[str, Metric] = {}

    def is_done(self) -> bool:
        """Whether every environment had its episodes."""
        return bool((self.num_ended >= self.quota).all())

    def num_missing(self) -> int:
        """How many of the episodes that count are not over; 0 where everything counts."""
        limited = self.quota < NO_END
        return int(np.maximum(self.quota - self.num_ended, 0)[limited].sum())

    def num_episodes(self) -> int:
        """How many of the episodes that count are over."""
        return int(np.minimum(self.num_ended, self.quota).sum())

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Begin an episode everywhere."""
        self._return[:] = 0
        self._length[:] = 0
        obs = self.env.reset(obs_config)
        self._entities = _entities(obs)
        return obs

    def wait(self) -> VecObs:
        """What is shown after a step."""
        obs = self.env.wait()
        self._return += obs.reward
        self._length += 1
        counts = self.num_ended < self.quota
        everyone, ended = np.flatnonzero(counts), np.flatnonzero(counts & obs.done)
        self._add("step", everyone, self._length)
        self._add("reward", everyone, obs.reward)
        self._add("episodic_reward", ended, self._return)
        self._add("episode_length", ended, self._length)
        for name, lengths in self._entities.items():
            self._add(name, everyone, lengths)
        for name, rows in obs.env_metrics.items():
            given = np.flatnonzero(rows.lengths)
            values = np.zeros(len(obs))
            values[given] = rows.values
            self._add(name, given[counts[given]], values)
        others = {name: m for name, m in obs.metrics.items() if name not in obs.env_metrics}
        add_metrics(self._of_all, others)
        for tally in self._tallies.values():
            tally.end_episodes(ended)
        self.num_ended[obs.done] += 1
        self._return[obs.done] = 0
        self._length[obs.done] = 0
        self._entities = _entities(obs)
        return obs

    def measured(self) -> dict[str, Measured]:
        """The metrics so far.

        Where everything counts, episodes that go on count with what they had.
        """
        unlimited = np.flatnonzero(self.quota == NO_END)
        found = {
            name: Measured(m.mean if m.count else math.nan, None, m.min, m.max, m.count)
            for name, m in self._of_all.items()
        }
        for name, tally in self._tallies.items():
            found[name] = tally.measured(unlimited)
        return found

    def of_episodes(self, name: str) -> Floats:
        """(episodes,) the mean of each whole episode's values of a metric, as these ended."""
        count, total, _, _ = np.concatenate(self._tallies[name].over, axis=1)
        means: Floats = total[count > 0] / count[count > 0]
        return means

    def _add(self, name: str, envs: Ints, values: npt.NDArray[np.generic]) -> None:
        if name not in self._tallies:
            self._tallies[name] = _Tally(len(self))
        self._tallies[name].add(envs, values[envs].astype(np.float64))


class _Tally:
    """The values of one metric, put together by episode: count, sum, smallest and largest."""

    def __init__(self, num_envs: int) -> None:
        self.running = _nothing(num_envs)  # (4, B), of the running episodes
        self.over: list[Floats] = []  # (4, episodes) each

    def add(self, envs: Ints, values: Floats) -> None:
        count, total, low, high = self.running
        count[envs] += 1
        total[envs] += values
        low[envs] = np.minimum(low[envs], values)
        high[envs] = np.maximum(high[envs], values)

    def end_episodes(self, envs: Ints) -> None:
        if len(envs):
            self.over.append(self.running[:, envs])
            self.running[:, envs] = _nothing(len(envs))

    def measured(self, running: Ints) -> Measured:
        """All of it, with the running episodes of some environments."""
        episodes = np.concatenate([*self.over, self.running[:, running]], axis=1)
        count, total, low, high = episodes[:, episodes[0] > 0]
        if not len(count):
            return Measured(math.nan, None, math.nan, math.nan, 0)
        mean, ci95 = mean_over_episodes(total, count)
        return Measured(mean, ci95, float(low.min()), float(high.max()), int(count.sum()))


def mean_over_episodes(sums: Floats, counts: Floats) -> tuple[float, float | None]:
    """The mean of values that come in episodes, and how far it may be off.

    Values of one episode resemble each other, so the interval is that of a ratio of two sums over
    independent episodes; where every episode gave one value it is the usual t interval.

    Args:
        sums: (k,) float, the sum of the values of each episode.
        counts: (k,) float, how many these are, at least 1.

    Returns:
        The mean, and half the width of its 95% confidence interval; None for k = 1.

    Source: Cochran, Sampling Techniques, 3rd edition, 1977, eq. 6.13 (ratio of means).
    """
    k, total = len(sums), counts.sum()
    mean = sums.sum() / total
    if k < 2:
        return float(mean), None
    variance = k / (k - 1) * np.square(sums - mean * counts).sum() / total**2
    return float(mean), float(t_quantile_975(k - 1) * math.sqrt(variance))


def eval_scalars(suites: Mapping[str, Mapping[str, Measured]]) -> dict[str, float]:
    """The scalars of evaluations: `eval/<suite>/<metric>.mean`, `.ci95`, `.min`, `.max`, `.count`.

    The unnamed suite is left out of the name. A metric that counted nothing has only its count.
    """
    scalars: dict[str, float] = {}
    for suite, metrics in suites.items():
        for name, m in metrics.items():
            tag = f"eval/{suite}/{name}" if suite else f"eval/{name}"
            if m.count:
                scalars |= {f"{tag}.mean": m.mean, f"{tag}.min": m.min, f"{tag}.max": m.max}
                if m.ci95 is not None:
                    scalars[f"{tag}.ci95"] = m.ci95
            scalars[f"{tag}.count"] = float(m.count)
    return scalars


def in_words(metrics: Mapping[str, Measured]) -> str:
    """Means and intervals in one line."""
    return "  ".join(f"{name} {with_interval(m)}" for name, m in metrics.items() if m.count)


def with_interval(m: Measured) -> str:
    """A mean and its interval, such as `0.93 ± 0.02`."""
    return f"{m.mean:.4g}" if m.ci95 is None else f"{m.mean:.4g} ± {m.ci95:.3g}"


def _nothing(num: int) -> Floats:
    """Count, sum, smallest and largest of no values, for each of some episodes."""
    return np.tile(np.array([[0.0], [0.0], [np.inf], [-np.inf]]), (1, num))


def _entities(obs: VecObs) -> dict[str, Ints]:
    """(B,) the numbers of entities of each type and of all, by the name of the metric."""
    found = {
        f"entity_count/{name}": rows.lengths.astype(np.int64)
        for name, rows in obs.features.items()
        if name != GLOBAL
    }
    total = np.zeros(len(obs), dtype=np.int64)
    for lengths in found.values():
        total = total + lengths
    return {**found, "entity_count": total}
