"""Loading of configurations, with the source of each value.

A later one of these wins: defaults, a file, environment variables, overrides of the command line.
"""

import copy
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypeVar, get_origin, get_type_hints

from enn_trainer.base.errors import ConfigError, RonError
from enn_trainer.config import ron
from enn_trainer.config.build import as_data, build, check_every_knot, type_of_field
from enn_trainer.config.field_types import strip_optional
from enn_trainer.config.formats import parse, read_file
from enn_trainer.config.help import hps_info, listed, unknown_field
from enn_trainer.config.rewrite_rules import WEAK_REF, is_absent, rules_since
from enn_trainer.config.schedules import Scheduled, settings_of
from enn_trainer.config.validation import Problems
from enn_trainer.config.versioned import Versioned
from entity_env.errors import short_repr

__all__ = ["dump_config", "hps_info", "load_config"]

C = TypeVar("C")
Names: TypeAlias = tuple[str, ...]
"""The path of a value: names of fields and of items of dicts, which may have dots in them."""

PREFIX = "ENN_"

DEFAULT = "default"
COMMAND_LINE = "command line"
ENVIRONMENT = "environment variable "
FILE = "file "
"""Sources of values; the last two are followed by a name."""

_PATH = re.compile(r"[\w.]+")
_BOOLS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


class Sources(dict[Names, str]):
    """Sources of values, by their paths."""

    def note(self, path: Names, value: Any, source: str) -> None:
        """Note the source of everything at and below a path."""
        for old in [old for old in self if old[: len(path)] == path]:
            del self[old]
        self.update((leaf, source) for leaf, _ in leaves(value, path))

    def of(self, path: str) -> str:
        """Return the source of the field at a dotted path, or of something in it."""
        return next(self._within(tuple(path.split("."))), DEFAULT)

    def is_given(self, path: Names) -> bool:
        """Return whether the user gave all that is at and below a path: typed it or named its file.

        Defaults and the values of a checkpoint are not given.
        """
        sources = list(self._within(path))
        given = (COMMAND_LINE, ENVIRONMENT, FILE)
        return bool(sources) and all(source.startswith(given) for source in sources)

    def named_in(self, problem: str) -> str:
        """Return a problem with the environment variable that it comes from."""
        path = _PATH.match(problem)
        source = self.of(path[0]) if path else ""
        return f"{problem} (from {source})" if source.startswith(ENVIRONMENT) else problem

    def _within(self, path: Names) -> Iterator[str]:
        return (source for leaf, source in self.items() if leaf[: len(path)] == path)


def leaves(value: Any, path: Names = ()) -> Iterator[tuple[Names, Any]]:
    """Yield each value that is not a section, and empty sections, with their paths."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, str(key)))
    else:
        yield path, value


def load_config(
    cls: type[C], path: Path | None, overrides: Sequence[str] = (), text: str | None = None
) -> C:
    """Read a configuration, upgrade it, apply overrides, and build it.

    Sections that are dataclasses without a default are built from their own defaults where they
    are absent; optional sections appear once an override names one of their fields. A number may be
    a schedule, see `enn_trainer.config.schedules`, unless `fixed_during_run` of the class names it.

    Args:
        cls: The dataclass to build.
        path: The file, in the format of its suffix; None starts from the defaults.
        overrides: Assignments such as "optim.lr=0.1", applied in this order.
        text: RON in place of a file, for a caller who has read it already.

    Returns:
        An instance of `cls`.

    Raises:
        ConfigError: the file cannot be read or is of another version, or there are unknown fields,
            missing values or values of a wrong type; names the first MAX_PROBLEMS of them.
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
    """Load a configuration as `load_config` does, and the source of each of its values.

    Args:
        cls: The dataclass to build.
        path: The file; None starts from the defaults.
        overrides: Assignments of the command line.
        text: RON in place of a file.
        environment: Environment variables; those that begin with `ENN_` are assignments, which
            `overrides` overrule.
        text_source: A name of the text for messages.

    Raises:
        ConfigError: as `load_config`.
    """
    # The text or file, upgraded to the current version.
    sources = Sources()
    values: dict[str, Any] = {}
    if text is not None:
        where = source = text_source
        with Problems() as problems, problems.collect(f"{text_source}: "):
            given = parse(text)
    elif path is not None:
        where, source, given = str(path), f"{FILE}{path}", read_file(path)
    if text is not None or path is not None:
        values = upgraded(cls, given, where)
        before = dict(leaves(given))
        for leaf, value in leaves(values):
            is_unchanged = leaf in before and before[leaf] == value
            version = "" if is_unchanged else f", upgraded from version {before.get(('version',))}"
            sources[leaf] = source + version

    # Overrides, and the classes; their problems are one error.
    typed = [(COMMAND_LINE, override) for override in overrides]
    with Problems() as problems:
        for source, override in [*_environment_overrides(cls, environment or {}), *typed]:
            with problems.collect("" if source == COMMAND_LINE else f"{source}: "):
                _apply_override(cls, values, override, sources, source)
        try:
            _follow(cls, values)
            config = build(cls, values)
            check_every_knot(config)
        except ConfigError as error:
            problems.found += map(sources.named_in, listed(error.problems))
    return config, sources


