"""Loading of configurations, with the source of each value.

In increasing precedence: defaults, a file, environment variables, overrides of the command line.
"""

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_origin, get_type_hints

from enn_trainer.base.errors import ConfigError, RonError
from enn_trainer.config import ron
from enn_trainer.config.build import as_data, build, check_every_knot, type_of_field
from enn_trainer.config.field_types import strip_optional
from enn_trainer.config.formats import parse, read_file
from enn_trainer.config.help import (
    hps_info,
    listed,
    matching_settings,
    setting_types,
    unknown_field,
)
from enn_trainer.config.rewrite_rules import WEAK_REF, is_absent, rules_since
from enn_trainer.config.schedules import Scheduled, settings_of
from enn_trainer.config.validation import Problems
from enn_trainer.config.versioned import Versioned
from entity_env.errors import short_repr

__all__ = ["dump_config", "hps_info", "load_config"]

C = TypeVar("C")
Names: TypeAlias = tuple[str, ...]
"""Path of a value: names of fields and keys of dicts, which may contain dots."""

PREFIX = "ENN_"

DEFAULT = "default"
COMMAND_LINE = "command line"
ENVIRONMENT = "environment variable "
FILE = "file "
"""Sources of values; the last two are prefixes of a name."""

_PATH = re.compile(r"[\w.]+")
_BOOLS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


class Sources(dict[Names, str]):
    """Sources of values, by their paths."""

    def note(self, path: Names, value: Any, source: str) -> None:
        """Set the source of all values at and below a path."""
        for old in [old for old in self if old[: len(path)] == path]:
            del self[old]
        self.update((leaf, source) for leaf, _ in leaves(value, path))

    def forget_defaults(self, config: Any) -> None:
        """Set the source of all values that are equal to defaults, and not explicit, to DEFAULT."""
        try:
            default = type(config)()
        except TypeError:  # it has fields without a default
            return
        defaults = dict(leaves(parse(dump_config(default))))
        for leaf, value in leaves(parse(dump_config(config))):
            if leaf in self and defaults.get(leaf) == value and not self.is_explicit(leaf):
                del self[leaf]

    def of(self, path: str) -> str:
        """Return the source of the field at a dotted path, or of the first value in it."""
        return next(self._within(tuple(path.split("."))), DEFAULT)

    def is_explicit(self, path: Names) -> bool:
        """Return whether the user set all values at and below a path, by typing or in a file.

        Defaults and values of a checkpoint are not explicit.
        """
        sources = list(self._within(path))
        explicit = (COMMAND_LINE, ENVIRONMENT, FILE)
        return bool(sources) and all(source.startswith(explicit) for source in sources)

    def with_source(self, problem: str) -> str:
        """Append the environment variable that a problem comes from, if any."""
        path = _PATH.match(problem)
        source = self.of(path[0]) if path else ""
        return f"{problem} (from {source})" if source.startswith(ENVIRONMENT) else problem

    def _within(self, path: Names) -> Iterator[str]:
        return (source for leaf, source in self.items() if leaf[: len(path)] == path)


