"""Schema files: the fields of a configuration class with types and defaults.

It is kept beside the code, so that a change of the class that gives older configurations another
meaning is noticed, see `schema_diff.py`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

from hyperstate import Versioned
from hyperstate.schema import types as schema
from hyperstate.schema.rewrite_rule import (
    AddDefault,
    ChangeDefault,
    CheckValue,
    DeleteField,
    MapFieldValue,
    RejectValues,
    RenameField,
    RewriteRule,
)

from enn_trainer.config import ron
from enn_trainer.config.build import as_data, within_optional
from enn_trainer.config.formats import parse
from enn_trainer.config.help import join_path
from enn_trainer.errors import ConfigError, RonError
from entity_env.short_repr import short_repr

NO_DEFAULT = object()
COMPUTED = "(computed when a run begins)"


@dataclasses.dataclass(frozen=True)
class SchemaField:
    """A field or section.

    Attributes:
        type: Such as "List[int]".
        default: Plain data; `NO_DEFAULT` if there is none, `COMPUTED` if it is not always the same.
    """

    type: str
    default: Any = NO_DEFAULT


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
    fields: dict[str, SchemaField]


def schema_of(cls: type[Versioned]) -> Schema:
    """Return the schema of a configuration class."""
    return Schema(cls.__name__, cls.version(), dict(_fields(cls, "")))


def _fields(cls: Any, path: str) -> Iterator[tuple[str, SchemaField]]:
    kinds = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kind, where = kinds[field.name], join_path(path, field.name)
        yield where, SchemaField(str(schema.materialize_type(kind)), _default(field))
        while not dataclasses.is_dataclass(kind):
            inside = within_optional(kind)
            if inside is kind:
                if get_origin(kind) not in (list, dict):
                    break
                inside, where = get_args(kind)[-1], f"{where}[]"
            kind = inside
        else:
            yield from _fields(kind, where)


def _default(field: dataclasses.Field[Any]) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    factory = field.default_factory
    if factory is dataclasses.MISSING:
        return NO_DEFAULT
    if "computed" in field.metadata:
        return COMPUTED
    try:
        one, two = (ron.dumps(as_data(factory())) for _ in range(2))
    except (RonError, TypeError):  # no plain data
        return COMPUTED
    return ron.loads(one) if one == two else COMPUTED


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
    try:
        values = parse(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None
    try:
        fields = {
            str(name): SchemaField(str(field["type"]), field.get("default", NO_DEFAULT))
            for name, field in values["fields"].items()
        }
        version = values["version"]
        if type(version) is not int:
            raise TypeError
        return Schema(str(values["name"]), version, fields)
    except (KeyError, TypeError, AttributeError):
        raise ConfigError(
            f"{path}: expected a schema as `enn config dump-schema` writes it, "
            f"got {short_repr(values)}"
        ) from None


def apply_rules(
    fields: dict[str, SchemaField], rules: Sequence[RewriteRule], now: dict[str, SchemaField]
) -> dict[str, SchemaField]:
    """Return the fields of a schema after the rules of an upgrade.

    A rule that maps or checks values declares that its field has the type that the class gives it.

    Args:
        fields: Of the schema.
        rules: In order.
        now: The fields of the class.
    """
    for rule in rules:
        if isinstance(rule, RenameField):
            old, new = ".".join(rule.old_field), ".".join(rule.new_field)
            fields = {
                new + name.removeprefix(old) if is_at(name, old) else name: field
                for name, field in fields.items()
            }
            continue
        path = ".".join(getattr(rule, "field", ()))
        if isinstance(rule, DeleteField):
            fields = {name: field for name, field in fields.items() if not is_at(name, path)}
        elif isinstance(rule, AddDefault) and path in now:
            fields = {**fields, path: now[path]}
        elif isinstance(rule, ChangeDefault) and path in fields:
            if fields[path].default == rule.old_default:
                changed = dataclasses.replace(fields[path], default=rule.new_default)
                fields = {**fields, path: changed}
        elif isinstance(rule, MapFieldValue | CheckValue | RejectValues) and path in fields:
            mapped = dataclasses.replace(fields[path], type=now.get(path, fields[path]).type)
            fields = {**fields, path: mapped}
    return fields


def is_at(name: str, path: str) -> bool:
    """Return whether a field is the one at a path or inside it."""
    return name == path or name.startswith((f"{path}.", f"{path}[]"))
