"""Stop conditions, which end a run before its last step: bounds, plateaus and combinations.

    >>> from enn_trainer.stop_conditions import AtLeast, Plateaus
    >>> stop = AtLeast("eval/episodic_reward.mean", 0.99) | Plateaus("losses/entropy")

`Trainer.run(stop)` ends the run once the condition is met. Conditions are evaluated after every
update and every evaluation. Their memory is part of the state of the run, so that a resumed run
ends at the same step as an uninterrupted one.
"""

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, NamedTuple, TypeAlias

from enn_trainer.base.errors import ConfigError
from entity_env.errors import short_repr

Memory: TypeAlias = dict[str, Any]
"""Memory of conditions: plain data by the `repr` of the condition."""


class Now(NamedTuple):
    """Progress and metrics of a run, as input of conditions.

    Attributes:
        step: frames so far, over all restarts.
        time_used: seconds of training, over all restarts.
        metrics: the latest value of every tag since this process started.
        fresh: tags with a new value since conditions were last evaluated.
        number: number of earlier evaluations of the conditions, over all restarts.
    """

    step: int
    time_used: float
    metrics: Mapping[str, float]
    fresh: frozenset[str]
    number: int


class Condition:
    """Condition that can end a run. `&` and `|` combine conditions."""

    def is_met(self, now: Now, memory: Memory) -> bool:
        """Return True if the run is to end.

        Args:
            now: progress and metrics of the run.
            memory: memory of all conditions of the run; may be changed.
        """
        raise NotImplementedError

    def keys(self) -> Iterator[str]:
        """Yield the tags that the condition reads."""
        return iter(())

    def __and__(self, other: "Condition") -> "Condition":
        return Both(self, other)

    def __or__(self, other: "Condition") -> "Condition":
        return Either(self, other)


@dataclass(frozen=True)
class _Pair(Condition):
    """Combination of two conditions. Both are always evaluated, as they may update their memory."""

    first: Condition
    second: Condition

    def keys(self) -> Iterator[str]:
        """Yield the tags of both conditions."""
        yield from (*self.first.keys(), *self.second.keys())


class Both(_Pair):
    """Condition that is met while both of two conditions are met."""

    def is_met(self, now: Now, memory: Memory) -> bool:
        """Return True if both are met."""
        return all([self.first.is_met(now, memory), self.second.is_met(now, memory)])

    def __str__(self) -> str:
        return f"{self.first} and {self.second}"


class Either(_Pair):
    """Condition that is met while at least one of two conditions is met."""

    def is_met(self, now: Now, memory: Memory) -> bool:
        """Return True if one is met."""
        return any([self.first.is_met(now, memory), self.second.is_met(now, memory)])

    def __str__(self) -> str:
        return f"{self.first} or {self.second}"


@dataclass(frozen=True)
class Steps(Condition):
    """Condition that is met after a number of frames, over all restarts."""

    steps: int

    def is_met(self, now: Now, memory: Memory) -> bool:
        """Return True after `steps` frames."""
        return now.step >= self.steps

    def __str__(self) -> str:
        return f"step >= {self.steps}"


@dataclass(frozen=True)
class Seconds(Condition):
    """Condition that is met after a training time in seconds, over all restarts."""

    seconds: float

    def is_met(self, now: Now, memory: Memory) -> bool:
        """Return True after `seconds` of training."""
        return now.time_used >= self.seconds

    def __str__(self) -> str:
        return f"{self.seconds:g} seconds of training"


@dataclass(frozen=True)
class _MetricCondition(Condition):
    """Condition on the latest value of a tag such as `eval/episodic_reward.mean`."""

    key: str

    def keys(self) -> Iterator[str]:
        """Yield the tag."""
        yield self.key

    def is_met(self, now: Now, memory: Memory) -> bool:
        """Return `holds` of the latest value; False if there is none."""
        return self.key in now.metrics and self.holds(now.metrics[self.key])

    def holds(self, value: float) -> bool:
        """Return True if the condition is met for a value of the metric."""
        raise NotImplementedError


@dataclass(frozen=True)
class AtLeast(_MetricCondition):
    """Condition that is met when a metric reaches a lower bound."""

    bound: float

    def holds(self, value: float) -> bool:
        """Return True if the value is at least the bound."""
        return value >= self.bound

    def __str__(self) -> str:
        return f"{self.key} >= {self.bound:g}"


