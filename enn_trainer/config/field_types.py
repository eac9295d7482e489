"""Types of the fields of configuration classes, with defaults and descriptions.

Types as text are the same as in hyperstate, such as `Optional[List[int]]`; schemas and messages
contain them.
"""

import dataclasses
import enum
import inspect
import re
import textwrap
from collections.abc import Iterator
from dataclasses import MISSING, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from enn_trainer.base.errors import ConfigError

# A section of a docstring, indented below its heading, and a field in it.
_SECTION = re.compile(r"^(?:Attributes|Args):[ \t]*\n((?:[ \t]+\S.*(?:\n|$)|[ \t]*\n)+)", re.M)
_FIELD = re.compile(r"^(\w+)(?: \(.*?\))?:((?:.|\n(?=[ \t\n]))*)", re.M)


def type_text(kind: Any, where: str = "") -> str:
    """Return the text of a type annotation.

    Args:
        kind: `Optional[int]`, `List[int]` and `Dict[str, int]`, or `int | None`, `list[int]` and
            `dict[str, int]`, a dataclass, and so on.
        where: Class and name of the field, for messages.

    Raises:
        ConfigError: configurations do not support this type.
    """
    origin, args = get_origin(kind), get_args(kind)
    if kind in (bool, int, float, str) or (isinstance(kind, type) and is_dataclass(kind)):
        return str(kind.__name__)
    if (origin, len(args)) in ((list, 1), (dict, 2)):
        return f"{origin.__name__.title()}[{', '.join(type_text(arg, where) for arg in args)}]"
    if origin in (Union, UnionType):
        texts = [type_text(arg, where) for arg in args if arg is not NoneType]
        text = texts[0] if len(texts) == 1 else f"Union[{', '.join(texts)}]"
        return f"Optional[{text}]" if NoneType in args else text
    if origin is Literal:
        return "|".join(sorted(map(repr, args)))
    if isinstance(kind, enum.EnumMeta):
        members: dict[str, enum.Enum] = dict(kind.__members__)
        values = {name: member.value for name, member in members.items()}
        return f"Enum(name={kind.__name__!r}, variants={values!r})"
    raise ConfigError(
        f"{where or 'type'}: expected bool, int, float, str, Literal, Enum, a dataclass, or list, "
        f"dict, Optional or Union of these, got {inspect.formatannotation(kind)}"
    )


def strip_optional(kind: Any) -> Any:
    """Return T for Optional[T], and any other type unchanged."""
    args = get_args(kind)
    if get_origin(kind) in (Union, UnionType) and len(args) == 2 and NoneType in args:
        return args[0] if args[1] is NoneType else args[1]
    return kind


def join_path(path: str, name: str) -> str:
    """Return the dotted path of a name in the section at `path`, "" for the root."""
    return f"{path}.{name}" if path else name


class ConfigField(NamedTuple):
    """Section or field of a configuration class.

    Attributes:
        path: Dotted path, with [] after the names of lists and .<name> after the names of dicts.
        cls: Dataclass of the field.
        field: The dataclass field.
        kind: Annotation of the field.
    """

    path: str
    cls: type
    field: dataclasses.Field[Any]
    kind: Any

    @property
    def type(self) -> str:
        """Type as text."""
        return type_text(self.kind, f"{self.cls.__name__}.{self.field.name}")

    @property
    def default(self) -> Any:
        """Default; MISSING for sections and for required fields."""
        factory = self.field.default_factory
        default = self.field.default if factory is MISSING else factory()
        return default.value if isinstance(default, enum.Enum) else default

    @property
    def doc(self) -> str:
        """Description in one line, from the docstring of the class; "" if it has none."""
        return _descriptions(self.cls).get(self.field.name, "")


def entries(cls: Any, path: str = "") -> Iterator[ConfigField]:
    """Yield the sections and fields of a class, each section before its fields."""
    kinds = get_type_hints(cls)
    for field in dataclasses.fields(cls):
        kind, where = kinds[field.name], join_path(path, field.name)
        yield ConfigField(where, cls, field, kind)
        while (inner := strip_optional(kind)) is not kind or get_origin(kind) in (list, dict):
            if inner is kind:
                where += "[]" if get_origin(kind) is list else ".<name>"
                inner = get_args(kind)[-1]
            kind = inner
        if is_dataclass(kind):
            yield from entries(kind, where)


@cache
def _descriptions(cls: type) -> dict[str, str]:
    """Return the descriptions of fields in the docstrings of a class and its bases, by name."""
    docs = {}
    for base in reversed(cls.__mro__):
        for section in _SECTION.findall(inspect.cleandoc(base.__doc__ or "")):
            for name, text in _FIELD.findall(textwrap.dedent(section)):
                docs[name] = " ".join(text.split())
    return docs
