"""Formats of configuration files, selected by the suffix."""

import json
import tomllib
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from enn_trainer.base.errors import ConfigError
from enn_trainer.config import ron
from enn_trainer.config.validation import dict_of_unique
from entity_env.errors import short_repr

MAX_CHARACTERS = 1 << 22
"""Largest length of a file, a thousand times that of a configuration."""
MAX_VALUES = 100_000
"""Largest number of values of a file, with YAML aliases expanded."""
MAX_PATHS = 1 << 24
"""Largest number of characters of all paths together, a thousand times that of a configuration."""

_PLAIN = (dict, list, str, bool, int, float, type(None))


class Format(NamedTuple):
    """A file format.

    Attributes:
        loads: Parses text; raises ValueError.
        dumps: Formats plain data, for RON also `ron.Struct`; raises ValueError.
        comment: Start of a comment, None if the format has no comments.
    """

    loads: Callable[[str], Any]
    dumps: Callable[[Any], str]
    comment: str | None


def format_of(path: Path) -> Format:
    """Return the format of a file by its suffix.

    Raises:
        ConfigError: the suffix is unknown.
    """
    # Libraries of formats are imported on demand: most runs need none.
    match path.suffix:
        case ".ron":
            return Format(ron.loads, ron.dumps, "//")
        case ".yaml" | ".yml":
            from enn_trainer.config import yaml_format

            return Format(yaml_format.loads, yaml_format.dumps, "#")
        case ".toml":
            import tomli_w

            return Format(tomllib.loads, tomli_w.dumps, "#")
        case ".json":
            loads = partial(json.loads, object_pairs_hook=dict_of_unique)
            return Format(loads, partial(json.dumps, indent=4, ensure_ascii=False), None)
    raise ConfigError(
        f"{path}: expected a file of .ron, .yaml, .yml, .toml, .json, got the suffix "
        f"{path.suffix!r}"
    )


def read_file(path: Path, loads: Callable[[str], Any] | None = None) -> Any:
    """Read a configuration file as plain data.

    Args:
        path: The file.
        loads: Parser of the text; by default that of the suffix: .ron, .yaml, .yml, .toml, .json.

    Returns:
        dict, list, str, int, float, bool or None, nested at most `ron.MAX_DEPTH` deep.

    Raises:
        ConfigError: the suffix is unknown, or the file cannot be read, repeats a field, nests too
            deeply, or has values of other types, such as dates.
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
    """Parse text, by default RON, into plain data.

    Raises:
        ConfigError: see `read_file`.
    """
    try:
        value = loads(text)
    except RecursionError:
        raise ConfigError(f"expected at most {ron.MAX_DEPTH} levels of nesting") from None
    except ValueError as error:
        raise ConfigError(" ".join(str(error).split())) from None
    _check_plain(value)
    return value


def format_text(path: Path, value: ron.Struct) -> str:
    """Format a configuration file; TOML files omit fields that are None.

    Args:
        path: The file; its suffix determines the format.
        value: The configuration, as a tree of `ron.Struct`, Mapping, list and scalars.

    Raises:
        ConfigError: the format cannot represent a value.
    """
    try:
        plain = value if path.suffix == ".ron" else _without_names(value, path.suffix != ".toml")
        return format_of(path).dumps(plain).rstrip("\n") + "\n"
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{path}: {error}") from None


def _check_plain(root: Any) -> None:
    """Check that a tree is plain data, and the number, depth and path lengths of its values."""
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

        # Children are counted before they take memory: a recursive alias never ends.
        if not isinstance(value, dict | list):
            continue
        num_values += len(value)
        if num_values > MAX_VALUES:
            raise ConfigError(f"expected at most {MAX_VALUES} values, including aliases")
        items = value.items() if isinstance(value, dict) else enumerate(value)
        name = ".{}" if isinstance(value, dict) else "[{}]"
        inside = [((*path, name.format(key)), item) for key, item in items]
        num_characters += sum(map(len, path)) * len(inside) + sum(len(p[-1]) for p, _ in inside)
        if num_characters > MAX_PATHS:
            raise ConfigError(f"expected paths of at most {MAX_PATHS} characters in total")
        pending += reversed(inside)


def _without_names(value: Any, keep_none: bool = True) -> Any:
    """Convert structs to dicts, for formats without named sections.

    Args:
        value: A tree of `ron.Struct`, Mapping, list and scalars.
        keep_none: False to omit fields that are None, which TOML cannot represent.
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
        raise ValueError("expected no None in a list, because TOML has no None")
    return [_without_names(item, keep_none) for item in value]
