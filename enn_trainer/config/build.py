"""Strict conversion between plain data and a tree of dataclasses.

Fields are bool, int, float, str, Literal, List, Dict, Optional and further such dataclasses. A text
field with the metadata `validation.JSON_TEXT` also accepts a section.
"""

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, is_dataclass
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from enn_trainer.base.errors import ConfigError
from enn_trainer.config import ron
from enn_trainer.config.field_types import join_path, strip_optional, type_text
from enn_trainer.config.help import MAX_PROBLEMS, unknown_field
from enn_trainer.config.schedules import Scheduled, by_section, read_scheduled, settings_of
from enn_trainer.config.validation import Problems
from enn_trainer.config.versioned import Versioned
from entity_env.errors import short_repr
from entity_env.observation import OMIT_EMPTY

C = TypeVar("C")

MAX_KNOTS = 20_000
"""Largest number of positions of all schedules together; smaller for configurations with long
lists."""


def build(cls: type[C], values: object) -> C:
    """Build a tree of dataclasses from a dict.

    Args:
        cls: The dataclass of the whole configuration.
        values: Values of fields; missing fields get their defaults.

    Raises:
        ConfigError: lists all problems.
    """
    with _Builder(cls) as builder:
        built: C = builder.section(cls, values, "")
    return built


class _Builder(Problems):
    """Converter of values to the types of fields, with dotted paths for messages.

    A value that cannot be converted becomes None, and adds a problem.

    Args:
        root: The dataclass of the whole configuration.
    """

    def __init__(self, root: type[Any]) -> None:
        super().__init__()
        self.root = root
        self.fixed: Mapping[str, str] = getattr(root, "fixed_during_run", dict)()

    def section(self, cls: Any, values: object, path: str) -> Any:
        """Build a dataclass; the path of the whole configuration is ""."""
        if not isinstance(values, dict):
            return self.unexpected(cls, values, path)
        fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
        kinds = get_type_hints(cls)
        built: dict[str, Any] = {}
        num_problems = len(self.messages)

        # Unknown fields, then the fields in the order of the class.
        for key, value in values.items():
            if key not in fields:
                where, with_nearest = join_path(path, str(key)), len(self.messages) < MAX_PROBLEMS
                self.messages.append(unknown_field(self.root, where, value, with_nearest))
        for name, field in fields.items():
            kind, where = kinds[name], join_path(path, name)
            if name in values:
                value = values[name]
                if "json_text" in field.metadata and isinstance(value, dict):
                    self.check_keys(str, value, where)
                    value = json.dumps(value, ensure_ascii=False)
                built[name] = self.converted(kind, value, where)
            elif field.default is MISSING and field.default_factory is MISSING:
                if is_dataclass(kind):
                    built[name] = self.section(kind, {}, where)
                else:
                    self.messages.append(f"{where}: expected {type_text(kind)}, got nothing")
        if len(self.messages) == num_problems:
            with _prefix_errors(cls, path, self):
                return cls(**built)
        return None

    def converted(self, kind: Any, value: Any, path: str) -> Any:
        """Convert a value to the type of its field; ints and whole floats are interchangeable."""
        # Optional, dataclasses and containers.
        if kind is not strip_optional(kind):
            return None if value is None else self.converted(strip_optional(kind), value, path)
        if is_dataclass(kind):
            return self.section(kind, value, path)
        origin, args = get_origin(kind), get_args(kind)
        if origin is list and isinstance(value, list):
            return [self.converted(args[0], item, f"{path}[{i}]") for i, item in enumerate(value)]
        if origin is dict and isinstance(value, dict):
            self.check_keys(args[0], value, path)
            return {k: self.converted(args[1], v, f"{path}[{k!r}]") for k, v in value.items()}

        # Single values.
        if origin is Literal and any(value == a and type(value) is type(a) for a in args):
            return value
        if kind in (bool, int, float, str) and type(value) is kind:
            return value
        if kind is int and type(value) is float and value.is_integer():
            return int(value)
        if kind is float and type(value) is int and abs(value) < 2**1023:  # else it overflows
            return float(value)
        if kind in (int, float) and isinstance(value, str) and (":" in value or "@" in value):
            with self.collect(f"{path}={value!r}: "):
                return read_scheduled(value, kind, path, self.fixed)
            return None
        return self.unexpected(kind, value, path)

    def check_keys(self, kind: Any, items: Mapping[Any, Any], path: str) -> None:
        """Check the type of the keys of a dictionary."""
        for key in items:
            self.converted(kind, key, f"{path}, key {key!r}")

    def unexpected(self, kind: Any, value: object, path: str) -> None:
        """Add a problem: a value of another type than expected."""
        self.messages.append(f"{path}: expected {type_text(kind)}, got {short_repr(value)}")


