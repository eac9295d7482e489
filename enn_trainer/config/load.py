"""Loading of configurations: a file or text, its upgrade, environment variables, overrides.

A later one of these wins: defaults, a file, environment variables, overrides of the command line.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_origin, get_type_hints

from hyperstate import Versioned
from hyperstate.schema.rewrite_rule import WEAK_REF, RejectValues, RewriteRule

from enn_trainer.config import ron
from enn_trainer.config.build import (
    build,
    check_every_knot,
    type_of_field,
    within_optional,
)
from enn_trainer.config.formats import parse, read_file
from enn_trainer.config.help import UnknownFields, hps_info, listed
from enn_trainer.config.sources import (
    COMMAND_LINE,
    ENVIRONMENT,
    FILE,
    Sources,
    as_data,
    environment_overrides,
    leaves,
)
from enn_trainer.config.validation import Problems
from enn_trainer.errors import ConfigError, RonError
from entity_env.short_repr import short_repr

__all__ = ["dump_config", "hps_info", "load_config"]

C = TypeVar("C")

_BOOLS = {"true": True, "t": True, "1": True, "false": False, "f": False, "0": False}


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
        environment: Environment variables; those that begin with ENN_ are assignments, which
            `overrides` overrule.
        text_source: A name of the text for messages.

    Raises:
        ConfigError: as `load_config`.
    """
    # The text or file.
    sources = Sources()
    values: dict[str, Any] = {}
    if text is not None:
        with Problems() as problems, problems.collect(f"{text_source}: "):
            parsed = parse(text)
        values = _upgrade(cls, parsed, text_source, sources)
    elif path is not None:
        values = _upgrade(cls, read_file(path), f"{FILE}{path}", sources)

    # Overrides, and the classes; their problems are one error.
    with Problems() as problems:
        for name, override in environment_overrides(cls, environment or {}).items():
            source = f"{ENVIRONMENT}{name}"
            with problems.collect(f"{source}: "):
                _apply_override(cls, values, override, sources, source)
        for override in overrides:
            with problems.collect():
                _apply_override(cls, values, override, sources, COMMAND_LINE)
        try:
            config = build(cls, values)
            check_every_knot(config)
        except ConfigError as error:
            problems.found += map(sources.named_in, listed(error.problems))
    return config, sources


def dump_config(config: Any) -> str:
    """Return a configuration as RON that `load_config` reads back as the same configuration."""
    return ron.dumps(as_data(config)) + "\n"


def read_upgraded(cls: type[Any], path: Path) -> dict[str, Any]:
    """Read the values of a file, upgraded to the current version and not checked.

    Raises:
        ConfigError: the file cannot be read or upgraded.
    """
    return _upgrade(cls, read_file(path), f"{FILE}{path}", Sources())


def _upgrade(cls: type[Any], values: Any, source: str, sources: Sources) -> dict[str, Any]:
    """Return values of the current version, and note where each comes from."""
    where = source.removeprefix(FILE)
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: expected {cls.__name__}(...), got {short_repr(values)}")
    before = dict(leaves(values))
    if issubclass(cls, Versioned):
        values = upgraded(cls, copy.deepcopy(values), where)
        settle(cls, values)
    for leaf, value in leaves(values):
        is_unchanged = leaf in before and before[leaf] == value
        version = "" if is_unchanged else f", upgraded from version {before.get(('version',))}"
        sources.note_leaf(leaf, source + version)
    settled: dict[str, Any] = values
    return settled


# Upgrades


def upgraded(cls: type[Versioned], values: dict[str, Any], where: str) -> dict[str, Any]:
    """Apply the rules of every version from the file's own to the current one."""
    version = values.pop("version", None)
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
    rules = cls.upgrade_rules()
    for rule in (rule for step in range(version, cls.version()) for rule in rules.get(step, [])):
        try:
            values = _applied(rule, values)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{where}: upgrade from version {version}: {error}") from error
    return values


def _applied(rule: RewriteRule, values: dict[str, Any]) -> dict[str, Any]:
    """Apply one rule of hyperstate, around three of its defects.

    It fails on a section that is None or no section at all, where there is nothing to upgrade; a
    second rule for a field makes a section that the file leaves out look like one that it has; and
    `RejectValues` takes away the values that it allows.
    """
    field_path: Sequence[str] = getattr(rule, "field", getattr(rule, "old_field", ()))
    upgraded: dict[str, Any]
    section = values
    for name in field_path[:-1]:
        section = section.get(name, {})
        if not isinstance(section, dict):
            return values
    if isinstance(rule, RejectValues):
        before = dict(section)
        upgraded = rule.apply(values)  # raises if the value is refused
        section.update(before)
        return upgraded
    weak_sections = list(_weak_sections(values))
    upgraded = rule.apply(values)
    for weak in weak_sections:
        weak[WEAK_REF] = True
    return upgraded


def _weak_sections(values: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the sections that the file leaves out and that hold old defaults only."""
    if WEAK_REF in values:
        yield values
    for value in values.values():
        if isinstance(value, dict):
            yield from _weak_sections(value)


def settle(cls: Any, values: dict[str, Any]) -> None:
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
        section = within_optional(kind)
        if is_dataclass(section):
            settle(section, value)


# Overrides


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
        raise ConfigError(UnknownFields(cls).message(key, text))

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
    if kind is not within_optional(kind):
        return None if bare in ("None", "none") else _parse_value(within_optional(kind), text, key)
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
