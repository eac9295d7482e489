"""Configuration files rewritten for the current version, with comments where it is possible.

A file of RON gets what it lacks put in, and keeps everything else. Where that is not enough, and in
other formats, it is written anew by the library of its format: then the comments at its top stay.
"""

import os
import re
import shutil
from collections.abc import Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple

from enn_trainer.base.errors import ConfigError
from enn_trainer.config import ron
from enn_trainer.config.build import as_data
from enn_trainer.config.formats import format_of, format_text, parse, read_file
from enn_trainer.config.load import dump_config, load_config, upgraded
from enn_trainer.config.versioned import Versioned

_VERSION = re.compile(r"""(\bversion["']?\s*[:=]\s*)(\d+)""")
_COMMA = re.compile(r"\s*,")
_FIRST_LINE = re.compile(r"[^\n]*\n([ \t]*)")


class Upgrade(NamedTuple):
    """Text of a file before and after its upgrade.

    Attributes:
        version: Before the upgrade.
        before: Its text.
        after: Its text for the current version.
        loses_comments: True if some are not in the text after.
    """

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
        return Upgrade(version, before, before, loses_comments=False)
    target: ron.Struct = (
        as_data(config)
        if include_defaults
        else _named(as_data(config), {"version": cls.version(), **upgraded(cls, values, str(path))})
    )

    # Edited with line breaks of one character; where all are of two, they become that again.
    is_crlf = 0 < before.count("\n") == before.count("\r\n")
    text = before.replace("\r\n", "\n") if is_crlf else before
    rewritten = _top_comments(text, path) + format_text(path, target)
    for after in (*_edited(text, path, target, values), rewritten):
        if _reads_as(cls, path, after) == (cls.version(), dump_config(config)):
            lost = _comments(text, path) - _comments(after, path)
            after = after.replace("\n", "\r\n") if is_crlf else after
            return Upgrade(version, before, after, loses_comments=bool(lost))
    raise ConfigError(f"{path}: not written, as it would not be read back the same")


def write_whole(path: Path, text: str) -> None:
    """Replace the text of a file, whole or not at all.

    Raises:
        ConfigError: it cannot be written.
    """
    path = path.resolve()  # a link stays one
    temporary = path.with_name(f".{path.name}-{os.getpid()}")
    try:
        try:
            with temporary.open("x", encoding="utf-8", newline="") as file:
                if path.exists():
                    shutil.copymode(path, temporary)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def _reads_as(cls: type[Any], path: Path, text: str) -> tuple[int, str] | None:
    """Return the version and, as RON, the configuration of a text, None if it cannot be read."""
    try:
        values = parse(text, format_of(path).loads)
        return values["version"], dump_config(load_config(cls, None, text=ron.dumps(values)))
    except ConfigError:
        return None


def _named(whole: Any, value: Any) -> Any:
    """Return the values of a file with the names that sections have in the whole configuration."""
    if isinstance(whole, ron.Struct) and isinstance(value, dict):
        fields = {name: _named(whole.fields[name], item) for name, item in value.items()}
        return ron.Struct(whole.name, fields)
    if isinstance(whole, list) and isinstance(value, list):
        return [_named(a, b) for a, b in zip(whole, value, strict=True)]
    return value


def _edited(text: str, path: Path, target: ron.Struct, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the text with another version number and, in RON, with what it lacks.

    Each place that looks like the version gives one text: some may be in comments or in quotes, and
    reading the result tells which one is right.
    """
    is_ron = path.suffix == ".ron"
    wanted = ron.loads(ron.dumps(target))
    if not is_ron and {**values, "version": 0} != {**wanted, "version": 0}:
        return
    for number in _VERSION.finditer(text):
        if number[2] != str(values["version"]):
            continue
        edits = [(number.start(2), number.end(2), str(target.fields["version"]))]
        if is_ron:
            starts: dict[int, int] = {}
            plain = ron.loads(text, starts=starts)
            comma = _COMMA.match(text, number.end())
            behind_version = comma.end() if comma else number.end()
            edits += _additions(text, plain, target, starts, behind_version)
        after = text
        for start, end, new in sorted(edits, reverse=True):
            after = after[:start] + new + after[end:]
        yield after


def _additions(
    text: str, values: Any, target: Any, starts: Mapping[int, int], behind_version: int
) -> Iterator[tuple[int, int, str]]:
    """Yield the start, end and text of edits that put in the fields that sections lack.

    Args:
        text: Of the file.
        values: Of one section, or a value, as read from the text.
        target: What it should become.
        starts: The position of the fields of each section, by its id.
        behind_version: The position of new fields of the whole configuration.
    """
    if isinstance(values, list) and isinstance(target, list):
        values, target = dict(enumerate(values)), dict(enumerate(target))
    fields = target.fields if isinstance(target, ron.Struct) else target
    if not isinstance(values, dict) or not isinstance(fields, Mapping):
        return

    # The fields that this section lacks, each in a line if it has one.
    missing = {name: item for name, item in fields.items() if name not in values}
    if missing and id(values) in starts:
        at = starts[id(values)]
        first_line = _FIRST_LINE.match(text, at)
        line_break = f"\n{first_line[1] if first_line else ''}"
        added = "".join(
            f"{line_break if first_line else ' '}{name}: "
            + ron.dumps(item).replace("\n", line_break)
            + ","
            for name, item in missing.items()
        )
        if "version" in values:  # which stays first
            at = behind_version
        elif not first_line:
            added = added[1:] + " "
        yield at, at, added

    # The sections inside it.
    for name, item in values.items():
        yield from _additions(text, item, fields.get(name), starts, behind_version)


def _top_comments(text: str, path: Path) -> str:
    """Return the comments and empty lines before everything else."""
    start = format_of(path).comment
    if start is None:
        return ""
    lines = text.splitlines(keepends=True)
    return "".join(takewhile(lambda line: line.strip()[: len(start)] in ("", start), lines))


def _comments(text: str, path: Path) -> set[str]:
    """Return what may be comments; something inside quotes may look like one."""
    start = format_of(path).comment
    if start is None:
        return set()
    found = {line.partition(start)[2].strip() for line in text.splitlines() if start in line}
    return found | set(re.findall(r"/\*.*?\*/", text, re.DOTALL) if start == "//" else [])
