"""Schema files: fields of a configuration class with types and defaults, to detect changes.

A schema is committed with the code to detect changes of the class that break older configurations:

| INFO | older files keep their meaning |
| WARN | older files are rejected or change their meaning, unless a rule is added |
| ERROR | the same, and no rule can be proposed |
"""

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from enn_trainer.base.errors import ConfigError, RonError
from enn_trainer.config import rewrite_rules as rewrite
from enn_trainer.config import ron
from enn_trainer.config.build import as_data
from enn_trainer.config.field_types import entries
from enn_trainer.config.formats import read_file
from enn_trainer.config.help import similarity
from enn_trainer.config.versioned import Versioned
from entity_env.errors import short_repr

NO_DEFAULT = object()
COMPUTED = "(computed when a run begins)"

# Least similarity of the names of a renamed field.
_SIMILAR = 0.6


@dataclasses.dataclass(frozen=True)
class SchemaField:
    """A field or section.

    Attributes:
        type: Type as text, such as "List[int]".
        default: Plain data; `NO_DEFAULT` if there is none, `COMPUTED` if it varies.
    """

    type: str
    default: Any = NO_DEFAULT


Fields: TypeAlias = dict[str, SchemaField]


@dataclasses.dataclass(frozen=True)
class Schema:
    """The fields of a configuration class.

    Attributes:
        name: Name of the class.
        version: Version of the class.
        fields: Fields by dotted path, each section before its fields; the names of lists and dicts
            are followed by [] in the paths of their items.
    """

    name: str
    version: int
    fields: Fields


def schema_of(cls: type[Versioned]) -> Schema:
    """Return the schema of a configuration class."""
    fields = {
        entry.path.replace(".<name>", "[]"): SchemaField(entry.type, _default(entry.field))
        for entry in entries(cls)
    }
    return Schema(cls.__name__, cls.version(), fields)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    factory = field.default_factory
    if factory is dataclasses.MISSING or dataclasses.is_dataclass(factory):
        return NO_DEFAULT  # the default of a section follows from its fields
    if "computed" in field.metadata:
        return COMPUTED
    try:
        first, second = (ron.dumps(as_data(factory())) for _ in range(2))
    except (RonError, TypeError):  # not plain data
        return COMPUTED
    return ron.loads(first) if first == second else COMPUTED


# Files


def dump_schema(schema: Schema) -> str:
    """Format a schema as text, one field per line."""
    lines = []
    for path, field in schema.fields.items():
        default = {} if field.default is NO_DEFAULT else {"default": field.default}
        values = ron.Struct("", {"type": field.type, **default})
        lines.append(f"        {ron.in_one_line(path)}: {ron.in_one_line(values)},\n")
    return (
        f"// Written by `enn config dump-schema`: what configurations of this version have.\n"
        f"Schema(\n    name: {ron.in_one_line(schema.name)},\n    version: {schema.version},\n"
        f"    fields: {{\n{''.join(lines)}    }},\n)\n"
    )


def load_schema(path: Path) -> Schema:
    """Read a schema.

    Raises:
        ConfigError: the file cannot be read, or is not a schema.
    """
    values = read_file(path, ron.loads)
    try:
        fields = {
            str(name): SchemaField(str(field["type"]), field.get("default", NO_DEFAULT))
            for name, field in values["fields"].items()
        }
        if type(values["version"]) is int:
            return Schema(str(values["name"]), values["version"], fields)
    except (KeyError, TypeError, AttributeError):
        pass  # not a schema
    raise ConfigError(
        f"{path}: expected a schema of `enn config dump-schema`, got {short_repr(values)}"
    )


# Changes


class SchemaChange(NamedTuple):
    """A difference between a schema and the current class.

    Attributes:
        severity: INFO, WARN or ERROR.
        path: Path of the field.
        description: Description of the change.
        rule: Rewrite rule for older files, as Python code; None if none is needed or possible.
    """

    severity: str
    path: str
    description: str
    rule: str | None = None

    def __str__(self) -> str:
        return f"{self.severity:6} {self.path}: {self.description}"


