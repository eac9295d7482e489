"""Metrics of evaluation episodes, with confidence intervals."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from enn_trainer.experience.episodes import Episodes, Measured
from enn_trainer.selfplay.elo import compare_sides
from entity_env.arrays import BoolArray, FloatArray, IntArray
from entity_env.names import COMPUTED
from entity_env.spaces import GLOBAL, ObsSpace
from entity_env.vec.finite_metrics import FiniteMetrics
from entity_env.vec.variation import RunningArguments
from entity_env.vec.vec_env import Metric, VecEnv, VecEnvWrapper, VecObs, add_metrics

NO_END = np.iinfo(np.int64).max
"""Quota of an environment without a limit on its episodes."""
SCORE = "score"
"""Metric of the comparison of the sides of a match."""
# 97.5% quantiles for 1 to 29 degrees of freedom: roots of Abramowitz and Stegun, 26.7.3 and 26.7.4.
# fmt: off
_T_975 = (
    12.706204736174676, 4.302652729749459, 3.182446305283706, 2.7764451051977908,
    2.570581835636314, 2.446911851144966, 2.364624251592783, 2.306004135204166,
    2.262157162798204, 2.2281388519862735, 2.200985160091639, 2.1788128296672262,
    2.16036865646279, 2.144786687917804, 2.1314495455597737, 2.1199052992212537,
    2.109815577833316, 2.1009220402410356, 2.093024054408307, 2.0859634472658644,
    2.079613844727679, 2.0738730679040223, 2.068657610419047, 2.063898561628022,
    2.0595385527532963, 2.0555294386428757, 2.0518305164802846, 2.048407141795245,
    2.045229642132704,
)
# fmt: on


class EpisodeResult(NamedTuple):
    """Result of one counted episode.

    Attributes:
        environment: index of the environment.
        episode: index of the episode within its environment, from 0.
        arguments: arguments drawn for the episode.
        metrics: mean of each metric over the episode.
    """

    environment: int
    episode: int
    arguments: Mapping[str, Any]
    metrics: Mapping[str, float]


def quotas(episodes: int | None, counted: BoolArray) -> IntArray:
    """Split a number of episodes evenly over the counted environments.

    Args:
        episodes: total number of episodes; None to count all steps.
        counted: (B,) bool, True for counted environments.

    Returns:
        (B,) int64, episodes per environment, the first ones get the remainder; `NO_END` for all
        steps.
    """
    if episodes is None:
        return np.where(counted, NO_END, 0)
    share, rest = divmod(episodes, int(counted.sum()))
    quota = np.zeros(len(counted), dtype=np.int64)
    quota[counted] = share + (np.arange(counted.sum()) < rest)
    return quota


class EpisodeCounts:
    """Accumulated metrics of the first complete episodes of B environments, or of all steps.

    Args:
        quota: (B,) int64, number of counted episodes per environment; `NO_END` for all steps.
        sides: number of sides of a match.

    Attributes:
        quota, sides: see Args.
        num_ended: (B,) int64, number of finished episodes, counted or not.
        tallies: accumulated values by metric.
        aggregates: metrics that are reported for all environments together.
        played: counted episodes in the order in which they ended; None to discard them.
    """

    def __init__(self, quota: IntArray, sides: int = 1) -> None:
        self.quota, self.sides = quota, sides
        self.num_ended = np.zeros(len(quota), dtype=np.int64)
        self.tallies = defaultdict[str, Tally](partial(Tally, len(quota)))
        self.aggregates: dict[str, Metric] = {}
        self.played: list[EpisodeResult] | None = None

    def is_done(self) -> bool:
        """Return True when every environment has finished its episodes."""
        return bool((self.num_ended >= self.quota).all())

    def progress(self) -> tuple[float, bool]:
        """Return the finished share of the counted episodes, and True if all have ended.

        The share is 0 where all steps count.
        """
        if (self.quota == NO_END).any():
            return 0.0, False
        return self.num_episodes() / max(int(self.quota.sum()), 1), self.is_done()

    def num_missing(self) -> int:
        """Return the number of counted episodes that did not finish; 0 where all steps count."""
        limited = self.quota < NO_END
        return int(np.maximum(self.quota - self.num_ended, 0)[limited].sum())

    def num_episodes(self) -> int:
        """Return the number of finished episodes that count."""
        return int(np.minimum(self.num_ended, self.quota).sum())

    def measured(self, mask: BoolArray | None = None) -> dict[str, Measured]:
        """Return the metrics so far.

        Where all steps count, running episodes count with their steps so far.

        Args:
            mask: (B,) bool, environments to measure; None for all. Aggregate metrics are omitted if
                a mask is passed.
        """
        unlimited = np.flatnonzero(self.quota == NO_END)
        if mask is not None:
            unlimited = unlimited[mask[unlimited]]
            return {name: tally.measured(unlimited, mask) for name, tally in self.tallies.items()}
        shared = {
            name: Measured(m.mean if m.count else math.nan, None, m.min, m.max, m.count)
            for name, m in self.aggregates.items()
        }
        return shared | {name: tally.measured(unlimited) for name, tally in self.tallies.items()}

    def plain(self) -> dict[str, Any]:
        """Return all fields except `played` as plain data, the input of `cat`."""
        tallies = {name: tally.plain() for name, tally in self.tallies.items()}
        return {**vars(self), "tallies": tallies, "played": None}

    @staticmethod
    def cat(parts: Sequence[Mapping[str, Any]]) -> "EpisodeCounts":
        """Concatenate the counts of consecutive environments.

        Args:
            parts: results of `plain`, in the order of the environments.
        """
        quota = np.concatenate([part["quota"] for part in parts])
        counts = EpisodeCounts(quota, parts[0]["sides"])
        counts.num_ended = np.concatenate([part["num_ended"] for part in parts])
        for name in dict.fromkeys(name for part in parts for name in part["tallies"]):
            tallies = [
                part["tallies"].get(name) or Tally(len(part["quota"])).plain() for part in parts
            ]
            counts.tallies[name] = Tally.cat(tallies)
        for part in parts:
            add_metrics(counts.aggregates, part["aggregates"])
        return counts


class EpisodeStatistics(VecEnvWrapper):
    """Wrapper that measures the first complete episodes of each environment, or all steps.

    Metrics are those of `AddMetricsWrapper` and of the environments. Use equal quotas for all
    environments: counting every episode that ends within a number of steps favours short episodes.
    Entities are counted in frames in which agents act. Frames between two episodes
    (`VecObs.padding`) are ignored. Values that are not finite count as missing.

    Args:
        env: B environments.
        quota: (B,) int64, number of counted episodes per environment; `NO_END` for all steps.
        result: metric that compares the sides at the end of a match, for the metric `score`: 1 for
            a win, 1/2 for a draw, 0 for a loss, averaged over the other sides. "episodic_reward",
            or a metric of the last observations; None for no comparison.

    Attributes:
        counts: accumulated metrics.
        finite: filter of the environments' metrics.
        running: arguments of the running episodes; set its `variation` if they vary.
    """

    def __init__(self, env: VecEnv, quota: IntArray, result: str | None = None) -> None:
        super().__init__(env)
        self.running = RunningArguments(len(env), env.sides)
        self.counts = EpisodeCounts(quota, env.sides)
        computed = COMPUTED if result is None else COMPUTED | {SCORE}
        self.finite = FiniteMetrics(computed=computed)
        self._result, self._num_steps = result, 0
        self._return = np.zeros(len(env), dtype=np.float64)
        self._length = np.zeros(len(env), dtype=np.int64)
        self._padding = np.zeros(len(env), dtype=np.bool_)  # of the current frames
        self._entities: dict[str, IntArray] = {}

    def seed(self, seed: int) -> None:
        """Seed the environments."""
        super().seed(seed)
        self.running.seed(seed)

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Start an episode in every environment."""
        self.running.begin()
        self._return[:] = 0
        self._length[:] = 0
        obs = self.env.reset(obs_config)
        self._entities, self._padding = _entities(obs), obs.is_padding
        return obs

    def wait(self) -> VecObs:
        """Return the observations after a step and accumulate their metrics."""
        obs = self.env.wait()
        self.finite.filter(obs, self._length, self._padding)
        self._return += obs.reward
        self._length += ~self._padding
        self._num_steps += 1

        # Count the step where the running episode counts.
        tallies, counts = self.counts.tallies, self.counts.num_ended < self.counts.quota
        counts &= ~self._padding
        counted, ended = np.flatnonzero(counts), np.flatnonzero(counts & obs.done)
        tallies["step"].add(counted, self._length)
        tallies["reward"].add(counted, obs.reward)
        tallies["episodic_reward"].add(ended, self._return)
        tallies["episode_length"].add(ended, self._length)
        for name, lengths in self._entities.items():
            tallies[name].add(counted, lengths)
        for name, rows in obs.env_metrics.items():
            reporting = np.flatnonzero(rows.lengths)
            values = np.zeros(len(obs))
            values[reporting] = rows.values
            tallies[name].add(reporting[counts[reporting]], values)
        if self._result is not None and len(ended):
            tallies[SCORE].add(ended, self._scores(obs, self._result))
        aggregates = {name: m for name, m in obs.metrics.items() if name not in obs.env_metrics}
        add_metrics(self.counts.aggregates, aggregates)

        # Reset the counters where an episode ended.
        if self.counts.played is not None:
            self.counts.played += [self._played(env) for env in ended.tolist()]
        self.running.begin(np.flatnonzero(obs.done[:: self.sides]))
        for tally in tallies.values():
            tally.end_episodes(ended, self._num_steps)
        self.counts.num_ended[obs.done] += 1
        self._return[obs.done] = 0
        self._length[obs.done] = 0
        self._entities, self._padding = _entities(obs), obs.is_padding
        return obs

    def _played(self, env: int) -> EpisodeResult:
        """Return the result of an environment's running episode."""
        match, metrics = env // self.sides, {}
        for name, tally in self.counts.tallies.items():
            count, total = tally.running[:2, env].tolist()
            if count:
                metrics[name] = total / count
        episode, arguments = int(self.running.episode[match]), self.running.arguments[match]
        return EpisodeResult(env, episode, dict(arguments), metrics)

    def _scores(self, obs: VecObs, result: str) -> FloatArray:
        """Return the score of each side of the ended matches, (B,) float64; others are 0.

        Raises:
            InvalidObservation: a side's metric is missing or not finite.
        """
        episodes = Episodes.of(obs)
        metrics = {**episodes.metrics, "episodic_reward": self._return[obs.done]}
        ended = Episodes(episodes.environment, metrics)
        values = ended.results(result, self.sides, "score: ")
        compared = compare_sides(values.reshape(-1, self.sides))
        # A side draws with itself, which does not count.
        scores = np.zeros(len(obs))
        scores[obs.done] = ((compared.sum(axis=2) - 0.5) / (self.sides - 1)).flatten()
        return scores


