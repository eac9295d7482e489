"""Construction of a tree of dataclasses from plain data, strictly, and the way back.

Fields are bool, int, float, str, Literal, List, Dict, Optional and further such dataclasses. Text
whose field has the metadata `validation.JSON_TEXT` may be given as a section as well.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, is_dataclass
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hyperstate import Versioned
from hyperstate.schema import types as schema

from enn_trainer.config import ron
from enn_trainer.config.help import MAX_PROBLEMS, join_path, unknown_field
from enn_trainer.config.schedules import (
    as_written,
    by_section,
    read_scheduled,
    scheduled_fields,
    settings_of,
)
from enn_trainer.config.validation import Problems
from enn_trainer.errors import ConfigError
from entity_env.short_repr import short_repr

C = TypeVar("C")

MAX_KNOTS = 20_000
"""Positions that all schedules of a configuration have together; fewer where it has long lists."""


def build(cls: type[C], values: object) -> C:
    """Build a tree of dataclasses from a dict.

    Args:
        cls: The dataclass of the whole configuration.
        values: The fields that are given.

    Raises:
        ConfigError: names every problem.
    """
    built: C = _Builder(cls).section(cls, values, "")
    return built


class _Builder:
    """Conversion of values to the types of fields, by their dotted paths.

    Args:
        root: The dataclass of the whole configuration.
    """

    def __init__(self, root: type[Any]) -> None:
        self.root = root
        self.num_unknown = 0
        self.fixed: Mapping[str, str] = getattr(root, "fixed_during_run", dict)()

    def section(self, cls: Any, values: object, path: str) -> Any:
        """Build a dataclass; its path is "" for the whole configuration."""
        if not isinstance(values, dict):
            raise _unexpected(cls, values, path)
        fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
        kinds = get_type_hints(cls)
        built: dict[str, Any] = {}
        with Problems() as problems:
            # Unknown fields, then the known ones in the order of the class.
            for key, value in values.items():
                if key not in fields:
                    self.num_unknown += 1
                    is_listed = self.num_unknown <= MAX_PROBLEMS
                    where = join_path(path, str(key))
                    problems.found.append(unknown_field(self.root, where, value, is_listed))
            for name, field in fields.items():
                kind, where = kinds[name], join_path(path, name)
                with problems.collect():
                    if name in values:
                        value = values[name]
                        if "json_text" in field.metadata and isinstance(value, dict):
                            value = _json_text(value, where)
                        built[name] = self.converted(kind, value, where)
                    elif field.default is MISSING and field.default_factory is MISSING:
                        if not is_dataclass(kind):
                            kind = schema.materialize_type(kind)
                            raise ConfigError(f"{where}: expected {kind}, got nothing")
                        built[name] = self.section(kind, {}, where)
        with _located(cls, path):
            return cls(**built)

    def converted(self, kind: Any, value: Any, path: str) -> Any:
        """Return a value as the type of its field; an int and a float may stand for each other."""
        # Types made of others.
        if kind is not within_optional(kind):
            return None if value is None else self.converted(within_optional(kind), value, path)
        if is_dataclass(kind):
            return self.section(kind, value, path)
        origin, args = get_origin(kind), get_args(kind)
        if origin is list and isinstance(value, list):
            return list(self.converted_items(args[0], dict(enumerate(value)), path).values())
        if origin is dict and isinstance(value, dict):
            for key in value:
                self.converted(args[0], key, f"{path}, key {key!r}")
            return self.converted_items(args[1], value, path)

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
            return read_scheduled(value, kind, path, self.fixed)
        raise _unexpected(kind, value, path)

    def converted_items(self, kind: Any, items: Mapping[Any, Any], path: str) -> dict[Any, Any]:
        """Return the items of a list or dict as the type of all of them."""
        converted: dict[Any, Any] = {}
        with Problems() as problems:
            for key, value in items.items():
                with problems.collect():
                    converted[key] = self.converted(kind, value, f"{path}[{key!r}]")
        return converted


@contextmanager
def _located(cls: Any, path: str) -> Iterator[None]:
    """Put the path of a section in front of the errors of its class."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(*(join_path(path, problem) for problem in error.problems)) from error
    except ValueError as error:
        where = f"{path}." if path else f"{cls.__name__}: "
        raise ConfigError(*(where + problem for problem in str(error).split("; "))) from error


