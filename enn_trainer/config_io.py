"""Configurations in and out: RON files, upgrades, overrides, strict building, help.

Everything here works for any tree of dataclasses whose fields are bool, int, float, str, Literal,
List, Dict, Optional and further such dataclasses.
"""

from __future__ import annotations

import copy
import dataclasses
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, is_dataclass
from functools import reduce
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from hyperstate import Versioned
from hyperstate.schema import types as schema
from hyperstate.schema.rewrite_rule import WEAK_REF, RewriteRule

from enn_trainer import ron
from enn_trainer.config_help import hps_info, joined, shown, unknown_field
from enn_trainer.errors import ConfigError, RonError
from enn_trainer.schedules import as_written, read_scheduled, scheduled_fields

__all__ = ["dump_config", "hps_info", "load_config"]

C = TypeVar("C")

_BOOLS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


def load_config(
    cls: type[C], path: Path | None, overrides: Sequence[str] = (), text: str | None = None
) -> C:
    """Read a configuration, upgrade it, apply overrides, and build it.

    Sections that are dataclasses without a default are built from their own defaults where they
    are absent; optional sections appear once an override names one of their fields. A number may be
    a schedule, see `enn_trainer.schedules`; what the class says in `fixed_during_run` may not.

    Args:
        cls: The dataclass to build.
        path: The RON file; None starts from the defaults.
        overrides: Assignments such as "optim.lr=0.1", applied in this order.
        text: The content of the file, for a caller who has read it already.

    Returns:
        An instance of `cls`.

    Raises:
        ConfigError: the file cannot be read or is of another version, or there are unknown fields,
            missing values or values of a wrong type; names all of them.
    """
    values = {} if path is None and text is None else _read(cls, path, text)
    problems: list[str] = []
    for override in overrides:
        with _collected(problems):
            _apply_override(cls, values, override)
    with _collected(problems):
        config: C = _build(cls, values, "", cls)
        _check_every_knot(cls, values, config)
    if problems:
        raise ConfigError(*problems)
    return config


def dump_config(config: Any) -> str:
    """Write a configuration as RON that `load_config` reads back as the same configuration."""
    return ron.dumps(_as_ron(config)) + "\n"


# Reading and upgrading


