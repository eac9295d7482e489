"""Settings that change during a run, such as `"step: 0.1@0 cos 0.01@1e6"`.

A schedule names a clock, an attribute of the state, and then knots, each one value@position. It is
constant before the first knot and after the last. Between two knots stands the shape of the way
from one to the other, in which t goes from 0 to 1; where none stands, it is the one before, at
first `lin`:

| shape | the part of the difference that is left at t |
| --- | --- |
| `lin` | 1 - t |
| `quad`, `poly(p)` | (1 - t) ** 2, (1 - t) ** p: fast at first if p > 1, fast at last if p < 1 |
| `cos` | (1 + cos(pi * t)) / 2: slow at both ends |
| `exp` | the logarithm of the value is linear |
| `step` | 1: the value jumps at the next knot |

With `repeat` behind the last knot, it begins again with the first one.
"""

from __future__ import annotations

import dataclasses
import math
import re
from bisect import bisect_right
from collections.abc import Mapping
from functools import reduce
from typing import Any, NamedTuple

import hyperstate.schedule

from enn_trainer.errors import ConfigError

CLOCKS = ("step", "time_used")

_POWERS = {"lin": 1.0, "quad": 2.0}
_POLY = re.compile(r"poly\((.+)\)")
_SHAPES = "lin, cos, exp, quad, step, or poly(p) with p > 0"
_CLOCK = re.compile(r"\s*(\w+)\s*:")
_WORD = re.compile(r"\S+")


class Knot(NamedTuple):
    """A value that is taken exactly, and the shape of the way to it from the knot before."""

    position: float
    value: float
    shape: str


@dataclasses.dataclass(frozen=True)
class Schedule:
    """A value as a function of a clock.

    Attributes:
        text: The text of the schedule.
        clock: The attribute of the state that it is a function of.
        knots: At least one, by rising positions.
        repeats: True if it begins again after the last knot.
    """

    text: str
    clock: str
    knots: tuple[Knot, ...]
    repeats: bool = False

    def value_at(self, x: float) -> float:
        """Return the value where the clock shows `x`."""
        first, last = self.knots[0].position, self.knots[-1].position
        if self.repeats and x > first:
            x = first + (x - first) % (last - first)
        return self.first_pass(x)

    def first_pass(self, x: float) -> float:
        """Return the value where the clock shows `x`, if nothing is repeated."""
        i = bisect_right(self.knots, x, key=lambda knot: knot.position)
        if i in (0, len(self.knots)):
            return self.knots[max(0, i - 1)].value
        before, after = self.knots[i - 1], self.knots[i]
        t = (x - before.position) / (after.position - before.position)
        value = _between(before.value, after.value, t, after.shape)
        low, high = sorted((before.value, after.value))
        return min(max(value, low), high)  # rounding could lead out of a setting's range


def _between(start: float, end: float, t: float, shape: str) -> float:
    if shape == "step":
        return start
    if shape == "exp":
        return math.copysign(abs(start) ** (1 - t) * abs(end) ** t, start)
    left = math.cos(t * math.pi) * 0.5 + 0.5 if shape == "cos" else (1 - t) ** _power(shape)
    return left * start + (1 - left) * end


def _power(shape: str) -> float:
    """Return the p of a shape (1 - t) ** p, NaN if it is another one."""
    poly = _POLY.fullmatch(shape)
    return _number(poly[1]) if poly else _POWERS.get(shape, math.nan)


