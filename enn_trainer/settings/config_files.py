"""The formats of configuration files: text to plain data and back, chosen by the suffix."""

from __future__ import annotations

import importlib
import json
import tomllib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from enn_trainer.config_checks import dict_of_unique
from enn_trainer.errors import ConfigError, RonError
from enn_trainer.settings import ron
from entity_env.short_repr import short_repr

# A file may repeat parts of itself by YAML's aliases; so much is never meant by anybody.
MAX_VALUES = 100_000

MAX_CHARACTERS = 1 << 22
"""Of a file, as of one in a save; a thousand times what a configuration takes."""
MAX_PATHS = 1 << 24
"""Characters in the paths of all values together; a thousand times what a configuration has."""

_PLAIN = (dict, list, str, bool, int, float)


def read_file(path: Path) -> Any:
    """Read a configuration file as plain data.

    Args:
        path: its suffix says the format: .ron, .yaml, .yml, .toml or .json.

    Returns:
        dict, list, str, int, float, bool or None, nested at most `ron.MAX_DEPTH` deep.

    Raises:
        ConfigError: it is of another suffix, cannot be read, names a field twice, nests too
            deeply, or has values of other kinds, such as dates.
    """
    read = _format(path)[0]
    try:
        with path.open(encoding="utf-8-sig") as file:
            text = file.read(MAX_CHARACTERS + 1)
        if len(text) > MAX_CHARACTERS:
            raise ConfigError(f"expected at most {MAX_CHARACTERS} characters")
        return parsed(text, read)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except (ConfigError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def parsed(text: str, read: Callable[[str], Any] = ron.loads) -> Any:
    """Plain data out of a text, by default RON.

    Raises:
        ConfigError: as `read_file`.
    """
    try:
        value = read(text)
    except RecursionError:
        raise ConfigError(f"expected at most {ron.MAX_DEPTH} levels of nesting") from None
    except (RonError, ValueError) as error:
        raise ConfigError(" ".join(str(error).split())) from None
    _check_plain(value)
    return value


def written(path: Path, value: ron.Struct) -> str:
    """The text of a configuration file.

    Args:
        path: its suffix says the format.
        value: the configuration, as tree of `ron.Struct`, Mapping, list and scalars.

    Raises:
        ConfigError: the format cannot say it; None in TOML is left out.
    """
    try:
        return _format(path)[1](value)
    except (RonError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None


def comment_start(path: Path) -> str | None:
    """What begins a comment in a file of this suffix; None where there are none."""
    return {".ron": "//", ".json": None}.get(path.suffix, "#")


def _format(path: Path) -> tuple[Callable[[str], Any], Callable[[Any], str]]:
    if path.suffix not in _FORMATS:
        raise ConfigError(
            f"{path}: expected a file of {', '.join(_FORMATS)}, got the suffix {path.suffix!r}"
        )
    return _FORMATS[path.suffix]


def _check_plain(value: Any) -> None:
    """Raise if a value is too deep, has too much in it or too long names, or is no plain data."""
    num_values = num_characters = 0
    waiting: list[tuple[Any, _Place | None]] = [(value, None)]
    while waiting:
        value, place = waiting.pop()
        depth, length = (0, 0) if place is None else place[2:]
        num_values, num_characters = num_values + 1, num_characters + length
        if num_values > MAX_VALUES:
            raise ConfigError(f"expected at most {MAX_VALUES} values, aliases counted")
        if num_characters > MAX_PATHS:
            raise ConfigError(f"expected paths of at most {MAX_PATHS} characters together")
        if depth >= ron.MAX_DEPTH:
            raise ConfigError(f"expected at most {ron.MAX_DEPTH} levels of nesting")
        items: Iterable[tuple[str, Any]] = ()
        if isinstance(value, dict):
            items = ((f".{key}", item) for key, item in value.items())
        elif isinstance(value, list):
            items = ((f"[{i}]", item) for i, item in enumerate(value))
        elif type(value) is int and not ron.is_writable(value):
            raise ConfigError(
                f"{_path(place)}: expected at most {ron.MAX_NUMBER_LENGTH} characters of number"
            )
        elif value is not None and type(value) not in _PLAIN:
            raise ConfigError(
                f"{_path(place)}: expected text in quotes, a number, true or false, a list or a "
                f"section, got {type(value).__name__} {short_repr(str(value))}"
            )
        waiting += [
            (item, _Place(place, name, depth + 1, length + len(name))) for name, item in items
        ]


class _Place(NamedTuple):
    """The place of a value, without the text of its path, which may be long."""

    parent: _Place | None
    name: str
    depth: int
    length: int


def _path(place: _Place | None) -> str:
    names = []
    while place is not None:
        names.append(place.name)
        place = place.parent
    return "".join(reversed(names)).removeprefix(".")


# JSON


def _read_json(text: str) -> Any:
    return json.loads(text, object_pairs_hook=dict_of_unique)


def _write_json(value: Any) -> str:
    return json.dumps(_without_names(value), indent=4, ensure_ascii=False) + "\n"


# TOML


def _write_toml(value: Any) -> str:
    return "\n".join(_toml_section(_without_names(value), [])) + "\n"


def _toml_section(section: Mapping[str, Any], path: list[str]) -> list[str]:
    """The lines of a section: its values, then the sections inside it under their own titles."""
    lines = [f"[{'.'.join(map(_toml_key, path))}]"] if path else []
    inner = {key: value for key, value in section.items() if isinstance(value, dict)}
    for key, value in section.items():
        if key not in inner and value is not None:
            lines.append(f"{_toml_key(key)} = {_toml_value(value)}")
    for key, value in inner.items():
        lines += ["", *_toml_section(value, [*path, key])]
    return lines


def _toml_key(key: object) -> str:
    if not isinstance(key, str):
        raise ValueError(f"expected a name that is text, as TOML has no others, got {key!r}")
    plain = key.isascii() and key.replace("_", "").replace("-", "").isalnum()
    return key if plain else _toml_value(key)


def _toml_value(value: Any) -> str:
    if value is None:
        raise ValueError("expected no None in a list, TOML has none")
    if isinstance(value, str):
        # As in JSON, but that there every character stands for itself or is a pair of surrogates.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_toml_value, value))}]"
    if isinstance(value, dict):
        items = (f"{_toml_key(k)} = {_toml_value(v)}" for k, v in value.items() if v is not None)
        return "{" + ", ".join(items) + "}"
    return json.dumps(value).replace("Infinity", "inf").replace("NaN", "nan")


def _without_names(value: Any) -> Any:
    """Structs as dicts, for formats in which sections have no names."""
    if isinstance(value, ron.Struct):
        value = value.fields
    if isinstance(value, Mapping):
        return {key: _without_names(item) for key, item in value.items()}
    return [_without_names(item) for item in value] if isinstance(value, list) else value


# YAML is imported where it is used: most runs need none.


def _yaml_text() -> ModuleType:
    return importlib.import_module("enn_trainer.settings.yaml_text")


def _read_yaml(text: str) -> Any:
    return _yaml_text().loads(text)


def _write_yaml(value: Any) -> str:
    text: str = _yaml_text().dumps(_without_names(value))
    return text


_FORMATS: dict[str, tuple[Callable[[str], Any], Callable[[Any], str]]] = {
    ".ron": (ron.loads, lambda value: ron.dumps(value) + "\n"),
    ".yaml": (_read_yaml, _write_yaml),
    ".yml": (_read_yaml, _write_yaml),
    ".toml": (tomllib.loads, _write_toml),
    ".json": (_read_json, _write_json),
}
