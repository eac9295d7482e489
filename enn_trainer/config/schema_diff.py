"""Changes of a configuration class since its schema was written, and the rules they need.

A change is of one of three kinds:

| INFO | older files mean what they meant |
| WARN | they are refused or mean something else, unless a rule repairs that |
| ERROR | the same, and no rule can be proposed |
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from hyperstate import Versioned
from hyperstate.schema.rewrite_rule import RenameField

from enn_trainer.config.help import similarity
from enn_trainer.config.schema import (
    COMPUTED,
    NO_DEFAULT,
    Schema,
    SchemaField,
    apply_rules,
    schema_of,
)
from enn_trainer.errors import ConfigError

# Names less similar than this are of two fields, not of one that was renamed.
_SIMILAR = 0.6

Fields = dict[str, SchemaField]


class Change(NamedTuple):
    """A difference between a schema and the current class.

    Attributes:
        severity: INFO, WARN or ERROR.
        path: Of the field.
        what: A description.
        rule: The rewrite rule that repairs it, as Python; None if none is needed or known.
    """

    severity: str
    path: str
    what: str
    rule: str | None = None

    def __str__(self) -> str:
        return f"{self.severity:6} {self.path}: {self.what}"


def schema_changes(old: Schema, cls: type[Versioned]) -> list[Change]:
    """Return what changed since a schema was written, beside what the upgrade rules repair.

    Raises:
        ConfigError: the schema is of a later version than the class.
    """
    new = schema_of(cls)
    if old.version > new.version:
        raise ConfigError(
            f"version: expected at most {new.version}, that of {new.name}, got {old.version}"
        )
    rules = cls.upgrade_rules()
    declared = [rule for v in range(old.version, new.version) for rule in rules.get(v, [])]
    before = apply_rules(old.fields, declared, new.fields)
    found = []

    # Renamed fields, the most similar ones first.
    while (names := _most_similar(before, new.fields)) is not None:
        rule = RenameField(*(tuple(name.split(".")) for name in names))
        before = apply_rules(before, [rule], new.fields)
        rendered = _rule("RenameField", names[0], _path(names[1]))
        found.append(_repaired(names[0], f"renamed to {names[1]}", rendered))

    # Fields that are there on one side only, and those that changed.
    for name in _only_in(before, new.fields):
        found.append(_repaired(name, "removed", _rule("DeleteField", name)))
    for name, field in new.fields.items():
        is_section = _is_section(name, new.fields)
        if name in before:
            found += _changed(name, before[name], field, is_section)
        elif not _within_new_default(name, before, new.fields):
            found.append(_added(name, field, is_section))
    return found


def report(old: Schema, cls: type[Versioned], changes: list[Change]) -> str:
    """Return the changes as text, and the rules to add."""
    lines = [str(change) for change in changes]
    rules = [change.rule for change in changes if change.rule is not None]
    if all(change.severity == "INFO" for change in changes):
        fits = "is" if not changes and old == schema_of(cls) else "fits"
        return "\n".join([*lines, f"the schema {fits} that of {cls.__name__}"])

    # What to do about it.
    lines += ["", f"so that older files keep their meaning, in {cls.__name__}:"]
    if old.version == cls.version():
        lines.append(f"  let version() be {old.version + 1}")
    if rules:
        lines += ["  add to upgrade_rules():", f"    {old.version}: ["]
        lines += [f"        {rule}," for rule in rules] + ["    ],"]
    if any(change.severity == "ERROR" for change in changes):
        lines.append("  for what is marked ERROR no rule can be proposed")
    return "\n".join(lines)


def _repaired(path: str, what: str, rule: str | None) -> Change:
    if rule is None:
        return Change("ERROR", path, what)
    if "[]" in path:
        return Change("ERROR", path, f"{what}; no rule reaches into lists and dicts")
    return Change("WARN", path, what, rule)


def _rule(name: str, path: str, *arguments: str) -> str:
    return f"{name}({', '.join([_path(path), *arguments])})"


def _path(path: str) -> str:
    return repr(tuple(path.split(".")))


def _only_in(one: Fields, other: Fields) -> list[str]:
    """Return the topmost fields and sections that the other schema does not have."""
    return [
        name
        for name in one
        if name not in other and (_parent(name) is None or _parent(name) in other)
    ]


def _parent(name: str) -> str | None:
    return name.rpartition(".")[0].removesuffix("[]") or None


def _most_similar(old: Fields, new: Fields) -> tuple[str, str] | None:
    """Return the removed and the added field that are equal but for similar names, if any are."""
    pairs = [
        (_similarity(removed, added), removed, added)
        for removed in _only_in(old, new)
        for added in _only_in(new, old)
        if old[removed] == new[added] and "[]" not in removed + added
    ]
    best = max(pairs, key=lambda pair: pair[0], default=(0.0, "", ""))
    return best[1:] if best[0] > _SIMILAR else None


def _similarity(one: str, other: str) -> float:
    """Return the similarity of two paths; that of names counts if they are in one section."""
    (section, _, name), (other_section, _, other_name) = one.rpartition("."), other.rpartition(".")
    if name == other_name:
        return 1.1
    if section != other_section:
        return 0.0
    short, long = sorted((name, other_name), key=len)
    is_abbreviation = len(short) > 1 and short == "".join(word[:1] for word in long.split("_"))
    return 1.0 if is_abbreviation else similarity(name, other_name)


def _is_section(name: str, fields: Fields) -> bool:
    """Return whether a section is built from its defaults where a file leaves it out."""
    return (
        fields[name].default is NO_DEFAULT
        and any(other.startswith(f"{name}.") for other in fields)
        and not fields[name].type.startswith("Optional[")
    )


def _within_new_default(name: str, old: Fields, new: Fields) -> bool:
    """Return whether a field is inside a new section that has a default, as no file misses it."""
    parent = _parent(name)
    while parent is not None and parent not in old:
        if not _is_section(parent, new):
            return True
        parent = _parent(parent)
    return False


def _added(name: str, field: SchemaField, is_section: bool) -> Change:
    if is_section or field.default is not NO_DEFAULT:
        return Change("INFO", name, "added")
    empty = {"Optional[": "None", "List[": "[]", "Dict[": "{}"}
    values = [value for start, value in empty.items() if field.type.startswith(start)]
    rule = _rule("AddDefault", name, values[0]) if values else None
    return _repaired(name, "added, and files must name it, as it has no default", rule)


def _changed(name: str, old: SchemaField, new: SchemaField, is_section: bool) -> Iterator[Change]:
    if old.type != new.type:
        what = f"type changed from {old.type} to {new.type}"
        if is_section or accepts(new.type, old.type):
            yield Change("INFO", name, what)
        else:
            yield _repaired(name, what, _rule_for_type(name, old.type, new.type))
    if new.default is NO_DEFAULT and old.default is not NO_DEFAULT and not is_section:
        rule = None if old.default == COMPUTED else _rule("AddDefault", name, repr(old.default))
        yield _repaired(name, f"default {_shown(old.default)} removed", rule)
    elif not _same(old.default, new.default) and new.default is not NO_DEFAULT:
        if old.default is NO_DEFAULT:
            yield Change("INFO", name, f"default {_shown(new.default)} added")
            return
        what = f"default changed from {_shown(old.default)} to {_shown(new.default)}"
        known = COMPUTED not in (old.default, new.default)
        arguments = (repr(old.default), repr(new.default))
        yield _repaired(name, what, _rule("ChangeDefault", name, *arguments) if known else None)


def _same(one: Any, other: Any) -> bool:
    """Return whether two defaults are equal, unlike True and 1."""
    return one is other or (one == other and isinstance(one, bool) == isinstance(other, bool))


def _shown(default: Any) -> str:
    return default if default is COMPUTED else repr(default)


def accepts(new: str, old: str) -> bool:
    """Return whether a field of the new type takes every value of the old one."""
    if new == old or (old, new) == ("int", "float"):
        return True
    if new.startswith("Optional["):
        return accepts(new[9:-1], old[9:-1] if old.startswith("Optional[") else old)
    if old.startswith("Optional[") and "None" in _literal(new):
        return accepts(new, old[9:-1])
    if new.startswith("List[") and old.startswith("List["):
        return accepts(new[5:-1], old[5:-1])
    values = _literal(old)
    if values and new in ("str", "int"):
        return all((value[0] in "'\"") == (new == "str") and value != "None" for value in values)
    return bool(values) and values <= _literal(new)


def _literal(kind: str) -> set[str]:
    """Return the values of a Literal as Python, an empty set for another type."""
    is_literal = "[" not in kind and ("|" in kind or kind[:1] in "'\"")
    return set(kind.split("|")) if is_literal else set()


def _rule_for_type(name: str, old: str, new: str) -> str | None:
    if new == f"List[{old}]":
        return _rule("MapFieldValue", name, "lambda value: [value]")
    if (old, new) == ("float", "int"):
        return _rule("MapFieldValue", name, "round")
    if _literal(new) and (_literal(old) or old in ("str", "int")):
        return _rule("CheckValue", name, f"{{{', '.join(sorted(_literal(new)))}}}")
    return None
