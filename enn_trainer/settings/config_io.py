"""Configurations in and out: files, upgrades, environment variables, overrides.

A later one of these wins: defaults, a file, environment variables, overrides of the command line.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from hyperstate import Versioned

from enn_trainer.errors import ConfigError, RonError
from enn_trainer.settings import ron
from enn_trainer.settings.config_build import build, check_every_knot, collected, within_optional
from enn_trainer.settings.config_files import parse, read_file
from enn_trainer.settings.config_help import UnknownFields, hps_info, listed
from enn_trainer.settings.config_sources import (
    COMMAND_LINE,
    ENVIRONMENT,
    FILE,
    Sources,
    as_data,
    environment_overrides,
    leaves,
)
from enn_trainer.settings.config_upgrade import settle, upgraded
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
    a schedule, see `enn_trainer.schedules`; what the class says in `fixed_during_run` may not.

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
    """As `load_config`, and where each value comes from.

    Args:
        cls: The dataclass to build.
        path: The file; None starts from the defaults.
        overrides: Assignments of the command line.
        text: RON in place of a file.
        environment: Environment variables; those that begin with ENN_ are assignments, which
            `overrides` overrule.
        text_source: What the text is.

    Raises:
        ConfigError: as `load_config`.
    """
    sources = Sources()
    values: dict[str, Any] = {}
    if text is not None:
        values = _upgrade(cls, parsed_text(text, text_source), text_source, sources)
    elif path is not None:
        values = _upgrade(cls, read_file(path), f"{FILE}{path}", sources)
    problems: list[str] = []
    for name, override in environment_overrides(cls, environment or {}).items():
        found: list[str] = []
        with collected(found):
            _apply_override(cls, values, override, sources, f"{ENVIRONMENT}{name}")
        problems += [f"{ENVIRONMENT}{name}: {problem}" for problem in found]
    for override in overrides:
        with collected(problems):
            _apply_override(cls, values, override, sources, COMMAND_LINE)
    try:
        config = build(cls, values)
        check_every_knot(config)
    except ConfigError as error:
        problems += map(sources.named_in, listed(error.problems))
    if problems:
        raise ConfigError(*problems)
    return config, sources


def dump_config(config: Any) -> str:
    """Write a configuration as RON that `load_config` reads back as the same configuration."""
    return ron.dumps(as_data(config)) + "\n"


def read_upgraded(cls: type[Any], path: Path) -> dict[str, Any]:
    """What a file says, in the words of the current version; unchecked.

    Raises:
        ConfigError: the file cannot be read or upgraded.
    """
    return _upgrade(cls, read_file(path), f"{FILE}{path}", Sources())


def parsed_text(text: str, source: str) -> Any:
    """Plain data out of RON.

    Raises:
        ConfigError: the text is not RON; names the source.
    """
    try:
        return parse(text)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from None


def _upgrade(cls: type[Any], values: Any, source: str, sources: Sources) -> dict[str, Any]:
    where = source.removeprefix(FILE)
    if not isinstance(values, dict):
        raise ConfigError(f"{where}: expected {cls.__name__}(...), got {short_repr(values)}")
    before = dict(leaves(values))
    if issubclass(cls, Versioned):
        values = upgraded(cls, copy.deepcopy(values), where)
        settle(cls, values)
    for leaf, value in leaves(values):
        as_it_was = leaf in before and before[leaf] == value
        version = "" if as_it_was else f", upgraded from version {before.get(('version',))}"
        sources.note_leaf(leaf, source + version)
    settled: dict[str, Any] = values
    return settled


# Overrides


def _apply_override(
    cls: type[Any], values: dict[str, Any], override: str, sources: Sources, source: str
) -> None:
    key, equals, text = override.partition("=")
    key = key.strip()
    if not equals or not key:
        raise ConfigError(f"{override!r}: expected field=value or section.field=value")
    kind = _kind_at(cls, key)
    if kind is None:
        raise ConfigError(UnknownFields(cls).message(key, text))
    path = tuple(key.split("."))
    *parents, last = path
    section = values
    for name in parents:
        if section.get(name) is None:
            section[name] = {}
        section = section[name]
        if not isinstance(section, dict):
            return  # Building the section reports what stands in its place.
    section[last] = _parsed(kind, text, key)
    sources.note(path, section[last], source)


def _kind_at(cls: type[Any], key: str) -> Any:
    """The type of the field at a dotted path, None if there is none."""
    kind: Any = cls
    for name in key.split("."):
        section = within_optional(kind)
        if get_origin(section) is dict:
            kind = get_args(section)[1]  # any name may be given
        else:
            kind = get_type_hints(section).get(name) if is_dataclass(section) else None
    return kind


def _parsed(kind: Any, text: str, key: str) -> Any:
    """The value that a text on the command line means for a field of this type."""
    bare = text.strip()
    if kind is not within_optional(kind):
        return None if bare in ("None", "none") else _parsed(within_optional(kind), text, key)
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
        raise ConfigError(f"{key}={short_repr(bare)}: {error}") from error
