"""Types of the fields of configuration classes, with defaults and descriptions.

Text of a type is the same as hyperstate's, such as `Optional[List[int]]`; schemas and messages have
it.
"""

import dataclasses
import enum
import inspect
import re
import textwrap
import typing
from types import NoneType, UnionType
from typing import Any, TypeAlias

from enn_trainer.errors import ConfigError

FieldType: TypeAlias = "Primitive | List | Dict | Union | Option | Enum | Literal | Struct"

# A section of a docstring, indented below its heading, and a field in it.
_SECTION = re.compile(r"^(?:Attributes|Args):[ \t]*\n((?:[ \t]+\S.*(?:\n|$)|[ \t]*\n)+)", re.M)
_FIELD = re.compile(r"^(\w+)(?: \(.*?\))?:((?:.|\n(?=[ \t\n]))*)", re.M)


@dataclasses.dataclass(frozen=True)
class Primitive:
    """bool, int, float or str."""

    type: str

    def __str__(self) -> str:
        return self.type


@dataclasses.dataclass(frozen=True)
class List:
    """List of values of one type."""

    inner: FieldType

    def __str__(self) -> str:
        return f"List[{self.inner}]"


@dataclasses.dataclass(frozen=True)
class Dict:
    """Dict with the types of its keys and values."""

    key: FieldType
    val: FieldType

    def __str__(self) -> str:
        return f"Dict[{self.key}, {self.val}]"


@dataclasses.dataclass(frozen=True)
class Union:
    """One of several types, none of which is None."""

    types: tuple[FieldType, ...]

    def __str__(self) -> str:
        return f"Union[{', '.join(map(str, self.types))}]"


@dataclasses.dataclass(frozen=True)
class Option:
    """A type, or None."""

    type: FieldType

    def __str__(self) -> str:
        return f"Optional[{self.type}]"


@dataclasses.dataclass(frozen=True)
class Enum:
    """Enumeration, with the values of its members by name."""

    name: str
    variants: dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Literal:
    """One of several values."""

    allowed_values: tuple[Any, ...]

    def __str__(self) -> str:
        return "|".join(sorted(map(repr, self.allowed_values)))


@dataclasses.dataclass(frozen=True)
class Field:
    """Field of a dataclass.

    Attributes:
        name: Name of the field.
        type: Type of the field.
        default: Its default; None if it has none.
        has_default: False if files must name it, unless it is a section.
        docstring: Its description in one line, from the docstring of the class.
    """

    name: str
    type: FieldType
    default: Any
    has_default: bool
    docstring: str | None


@dataclasses.dataclass(frozen=True)
class Struct:
    """Dataclass, with its fields by name."""

    name: str
    fields: dict[str, Field]

    def __str__(self) -> str:
        return self.name


def field_type(kind: Any, where: str = "") -> FieldType:
    """Return the type that an annotation stands for.

    Args:
        kind: `Optional[int]`, `List[int]` and `Dict[str, int]`, or `int | None`, `list[int]` and
            `dict[str, int]`, a dataclass, and so on.
        where: Class and name of the field, for messages.

    Raises:
        ConfigError: a configuration cannot have this type.
    """
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if kind in (bool, int, float, str):
        return Primitive(kind.__name__)
    if origin is list and len(args) == 1:
        return List(field_type(args[0], where))
    if origin is dict and len(args) == 2:
        return Dict(field_type(args[0], where), field_type(args[1], where))
    if origin in (typing.Union, UnionType):
        types = tuple(field_type(arg, where) for arg in args if arg is not NoneType)
        inner = types[0] if len(types) == 1 else Union(types)
        return Option(inner) if NoneType in args else inner
    if origin is typing.Literal:
        return Literal(args)
    if isinstance(kind, enum.EnumMeta):
        members: dict[str, enum.Enum] = dict(kind.__members__)
        return Enum(kind.__name__, {name: member.value for name, member in members.items()})
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return Struct(kind.__name__, {field.name: field for field in _fields(kind)})
    raise ConfigError(
        f"{where or 'type'}: expected bool, int, float, str, Literal, Enum, a dataclass, or list, "
        f"dict, Optional or Union of these, got {inspect.formatannotation(kind)}"
    )


def _fields(cls: Any) -> typing.Iterator[Field]:
    """Yield the fields of a dataclass."""
    kinds, docs = typing.get_type_hints(cls), _descriptions(cls)
    for field in dataclasses.fields(cls):
        default, factory = field.default, field.default_factory
        has_default = default is not dataclasses.MISSING or factory is not dataclasses.MISSING
        if factory is not dataclasses.MISSING:
            default = factory()
        if isinstance(default, enum.Enum):
            default = default.value
        kind = field_type(kinds[field.name], f"{cls.__name__}.{field.name}")
        doc = docs.get(field.name)
        yield Field(field.name, kind, default if has_default else None, has_default, doc)


def _descriptions(cls: type) -> dict[str, str]:
    """Return the descriptions in the docstrings of a class and its bases, by field."""
    found = {}
    for base in reversed(cls.__mro__):
        for section in _SECTION.findall(inspect.cleandoc(base.__doc__ or "")):
            for name, text in _FIELD.findall(textwrap.dedent(section)):
                found[name] = " ".join(text.split())
    return found