class Tally:
    """Count, sum, minimum and maximum of one metric per episode.

    Args:
        num_envs: number of environments, B.

    Attributes:
        running: (4, B) float64, statistics of the running episodes.
        over: finished episodes in the order in which they ended: tuples of (episodes,) int64 steps,
            (episodes,) int64 environments and (4, episodes) float64 statistics.
    """

    def __init__(self, num_envs: int) -> None:
        self.running = _nothing(num_envs)
        self.over: list[tuple[IntArray, IntArray, FloatArray]] = []

    def add(self, envs: IntArray, values: npt.NDArray[np.generic]) -> None:
        """Accumulate the values of some environments.

        Args:
            envs: (n,) int64, indices of the environments to count.
            values: (B,), values of all environments.
        """
        count, total, low, high = self.running
        selected = values[envs].astype(np.float64)
        count[envs] += 1
        total[envs] += selected
        low[envs] = np.minimum(low[envs], selected)
        high[envs] = np.maximum(high[envs], selected)

    def end_episodes(self, envs: IntArray, step: int) -> None:
        """Finish the running episodes of some environments after a step."""
        if len(envs):
            self.over.append((np.full(len(envs), step), envs, self.running[:, envs]))
            self.running[:, envs] = _nothing(len(envs))

    def plain(self) -> list[npt.NDArray[Any]]:
        """Return running and finished episodes as plain data, the input of `cat`."""
        none = np.zeros(0, np.int64), np.zeros(0, np.int64), _nothing(0)
        columns = zip(none, *self.over, strict=True)
        return [self.running, *(np.concatenate(each, axis=-1) for each in columns)]

    @staticmethod
    def cat(parts: Sequence[Sequence[npt.NDArray[Any]]]) -> "Tally":
        """Concatenate the tallies of consecutive environments.

        Args:
            parts: results of `plain`, in the order of the environments.
        """
        running, steps, _, over = (
            np.concatenate(each, axis=-1) for each in zip(*parts, strict=True)
        )
        firsts = np.cumsum([0, *(part[0].shape[1] for part in parts)])
        envs = np.concatenate([part[2] + first for part, first in zip(parts, firsts, strict=False)])
        order = np.lexsort((envs, steps))
        tally = Tally(running.shape[1])
        tally.running, tally.over = running, [(steps[order], envs[order], over[:, order])]
        return tally

    def measured(self, running: IntArray, mask: BoolArray | None = None) -> Measured:
        """Return the metric over finished episodes and selected running ones.

        Args:
            running: (n,) int64, environments to include the running episodes of.
            mask: (B,) bool, environments to include the finished episodes of; None for all.
        """
        over = [stats if mask is None else stats[:, mask[envs]] for _, envs, stats in self.over]
        episodes = np.concatenate([*over, self.running[:, running]], axis=1)
        count, total, low, high = episodes[:, episodes[0] > 0]
        if not len(count):
            return Measured(math.nan, None, math.nan, math.nan, 0)
        mean, ci95 = mean_over_episodes(total, count)
        return Measured(mean, ci95, float(low.min()), float(high.max()), int(count.sum()))