@dataclass(frozen=True)
class AtMost(_MetricCondition):
    """Condition that is met when a metric falls to an upper bound."""

    bound: float

    def holds(self, value: float) -> bool:
        """Return True if the value is at most the bound."""
        return value <= self.bound

    def __str__(self) -> str:
        return f"{self.key} <= {self.bound:g}"


@dataclass(frozen=True)
class NotFinite(_MetricCondition):
    """Condition that is met when a metric is NaN or infinite."""

    def holds(self, value: float) -> bool:
        """Return True for NaN and infinity."""
        return not math.isfinite(value)

    def __str__(self) -> str:
        return f"{self.key} is not finite"


@dataclass(frozen=True)
class _PatienceCondition(_MetricCondition):
    """Condition that is met by `patience` consecutive values of a metric after a reference value.

    A NaN or infinite value restarts the count.

    Attributes:
        patience: number of consecutive values.
    """

    patience: int = 5

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ValueError(f"patience: expected at least 1, got {self.patience}")

    def is_met(self, now: Now, memory: Memory) -> bool:
        """Count a new value, if there is one, and return True after `patience` values."""
        seen = memory.setdefault(repr(self), {"reference": None, "count": 0, "number": -1})
        # Once per evaluation, even if the condition occurs twice in a combination.
        if self.key in now.fresh and now.number > seen["number"]:
            value, before, seen["number"] = now.metrics[self.key], seen["reference"], now.number
            finite = before is not None and math.isfinite(before) and math.isfinite(value)
            if not finite or self.is_new_reference(value, before):
                seen["reference"], seen["count"] = value, 0
            else:
                seen["count"] += 1
        return bool(seen["count"] >= self.patience)

    def is_new_reference(self, value: float, reference: float) -> bool:
        """Return True if a value replaces the reference and restarts the count."""
        raise NotImplementedError


@dataclass(frozen=True)
class Plateaus(_PatienceCondition):
    """Condition that is met after `patience` values within a relative tolerance of the first."""

    rtol: float = 1e-3

    def is_new_reference(self, value: float, reference: float) -> bool:
        """Return True outside the tolerance: `|value - reference| > rtol * |reference|`."""
        return abs(value - reference) > self.rtol * abs(reference)

    def __str__(self) -> str:
        return f"{self.key} stays within {self.rtol:g} for {self.patience} values"


@dataclass(frozen=True)
class StopsRising(_PatienceCondition):
    """Condition that is met after `patience` values without a new maximum of a metric."""

    def is_new_reference(self, value: float, reference: float) -> bool:
        """Return True for a new maximum."""
        return value > reference

    def __str__(self) -> str:
        return f"{self.key} does not rise for {self.patience} values"


@dataclass(frozen=True)
class StopsFalling(_PatienceCondition):
    """Condition that is met after `patience` values without a new minimum of a metric."""

    def is_new_reference(self, value: float, reference: float) -> bool:
        """Return True for a new minimum."""
        return value < reference

    def __str__(self) -> str:
        return f"{self.key} does not fall for {self.patience} values"


def is_read(tags: Collection[str], prefix: str, name: str) -> bool:
    """Return True if a metric is among some tags.

    Args:
        tags: tags such as `eval/win.mean`.
        prefix: prefix of the tags of the metric, such as `eval/`.
        name: name of the metric, such as `win`.
    """
    return any(tag.rpartition(".")[0] == f"{prefix}{name}" for tag in tags)


def any_of(conditions: Sequence[Condition]) -> Condition | None:
    """Return the disjunction of conditions; None if there are none."""
    nodes = list(conditions)
    while len(nodes) > 1:  # a balanced tree, as a long chain would exceed the recursion limit
        nodes = [reduce(or_, nodes[i : i + 2]) for i in range(0, len(nodes), 2)]
    return nodes[0] if nodes else None


_BOUND = re.compile(r"(?P<key>\S+?)\s*(?P<relation>>=|<=)\s*(?P<bound>\S+)")


Bound: TypeAlias = AtLeast | AtMost


def read_bound(text: str, field: str) -> Bound:
    """Parse a condition of the form `eval/episodic_reward.mean >= 0.99`.

    Raises:
        ConfigError: the text does not have this form; the message names `field`.
    """
    match = _BOUND.fullmatch(text.strip())
    try:
        bound = float(match["bound"]) if match else math.nan
    except ValueError:
        bound = math.nan
    if match is None or math.isnan(bound):
        raise ConfigError(
            f"{field}: expected a metric and a bound, as in "
            f"'eval/episodic_reward.mean >= 0.99', got {short_repr(text)}"
        )
    return (AtLeast if match["relation"] == ">=" else AtMost)(match["key"], bound)
