"""Upgrade of configuration files to the current version, keeping comments if possible.

Missing fields are inserted into a RON file, which keeps its other text. If that is not enough, and
in other formats, the file is rewritten by the library of its format, with its leading comments.
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


class FileUpgrade(NamedTuple):
    """Text of a file before and after its upgrade.

    Attributes:
        version: Version before the upgrade.
        before: Text before the upgrade.
        after: Text for the current version.
        loses_comments: True if `after` lacks comments of `before`.
    """

    version: int
    before: str
    after: str
    loses_comments: bool


def upgraded_file(cls: type[Versioned], path: Path, include_defaults: bool = False) -> FileUpgrade:
    """Return the upgrade of a configuration file, without writing it.

    Args:
        cls: The class of the configuration.
        path: The file.
        include_defaults: Also write settings that the file omits.

    Raises:
        ConfigError: the file cannot be read, or its upgrade would change the configuration.
    """
    config = load_config(cls, path)
    values = read_file(path)
    version = values["version"]
    before = path.read_bytes().decode("utf-8-sig")
    if version == cls.version() and not include_defaults:
        return FileUpgrade(version, before, before, loses_comments=False)
    target: ron.Struct = (
        as_data(config)
        if include_defaults
        else _named_sections(
            as_data(config), {"version": cls.version(), **upgraded(cls, values, str(path))}
        )
    )

    # Edit with \n as the line break; \r\n is restored if all line breaks were \r\n.
    is_crlf = 0 < before.count("\n") == before.count("\r\n")
    text = before.replace("\r\n", "\n") if is_crlf else before
    rewritten = _top_comments(text, path) + format_text(path, target)
    for after in (*_edits(text, path, target, values), rewritten):
        if _parse_config(cls, path, after) == (cls.version(), dump_config(config)):
            lost = _comments(text, path) - _comments(after, path)
            after = after.replace("\n", "\r\n") if is_crlf else after
            return FileUpgrade(version, before, after, loses_comments=bool(lost))
    raise ConfigError(f"{path}: not upgraded, because the configuration would change")


def write_whole(path: Path, text: str) -> None:
    """Replace the text of a file atomically.

    Raises:
        ConfigError: the file cannot be written.
    """
    path = path.resolve()  # keeps a link
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


def _parse_config(cls: type[Any], path: Path, text: str) -> tuple[int, str] | None:
    """Return the version and the configuration (as RON) of a text, None if it is invalid."""
    try:
        values = parse(text, format_of(path).loads)
        return values["version"], dump_config(load_config(cls, None, text=ron.dumps(values)))
    except ConfigError:
        return None


def _named_sections(whole: Any, value: Any) -> Any:
    """Add the names of sections in the whole configuration to the values of a file."""
    if isinstance(whole, ron.Struct) and isinstance(value, dict):
        fields = {name: _named_sections(whole.fields[name], item) for name, item in value.items()}
        return ron.Struct(whole.name, fields)
    if isinstance(whole, list) and isinstance(value, list):
        return [_named_sections(a, b) for a, b in zip(whole, value, strict=True)]
    return value


def _edits(text: str, path: Path, target: ron.Struct, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield candidates of the text with the new version number and, in RON, the missing fields.

    Each match of the version yields a candidate: matches may be in comments or quotes, so that the
    caller reads the candidates to select one.
    """
    is_ron = path.suffix == ".ron"
    target_values = ron.loads(ron.dumps(target))
    if not is_ron and {**values, "version": 0} != {**target_values, "version": 0}:
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
            edits += _insertions(text, plain, target, starts, behind_version)
        after = text
        for start, end, new in sorted(edits, reverse=True):
            after = after[:start] + new + after[end:]
        yield after


def _insertions(
    text: str, values: Any, target: Any, starts: Mapping[int, int], behind_version: int
) -> Iterator[tuple[int, int, str]]:
    """Yield the start, end and text of edits that insert missing fields.

    Args:
        text: Text of the file.
        values: A section or value, as parsed from the text.
        target: The section or value after the upgrade.
        starts: Position of the fields of each section in the text, by id.
        behind_version: Position of new fields of the whole configuration.
    """
    if isinstance(values, list) and isinstance(target, list):
        values, target = dict(enumerate(values)), dict(enumerate(target))
    fields = target.fields if isinstance(target, ron.Struct) else target
    if not isinstance(values, dict) or not isinstance(fields, Mapping):
        return

    # Missing fields of this section, one per line if the section has lines.
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
        if "version" in values:  # remains the first field
            at = behind_version
        elif not first_line:
            added = added[1:] + " "
        yield at, at, added

    # Inner sections.
    for name, item in values.items():
        yield from _insertions(text, item, fields.get(name), starts, behind_version)


def _top_comments(text: str, path: Path) -> str:
    """Return the leading comments and empty lines."""
    start = format_of(path).comment
    if start is None:
        return ""
    lines = text.splitlines(keepends=True)
    return "".join(takewhile(lambda line: line.strip()[: len(start)] in ("", start), lines))


def _comments(text: str, path: Path) -> set[str]:
    """Return possible comments; quoted text that looks like a comment is included."""
    start = format_of(path).comment
    if start is None:
        return set()
    comments = {line.partition(start)[2].strip() for line in text.splitlines() if start in line}
    return comments | set(re.findall(r"/\*.*?\*/", text, re.DOTALL) if start == "//" else [])