def _read(cls: type[Any], path: Path | None, text: str | None) -> dict[str, Any]:
    where = "the configuration" if path is None else str(path)
    try:
        if text is None:
            text = path.read_text("utf-8") if path is not None else ""
        values: Any = ron.loads(text)
    except OSError as error:
        raise ConfigError(f"{where}: {error.strerror}") from error
    except (RonError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: expected {cls.__name__}(...), got {shown(values)}")
    if issubclass(cls, Versioned):
        values = _upgraded(cls, values, where)
        _settle(cls, values)
    settled: dict[str, Any] = values
    return settled


def _upgraded(cls: type[Versioned], values: dict[str, Any], where: str) -> dict[str, Any]:
    """Apply the rules of every version from the file's own to the current one."""
    version = values.pop("version", None)
    if type(version) is not int:
        raise ConfigError(
            f"{where}: version: expected the number of the version that the file was written for, "
            f"at present {cls.version()}, got {shown(version)}"
        )
    if not cls.minimum_version() <= version <= cls.version():
        raise ConfigError(
            f"{where}: version: expected {cls.minimum_version()} to {cls.version()}, the versions "
            f"of {cls.__name__} that this program reads, got {version}"
        )
    rules = cls.upgrade_rules()
    for rule in (rule for step in range(version, cls.version()) for rule in rules.get(step, [])):
        try:
            values = _applied(rule, values)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: upgrade from version {version}: {error}") from error
    return values


def _applied(rule: RewriteRule, values: dict[str, Any]) -> dict[str, Any]:
    """Apply one rule of hyperstate, around two of its defects.

    It fails on a section that is None or no section at all, where there is nothing to upgrade; and
    a second rule for a field makes a section that the file leaves out look like one that it has.
    """
    field_path: Sequence[str] = getattr(rule, "field", getattr(rule, "old_field", ()))
    section = values
    for name in field_path[:-1]:
        section = section.get(name, {})
        if not isinstance(section, dict):
            return values
    weak_sections = list(_weak_sections(values))
    upgraded: dict[str, Any] = rule.apply(values)
    for weak in weak_sections:
        weak[WEAK_REF] = True
    return upgraded


def _weak_sections(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Every section that the file leaves out and that holds old defaults only."""
    if WEAK_REF in values:
        yield values
    for value in values.values():
        if isinstance(value, dict):
            yield from _weak_sections(value)


def _settle(cls: Any, values: dict[str, Any]) -> None:
    """Keep the old defaults of absent sections that are required, drop the optional ones."""
    kinds = get_type_hints(cls)
    for name, value in list(values.items()):
        kind = kinds.get(name)
        if not isinstance(value, dict):
            continue
        if WEAK_REF in value and not is_dataclass(kind):
            del values[name]
            continue
        value.pop(WEAK_REF, None)
        section = _within_optional(kind)
        if is_dataclass(section):
            _settle(section, value)


# Overrides


def _apply_override(cls: type[Any], values: dict[str, Any], override: str) -> None:
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"{override!r}: expected field=value or section.field=value")
    kind = _kind_at(cls, key)
    if kind is None:
        raise ConfigError(unknown_field(cls, key, text))
    *parents, last = key.split(".")
    section = values
    for name in parents:
        if section.get(name) is None:
            section[name] = {}
        section = section[name]
        if not isinstance(section, dict):
            return  # Building the section reports what stands in its place.
    section[last] = _parsed(kind, text, key)


def _kind_at(cls: type[Any], key: str) -> Any:
    """The type of the field at a dotted path, None if there is none."""
    kind: Any = cls
    for name in key.split("."):
        section = _within_optional(kind)
        if get_origin(section) is dict:
            kind = get_args(section)[1]  # any name may be given
        else:
            kind = get_type_hints(section).get(name) if is_dataclass(section) else None
    return kind


def _parsed(kind: Any, text: str, key: str) -> Any:
    """The value that a text on the command line means for a field of this type."""
    bare = text.strip()
    if kind is not _within_optional(kind):
        return None if bare in ("None", "none") else _parsed(_within_optional(kind), text, key)
    if kind is bool:
        return _BOOLS.get(bare.lower(), bare)
    quoted = len(bare) >= 2 and bare[0] == bare[-1] == '"'
    if kind is str and not quoted:
        return text
    try:
        return ron.loads(bare)
    except RonError as error:
        if kind in (int, float) or get_origin(kind) is Literal:
            return bare  # Building says what was expected better than the reader of RON does.
        raise ConfigError(f"{key}={shown(bare)}: {error}") from error


# Building


@contextmanager
def _collected(problems: list[str]) -> Iterator[None]:
    """Move the problems of a ConfigError into a list and go on."""
    try:
        yield
    except ConfigError as error:
        problems += error.problems


def _build(cls: Any, values: object, path: str, root: type[Any]) -> Any:
    """Build a dataclass from a dict, strictly.

    Args:
        cls: The dataclass.
        values: What the file and the overrides say about its fields.
        path: The dotted path of this section, "" for the whole configuration.
        root: The class of the whole configuration, in which nearest names are looked for.

    Raises:
        ConfigError: names every problem of this section and those inside it.
    """
    if not isinstance(values, dict):
        raise ConfigError(_expected(cls, values, path))
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    kinds = get_type_hints(cls)
    problems = [
        unknown_field(root, joined(path, str(key)), value)
        for key, value in values.items()
        if key not in fields
    ]
    built: dict[str, Any] = {}
    for name, field in fields.items():
        where = joined(path, name)
        with _collected(problems):
            if name in values:
                built[name] = _converted(kinds[name], values[name], where, root)
            elif field.default is MISSING and field.default_factory is MISSING:
                built[name] = _default(kinds[name], where, root)
    if problems:
        raise ConfigError(*problems)
    try:
        return cls(**built)
    except ConfigError as error:
        raise ConfigError(*(joined(path, problem) for problem in error.problems)) from error
    except ValueError as error:
        where = f"{path}." if path else f"{cls.__name__}: "
        raise ConfigError(*(where + problem for problem in str(error).split("; "))) from error


def _check_every_knot(cls: type[Any], values: dict[str, Any], config: Any) -> None:
    """Build the configuration of every knot of its schedules, and so check what they lead to.

    Between two knots values stay between theirs.
    """
    scheduled = scheduled_fields(config)
    schedules = {path: value.schedule for path, value in scheduled.items()}
    problems: dict[str, str] = {}
    for clock, x in sorted({(s.clock, k.position) for s in schedules.values() for k in s.knots}):
        then = copy.deepcopy(values)
        for path, schedule in schedules.items():
            if schedule.clock == clock:
                *sections, name = path.split(".")
                value = schedule.first_pass(x)
                whole = isinstance(scheduled[path], int)
                reduce(operator.getitem, sections, then)[name] = round(value) if whole else value
        try:
            _build(cls, then, "", cls)
        except ConfigError as error:
            for problem in error.problems:
                problems.setdefault(problem, f"{problem} (where {clock} is {x:.15g})")
    if problems:
        raise ConfigError(*problems.values())


def _default(kind: Any, path: str, root: type[Any]) -> Any:
    if is_dataclass(kind):
        return _build(kind, {}, path, root)
    raise ConfigError(f"{path}: expected {_type_name(kind)}, got nothing")


def _converted(kind: Any, value: Any, path: str, root: type[Any]) -> Any:
    """Check a value against the type of its field; int and float stand for each other if equal."""
    if kind is not _within_optional(kind):
        return None if value is None else _converted(_within_optional(kind), value, path, root)
    if is_dataclass(kind):
        return _build(kind, value, path, root)
    origin, args = get_origin(kind), get_args(kind)
    if origin is list and isinstance(value, list):
        return list(_converted_items(args[0], dict(enumerate(value)), path, root).values())
    if origin is dict and isinstance(value, dict):
        for key in value:
            _converted(args[0], key, f"{path}, key {key!r}", root)
        return _converted_items(args[1], value, path, root)
    if origin is Literal and any(value == a and type(value) is type(a) for a in args):
        return value
    if kind in (bool, int, float, str) and type(value) is kind:
        return value
    if kind is int and type(value) is float and value.is_integer():
        return int(value)
    if kind is float and type(value) is int and abs(value) < 2**1023:  # beyond, float overflows
        return float(value)
    if kind in (int, float) and isinstance(value, str) and (":" in value or "@" in value):
        fixed: Mapping[str, str] = getattr(root, "fixed_during_run", dict)()
        return read_scheduled(value, kind, path, fixed)
    raise ConfigError(_expected(kind, value, path))


def _converted_items(
    kind: Any, items: Mapping[Any, Any], path: str, root: type[Any]
) -> dict[Any, Any]:
    converted: dict[Any, Any] = {}
    problems: list[str] = []
    for key, value in items.items():
        with _collected(problems):
            converted[key] = _converted(kind, value, f"{path}[{key!r}]", root)
    if problems:
        raise ConfigError(*problems)
    return converted


def _within_optional(kind: Any) -> Any:
    """T for Optional[T], every other type as it is."""
    args = get_args(kind)
    if get_origin(kind) in (Union, UnionType) and len(args) == 2 and NoneType in args:
        return args[0] if args[1] is NoneType else args[1]
    return kind


def _expected(kind: Any, value: object, path: str) -> str:
    return f"{path}: expected {_type_name(kind)}, got {shown(value)}"


def _type_name(kind: Any) -> str:
    return str(schema.materialize_type(kind))


# Writing


def _as_ron(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_ron(item) for item in value]
    if isinstance(value, dict):
        return {key: _as_ron(item) for key, item in value.items()}
    if not is_dataclass(value):
        return as_written(value)
    fields = {f.name: _as_ron(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Versioned):
        fields = {"version": value.version(), **fields}
    return ron.Struct(type(value).__name__, fields)