def leaves(value: Any, path: Names = ()) -> Iterator[tuple[Names, Any]]:
    """Yield the paths and values of all leaves; an empty section is a leaf."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, str(key)))
    else:
        yield path, value


def load_config(
    cls: type[C], path: Path | None, overrides: Sequence[str] = (), text: str | None = None
) -> C:
    """Read a configuration, upgrade it, apply overrides, and build it.

    Missing sections are built from the defaults of their dataclass; an optional section is created
    if an override names one of its fields. A number may be a schedule, see
    `enn_trainer.config.schedules`, unless it is in `fixed_during_run` of the class.

    Args:
        cls: The dataclass to build.
        path: The file, in the format of its suffix; None starts from the defaults.
        overrides: Assignments such as "optim.lr=0.1", applied in order.
        text: RON text instead of a file.

    Returns:
        An instance of `cls`.

    Raises:
        ConfigError: the file cannot be read or has an unsupported version, or there are unknown
            fields, missing values or values of a wrong type; lists the first MAX_PROBLEMS.
    """
    return load_with_sources(cls, path, overrides, text)[0]


def load_with_sources(
    cls: type[C],
    path: Path | None,
    overrides: Sequence[str] = (),
    text: str | None = None,
    environment: Mapping[str, str] | None = None,
    text_source: str = "the configuration",
) -> tuple[C, Sources]:
    """Load a configuration like `load_config`, and return the source of each value as well.

    Args:
        cls: The dataclass to build.
        path: The file; None starts from the defaults.
        overrides: Assignments of the command line.
        text: RON text instead of a file.
        environment: Environment variables; a name with the prefix `ENN_` is an assignment, with
            less precedence than `overrides`.
        text_source: Name of the text for messages.

    Raises:
        ConfigError: see `load_config`.
    """
    # The text or file, upgraded to the current version.
    sources = Sources()
    values: dict[str, Any] = {}
    if text is not None:
        where = source = text_source
        with Problems() as problems, problems.collect(f"{text_source}: "):
            raw = parse(text)
    elif path is not None:
        where, source, raw = str(path), f"{FILE}{path}", read_file(path)
    if text is not None or path is not None:
        values = upgraded(cls, raw, where)
        before = dict(leaves(raw))
        for leaf, value in leaves(values):
            is_unchanged = leaf in before and before[leaf] == value
            version = "" if is_unchanged else f", upgraded from version {before.get(('version',))}"
            sources[leaf] = source + version

    # Overrides and construction; all problems are one error.
    typed = [(COMMAND_LINE, override) for override in overrides]
    with Problems() as problems:
        for source, override in [*_environment_overrides(cls, environment or {}), *typed]:
            with problems.collect("" if source == COMMAND_LINE else f"{source}: "):
                _apply_override(cls, values, override, sources, source)
        try:
            _apply_following(cls, values)
            config = build(cls, values)
            check_every_knot(config)
        except ConfigError as error:
            problems.messages += map(sources.with_source, listed(error.problems))
    return config, sources


def dump_config(config: Any) -> str:
    """Format a configuration as RON, for `load_config`."""
    return ron.dumps(as_data(config)) + "\n"


def show_config(config: Any, sources: Sources) -> str:
    """Format a table of all values of a configuration with their sources, by section."""
    rows = []
    for path, value in settings_of(config):
        is_section = is_dataclass(value)
        label = "  " * path.count(".") + path.rpartition(".")[2]
        mark = " (schedule)" if isinstance(value, Scheduled) else ""
        source = "" if is_section else sources.of(path) + mark
        rows.append((label, "" if is_section else ron.in_one_line(as_data(value)), source))
    widths = [min(40, max(map(len, column))) for column in zip(*rows, strict=True)]
    return "\n".join(f"{a:{widths[0]}}  {b:{widths[1]}}  {c}".rstrip() for a, b, c in rows)


# Upgrades


def upgraded(cls: type[Any], values: Any, where: str) -> dict[str, Any]:
    """Upgrade the values of a file to the current version, without validation.

    Args:
        cls: The class of the configuration.
        values: Values of the file with their version; not modified.
        where: Name of the file, for messages.

    Raises:
        ConfigError: the version is missing or unsupported, or a rule rejects a value.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: expected {cls.__name__}(...), got {short_repr(values)}")
    if not issubclass(cls, Versioned):
        return values
    changed: dict[str, Any] = copy.deepcopy(values)
    version = changed.pop("version", None)
    if type(version) is not int:
        raise ConfigError(
            f"{where}: version: expected the version number of the file format, currently "
            f"{cls.version()}, got {short_repr(version)}"
        )
    if not cls.minimum_version() <= version <= cls.version():
        raise ConfigError(
            f"{where}: version: expected {cls.minimum_version()} to {cls.version()}, the "
            f"supported versions of {cls.__name__}, got {version}"
        )
    for rule in rules_since(cls, version):
        try:
            changed = rule.apply(changed)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: upgrade from version {version}: {error}") from error
    _drop_absent(cls, changed)
    return changed


def _drop_absent(cls: Any, values: dict[str, Any]) -> None:
    """Remove absent sections, except for old defaults of required sections."""
    kinds = get_type_hints(cls)
    for name, value in list(values.items()):
        section = strip_optional(kinds.get(name))
        if isinstance(value, dict) and is_dataclass(section):
            _drop_absent(section, value)
        is_required = section is kinds.get(name) and is_dataclass(section)
        if is_absent(value):
            del value[WEAK_REF]
            if not (value and is_required):
                del values[name]


def _apply_following(cls: Any, values: dict[str, Any]) -> None:
    """Set missing settings to the values of the settings that they follow, see `following`."""
    for path, followed in getattr(cls, "following", dict)().items():
        section, value = (_section_at(values, names.split(".")[:-1]) for names in (path, followed))
        name, key = path.rpartition(".")[2], followed.rpartition(".")[2]
        if section is not None and value is not None and key in value:
            section.setdefault(name, value[key])


