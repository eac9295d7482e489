"""Schedules of settings, such as `"step: 0.1@0 cos 0.01@1e6"`.

A schedule consists of a clock, which is an attribute of the state, and knots, each value@position.
It is constant before the first knot and after the last. A word between two knots is the shape of
the interpolation, with t from 0 to 1; the default is the previous shape, initially `lin`:

| shape | weight of the first value at t |
| --- | --- |
| `lin` | 1 - t |
| `quad`, `poly(p)` | (1 - t) ** 2, (1 - t) ** p: fast at first if p > 1, fast at last if p < 1 |
| `cos` | (1 + cos(pi * t)) / 2: slow at both ends |
| `exp` | the logarithm of the value is linear |
| `step` | 1: the value jumps at the next knot |

With `repeat` after the last knot, the schedule starts again at the first one.
"""

import dataclasses
import math
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from typing import Any, NamedTuple

from enn_trainer.base.errors import ConfigError
from enn_trainer.config.field_types import join_path
from enn_trainer.config.hyperstate_door import hyperstate_schedule
from enn_trainer.config.validation import Problems

CLOCKS = ("step", "time_used")

_WEIGHTS: Mapping[str, Callable[[float], float]] = {
    "lin": lambda t: 1 - t,
    "cos": lambda t: math.cos(t * math.pi) * 0.5 + 0.5,
    "quad": lambda t: (1 - t) ** 2.0,
    "step": lambda t: 1.0,
}
"""Weight of the first value at t from 0 to 1, by shape."""
_EXP, _POLY = "exp", re.compile(r"poly\((.+)\)")
_SHAPES = f"{', '.join([*_WEIGHTS, _EXP])}, or poly(p) with p > 0"
_CLOCK = re.compile(r"\s*(\w+)\s*:")
_WORD = re.compile(r"\S+")


class Knot(NamedTuple):
    """Value at a position, and the shape of the interpolation from the previous knot."""

    position: float
    value: float
    shape: str


@dataclasses.dataclass(frozen=True)
class Schedule:
    """Value as a function of a clock.

    Attributes:
        text: The parsed text.
        clock: Attribute of the state that is the argument of the function.
        knots: At least one knot, with increasing positions.
        repeats: True if the schedule starts again after the last knot.
    """

    text: str
    clock: str
    knots: tuple[Knot, ...]
    repeats: bool = False

    def value_at(self, x: float) -> float:
        """Return the value at `x` on the clock."""
        first, last = self.knots[0].position, self.knots[-1].position
        if self.repeats and x > first:
            x = first + (x - first) % (last - first)
        return self.first_pass(x)

    def first_pass(self, x: float) -> float:
        """Return the value at `x` on the clock, without repetition."""
        i = bisect_right(self.knots, x, key=lambda knot: knot.position)
        if i in (0, len(self.knots)):
            return self.knots[max(0, i - 1)].value
        before, after = self.knots[i - 1], self.knots[i]
        t = (x - before.position) / (after.position - before.position)
        value = _between(before.value, after.value, t, after.shape)
        low, high = sorted((before.value, after.value))
        return min(max(value, low), high)  # rounding could leave the valid range of the setting


def _between(start: float, end: float, t: float, shape: str) -> float:
    """Interpolate between two values, with t from 0 to 1."""
    if shape == _EXP:
        # start^(1 - t) * end^t
        return math.copysign(abs(start) ** (1 - t) * abs(end) ** t, start)
    left = _WEIGHTS[shape](t) if shape in _WEIGHTS else (1 - t) ** _power(shape)
    return left * start + (1 - left) * end


def _power(shape: str) -> float:
    """Return the p of `poly(p)`; NaN for other shapes."""
    poly = _POLY.fullmatch(shape)
    return _number(poly[1]) if poly else math.nan


def _number(text: str) -> float:
    """Parse a finite number; NaN for any other text."""
    try:
        number = float(text)
    except ValueError:
        return math.nan
    return number if math.isfinite(number) else math.nan


# Parsing


def parse_schedule(text: str, whole: bool = False) -> Schedule:
    """Parse a schedule.

    Args:
        text: A schedule, such as "step: 0.1@0 lin 0.0@100".
        whole: True if the values must be whole numbers.

    Raises:
        ConfigError: the text is not a schedule; the message names the position, from 1, and the
            expected syntax.
    """
    # The clock.
    clock = _CLOCK.match(text)
    if clock is None or clock[1] not in CLOCKS:
        raise _unexpected("a clock, step: or time_used:", _WORD.search(text), text)

    # Knots, with shapes between them.
    knots: list[Knot] = []
    shape, shape_is_open, repeats = "lin", False, False
    for word in _WORD.finditer(text, clock.end()):
        if repeats:
            raise _unexpected("nothing after repeat", word, text)
        if "@" in word[0]:
            knots.append(_knot(word, text, knots[-1] if knots else None, shape, whole))
            shape_is_open = False
        elif not knots or shape_is_open:
            raise _unexpected("value@position, such as 0.1@0", word, text)
        elif word[0] == "repeat":
            if len(knots) == 1:
                raise _unexpected("a second value@position before repeat", word, text)
            repeats = True
        elif word[0] in (*_WEIGHTS, _EXP) or _power(word[0]) > 0:
            shape, shape_is_open = word[0], True
        else:
            raise _unexpected(f"value@position or a shape ({_SHAPES})", word, text)

    # The end of the text.
    if not knots or shape_is_open:
        hint = "" if knots else ", such as 0.1@0 (on a command line a schedule needs quotes)"
        raise _unexpected(f"value@position{hint}", None, text)
    return Schedule(text, clock[1], tuple(knots), repeats)