def _json_text(section: dict[Any, Any], path: str) -> str:
    for key in section:
        if not isinstance(key, str):
            raise ConfigError(f"{path}, key {key!r}: expected str, got {key!r}")
    return json.dumps(section, ensure_ascii=False)


def _unexpected(kind: Any, value: object, path: str) -> ConfigError:
    expected = schema.materialize_type(kind)
    return ConfigError(f"{path}: expected {expected}, got {short_repr(value)}")


def within_optional(kind: Any) -> Any:
    """Return T for Optional[T], every other type as it is."""
    args = get_args(kind)
    if get_origin(kind) in (Union, UnionType) and len(args) == 2 and NoneType in args:
        return args[0] if args[1] is NoneType else args[1]
    return kind


def type_of_field(kind: Any, name: str) -> Any:
    """Return the type of a field of a section, or of an item of a dict, None if it has none."""
    section = within_optional(kind)
    if get_origin(section) is dict:
        return get_args(section)[1]
    return get_type_hints(section).get(name) if is_dataclass(section) else None


def as_data(value: Any) -> Any:
    """Return a configuration, or a part of it, as what is written of it; schedules as text."""
    if isinstance(value, list):
        return [as_data(item) for item in value]
    if isinstance(value, dict):
        return {key: as_data(item) for key, item in value.items()}
    if not is_dataclass(value):
        return as_written(value)
    fields = {f.name: as_data(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Versioned):
        fields = {"version": value.version(), **fields}
    return ron.Struct(type(value).__name__, fields)


# Values of schedules


def check_every_knot(config: Any) -> None:
    """Raise if a schedule leads to values at one of its knots that the configuration refuses.

    Between two knots values stay between theirs. Only the sections with schedules and those around
    them are made again for a knot: all of a configuration takes tens of times as long.

    Args:
        config: A tree of dataclasses.

    Raises:
        ConfigError: names the problems and where they are, or there are more than MAX_KNOTS.
    """
    scheduled = scheduled_fields(config)
    schedules = {path: value.schedule for path, value in scheduled.items()}
    knots = {(s.clock, k.position) for s in schedules.values() for k in s.knots}

    # Lists are checked anew for each knot: both may be long, but not together.
    collections = [value for _, value in settings_of(config) if isinstance(value, list | dict)]
    most = MAX_KNOTS * 1000 // max(1000, sum(map(len, collections)))
    if len(knots) > most:
        raise ConfigError(
            f"{next(iter(schedules))}: expected schedules with at most {most} positions in "
            f"all, got {len(knots)}"
        )

    # The values of all schedules of a clock where it shows x.
    problems: dict[str, str] = {}
    for clock, x in sorted(knots):
        values = {p: s.first_pass(x) for p, s in schedules.items() if s.clock == clock}
        then = {p: round(v) if isinstance(scheduled[p], int) else v for p, v in values.items()}
        try:
            _replaced(config, by_section(then), "")
        except ConfigError as error:
            for problem in error.problems:
                problems.setdefault(problem, f"{problem} (where {clock} is {x:.15g})")
    if problems:
        raise ConfigError(*problems.values())


def _replaced(section: Any, changes: Mapping[str, Any], path: str) -> Any:
    """Return a section with other values, those of inner sections in dictionaries."""
    values: dict[str, Any] = {}
    with Problems() as problems:
        for name, value in changes.items():
            with problems.collect():
                inner = isinstance(value, dict)
                where = join_path(path, name)
                values[name] = _replaced(getattr(section, name), value, where) if inner else value
    with _located(type(section), path):
        return dataclasses.replace(section, **values)
