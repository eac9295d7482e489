"""Configuration files rewritten for the current version, with comments where it is possible.

A file of RON gets what it lacks put in, and keeps everything else. Where that is not enough, and in
other formats, it is written anew by the library of its format: then the comments at its top stay.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin, get_type_hints

from hyperstate import Versioned

from enn_trainer.config import ron
from enn_trainer.config.build import as_data, within_optional
from enn_trainer.config.formats import format_of, format_text, parse, read_file
from enn_trainer.config.load import dump_config, load_config, upgraded
from enn_trainer.errors import ConfigError

_VERSION = re.compile(r"""(\bversion["']?\s*[:=]\s*)(\d+)""")


class Upgrade(NamedTuple):
    """Text of a file before and after its upgrade.

    Attributes:
        path: Of the file.
        version: Before the upgrade.
        before: Its text.
        after: Its text for the current version.
        loses_comments: True if some are not in the text after.
    """

    path: Path
    version: int
    before: str
    after: str
    loses_comments: bool


def upgraded_file(cls: type[Versioned], path: Path, include_defaults: bool = False) -> Upgrade:
    """Return the text of a configuration file for the current version; nothing is written.

    Args:
        cls: The class of the configuration.
        path: The file.
        include_defaults: Name every setting, also those that the file leaves out.

    Raises:
        ConfigError: the file cannot be read, or what is written would not be read back the same.
    """
    config = load_config(cls, path)
    values = read_file(path)
    version = values["version"]
    before = path.read_bytes().decode("utf-8-sig")
    if version == cls.version() and not include_defaults:
        return Upgrade(path, version, before, before, loses_comments=False)
    target: ron.Struct = (
        as_data(config)
        if include_defaults
        else _named(cls, {"version": cls.version(), **upgraded(cls, values, str(path))})
    )

    # Edited with line breaks of one character; where all are of two, they become that again.
    is_crlf = 0 < before.count("\n") == before.count("\r\n")
    text = before.replace("\r\n", "\n") if is_crlf else before
    rewritten = _top_comments(text, path) + format_text(path, target)
    for after in (*_edited(text, path, target, values), rewritten):
        if _reads_as(cls, path, after) == (cls.version(), dump_config(config)):
            lost = _comments(text, path) - _comments(after, path)
            after = after.replace("\n", "\r\n") if is_crlf else after
            return Upgrade(path, version, before, after, loses_comments=bool(lost))
    raise ConfigError(f"{path}: not written, as it would not be read back the same")


def write_whole(path: Path, text: str) -> None:
    """Replace the text of a file, whole or not at all.

    Raises:
        ConfigError: it cannot be written.
    """
    path = path.resolve()  # a link stays one
    try:
        file, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(file, "w", encoding="utf-8", newline="") as stream:
                stream.write(text)
                stream.flush()
                os.fsync(stream.fileno())
            if path.exists():
                mode = path.stat().st_mode & 0o777
            else:
                umask = os.umask(0o022)  # which can only be read by setting it
                os.umask(umask)
                mode = 0o666 & ~umask
            Path(temporary).chmod(mode)
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def _reads_as(cls: type[Any], path: Path, text: str) -> tuple[int, str] | None:
    """Return the version and, as RON, the configuration of a text, None if it cannot be read."""
    try:
        values = parse(text, format_of(path).loads)
        return values["version"], dump_config(load_config(cls, None, text=ron.dumps(values)))
    except ConfigError:
        return None


def _named(kind: Any, value: Any) -> Any:
    """Return the values of a file with sections named by their classes, as RON has them."""
    kind = within_optional(kind)
    if is_dataclass(kind) and isinstance(value, dict):
        kinds = get_type_hints(kind)
        fields = {name: _named(kinds.get(name), item) for name, item in value.items()}
        return ron.Struct(getattr(kind, "__name__", ""), fields)
    if get_origin(kind) is list and isinstance(value, list):
        return [_named(get_args(kind)[0], item) for item in value]
    return value


def _edited(text: str, path: Path, target: ron.Struct, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text with another version number and what it lacks, if that is all.

    Each place that looks like the version gives one text: some may be in comments or in quotes, and
    reading the result tells which one is right.
    """
    is_same = {**values, "version": 0} == {**_plain(target), "version": 0}
    for number in _VERSION.finditer(text):
        if number[2] != str(values["version"]):
            continue
        edits = [(number.start(2), number.end(2), str(target.fields["version"]))]
        if path.suffix == ".ron":
            plain, starts = ron.loads_with_starts(text)
            additions: dict[int, str] = {}
            if not _find_additions(text, plain, target, starts, number, additions):
                continue
            edits += [(at, at, added) for at, added in additions.items()]
        elif not is_same:
            return
        after = text
        for start, end, new in sorted(edits, reverse=True):
            after = after[:start] + new + after[end:]
        yield after


def _find_additions(
    text: str,
    values: Any,
    target: Any,
    starts: Mapping[int, int],
    number: re.Match[str],
    additions: dict[int, str],
) -> bool:
    """Find the text to put in at each position, and return whether that makes the target.

    Args:
        text: Of the file.
        values: Of one section, or a value, as read from the text.
        target: What it should become.
        starts: The position of the fields of each section, by its id.
        number: The place of the version in the text.
        additions: Gains the text of fields that are missing, by position.
    """
    if not (isinstance(values, dict) and isinstance(target, ron.Struct)):
        return bool(values == _plain(target))
    if not values.keys() <= target.fields.keys():
        return False

    # The text of the fields that this section lacks.
    missing = {name: item for name, item in target.fields.items() if name not in values}
    if missing:
        if id(values) not in starts:
            return False
        at = starts[id(values)]
        first_line = re.match(r"[^\n]*\n([ \t]*)", text[at:])
        line_break = f"\n{first_line[1] if first_line else ''}"
        added = "".join(
            f"{line_break if first_line else ' '}{name}: "
            + ron.dumps(item).replace("\n", line_break)
            + ","
            for name, item in missing.items()
        )
        if "version" in values:  # which stays first
            comma = re.compile(r"\s*,").match(text, number.end())
            if comma is None:
                return False
            at = comma.end()
        elif not first_line:
            added = added[1:] + " "
        additions[at] = added

    # The sections inside it.
    return all(
        name == "version"
        or _find_additions(text, item, target.fields[name], starts, number, additions)
        for name, item in values.items()
    )


def _plain(value: Any) -> Any:
    return ron.loads(ron.dumps(value))


def _top_comments(text: str, path: Path) -> str:
    """Return the comments and empty lines before everything else."""
    start = format_of(path).comment
    kept = []
    for line in text.splitlines(keepends=True):
        if start is None or (line.strip() and not line.lstrip().startswith(start)):
            break
        kept.append(line)
    return "".join(kept)


def _comments(text: str, path: Path) -> set[str]:
    """Return what may be comments; something inside quotes may look like one."""
    start = format_of(path).comment
    if start is None:
        return set()
    found = {line.partition(start)[2].strip() for line in text.splitlines() if start in line}
    return found | set(re.findall(r"/\*.*?\*/", text, re.DOTALL) if start == "//" else [])