def _knot(word: re.Match[str], text: str, before: Knot | None, shape: str, whole: bool) -> Knot:
    """Parse a knot that follows `before`, with the shape of the interpolation between them."""
    value, position = (_number(part) for part in word[0].split("@", 1))
    if math.isnan(value) or math.isnan(position):
        raise _unexpected("two finite numbers as value@position", word, text)
    if whole and not value.is_integer():
        raise _unexpected("a whole number as the value", word, text)
    if before is not None and position <= before.position:
        raise _unexpected(f"a position above {before.position:.15g}", word, text)
    if before is not None and shape == _EXP and not _exp_joins(before.value, value):
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
    """Number in a configuration that follows a schedule; equal to its current value.

    Reading a setting returns the current value, a copy of the configuration keeps its schedules,
    and assigning a number to the setting ends its schedule.
    """

    schedule: Schedule

    def __repr__(self) -> str:
        return f"{self} by {self.schedule.text!r}"


class ScheduledFloat(Scheduled, float):
    """Float that follows a schedule."""

    __str__ = float.__repr__


class ScheduledInt(Scheduled, int):
    """Int that follows a schedule, rounded to the nearest integer (halves to even)."""

    __str__ = int.__repr__


def scheduled(schedule: Schedule, kind: type, x: float) -> Scheduled:
    """Create a setting that follows a schedule, with its value at `x` on the clock.

    Args:
        schedule: The schedule.
        kind: int, float, or a subclass of one of them.
        x: Time on the clock of the schedule.
    """
    value = schedule.value_at(x)
    number = ScheduledInt(round(value)) if issubclass(kind, int) else ScheduledFloat(value)
    number.schedule = schedule
    return number


def read_scheduled(text: str, kind: type, path: str, fixed: Mapping[str, str]) -> Scheduled:
    """Parse the schedule of a setting, and return it with its value at the start of a run.

    Args:
        text: The schedule.
        kind: int or float.
        path: Path of the field in the configuration.
        fixed: Reasons why settings cannot change, by the path of a setting or section.

    Raises:
        ConfigError: the text is not a schedule, or the setting cannot follow a schedule.
    """
    for prefix, reason in fixed.items():
        if path == prefix or path.startswith((f"{prefix}.", f"{prefix}[")):
            raise ConfigError(f"expected one number for the whole run, got a schedule: {reason}")
    if "[" in path:
        raise ConfigError("expected a number, got a schedule, which only fields support")
    return scheduled(parse_schedule(text, whole=kind is int), kind, 0.0)


def as_written(value: Any) -> Any:
    """Return the value of a field as in a configuration file: a scheduled value as its schedule."""
    return value.schedule.text if isinstance(value, Scheduled) else value


def settings_of(section: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted paths and values of a tree of dataclasses, sections before their fields."""
    for field in dataclasses.fields(section):
        value, where = getattr(section, field.name), join_path(path, field.name)
        yield where, value
        if dataclasses.is_dataclass(value):
            yield from settings_of(value, where)


def scheduled_fields(config: Any) -> dict[str, Any]:
    """Return the settings in a tree of dataclasses that follow schedules, by dotted path."""
    return {path: value for path, value in settings_of(config) if isinstance(value, Scheduled)}


def by_section(values: Mapping[str, Any]) -> dict[str, Any]:
    """Convert values by dotted path to nested dictionaries by section."""
    nested: dict[str, Any] = {}
    for path, value in values.items():
        *sections, name = path.split(".")
        reduce(lambda inner, section: inner.setdefault(section, {}), sections, nested)[name] = value
    return nested


def follow_schedules(config: Any, state: Any) -> None:
    """Update every setting that follows a schedule to its current value.

    Args:
        config: A tree of dataclasses, changed in place.
        state: Object with the clocks as attributes.
    """
    for path, value in scheduled_fields(config).items():
        *sections, name = path.split(".")
        now = scheduled(value.schedule, type(value), getattr(state, value.schedule.clock))
        setattr(reduce(getattr, sections, config), name, now)


# Schedules of hyperstate, which are stored by section, apart from the configuration


def read_hyperstate_schedules(
    section: Any, schedules: Mapping[str, Any], fixed: Mapping[str, str], path: str = ""
) -> None:
    """Convert the schedules of a configuration that hyperstate loaded to settings."""
    for name, schedule in schedules.items():
        value = getattr(section, name)
        if isinstance(schedule, dict):
            read_hyperstate_schedules(value, schedule, fixed, f"{path}{name}.")
        else:
            text, kind = schedule.unparsed, int if isinstance(value, int) else float
            with Problems() as problems, problems.collect(f"{path}{name}={text!r}: "):
                setattr(section, name, read_scheduled(text, kind, path + name, fixed))


def hyperstate_schedules(config: Any) -> dict[str, Any]:
    """Return the schedules of a configuration in the form of hyperstate, by section."""
    return by_section(
        {
            path: hyperstate_schedule(follow_schedules, value.schedule.text)
            for path, value in scheduled_fields(config).items()
        }
    )


def total_steps(config: Any, frames_per_step: int | None = None) -> int:
    """Return the step at which the run ends: `total_timesteps` rounded up to whole rollouts.

    Args:
        config: the `TrainConfig` of the run.
        frames_per_step: number of frames of each step that are trained on; None for
            `rollout.num_envs`.
    """
    frames = (frames_per_step or config.rollout.num_envs) * config.rollout.steps
    return int(math.ceil(config.total_timesteps / frames) * frames)