def schema_changes(old: Schema, cls: type[Versioned]) -> list[SchemaChange]:
    """Return the changes since a schema was written that the upgrade rules do not cover.

    Raises:
        ConfigError: the schema is of a later version than the class.
    """
    new = schema_of(cls)
    if old.version > new.version:
        raise ConfigError(
            f"version: expected at most {new.version}, the version of {new.name}, got {old.version}"
        )
    before = _apply_rules(old.fields, rewrite.rules_since(cls, old.version), new.fields)
    changes = []

    # Renamed fields, the most similar names first.
    while (names := _most_similar(before, new.fields)) is not None:
        rule = rewrite.RenameField(*(tuple(name.split(".")) for name in names))
        before = _apply_rules(before, [rule], new.fields)
        removed, added = names
        changes.append(_change(removed, f"renamed to {added}", "RenameField", _path(added)))

    # Removed, added and changed fields.
    for name in _only_in(before, new.fields):
        changes.append(_change(name, "removed", "DeleteField"))
    for name in new.fields:
        changes += _changes_of(name, before, new.fields)
    return changes


def report(old: Schema, cls: type[Versioned], changes: list[SchemaChange]) -> str:
    """Format the changes and the rules to add as text."""
    lines = [str(change) for change in changes]
    rules = [f"        {change.rule}," for change in changes if change.rule is not None]
    if all(change.severity == "INFO" for change in changes):
        fits = "matches" if not changes and old == schema_of(cls) else "is compatible with"
        return "\n".join([*lines, f"the schema {fits} {cls.__name__}"])

    # The changes of the class to make.
    lines += ["", f"to keep the meaning of older files, change {cls.__name__}:"]
    if old.version == cls.version():
        lines.append(f"  let version() return {old.version + 1}")
    if rules:
        lines += ["  add to upgrade_rules():", f"    {old.version}: [", *rules, "    ],"]
    if any(change.severity == "ERROR" for change in changes):
        lines.append("  write rules for the lines marked ERROR; none can be proposed")
    return "\n".join(lines)


def _apply_rules(fields: Fields, rules: Sequence[rewrite.RewriteRule], now: Fields) -> Fields:
    """Apply the rules of an upgrade to the fields of a schema.

    A rule that maps or checks values changes the type of its field to the type in the class.

    Args:
        fields: Fields of the schema.
        rules: Rules in order.
        now: Fields of the class.
    """
    for rule in rules:
        path = ".".join(getattr(rule, "field", getattr(rule, "old_field", ())))
        inside = {n for n in fields if n == path or n.startswith((f"{path}.", f"{path}[]"))}
        if isinstance(rule, rewrite.RenameField):
            new = ".".join(rule.new_field)
            fields = {
                new + name.removeprefix(path) if name in inside else name: field
                for name, field in fields.items()
            }
        elif isinstance(rule, rewrite.DeleteField):
            fields = {name: field for name, field in fields.items() if name not in inside}
        elif path in now and (
            isinstance(rule, rewrite.AddDefault)
            or (isinstance(rule, rewrite.ChangeDefault) and path not in fields)
        ):
            fields = {**fields, path: now[path]}
        elif path in fields:
            field = fields[path]
            if isinstance(rule, rewrite.ChangeDefault) and field.default == rule.old_default:
                field = SchemaField(field.type, rule.new_default)
            elif isinstance(
                rule, rewrite.MapFieldValue | rewrite.CheckValue | rewrite.RejectValues
            ):
                field = SchemaField(now.get(path, field).type, field.default)
            fields = {**fields, path: field}
    return fields


def _only_in(fields: Fields, other: Fields) -> list[str]:
    """Return the topmost fields and sections that are missing in the other schema."""
    return [name for name in fields if name not in other and _parent(name) in ("", *other)]


def _parent(name: str) -> str:
    """Return the path of the section of a field, "" for the root."""
    return name.rpartition(".")[0].removesuffix("[]")


def _most_similar(old: Fields, new: Fields) -> tuple[str, str] | None:
    """Return the removed and added field with the most similar names and equal types, or None."""
    pairs = [
        (_similarity(removed, added), removed, added)
        for removed in _only_in(old, new)
        for added in _only_in(new, old)
        if old[removed] == new[added] and "[]" not in removed + added
    ]
    best = max(pairs, key=lambda pair: pair[0], default=(0.0, "", ""))
    return best[1:] if best[0] > _SIMILAR else None