def _section_at(values: Any, names: Sequence[str]) -> dict[str, Any] | None:
    """Return a section of values, or None if it is missing."""
    for name in names:
        values = values.get(name) if isinstance(values, dict) else None
    return values if isinstance(values, dict) else None


# Overrides


def _environment_overrides(cls: Any, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the sources and overrides of environment variables, such as ENN_OPTIM__LR=0.003.

    Names of fields are in upper case; keys of dicts are case-sensitive.
    """
    for name, value in sorted(environment.items()):  # a section before its fields
        if not name.startswith(PREFIX):
            continue
        kind, path = cls, []
        for part in name.removeprefix(PREFIX).split("__"):
            is_item = get_origin(strip_optional(kind)) is dict
            path.append(part if is_item else part.lower())
            kind = type_of_field(kind, path[-1])
        yield f"{ENVIRONMENT}{name}", f"{'.'.join(path)}={value}"


def as_overrides(cls: type[Any], values: Mapping[str, object]) -> list[str]:
    """Convert settings of Python to assignments, for `load_config`.

    Args:
        cls: The dataclass of the configuration.
        values: Values by path, or by the last part of a path if that is unique. A section, such as
            `net`, may be a dataclass or a dict.

    Raises:
        ConfigError: lists the names that are unknown or ambiguous, or stand for a setting that has
            a value already, and the values that a configuration cannot have.
    """
    kinds = setting_types(cls)
    assigned: dict[str, str] = {}
    with Problems() as problems:
        for name, value in values.items():
            with problems.collect():
                path = _path_of_setting(cls, kinds, name, value)
                if path in assigned:
                    raise ConfigError(f"{name}: expected one value of {path}, got two")
                assigned[path] = _as_text(_type_at(cls, path), value, name)
    return [f"{path}={text}" for path, text in assigned.items()]


def _path_of_setting(cls: type[Any], kinds: Mapping[str, Any], name: str, value: object) -> str:
    if _type_at(cls, name) is not None:
        return name
    paths = matching_settings(name, kinds)
    if not paths:
        raise ConfigError(unknown_field(cls, name, value))
    if len(paths) > 1:
        several = " or ".join(f"{path!r}" for path in paths)
        raise ConfigError(f"{name}: expected settings={{{several}: ...}}, got an ambiguous name")
    return paths[0]


def _as_text(kind: Any, value: object, name: str) -> str:
    """Format a value of Python as the text of an override."""
    if strip_optional(kind) is str and isinstance(value, Mapping):  # JSON, such as env.kwargs
        value = json.dumps(value)
    try:
        return ron.in_one_line(as_data(_plain(value)))
    except (RonError, TypeError) as error:
        raise ConfigError(
            f"{name}: expected plain data, got {short_repr(value)}: {error}"
        ) from None


def _plain(value: object) -> object:
    """Convert paths and numbers of NumPy to plain data."""
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bool | int | float):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if isinstance(value, Real) else value


def _type_at(cls: type[Any], path: str) -> Any:
    """Return the type of the field at a dotted path; None if there is no such field."""
    kind: Any = cls
    for name in path.split("."):
        kind = type_of_field(kind, name)
    return kind


def _apply_override(
    cls: type[Any], values: dict[str, Any], override: str, sources: Sources, source: str
) -> None:
    """Apply an assignment such as "optim.lr=0.1"."""
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"{override!r}: expected field=value or section.field=value")
    path, kind = tuple(key.split(".")), _type_at(cls, key)
    if kind is None:
        raise ConfigError(unknown_field(cls, key, text))

    # Create the parent sections of the field.
    section = values
    for name in path[:-1]:
        if section.get(name) is None:
            section[name] = {}
        section = section[name]
        if not isinstance(section, dict):
            return  # reported when the section is built
    section[path[-1]] = _parse_value(kind, text, key)
    sources.note(path, section[path[-1]], source)


def _parse_value(kind: Any, text: str, key: str) -> Any:
    """Parse a text of the command line for a field of this type."""
    bare = text.strip()
    if kind is not strip_optional(kind):
        return None if bare in ("None", "none") else _parse_value(strip_optional(kind), text, key)
    if kind is bool:
        return _BOOLS.get(bare.lower(), bare)
    quoted = len(bare) >= 2 and bare[0] == bare[-1] == '"'
    if kind is str and not quoted:
        return text
    try:
        return ron.loads(bare)
    except RonError as error:
        if kind in (int, float) or get_origin(kind) is Literal:
            return bare  # the builder has a better message than the RON parser
        raise ConfigError(f"{key}={short_repr(bare)}: {error}") from error