_PROBLEM = re.compile("; (?=[^;:]+: expected )")
"""Separator of problems in a message; hints follow a semicolon too."""


@contextmanager
def _prefix_errors(cls: Any, path: str, problems: Problems) -> Iterator[None]:
    """Collect the errors of a class, prefixed with the path of its section."""
    try:
        with problems.collect(f"{path}." if path else ""):
            yield
    except ValueError as error:
        where = f"{path}." if path else f"{cls.__name__}: "
        problems.messages += [where + problem for problem in _PROBLEM.split(str(error))]


def type_of_field(kind: Any, name: str) -> Any:
    """Return the type of a field of a section, or of an item of a dict; None if it is unknown."""
    section = strip_optional(kind)
    if get_origin(section) is dict:
        return get_args(section)[1]
    return get_type_hints(section).get(name) if is_dataclass(section) else None


def as_data(value: Any) -> Any:
    """Convert a configuration, or a part of it, to plain data; schedules become text."""
    if isinstance(value, list):
        return [as_data(item) for item in value]
    if isinstance(value, dict):
        return {key: as_data(item) for key, item in value.items()}
    if not is_dataclass(value):
        return value.schedule.text if isinstance(value, Scheduled) else value
    fields = {
        f.name: as_data(getattr(value, f.name))
        for f in dataclasses.fields(value)
        if OMIT_EMPTY not in f.metadata or getattr(value, f.name)
    }
    if isinstance(value, Versioned):
        fields = {"version": value.version(), **fields}
    return ron.Struct(type(value).__name__, fields)


# Values of schedules


def check_every_knot(config: Any) -> None:
    """Check that the configuration is valid at every knot of its schedules.

    Values between two knots are bounded by the values of the knots. For each knot only sections
    with schedules and their parents are built: a whole configuration takes tens of times as long.

    Args:
        config: A tree of dataclasses.

    Raises:
        ConfigError: lists the problems and their positions, or there are more than MAX_KNOTS.
    """
    settings = dict(settings_of(config))
    scheduled = {path: value for path, value in settings.items() if isinstance(value, Scheduled)}
    schedules = {path: value.schedule for path, value in scheduled.items()}
    knots = {(s.clock, k.position) for s in schedules.values() for k in s.knots}

    # Each knot validates all lists again: the product of both lengths is limited.
    collections = [value for value in settings.values() if isinstance(value, list | dict)]
    most = MAX_KNOTS * 1000 // max(1000, sum(map(len, collections)))
    if len(knots) > most:
        raise ConfigError(
            f"{next(iter(schedules))}: expected schedules with at most {most} positions in "
            f"total, got {len(knots)}"
        )

    # The values of all schedules of a clock at x.
    problems: dict[str, str] = {}
    for clock, x in sorted(knots):
        values = {p: s.first_pass(x) for p, s in schedules.items() if s.clock == clock}
        rounded = {p: round(v) if isinstance(scheduled[p], int) else v for p, v in values.items()}
        at_knot = Problems()
        _replace_values(config, by_section(rounded), "", at_knot)
        for problem in at_knot.messages:
            problems.setdefault(problem, f"{problem} (where {clock} is {x:.15g})")
    if problems:
        raise ConfigError(*problems.values())


def _replace_values(section: Any, changes: Mapping[str, Any], path: str, problems: Problems) -> Any:
    """Replace values of a section; nested dictionaries hold the values of inner sections."""
    num_before = len(problems.messages)
    values = {
        name: _replace_values(getattr(section, name), value, join_path(path, name), problems)
        if isinstance(value, dict)
        else value
        for name, value in changes.items()
    }
    if len(problems.messages) == num_before:
        with _prefix_errors(type(section), path, problems):
            return dataclasses.replace(section, **values)
    return None
