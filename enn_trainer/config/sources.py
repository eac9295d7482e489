"""Sources of the values of a configuration, environment variables among them."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias, get_origin

from hyperstate import Versioned

from enn_trainer.config import ron
from enn_trainer.config.build import type_of_field, within_optional
from enn_trainer.config.help import join_path
from enn_trainer.config.schedules import Scheduled, as_written

PREFIX = "ENN_"

COMMAND_LINE = "command line"
ENVIRONMENT = "environment variable "
FILE = "file "
"""The last two are followed by a name."""

Names: TypeAlias = tuple[str, ...]
"""The path of a value: names of fields and of items of dicts, which may have dots in them."""

_PATH = re.compile(r"[\w.]+")


class Sources:
    """Sources of values, by their paths."""

    def __init__(self) -> None:
        self._by_path: dict[Names, str] = {}

    def note(self, path: Names, value: Any, source: str) -> None:
        """Note the source of everything at and below a path."""
        for old in [old for old in self._by_path if _is_within(old, path)]:
            del self._by_path[old]
        for leaf, _ in leaves(value, path):
            self._by_path[leaf] = source

    def note_leaf(self, leaf: Names, source: str) -> None:
        """Note the source of a value with none inside it, where none is around it either."""
        self._by_path[leaf] = source

    def of(self, path: str) -> str:
        """Return the source of the field at a dotted path, or of something in it."""
        return next(self._within(tuple(path.split("."))), "default")

    def is_given(self, path: Names) -> bool:
        """Return whether the user gave all that is at and below a path: typed it or named its file.

        Defaults and the values of a checkpoint are not given.
        """
        sources = list(self._within(path))
        given = (COMMAND_LINE, ENVIRONMENT, FILE)
        return bool(sources) and all(source.startswith(given) for source in sources)

    def named_in(self, problem: str) -> str:
        """Return a problem with the environment variable that it comes from."""
        path = _PATH.match(problem)
        source = self.of(path[0]) if path else ""
        return f"{problem} (from {source})" if source.startswith(ENVIRONMENT) else problem

    def _within(self, path: Names) -> Iterator[str]:
        return (source for leaf, source in self._by_path.items() if _is_within(leaf, path))


def _is_within(path: Names, section: Names) -> bool:
    return path[: len(section)] == section


def leaves(value: Any, path: Names = ()) -> Iterator[tuple[Names, Any]]:
    """Yield each value that is not a section, and empty sections, with their paths."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from leaves(item, (*path, str(key)))
    else:
        yield path, value


def environment_overrides(cls: Any, environment: Mapping[str, str]) -> dict[str, str]:
    """Return the overrides in environment variables, such as ENN_OPTIM__LR=0.003, by their names.

    The names of fields are in upper case there; those of the items of a dict stay as they are.
    """
    overrides = {}
    for name, value in sorted(environment.items()):  # a section before its fields
        if not name.startswith(PREFIX):
            continue
        kind, path = cls, []
        for part in name.removeprefix(PREFIX).split("__"):
            is_item = get_origin(within_optional(kind)) is dict
            path.append(part if is_item else part.lower())
            kind = type_of_field(kind, path[-1])
        overrides[name] = f"{'.'.join(path)}={value}"
    return overrides


def show_config(config: Any, sources: Sources) -> str:
    """Return a table of every value of a configuration and its source, by section."""
    rows = []
    for path, value in settings_of(config):
        label = "  " * path.count(".") + path.rpartition(".")[2]
        if dataclasses.is_dataclass(value):
            rows.append((label, "", ""))
            continue
        mark = " (schedule)" if isinstance(value, Scheduled) else ""
        rows.append((label, in_one_line(as_data(value)), sources.of(path) + mark))
    widths = [min(40, max(len(row[i]) for row in rows if row[2])) for i in (0, 1)]
    return "\n".join(
        f"{row[0]:{widths[0]}}  {row[1]:{widths[1]}}  {row[2]}" if row[2] else row[0]
        for row in rows
    )


def settings_of(section: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a tree of dataclasses by dotted paths, sections before their fields."""
    for field in dataclasses.fields(section):
        value, where = getattr(section, field.name), join_path(path, field.name)
        yield where, value
        if dataclasses.is_dataclass(value):
            yield from settings_of(value, where)


def in_one_line(value: Any) -> str:
    """Return a value as RON without line breaks."""
    if isinstance(value, list):
        return f"[{', '.join(map(in_one_line, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{ron.dumps(k)}: {in_one_line(v)}' for k, v in value.items())}}}"
    if isinstance(value, ron.Struct):
        return f"({', '.join(f'{k}: {in_one_line(v)}' for k, v in value.fields.items())})"
    return ron.dumps(value)


def as_data(value: Any) -> Any:
    """Return a configuration, or a part of it, as what is written of it; schedules as text."""
    if isinstance(value, list):
        return [as_data(item) for item in value]
    if isinstance(value, dict):
        return {key: as_data(item) for key, item in value.items()}
    if not dataclasses.is_dataclass(value):
        return as_written(value)
    fields = {f.name: as_data(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Versioned):
        fields = {"version": value.version(), **fields}
    return ron.Struct(type(value).__name__, fields)
