"""Formats of configuration files, chosen by the suffix: text to plain data and back.

What a word without quotes means in YAML follows the core schema of YAML 1.2, not 1.1 as in PyYAML:
1e-3 is a number; on, off, yes, no and dates are text. There are two exceptions: 010 and 0o17, which
are 10 and 15 in YAML 1.2 and something else for others, are text; and numbers may be grouped, as in
1_000_000. Fields of other types refuse text.
"""

from __future__ import annotations

import json
import math
import re
import tomllib
from collections.abc import Callable, Hashable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import tomli_w
import yaml

from enn_trainer.config import ron
from enn_trainer.config.validation import dict_of_unique
from enn_trainer.errors import ConfigError
from entity_env.errors import short_repr
from entity_env.serialization.bounds import check_hashes

MAX_CHARACTERS = 1 << 22
"""Length of a file, a thousand times that of a configuration."""
MAX_VALUES = 100_000
"""Values of a file, which may repeat parts of itself by YAML's aliases."""
MAX_PATHS = 1 << 24
"""Characters in the paths of all values together; a thousand times what a configuration has."""

_PLAIN = (dict, list, str, bool, int, float, type(None))


class Format(NamedTuple):
    """A file format.

    Attributes:
        loads: Reads text; raises ValueError or YAMLError.
        dumps: Writes plain data, in RON also `ron.Struct`; raises ValueError.
        comment: The start of a comment, None if the format has none.
    """

    loads: Callable[[str], Any]
    dumps: Callable[[Any], str]
    comment: str | None


def format_of(path: Path) -> Format:
    """Return the format of a file by its suffix.

    Raises:
        ConfigError: it has another suffix.
    """
    if path.suffix not in _FORMATS:
        raise ConfigError(
            f"{path}: expected a file of {', '.join(_FORMATS)}, got the suffix {path.suffix!r}"
        )
    return _FORMATS[path.suffix]


def read_file(path: Path, loads: Callable[[str], Any] | None = None) -> Any:
    """Read a configuration file as plain data.

    Args:
        path: The file.
        loads: Reads its text; by default that of the format that the suffix says: .ron, .yaml,
            .yml, .toml or .json.

    Returns:
        dict, list, str, int, float, bool or None, nested at most `ron.MAX_DEPTH` deep.

    Raises:
        ConfigError: it has another suffix, cannot be read, names a field twice, nests too
            deeply, or has values of other kinds, such as dates.
    """
    loads = loads or format_of(path).loads
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(MAX_CHARACTERS + 1)
        if len(text) > MAX_CHARACTERS:
            raise ConfigError(f"expected at most {MAX_CHARACTERS} characters")
        return parse(text, loads)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def parse(text: str, loads: Callable[[str], Any] = ron.loads) -> Any:
    """Parse text, by default RON, to plain data.

    Raises:
        ConfigError: as `read_file`.
    """
    try:
        value = loads(text)
    except RecursionError:
        raise ConfigError(f"expected at most {ron.MAX_DEPTH} levels of nesting") from None
    except (ValueError, yaml.YAMLError) as error:
        raise ConfigError(" ".join(str(error).split())) from None
    _check_plain(value)
    return value


def format_text(path: Path, value: ron.Struct) -> str:
    """Return the text of a configuration file.

    Args:
        path: The suffix says the format.
        value: The configuration, as tree of `ron.Struct`, Mapping, list and scalars.

    Raises:
        ConfigError: the format has no text for it; None in TOML is left out.
    """
    try:
        plain = value if path.suffix == ".ron" else _without_names(value, path.suffix != ".toml")
        return format_of(path).dumps(plain).rstrip("\n") + "\n"
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _check_plain(root: Any) -> None:
    """Raise if a tree has values that are no plain data, too many, too deep, or of long paths."""
    num_values, num_characters = 1, 0
    pending: list[tuple[tuple[str, ...], Any]] = [((), root)]
    while pending:
        path, value = pending.pop()
        where = "".join(path).removeprefix(".")
        if len(path) >= ron.MAX_DEPTH:
            raise ConfigError(f"expected at most {ron.MAX_DEPTH} levels of nesting")
        if type(value) not in _PLAIN:
            raise ConfigError(
                f"{where}: expected text in quotes, a number, true or false, a list or a section, "
                f"got {type(value).__name__} {short_repr(str(value))}"
            )
        if type(value) is int and not ron.is_writable(value):
            raise ConfigError(f"{where}: {ron.TOO_LONG}")

        # What is inside, counted before it takes memory: an alias inside itself has no end.
        if not isinstance(value, dict | list):
            continue
        num_values += len(value)
        if num_values > MAX_VALUES:
            raise ConfigError(f"expected at most {MAX_VALUES} values, aliases counted")
        items = value.items() if isinstance(value, dict) else enumerate(value)
        name = ".{}" if isinstance(value, dict) else "[{}]"
        inside = [((*path, name.format(key)), item) for key, item in items]
        num_characters += sum(map(len, path)) * len(inside) + sum(len(p[-1]) for p, _ in inside)
        if num_characters > MAX_PATHS:
            raise ConfigError(f"expected paths of at most {MAX_PATHS} characters together")
        pending += reversed(inside)