def mean_over_episodes(sums: FloatArray, counts: FloatArray) -> tuple[float, float | None]:
    """Return the mean of per-step values and its confidence interval, clustered by episode.

    Values within an episode are correlated, so the interval is that of a ratio of two sums over
    independent episodes. With one value per episode it is the usual t interval.

    Args:
        sums: (k,) float, sum of the values of each episode.
        counts: (k,) float, number of values of each episode, at least 1.

    Returns:
        The mean, and half the width of its 95% confidence interval; None for k = 1.

    Source: Cochran, Sampling Techniques, 3rd edition, 1977, eq. 6.13 (ratio of means).
    """
    k, total = len(sums), counts.sum()
    mean = sums.sum() / total
    if k < 2:
        return float(mean), None
    # Var(mean) = k / (k - 1) * sum_i (sum_i - mean * count_i)^2 / (sum_i count_i)^2
    variance = k / (k - 1) * np.square(sums - mean * counts).sum() / total**2
    return float(mean), float(t_quantile_975(k - 1) * math.sqrt(variance))


def t_quantile_975(df: int) -> float:
    """Return the 97.5% quantile of Student's t distribution with `df` degrees of freedom.

    Source: Abramowitz and Stegun, Handbook of Mathematical Functions, 1964: 26.7.5, which is
    accurate to six digits from 30 degrees of freedom on.
    """
    if df <= len(_T_975):
        return _T_975[df - 1]
    # t = x + g1(x) / df + g2(x) / df^2 + g3(x) / df^3 + g4(x) / df^4
    x = 1.959963984540054  # the 97.5% quantile of the normal distribution
    terms = (
        (x**3 + x) / 4,
        (5 * x**5 + 16 * x**3 + 3 * x) / 96,
        (3 * x**7 + 19 * x**5 + 17 * x**3 - 15 * x) / 384,
        (79 * x**9 + 776 * x**7 + 1482 * x**5 - 1920 * x**3 - 945 * x) / 92160,
    )
    return float(x + sum(term / df ** (i + 1) for i, term in enumerate(terms)))


def with_interval(m: Measured) -> str:
    """Format a mean and its confidence interval, such as `0.93 ± 0.02`."""
    return f"{m.mean:.4g}" if m.ci95 is None else f"{m.mean:.4g} ± {m.ci95:.3g}"


def _nothing(num: int) -> FloatArray:
    """Return initial count, sum, minimum and maximum, (4, num) float64."""
    return np.tile(np.array([[0.0], [0.0], [np.inf], [-np.inf]]), (1, num))


def _entities(obs: VecObs) -> dict[str, IntArray]:
    """Return the number of entities by metric, (B,) each: per type, and in total."""
    counts = {
        f"entity_count/{name}": rows.lengths.astype(np.int64)
        for name, rows in obs.features.items()
        if name != GLOBAL
    }
    total = sum(counts.values(), start=np.zeros(len(obs), dtype=np.int64))
    return {**counts, "entity_count": total}
