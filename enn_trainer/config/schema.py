"""Schema files: the fields of a configuration class with types and defaults, and what changed.

A schema is kept beside the code, so that a change of the class that gives older configurations
another meaning is noticed. A change is of one of three kinds:

| INFO | older files mean what they meant |
| WARN | they are refused or mean something else, unless a rule repairs that |
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

# Names less similar than this are of two fields, not of one that was renamed.
_SIMILAR = 0.6


@dataclasses.dataclass(frozen=True)
class SchemaField:
    """A field or section.

    Attributes:
        type: Such as "List[int]".
        default: Plain data; `NO_DEFAULT` if there is none, `COMPUTED` if it is not always the same.
    """

    type: str
    default: Any = NO_DEFAULT


Fields: TypeAlias = dict[str, SchemaField]


@dataclasses.dataclass(frozen=True)
class Schema:
    """The fields of a configuration class.

    Attributes:
        name: Of the class.
        version: Of the class.
        fields: By dotted paths, each section before its fields; those of the items of a list or
            dict have a [] behind its name.
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
        return NO_DEFAULT  # a section has the defaults of its fields
    if "computed" in field.metadata:
        return COMPUTED
    try:
        one, two = (ron.dumps(as_data(factory())) for _ in range(2))
    except (RonError, TypeError):  # no plain data
        return COMPUTED
    return ron.loads(one) if one == two else COMPUTED


# Files


def dump_schema(schema: Schema) -> str:
    """Return a schema as text, one field to a line."""
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
        ConfigError: the file cannot be read or holds none.
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
        pass  # another kind of file
    raise ConfigError(
        f"{path}: expected a schema as `enn config dump-schema` writes it, got {short_repr(values)}"
    )


# Changes


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
    before = _apply_rules(old.fields, rewrite.rules_since(cls, old.version), new.fields)
    found = []

    # Renamed fields, the most similar ones first.
    while (names := _most_similar(before, new.fields)) is not None:
        rule = rewrite.RenameField(*(tuple(name.split(".")) for name in names))
        before = _apply_rules(before, [rule], new.fields)
        removed, added = names
        found.append(_repaired(removed, f"renamed to {added}", "RenameField", _path(added)))

    # Fields that are there on one side only, and those that changed.
    for name in _only_in(before, new.fields):
        found.append(_repaired(name, "removed", "DeleteField"))
    for name in new.fields:
        found += _changes_of(name, before, new.fields)
    return found


def report(old: Schema, cls: type[Versioned], changes: list[Change]) -> str:
    """Return the changes as text, and the rules to add."""
    lines = [str(change) for change in changes]
    rules = [f"        {change.rule}," for change in changes if change.rule is not None]
    if all(change.severity == "INFO" for change in changes):
        fits = "is" if not changes and old == schema_of(cls) else "fits"
        return "\n".join([*lines, f"the schema {fits} that of {cls.__name__}"])

    # What to do about it.
    lines += ["", f"so that older files keep their meaning, in {cls.__name__}:"]
    if old.version == cls.version():
        lines.append(f"  let version() be {old.version + 1}")
    if rules:
        lines += ["  add to upgrade_rules():", f"    {old.version}: [", *rules, "    ],"]
    if any(change.severity == "ERROR" for change in changes):
        lines.append("  for what is marked ERROR no rule can be proposed")
    return "\n".join(lines)


def _apply_rules(fields: Fields, rules: Sequence[rewrite.RewriteRule], now: Fields) -> Fields:
    """Return the fields of a schema after the rules of an upgrade.

    A rule that maps or checks values declares that its field has the type that the class gives it.

    Args:
        fields: Of the schema.
        rules: In order.
        now: The fields of the class.
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


def _only_in(one: Fields, other: Fields) -> list[str]:
    """Return the topmost fields and sections that the other schema does not have."""
    return [name for name in one if name not in other and _parent(name) in ("", *other)]


def _parent(name: str) -> str:
    """Return the path of the section that a field is in, "" for the configuration."""
    return name.rpartition(".")[0].removesuffix("[]")


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


def _changes_of(name: str, before: Fields, now: Fields) -> Iterator[Change]:
    """Yield the changes of a field that the class has now."""
    new, old = now[name], before.get(name)

    # A new field; no file misses one that is inside a new section with a default.
    if old is None:
        parent = _parent(name)
        while parent and parent not in before:
            if not _is_section(parent, now):
                return
            parent = _parent(parent)
        if new.default is not NO_DEFAULT or _is_section(name, now):
            yield Change("INFO", name, "added")
            return
        empty = {"Optional": "None", "List": "[]", "Dict": "{}"}.get(new.type.partition("[")[0])
        rule: tuple[str, ...] = () if empty is None else ("AddDefault", empty)
        yield _repaired(name, "added, and files must name it, as it has no default", *rule)
        return

    # Another type.
    if old.type != new.type:
        what = f"type changed from {old.type} to {new.type}"
        if _is_section(name, now) or accepts(new.type, old.type):
            yield Change("INFO", name, what)
        else:
            yield _repaired(name, what, *_rule_for_type(old.type, new.type))

    # Another default; True and 1 are not the same.
    one, two = old.default, new.default
    if one is two or (one == two and isinstance(one, bool) == isinstance(two, bool)):
        return
    if two is NO_DEFAULT:
        if not _is_section(name, now):
            rule = () if one == COMPUTED else ("AddDefault", repr(one))
            yield _repaired(name, f"default {_shown(one)} removed", *rule)
    elif one is NO_DEFAULT:
        yield Change("INFO", name, f"default {_shown(two)} added")
    else:
        rule = () if COMPUTED in (one, two) else ("ChangeDefault", repr(one), repr(two))
        yield _repaired(name, f"default changed from {_shown(one)} to {_shown(two)}", *rule)


def _is_section(name: str, fields: Fields) -> bool:
    """Return whether a section is built from its defaults where a file leaves it out."""
    return (
        fields[name].default is NO_DEFAULT
        and any(other.startswith(f"{name}.") for other in fields)
        and not fields[name].type.startswith("Optional[")
    )


def _repaired(path: str, what: str, rule: str = "", *arguments: str) -> Change:
    """Return a change that a rule repairs, by its name and arguments behind the path, if any."""
    if not rule:
        return Change("ERROR", path, what)
    if "[]" in path:
        return Change("ERROR", path, f"{what}; no rule reaches into lists and dicts")
    return Change("WARN", path, what, f"{rule}({', '.join([_path(path), *arguments])})")


def _path(path: str) -> str:
    return repr(tuple(path.split(".")))


def _shown(default: Any) -> str:
    return COMPUTED if default == COMPUTED else repr(default)


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


def _rule_for_type(old: str, new: str) -> tuple[str, ...]:
    if new == f"List[{old}]":
        return "MapFieldValue", "lambda value: [value]"
    if (old, new) == ("float", "int"):
        return "MapFieldValue", "round"
    if _literal(new) and (_literal(old) or old in ("str", "int")):
        return "CheckValue", f"{{{', '.join(sorted(_literal(new)))}}}"
    return ()
