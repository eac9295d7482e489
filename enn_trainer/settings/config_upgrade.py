"""Upgrades of values of older versions to the current one, by the rules of the class."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from typing import Any, get_type_hints

from hyperstate import Versioned
from hyperstate.schema.rewrite_rule import WEAK_REF, RejectValues, RewriteRule

from enn_trainer.errors import ConfigError
from enn_trainer.settings.config_build import within_optional
from entity_env.short_repr import short_repr


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