def _number(text: str) -> float:
    """Return the number in a text if it is finite, else NaN."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


# Reading


def parse_schedule(text: str, whole: bool = False) -> Schedule:
    """Read a schedule.

    Args:
        text: Such as "step: 0.1@0 lin 0.0@100".
        whole: The values must be whole numbers.

    Raises:
        ConfigError: what was expected at which character, from 1.
    """
    clock = _CLOCK.match(text)
    if clock is None or clock[1] not in CLOCKS:
        raise _unexpected("a clock, step: or time_used:", _WORD.search(text), text)
    knots: list[Knot] = []
    shape, shape_is_open, repeats = "lin", False, False
    for word in _WORD.finditer(text, clock.end()):
        if repeats:
            raise _unexpected("nothing behind repeat", word, text)
        if "@" in word[0]:
            knots.append(_knot(word, text, knots[-1] if knots else None, shape, whole))
            shape_is_open = False
        elif not knots or shape_is_open:
            raise _unexpected("value@position, such as 0.1@0", word, text)
        elif word[0] == "repeat":
            if len(knots) == 1:
                raise _unexpected("a second value@position before repeat", word, text)
            repeats = True
        elif word[0] in ("cos", "exp", "step") or _power(word[0]) > 0:
            shape, shape_is_open = word[0], True
        else:
            raise _unexpected(f"value@position or a shape ({_SHAPES})", word, text)
    if not knots:
        expected = "value@position, such as 0.1@0 (on a command line a schedule needs quotes)"
        raise _unexpected(expected, None, text)
    if shape_is_open:
        raise _unexpected("value@position", None, text)
    return Schedule(text, clock[1], tuple(knots), repeats)


def _knot(word: re.Match[str], text: str, before: Knot | None, shape: str, whole: bool) -> Knot:
    value, position = (_number(part) for part in word[0].split("@", 1))
    if math.isnan(value) or math.isnan(position):
        raise _unexpected("two finite numbers as value@position", word, text)
    if whole and not value.is_integer():
        raise _unexpected("a whole number as the value", word, text)
    if before is not None and position <= before.position:
        raise _unexpected(f"a position above {before.position:.15g}", word, text)
    if before is not None and shape == "exp" and not _exp_joins(before.value, value):
        expected = f"exp between values on one side of 0, the first being {before.value:.15g}"
        raise _unexpected(expected, word, text)
    return Knot(position, value, shape)


def _exp_joins(start: float, end: float) -> bool:
    return start > 0 < end or start < 0 > end


def _unexpected(expected: str, word: re.Match[str] | None, text: str) -> ConfigError:
    at = len(text) if word is None else word.start()
    got = "the end" if word is None else repr(word[0])
    return ConfigError(f"character {at + 1}: expected {expected}, got {got}")


# Settings that follow schedules


class Scheduled:
    """A number of a configuration that follows a schedule, as which it has the current value.

    So whatever reads a setting reads its current value, a copy of the configuration keeps its
    schedules, and to assign a number to the setting ends its schedule.
    """

    schedule: Schedule

    def __repr__(self) -> str:
        return f"{self} by {self.schedule.text!r}"


class ScheduledFloat(Scheduled, float):
    """A float that follows a schedule."""

    __str__ = float.__repr__


class ScheduledInt(Scheduled, int):
    """An int that follows a schedule, rounded to the nearest one, from halves to the even one."""

    __str__ = int.__repr__


def scheduled(schedule: Schedule, kind: type, x: float) -> Scheduled:
    """Return the setting that follows a schedule, where its clock shows `x`.

    Args:
        schedule: what to follow.
        kind: int, float, or a subclass of one of them.
        x: what the clock shows.
    """
    value = schedule.value_at(x)
    number = ScheduledInt(round(value)) if issubclass(kind, int) else ScheduledFloat(value)
    number.schedule = schedule
    return number


def read_scheduled(text: str, kind: type, path: str, fixed: Mapping[str, str]) -> Scheduled:
    """Return the setting that follows the schedule in a text, at the beginning of a run.

    Args:
        text: the schedule.
        kind: int or float.
        path: of the field in its configuration.
        fixed: why settings cannot change, by their paths or those of their sections.

    Raises:
        ConfigError: the schedule cannot be read, or the setting cannot follow one.
    """
    named = f"{path}={text!r}"
    for prefix, reason in fixed.items():
        if path == prefix or path.startswith((f"{prefix}.", f"{prefix}[")):
            raise ConfigError(
                f"{named}: expected one number for the whole run, got a schedule: {reason}"
            )
    if "[" in path:
        raise ConfigError(
            f"{named}: expected a number, got a schedule, which only a field can have"
        )
    try:
        return scheduled(parse_schedule(text, whole=kind is int), kind, 0.0)
    except ConfigError as error:
        raise ConfigError(*(f"{named}: {problem}" for problem in error.problems)) from None


def as_written(value: Any) -> Any:
    """Return the value of a field as files have it: of a scheduled one, its schedule."""
    return value.schedule.text if isinstance(value, Scheduled) else value


def scheduled_fields(config: Any, path: str = "") -> dict[str, Any]:
    """Return the settings of a tree of dataclasses that follow schedules, by dotted paths."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Scheduled):
            found[path + field.name] = value
        elif dataclasses.is_dataclass(value):
            found |= scheduled_fields(value, f"{path}{field.name}.")
    return found


def follow_schedules(config: Any, state: Any) -> None:
    """Set every setting that follows a schedule to its current value.

    Args:
        config: a tree of dataclasses; it is changed.
        state: has the clocks.
    """
    for path, value in scheduled_fields(config).items():
        *sections, name = path.split(".")
        now = scheduled(value.schedule, type(value), getattr(state, value.schedule.clock))
        setattr(reduce(getattr, sections, config), name, now)


# Schedules as hyperstate keeps them: beside the configuration, by section


def read_hyperstate_schedules(
    section: Any, schedules: Mapping[str, Any], fixed: Mapping[str, str], path: str = ""
) -> None:
    """Let the settings that hyperstate loaded follow the schedules that it keeps beside them."""
    for name, schedule in schedules.items():
        value = getattr(section, name)
        if isinstance(schedule, dict):
            read_hyperstate_schedules(value, schedule, fixed, f"{path}{name}.")
        else:
            kind = int if isinstance(value, int) else float
            setattr(section, name, read_scheduled(schedule.unparsed, kind, path + name, fixed))


def hyperstate_schedules(config: Any) -> dict[str, Any]:
    """Return the schedules of a configuration as hyperstate keeps them, by section."""
    nested: dict[str, Any] = {}
    for path, value in scheduled_fields(config).items():
        *sections, name = path.split(".")
        within = reduce(lambda inner, section: inner.setdefault(section, {}), sections, nested)
        within[name] = hyperstate.schedule.Schedule(follow_schedules, value.schedule.text)
    return nested
