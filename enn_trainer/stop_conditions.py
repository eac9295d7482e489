"""When a run ends before its last step: bounds, plateaus, and what is made of them.

    trainer.run(stop=AtLeast("eval/episodic_reward.mean", 0.99) | Plateaus("losses/entropy"))

A condition is asked after every update and every evaluation. What it remembers is part of the
run's state, so that a resumed run ends where one that went straight on would.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, NamedTuple, TypeAlias

from enn_trainer.errors import ConfigError
from entity_env.short_repr import short_repr

Memory: TypeAlias = dict[str, Any]
"""What conditions remember: plain data, by the text of the condition."""


class Now(NamedTuple):
    """What a condition looks at.

    Attributes:
        step: frames so far, over all restarts.
        time_used: seconds of training, over all restarts.
        metrics: the newest value of every tag since this process began.
        fresh: the tags whose values are new since conditions were last asked.
        number: how often conditions were asked before, over all restarts.
    """

    step: int
    time_used: float
    metrics: Mapping[str, float]
    fresh: frozenset[str]
    number: int


class Condition:
    """Something that can end a run. `&` and `|` combine conditions."""

    def is_met(self, now: Now, memory: Memory) -> bool:
        """Whether the run shall end.

        Args:
            now: what is known.
            memory: of all conditions of the run; it may be changed.
        """
        raise NotImplementedError

    def keys(self) -> Iterator[str]:
        """The tags that it looks at."""
        return iter(())

    def __and__(self, other: "Condition") -> "Condition":
        return Both(self, other)

    def __or__(self, other: "Condition") -> "Condition":
        return Either(self, other)


@dataclass(frozen=True)
class Both(Condition):
    """Two conditions are met at the same time."""

    one: Condition
    other: Condition

    def is_met(self, now: Now, memory: Memory) -> bool:
        """Asks both always, as they may remember what they see."""
        return all([self.one.is_met(now, memory), self.other.is_met(now, memory)])

    def keys(self) -> Iterator[str]:
        """Those of both."""
        yield from (*self.one.keys(), *self.other.keys())

    def __str__(self) -> str:
        return f"{self.one} and {self.other}"


@dataclass(frozen=True)
class Either(Condition):
    """One of two conditions is met."""

    one: Condition
    other: Condition

    def is_met(self, now: Now, memory: Memory) -> bool:
        """Asks both always, as they may remember what they see."""
        return any([self.one.is_met(now, memory), self.other.is_met(now, memory)])

    def keys(self) -> Iterator[str]:
        """Those of both."""
        yield from (*self.one.keys(), *self.other.keys())

    def __str__(self) -> str:
        return f"{self.one} or {self.other}"


@dataclass(frozen=True)
class Steps(Condition):
    """The run has so many frames, over all restarts."""

    steps: int

    def is_met(self, now: Now, memory: Memory) -> bool:
        """Whether it has."""
        return now.step >= self.steps

    def __str__(self) -> str:
        return f"step >= {self.steps}"


@dataclass(frozen=True)
class Seconds(Condition):
    """The run trained for so many seconds, over all restarts."""

    seconds: float

    def is_met(self, now: Now, memory: Memory) -> bool:
        """Whether it did."""
        return now.time_used >= self.seconds

    def __str__(self) -> str:
        return f"{self.seconds:g} seconds of training"


@dataclass(frozen=True)
class _OfMetric(Condition):
    """A condition that looks at a tag such as `eval/episodic_reward.mean`."""

    key: str

    def keys(self) -> Iterator[str]:
        """The one it looks at."""
        yield self.key

    def is_met(self, now: Now, memory: Memory) -> bool:
        """As `holds` says of its value, once there is one."""
        return self.key in now.metrics and self.holds(now.metrics[self.key])

    def holds(self, value: float) -> bool:
        """Whether a value of the tag ends the run."""
        raise NotImplementedError


@dataclass(frozen=True)
class AtLeast(_OfMetric):
    """A metric is a bound or more."""

    bound: float

    def holds(self, value: float) -> bool:
        """Whether it is."""
        return value >= self.bound

    def __str__(self) -> str:
        return f"{self.key} >= {self.bound:g}"


@dataclass(frozen=True)
class AtMost(_OfMetric):
    """A metric is a bound or less."""

    bound: float

    def holds(self, value: float) -> bool:
        """Whether it is."""
        return value <= self.bound

    def __str__(self) -> str:
        return f"{self.key} <= {self.bound:g}"


@dataclass(frozen=True)
class NotFinite(_OfMetric):
    """A metric is infinite or no number."""

    def holds(self, value: float) -> bool:
        """Whether it is."""
        return not math.isfinite(value)

    def __str__(self) -> str:
        return f"{self.key} is not finite"


@dataclass(frozen=True)
class _OverTime(_OfMetric):
    """A condition that looks at the values of a metric one after the other.

    It begins anew at a value that is infinite or no number.

    Attributes:
        patience: how many values in a row it takes.
    """

    patience: int = 5

    def __post_init__(self) -> None:
        if self.patience < 1:
            raise ValueError(f"patience: expected at least 1, got {self.patience}")

    def is_met(self, now: Now, memory: Memory) -> bool:
        """Looks at a new value, if there is one."""
        seen = memory.setdefault(repr(self), {"reference": None, "count": 0, "number": -1})
        # Not twice, if the condition is part of another one twice.
        if self.key in now.fresh and now.number > seen["number"]:
            value, before, seen["number"] = now.metrics[self.key], seen["reference"], now.number
            finite = before is not None and math.isfinite(before) and math.isfinite(value)
            if not finite or self.begins_anew(value, before):
                seen["reference"], seen["count"] = value, 0
            else:
                seen["count"] += 1
        return bool(seen["count"] >= self.patience)

    def begins_anew(self, value: float, reference: float) -> bool:
        """Whether a value is counted from, rather than counted."""
        raise NotImplementedError


@dataclass(frozen=True)
class Plateaus(_OverTime):
    """A metric stays where it is: so many values in a row within a share of the one before them."""

    rtol: float = 1e-3

    def begins_anew(self, value: float, reference: float) -> bool:
        """Whether it is elsewhere."""
        return abs(value - reference) > self.rtol * abs(reference)

    def __str__(self) -> str:
        return f"{self.key} stays within {self.rtol:g} for {self.patience} values"


@dataclass(frozen=True)
class StopsRising(_OverTime):
    """A metric has had no new maximum for so many values."""

    def begins_anew(self, value: float, reference: float) -> bool:
        """Whether it is a new maximum."""
        return value > reference

    def __str__(self) -> str:
        return f"{self.key} does not rise for {self.patience} values"


@dataclass(frozen=True)
class StopsFalling(_OverTime):
    """A metric has had no new minimum for so many values."""

    def begins_anew(self, value: float, reference: float) -> bool:
        """Whether it is a new minimum."""
        return value < reference

    def __str__(self) -> str:
        return f"{self.key} does not fall for {self.patience} values"


def any_of(conditions: Sequence[Condition]) -> Condition | None:
    """Return a condition that is met when any of `conditions` is, or None if there are none."""
    found = list(conditions)
    while len(found) > 1:  # pairs of pairs, as a long chain would reach the limit of recursion
        found = [reduce(or_, found[i : i + 2]) for i in range(0, len(found), 2)]
    return found[0] if found else None


_BOUND = re.compile(r"(?P<key>\S+?)\s*(?P<relation>>=|<=)\s*(?P<bound>\S+)")


def read_bound(text: str, field: str) -> Condition:
    """A condition in the form `eval/episodic_reward.mean >= 0.99`.

    Raises:
        ConfigError: it is not in this form; names `field`.
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