def dump_config(config: Any) -> str:
    """Return a configuration as RON that `load_config` reads back as the same configuration."""
    return ron.dumps(as_data(config)) + "\n"


def show_config(config: Any, sources: Sources) -> str:
    """Return a table of every value of a configuration and its source, by section."""
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
    """Return the values of a file as those of the current version, not checked.

    Args:
        cls: The class of the configuration.
        values: Of the file, with its version; they stay as they are.
        where: Of the file, for messages.

    Raises:
        ConfigError: the values have no version that can be read, or a rule refuses one of them.
    """
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: expected {cls.__name__}(...), got {short_repr(values)}")
    if not issubclass(cls, Versioned):
        return values
    changed: dict[str, Any] = copy.deepcopy(values)
    version = changed.pop("version", None)
    if type(version) is not int:
        raise ConfigError(
            f"{where}: version: expected the number of the version that the file was written for, "
            f"at present {cls.version()}, got {short_repr(version)}"
        )
    if not cls.minimum_version() <= version <= cls.version():
        raise ConfigError(
            f"{where}: version: expected {cls.minimum_version()} to {cls.version()}, the versions "
            f"of {cls.__name__} that this program reads, got {version}"
        )
    for rule in rules_since(cls, version):
        try:
            changed = rule.apply(changed)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: upgrade from version {version}: {error}") from error
    _drop_absent(cls, changed)
    return changed


def _drop_absent(cls: Any, values: dict[str, Any]) -> None:
    """Drop absent sections, but for the old defaults of those that are required."""
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


def _follow(cls: Any, values: dict[str, Any]) -> None:
    """Let settings that sections leave out follow those that `following` of the class names."""
    for path, followed in getattr(cls, "following", dict)().items():
        section, value = (_at(values, names.split(".")[:-1]) for names in (path, followed))
        name, of_followed = path.rpartition(".")[2], followed.rpartition(".")[2]
        if section is not None and value is not None and of_followed in value:
            section.setdefault(name, value[of_followed])


def _at(values: Any, names: Sequence[str]) -> dict[str, Any] | None:
    """Return a section of values, or None if it is not there."""
    for name in names:
        values = values.get(name) if isinstance(values, dict) else None
    return values if isinstance(values, dict) else None


# Overrides


def _environment_overrides(cls: Any, environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the sources and overrides of environment variables, such as ENN_OPTIM__LR=0.003.

    The names of fields are in upper case there; those of the items of a dict stay as they are.
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


def _apply_override(
    cls: type[Any], values: dict[str, Any], override: str, sources: Sources, source: str
) -> None:
    """Set what an assignment such as "optim.lr=0.1" names."""
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"{override!r}: expected field=value or section.field=value")
    path = tuple(key.split("."))
    kind: Any = cls
    for name in path:
        kind = type_of_field(kind, name)
    if kind is None:
        raise ConfigError(unknown_field(cls, key, text))

    # Make the sections around the field.
    section = values
    for name in path[:-1]:
        if section.get(name) is None:
            section[name] = {}
        section = section[name]
        if not isinstance(section, dict):
            return  # Building the section reports what stands in its place.
    section[path[-1]] = _parse_value(kind, text, key)
    sources.note(path, section[path[-1]], source)


def _parse_value(kind: Any, text: str, key: str) -> Any:
    """Return the value that a text on the command line means for a field of this type."""
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
            return bare  # The builder has a better message than the reader of RON.
        raise ConfigError(f"{key}={short_repr(bare)}: {error}") from error