def _without_names(value: Any, keep_none: bool = True) -> Any:
    """Return structs as dicts, for formats in which sections have no names.

    Args:
        value: A tree of `ron.Struct`, Mapping, list and scalars.
        keep_none: False leaves out fields that are None, which TOML has no word for.
    """
    if isinstance(value, ron.Struct):
        value = value.fields
    if isinstance(value, Mapping):
        return {
            key: _without_names(item, keep_none)
            for key, item in value.items()
            if keep_none or item is not None
        }
    if not isinstance(value, list):
        return value
    if None in value and not keep_none:
        raise ValueError("expected no None in a list, TOML has none")
    return [_without_names(item, keep_none) for item in value]


# YAML


_TAG = "tag:yaml.org,2002:"
_WORDS = [
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9_]*|0x[0-9a-fA-F_]+)", list("-+0123456789")),
    (
        "float",
        r"[-+]?(?:(?:0|[1-9][0-9_]*)(?:\.[0-9_]*)?|\.[0-9][0-9_]*)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        list("-+0123456789."),
    ),
]


def _loads_yaml(text: str) -> Any:
    """Read one YAML document.

    Raises:
        ValueError: it is not YAML, names a key twice, or has tags of other programs; with the line.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = "" if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: "
        raise ValueError(f"{place}{error.problem or error.context}") from None
    except (KeyError, IndexError, TypeError):
        raise ValueError("expected a value that fits its tag (!!), got another one") from None


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # has no types
    """A reader by the words of `_WORDS`, in which no key is there twice."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012 (filled below)

    def construct_yaml_int(self, node: Any) -> int:
        # With a tag !!int, PyYAML takes 1:30:00 for digits to the base 60, in quadratic time.
        value = self.construct_scalar(node)
        if ":" in value or len(value) > ron.MAX_NUMBER_LENGTH:
            raise _error(f"expected a number, got {short_repr(value)}", node)
        return int(super().construct_yaml_int(node))

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        keys = [
            (self.construct_object(key_node, deep=True), key_node) for key_node, _ in node.value
        ]
        # The class above refuses keys that cannot be hashed.
        keys = [(key, key_node) for key, key_node in keys if isinstance(key, Hashable)]
        try:
            check_hashes(key for key, _ in keys)
        except ValueError as error:
            raise _error(str(error), node) from None
        found = set()
        for key, key_node in keys:
            if key == "<<" and key_node.style is None:  # in quotes it is a name like others
                raise _error("expected no merge key (<<): say its fields", key_node)
            if key in found:
                raise _error(f"expected {short_repr(key)} once, it is there twice", key_node)
            found.add(key)
        return dict(super().construct_mapping(node, deep))


def _error(problem: str, node: Any) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


_Loader.add_constructor(f"{_TAG}int", _Loader.construct_yaml_int)
for _kind in ("timestamp", "binary", "omap", "pairs", "set"):  # read as tags that nobody knows
    del _Loader.yaml_constructors[_TAG + _kind]


class _Dumper(yaml.SafeDumper):  # type: ignore[misc]
    """A writer of words without quotes where they are read back as they were."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012 (filled below)

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_str(self, text: str) -> Any:
        # In other quotes, line breaks of Unicode would be folded into blanks.
        style = None if text.isprintable() else '"'
        return self.represent_scalar(f"{_TAG}str", text, style)


_Dumper.add_representer(str, _Dumper.represent_str)


for _kind, _pattern, _first in _WORDS:
    for _class in (_Loader, _Dumper):
        _regex = re.compile(f"(?:{_pattern})$")
        _class.add_implicit_resolver(_TAG + _kind, _regex, _first)


_YAML_STYLE = {"sort_keys": False, "allow_unicode": True, "indent": 4, "width": math.inf}
_YAML = Format(_loads_yaml, partial(yaml.dump, Dumper=_Dumper, **_YAML_STYLE), "#")
_FORMATS = {
    ".ron": Format(ron.loads, ron.dumps, "//"),
    ".yaml": _YAML,
    ".yml": _YAML,
    ".toml": Format(tomllib.loads, tomli_w.dumps, "#"),
    ".json": Format(
        partial(json.loads, object_pairs_hook=dict_of_unique),
        partial(json.dumps, indent=4, ensure_ascii=False),
        None,
    ),
}
