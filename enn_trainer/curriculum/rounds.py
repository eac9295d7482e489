"""`Rounds`: the k-th episodes of all environments, for unbiased means over episodes.

Among the episodes finished by some time, short ones are over-represented: long episodes that began
at the same time are still running. A round has one episode of each environment, of any length.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from enn_trainer.base.state_part import SpaceChange, StateDict, StatePart
from enn_trainer.experience.episodes import Episodes
from enn_trainer.experience.varied_envs import lesson_tag
from entity_env.arrays import FloatArray, IntArray
from entity_env.ragged import exclusive_cumsum
from entity_env.vec.vec_env import Metric

Tallies: TypeAlias = dict[str, FloatArray]
"""By metric (R, 4) float64: count, sum, minimum and maximum of the values in each of R rounds."""

ROUNDS = "episode_rounds"
"""Name of the part of a state with the rounds of a run."""
MAX_ROUNDS = 1000
"""Maximal number of incomplete rounds, which bounds their memory: episodes of an environment that
is this far ahead of the slowest one are left out."""
EMPTY = np.array([0.0, 0.0, math.inf, -math.inf])
"""Count, sum, minimum and maximum of no values."""
_ENDINGS = (".mean", ".min", ".max")


@dataclass
class Rounds:
    """Incomplete rounds of episodes; round k has the k-th episode of each environment.

    Attributes:
        first: 0, or -1 to leave out the episodes that are running at the start, among which long
            ones are over-represented.
        ended: (B,) int64, number of finished episodes of each environment in the incomplete rounds;
            empty before the first episode.
        tallies: tallies of R incomplete rounds, the oldest first.
    """

    first: int = 0
    ended: IntArray = field(default_factory=lambda: np.zeros(0, np.int64))
    tallies: Tallies = field(default_factory=dict)

    def __eq__(self, other: object) -> bool:
        """Return True if the plain data are equal; arrays have no truth value."""
        return isinstance(other, Rounds) and self.plain() == other.plain()

    @property
    def late(self) -> list[int]:
        """Environments that delay the oldest incomplete round; [] if no environment finished it."""
        if not len(self.ended) or self.ended.min() == self.ended.max():
            return []
        late: list[int] = np.flatnonzero(self.ended == self.ended.min()).tolist()
        return late

    def add(
        self, environments: IntArray, num_envs: int, metrics: Mapping[str, FloatArray]
    ) -> Tallies:
        """Add episodes, and pop the rounds that they complete.

        If the number of environments changed, counting restarts.

        Args:
            environments: (E,) int64, the environment of each episode, in the order of their ends.
            num_envs: B.
            metrics: (E,) float64 each; NaN for episodes without a value or that are not counted.

        Returns:
            The tallies of the complete rounds, the oldest first.
        """
        if len(self.ended) != num_envs:
            self.ended, self.tallies = np.full(num_envs, self.first, np.int64), {}
        if not len(environments):
            return {}

        # The round of each episode: consecutive in each environment.
        counts = np.bincount(environments, minlength=num_envs)
        by_environment = np.argsort(environments, kind="stable")
        rounds = np.empty(len(environments), np.int64)
        rounds[by_environment] = np.arange(len(rounds)) - np.repeat(
            exclusive_cumsum(counts), counts
        )
        rounds += self.ended[environments]
        self.ended = np.minimum(self.ended + counts, MAX_ROUNDS)

        # Tallies of all rounds; the first are complete, if all environments finished them.
        num_rounds = max(0, int(self.ended.max()))
        in_range = (rounds >= 0) & (rounds < MAX_ROUNDS)
        for name in dict.fromkeys([*self.tallies, *metrics]):
            tally = np.tile(EMPTY, (num_rounds, 1))
            if (previous := self.tallies.get(name)) is not None:
                tally[: len(previous)] = previous
            if (values := metrics.get(name)) is not None:
                counted = in_range & ~np.isnan(values)
                add_values(tally, rounds[counted], values[counted])
            self.tallies[name] = tally
        num_complete = max(0, int(self.ended.min()))
        complete = {name: tally[:num_complete] for name, tally in self.tallies.items()}
        rest = {name: tally[num_complete:] for name, tally in self.tallies.items()}
        self.tallies = {name: tally for name, tally in rest.items() if tally[:, 0].any()}
        self.ended = self.ended - num_complete
        return complete if num_complete else {}

    def plain(self) -> dict[str, Any]:
        """Return the rounds as plain data."""
        tallies = {name: tally.tolist() for name, tally in self.tallies.items()}
        return {"first": self.first, "ended": self.ended.tolist(), "tallies": tallies}

    @staticmethod
    def from_plain(plain: object) -> "Rounds":
        """Create rounds from the result of `plain`.

        Args:
            plain: plain data; None for a save without rounds: running episodes are left out.

        Raises:
            ValueError: the data is invalid.
        """
        if plain is None:
            return Rounds(first=-1)
        try:
            first, ended, tallies = (plain[key] for key in ("first", "ended", "tallies"))  # type: ignore[index]
            counts = np.array(ended, np.int64)
            is_valid = first in (-1, 0) and counts.ndim == 1
            is_valid = is_valid and {*map(type, ended)} <= {int}
            is_valid = is_valid and bool((abs(counts) <= MAX_ROUNDS).all())
            if not is_valid:
                raise ValueError(f"first, ended: expected numbers of rounds, got {ended!r:.80}")
            by_metric, num_rounds = tallies_from_plain(tallies), int(counts.max(initial=0))
            if any(len(tally) != num_rounds for tally in by_metric.values()):
                raise ValueError(f"tallies: expected {num_rounds} rounds each")
            return Rounds(first, counts, by_metric)
        except (LookupError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise ValueError(f"rounds: {error!r:.200}") from None


def add_values(tally: FloatArray, rounds: IntArray, values: FloatArray) -> None:
    """Add values to the tallies of their rounds, in place.

    Args:
        tally: (R, 4) float64.
        rounds: (n,) int64, the round of each value.
        values: (n,) float64.
    """
    tally[:, 0] += np.bincount(rounds, minlength=len(tally))
    tally[:, 1] += np.bincount(rounds, values, minlength=len(tally))
    np.minimum.at(tally[:, 2], rounds, values)
    np.maximum.at(tally[:, 3], rounds, values)


def tallies_from_plain(plain: Mapping[str, Any]) -> Tallies:
    """Return tallies from lists by metric.

    Raises:
        ValueError: the lists are not tallies.
    """
    tallies = {}
    for name, rows in plain.items():
        tally = np.array(rows, np.float64).reshape(-1, 4)
        if type(name) is not str or len(tally) != len(rows) or not (tally[:, 0] >= 0).all():
            raise ValueError(f"{name}: expected counts, sums, minima and maxima, got {rows!r:.80}")
        tallies[name] = tally
    return tallies


def without_lessons(metrics: Mapping[str, FloatArray]) -> dict[str, FloatArray]:
    """Return the metrics of episodes without their lesson numbers."""
    return {name: x for name, x in metrics.items() if not name.startswith(lesson_tag(""))}


def metric_of(tally: FloatArray) -> Metric:
    """Merge the tallies of some rounds: (R, 4) -> Metric."""
    count, total = tally[:, 0].sum(), math.fsum(tally[:, 1])
    low, high = tally[:, 2].min(initial=math.inf), tally[:, 3].max(initial=-math.inf)
    return Metric(int(count), total, float(low), float(high))


def newest_rounds(tally: FloatArray, num_values: int) -> FloatArray:
    """Return the newest rounds with at least `num_values` values in total, or all: (R, 4)."""
    counted = tally[tally[:, 0] > 0]
    counts = np.cumsum(counted[::-1, 0])
    return counted[max(0, len(counted) - 1 - int(np.searchsorted(counts, num_values))) :]


class RunRounds(StatePart):
    """Rounds of all episodes of a run, for stop conditions; a part of its state.

    Attributes:
        rounds: incomplete rounds.
        latest: by tag the mean, minimum and maximum over the newest complete rounds.
        fresh: the same for rounds that the last update completed.
        waited: frames and finished episodes since the update that completed the last round.
        names: episode metrics so far.
        step_metrics: metrics that were also given in the middle of episodes, and therefore are not
            episode metrics.
    """

    is_restored = False

    def __init__(self) -> None:
        self.rounds = Rounds()
        self.latest: dict[str, float] = {}
        self.fresh: dict[str, float] = {}
        self.waited = 0, 0
        self.names = {"episodic_reward", "episode_length"}
        self.step_metrics: set[str] = set()
        self._new_tags: set[str] = set()

    @property
    def tags(self) -> set[str]:
        """Tags of the means, minima and maxima of episode metrics."""
        return {f"{name}{ending}" for name in self.names for ending in _ENDINGS}

    def add(
        self,
        episodes: Episodes,
        metrics: Mapping[str, Metric],
        num_envs: int,
        num_frames: int,
    ) -> None:
        """Add the episodes that ended in an update.

        Args:
            episodes: episodes of all environments.
            metrics: metrics of the rollout; one with more values than episodes is a step metric.
            num_envs: number of environments.
            num_frames: number of frames of the rollout.
        """
        counted = {}
        for name, values in without_lessons(episodes.counted_metrics()).items():
            num_values, logged = int((~np.isnan(values)).sum()), metrics.get(name, Metric())
            if logged.count > num_values and not math.isnan(logged.sum):
                self.step_metrics.add(name)
            elif num_values:
                counted[name] = values
        self.names = (self.names | counted.keys()) - self.step_metrics
        complete = self.rounds.add(episodes.environment, num_envs, counted)
        frames, ended = self.waited
        self.waited = frames + num_frames, ended + len(episodes.environment)
        self.waited = (0, 0) if complete else self.waited
        self.fresh = {}
        for name, tally in complete.items():
            metric = metric_of(tally)
            if metric.count and name in self.names:
                numbers = metric.mean, metric.min, metric.max
                self.fresh |= {f"{name}{end}": x for end, x in zip(_ENDINGS, numbers, strict=True)}
        self.latest |= self.fresh
        self._new_tags.update(self.fresh)

    def pop_fresh(self) -> frozenset[str]:
        """Return the tags with a new value since the last call."""
        fresh, self._new_tags = frozenset(self._new_tags), set()
        return fresh & self.tags

    def over_rounds(
        self, metrics: Mapping[str, float], round_metrics: Mapping[str, float]
    ) -> dict[str, float]:
        """Replace episode metrics by their values over rounds; all are by tag."""
        tags = self.tags
        retained = {tag: value for tag, value in metrics.items() if tag not in tags}
        return {**retained, **{tag: round_metrics[tag] for tag in tags if tag in round_metrics}}

    def state_dict(self) -> dict[str, Any]:
        """Return plain data; empty before the first episode has ended."""
        if not len(self.rounds.ended):
            return {}
        names, step_metrics = sorted(self.names), sorted(self.step_metrics)
        return {
            "rounds": self.rounds.plain(),
            "latest": dict(self.latest),
            "names": names,
            "of_steps": step_metrics,
            "waited": [*self.waited],
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Replace the state.

        Raises:
            ValueError: an entry is invalid; the message names it.
        """
        part = RunRounds()
        if state:
            part.rounds = Rounds.from_plain(state.get("rounds"))
            latest, waited = state.get("latest"), state.get("waited")
            names = [state.get("names"), state.get("of_steps")]
            if not isinstance(waited, list) or [*map(type, waited)] != [int, int]:
                raise ValueError(f"waited: expected two numbers, got {waited!r:.80}")
            if not isinstance(latest, dict) or not {*map(type, latest.values())} <= {float}:
                raise ValueError(f"latest: expected numbers by tag, got {latest!r:.80}")
            if not all(isinstance(one, list) and {*map(type, one)} <= {str} for one in names):
                raise ValueError(f"names, of_steps: expected lists of names, got {names!r:.80}")
            part.names, part.step_metrics = {*state["names"]}, {*state["of_steps"]}
            part.latest, part.waited = dict(latest), (waited[0], waited[1])
        vars(self).update(vars(part))

    def evolve(self, state: StateDict, change: SpaceChange) -> StateDict:
        """Return an empty state if the environment changed, as counting restarts then."""
        return dict(state) if change.is_same_world else {}