def _similarity(a: str, b: str) -> float:
    """Return the similarity of two paths; names are compared only within the same section."""
    (section, _, name), (other_section, _, other_name) = a.rpartition("."), b.rpartition(".")
    if name == other_name:
        return 1.1
    if section != other_section:
        return 0.0
    short, long = sorted((name, other_name), key=len)
    is_abbreviation = len(short) > 1 and short == "".join(word[:1] for word in long.split("_"))
    return 1.0 if is_abbreviation else similarity(name, other_name)


def _changes_of(name: str, before: Fields, now: Fields) -> Iterator[SchemaChange]:
    """Yield the changes of a field of the class."""
    new, old = now[name], before.get(name)

    # A new field; files need no field of a new section with a default.
    if old is None:
        parent = _parent(name)
        while parent and parent not in before:
            if not _is_section(parent, now):
                return
            parent = _parent(parent)
        if new.default is not NO_DEFAULT or _is_section(name, now):
            yield SchemaChange("INFO", name, "added")
            return
        empty = {"Optional": "None", "List": "[]", "Dict": "{}"}.get(new.type.partition("[")[0])
        rule: tuple[str, ...] = () if empty is None else ("AddDefault", empty)
        yield _change(name, "added without a default, so that files must name it", *rule)
        return

    # Another type.
    if old.type != new.type:
        text = f"type changed from {old.type} to {new.type}"
        if _is_section(name, now) or accepts(new.type, old.type):
            yield SchemaChange("INFO", name, text)
        else:
            yield _change(name, text, *_rule_for_type(old.type, new.type))

    # Another default; True and 1 are different.
    a, b = old.default, new.default
    if a is b or (a == b and isinstance(a, bool) == isinstance(b, bool)):
        return
    if b is NO_DEFAULT:
        if not _is_section(name, now):
            rule = () if a == COMPUTED else ("AddDefault", repr(a))
            yield _change(name, f"default {_text(a)} removed", *rule)
    elif a is NO_DEFAULT:
        yield SchemaChange("INFO", name, f"default {_text(b)} added")
    else:
        rule = () if COMPUTED in (a, b) else ("ChangeDefault", repr(a), repr(b))
        yield _change(name, f"default changed from {_text(a)} to {_text(b)}", *rule)


def _is_section(name: str, fields: Fields) -> bool:
    """Return whether a field is a section that is built from defaults if a file omits it."""
    return (
        fields[name].default is NO_DEFAULT
        and any(other.startswith(f"{name}.") for other in fields)
        and not fields[name].type.startswith("Optional[")
    )


def _change(path: str, text: str, rule: str = "", *arguments: str) -> SchemaChange:
    """Return a change with its rule: name, and arguments after the path; an ERROR without rule."""
    if not rule:
        return SchemaChange("ERROR", path, text)
    if "[]" in path:
        return SchemaChange("ERROR", path, f"{text}; rules cannot change items of lists and dicts")
    return SchemaChange("WARN", path, text, f"{rule}({', '.join([_path(path), *arguments])})")


def _path(path: str) -> str:
    return repr(tuple(path.split(".")))


def _text(default: Any) -> str:
    return COMPUTED if default == COMPUTED else repr(default)


def accepts(new: str, old: str) -> bool:
    """Return whether a field of the new type accepts every value of the old type."""
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
    """Return the values of a Literal as Python code, an empty set for any other type."""
    is_literal = "[" not in kind and ("|" in kind or kind[:1] in "'\"")
    return set(kind.split("|")) if is_literal else set()


def _rule_for_type(old: str, new: str) -> tuple[str, ...]:
    if new == f"List[{old}]":
        return "MapFieldValue", "lambda value: [value]"
    if (old, new) == ("float", "int"):
        return "MapFieldValue", "round"
    if _literal(new) and (_literal(old) or old in ("str", "int")):
        return "CheckValue", f"{{{', '.join(sorted(_literal(new)))}}}"
    return ()
