"""What is wrong with a value of a setting, in words; None where nothing is."""

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, get_args

from enn_trainer.errors import ConfigError
from entity_env.short_repr import short_repr

JSON_TEXT = {"json_text": True}
"""Metadata of a field whose text is a JSON object, which a file may write as a section."""
COMPUTED = {"computed": True}
"""Metadata of a field whose default depends on how the program was called."""

MAX_PATH_BYTES = 4095
"""Bytes of a path on Linux, the terminating NUL not counted."""
MAX_NAME_BYTES = 255
"""Bytes of a file name on all common file systems."""


def refuse(*problems: str | None) -> None:
    """Raise one error that names all problems, if there are any.

    Raises:
        ConfigError: there are.
    """
    found = [problem for problem in problems if problem is not None]
    if found:
        raise ConfigError(*found)


def within(
    name: str, value: float | None, least: float = -math.inf, most: float = math.inf
) -> str | None:
    """Say what is wrong with a value that must be finite and between two limits, both allowed."""
    if value is None or (-math.inf < value < math.inf and least <= value <= most):
        return None
    expected = "a finite number"
    if math.isfinite(most):
        expected = f"a number from {least} to {most}"
    elif math.isfinite(least):
        expected = f"a finite number of at least {least}"
    return f"{name}: expected {expected}, got {value}"


def positive(name: str, value: float | None) -> str | None:
    """Say what is wrong with a limit that must be above 0; infinity switches it off."""
    if value is None or value > 0:
        return None
    return f"{name}: expected a number above 0, got {value}"


def above(name: str, value: float | None, least: float) -> str | None:
    """Say what is wrong with a finite number that must be above another."""
    if value is None or least < value < math.inf:
        return None
    return f"{name}: expected a finite number above {least}, got {value}"


def share(name: str, value: float) -> str | None:
    """Say what is wrong with a number that must be between 0 and 1, neither allowed."""
    if 0 < value < 1:
        return None
    return f"{name}: expected a number between 0 and 1, got {value}"


def one_of(name: str, value: str, kind: object) -> str | None:
    """Say what is wrong with a value that must be one of those of a `Literal`."""
    if value in get_args(kind):
        return None
    return f"{name}: expected {' or '.join(map(repr, get_args(kind)))}, got {short_repr(value)}"


def json_object(name: str, text: str) -> str | None:
    """Say what is wrong with a text that must be a JSON object."""
    try:
        is_object = isinstance(json.loads(text, object_pairs_hook=once), dict)
    except ConfigError as error:
        return f"{name}: {error}"
    except (ValueError, RecursionError):
        is_object = False
    if is_object:
        return None
    return f'{name}: expected a JSON object such as {{"a": 1}}, got {short_repr(text)}'


def once(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """The fields of a JSON object, for `json.loads`.

    Raises:
        ConfigError: a name is there twice.
    """
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ConfigError(f"expected {short_repr(key)} once, it is there twice")
        found[key] = value
    return found


def part_of_file_name(name: str, text: str) -> str | None:
    """Say what is wrong with a text that becomes a part of the name of a folder."""
    if "/" not in text and "\\" not in text and text.isprintable():
        return None
    return (
        f"{name}: expected a name without /, \\ and line breaks, as a folder has it, got "
        f"{short_repr(text)}"
    )


def usable_path(name: str, text: str | None) -> str | None:
    """Say what is wrong with a text that no file could have as its path, whatever is there."""
    if text is None:
        return None
    try:
        path = os.fsencode(text)
    except UnicodeEncodeError:  # a lone surrogate
        path = b"\0"
    is_short = len(path) <= MAX_PATH_BYTES and max(map(len, path.split(b"/"))) <= MAX_NAME_BYTES
    if is_short and b"\0" not in path:
        return None
    return (
        f"{name}: expected a path of Unicode characters without NUL, of at most {MAX_PATH_BYTES} "
        f"bytes and {MAX_NAME_BYTES} between two slashes, got {short_repr(text)}"
    )


def unwritable(path: Path, error: OSError) -> ConfigError:
    """Return the error of a run that cannot write to its folder."""
    return ConfigError(f"data_dir: cannot write {path}: {error.strerror or error}")
