"""From plain data to a tree of dataclasses, strictly.

Everything here works for any tree of dataclasses whose fields are bool, int, float, str, Literal,
List, Dict, Optional and further such dataclasses. Text whose field has the metadata
`config_checks.JSON_TEXT` may be given as a section as well.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, is_dataclass
from functools import reduce
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hyperstate.schema import types as schema

from enn_trainer.errors import ConfigError
from enn_trainer.schedules import read_scheduled, scheduled_fields
from enn_trainer.settings.config_help import UnknownFields, joined
from entity_env.short_repr import short_repr

C = TypeVar("C")

MAX_KNOTS = 20_000
"""Positions that all schedules of a configuration have together; fewer where it has long lists."""


@contextmanager
def collected(problems: list[str]) -> Iterator[None]:
    """Move the problems of a ConfigError into a list and go on."""
    try:
        yield
    except ConfigError as error:
        problems += error.problems


def build(cls: type[C], values: object) -> C:
    """Build a tree of dataclasses from a dict, strictly.

    Args:
        cls: The dataclass of the whole configuration.
        values: What the file and the overrides say about its fields.

    Raises:
        ConfigError: names every problem.
    """
    built: C = _section(cls, values, "", UnknownFields(cls))
    return built


def _section(cls: Any, values: object, path: str, unknown: UnknownFields) -> Any:
    """Build the dataclass at a dotted path, "" for the whole configuration."""
    if not isinstance(values, dict):
        raise ConfigError(_expected(cls, values, path))
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    kinds = get_type_hints(cls)
    problems = [
        unknown.message(joined(path, str(key)), value)
        for key, value in values.items()
        if key not in fields
    ]
    built: dict[str, Any] = {}
    for name, field in fields.items():
        where = joined(path, name)
        with collected(problems):
            if name in values:
                value = values[name]
                if "json_text" in field.metadata and isinstance(value, dict):
                    value = _json_text(value, where)
                built[name] = _converted(kinds[name], value, where, unknown)
            elif field.default is MISSING and field.default_factory is MISSING:
                built[name] = _default(kinds[name], where, unknown)
    if problems:
        raise ConfigError(*problems)
    with _located(cls, path):
        return cls(**built)


@contextmanager
def _located(cls: Any, path: str) -> Iterator[None]:
    """Name the section in the errors of its class."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(*(joined(path, problem) for problem in error.problems)) from error
    except ValueError as error:
        where = f"{path}." if path else f"{cls.__name__}: "
        raise ConfigError(*(where + problem for problem in str(error).split("; "))) from error


def check_every_knot(config: Any) -> None:
    """Raise if a schedule leads to values at one of its knots that the configuration refuses.

    Between two knots values stay between theirs. Only the sections with schedules and those around
    them are made again for a knot: all of a configuration takes tens of times as long.

    Args:
        config: A tree of dataclasses.

    Raises:
        ConfigError: they do, or there are more than MAX_KNOTS.
    """
    scheduled = scheduled_fields(config)
    schedules = {path: value.schedule for path, value in scheduled.items()}
    problems: dict[str, str] = {}
    knots = {(s.clock, k.position) for s in schedules.values() for k in s.knots}
    # Lists are checked anew for each knot: both may be long, but not together.
    most = MAX_KNOTS * 1000 // max(1000, _num_items(config))
    if len(knots) > most:
        raise ConfigError(
            f"{next(iter(schedules))}: expected schedules with at most {most} positions in "
            f"all, got {len(knots)}"
        )
    for clock, x in sorted(knots):
        then: dict[str, Any] = {}
        for path, schedule in schedules.items():
            if schedule.clock == clock:
                *sections, name = path.split(".")
                value = schedule.first_pass(x)
                inside = reduce(lambda section, part: section.setdefault(part, {}), sections, then)
                inside[name] = round(value) if isinstance(scheduled[path], int) else value
        try:
            _replaced(config, then, "")
        except ConfigError as error:
            for problem in error.problems:
                problems.setdefault(problem, f"{problem} (where {clock} is {x:.15g})")
    if problems:
        raise ConfigError(*problems.values())


def _num_items(config: Any) -> int:
    """Return how many items the lists and dictionaries of a tree of dataclasses have."""
    count = 0
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, list | dict):
            count += len(value)
        elif is_dataclass(value):
            count += _num_items(value)
    return count


def _replaced(section: Any, changes: Mapping[str, Any], path: str) -> Any:
    """Return a section with other values, those of inner sections in dictionaries."""
    values: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in changes.items():
        with collected(problems):
            inner = isinstance(value, dict)
            where = joined(path, name)
            values[name] = _replaced(getattr(section, name), value, where) if inner else value
    if problems:
        raise ConfigError(*problems)
    with _located(type(section), path):
        return dataclasses.replace(section, **values)


def _json_text(section: dict[Any, Any], path: str) -> str:
    for key in section:
        if not isinstance(key, str):
            raise ConfigError(f"{path}, key {key!r}: expected str, got {key!r}")
    return json.dumps(section, ensure_ascii=False)


def _default(kind: Any, path: str, unknown: UnknownFields) -> Any:
    if is_dataclass(kind):
        return _section(kind, {}, path, unknown)
    raise ConfigError(f"{path}: expected {_type_name(kind)}, got nothing")


def _converted(kind: Any, value: Any, path: str, unknown: UnknownFields) -> Any:
    """Check a value against the type of its field; int and float stand for each other if equal."""
    if kind is not within_optional(kind):
        return None if value is None else _converted(within_optional(kind), value, path, unknown)
    if is_dataclass(kind):
        return _section(kind, value, path, unknown)
    origin, args = get_origin(kind), get_args(kind)
    if origin is list and isinstance(value, list):
        return list(_converted_items(args[0], dict(enumerate(value)), path, unknown).values())
    if origin is dict and isinstance(value, dict):
        for key in value:
            _converted(args[0], key, f"{path}, key {key!r}", unknown)
        return _converted_items(args[1], value, path, unknown)
    if origin is Literal and any(value == a and type(value) is type(a) for a in args):
        return value
    if kind in (bool, int, float, str) and type(value) is kind:
        return value
    if kind is int and type(value) is float and value.is_integer():
        return int(value)
    if kind is float and type(value) is int and abs(value) < 2**1023:  # beyond, float overflows
        return float(value)
    if kind in (int, float) and isinstance(value, str) and (":" in value or "@" in value):
        fixed: Mapping[str, str] = getattr(unknown.root, "fixed_during_run", dict)()
        return read_scheduled(value, kind, path, fixed)
    raise ConfigError(_expected(kind, value, path))


def _converted_items(
    kind: Any, items: Mapping[Any, Any], path: str, unknown: UnknownFields
) -> dict[Any, Any]:
    converted: dict[Any, Any] = {}
    problems: list[str] = []
    for key, value in items.items():
        with collected(problems):
            converted[key] = _converted(kind, value, f"{path}[{key!r}]", unknown)
    if problems:
        raise ConfigError(*problems)
    return converted


def within_optional(kind: Any) -> Any:
    """T for Optional[T], every other type as it is."""
    args = get_args(kind)
    if get_origin(kind) in (Union, UnionType) and len(args) == 2 and NoneType in args:
        return args[0] if args[1] is NoneType else args[1]
    return kind


def _expected(kind: Any, value: object, path: str) -> str:
    return f"{path}: expected {_type_name(kind)}, got {short_repr(value)}"


def _type_name(kind: Any) -> str:
    return str(schema.materialize_type(kind))
