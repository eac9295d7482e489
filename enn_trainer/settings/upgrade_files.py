"""Configuration files rewritten for the current version, with their comments where it is possible.

A file of RON gets what it lacks put in, and keeps everything else. Where that is not enough, and in
other formats, it is written anew: then the comments at its top stay.
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

from enn_trainer.errors import ConfigError
from enn_trainer.settings import ron
from enn_trainer.settings.config_build import within_optional
from enn_trainer.settings.config_files import format_of, format_text, read_file
from enn_trainer.settings.config_io import dump_config, load_config, read_upgraded
from enn_trainer.settings.config_sources import as_data

_VERSION = re.compile(r"""(\bversion["']?\s*[:=]\s*)(\d+)""")


class Upgrade(NamedTuple):
    """A file before and after.

    Attributes:
        path: of the file.
        version: that it was of.
        before: its text.
        after: its text for the current version.
        loses_comments: whether some are not in the text after.
    """

    path: Path
    version: int
    before: str
    after: str
    loses_comments: bool


def upgraded_file(cls: type[Versioned], path: Path, include_defaults: bool = False) -> Upgrade:
    """What a configuration file is in the words of the current version; nothing is written.

    Args:
        cls: the class of the configuration.
        path: the file.
        include_defaults: name every setting, also those that the file leaves out.

    Raises:
        ConfigError: the file cannot be read, or what is written would not be read back the same.
    """
    config = load_config(cls, path)
    said = read_file(path)
    before = path.read_bytes().decode("utf-8-sig")
    # Edited with line breaks of one character; where all are of two, they become that again.
    is_crlf = 0 < before.count("\n") == before.count("\r\n")
    text = before.replace("\r\n", "\n") if is_crlf else before
    if include_defaults:
        target: ron.Struct = as_data(config)
    else:
        target = _named(cls, {"version": cls.version(), **read_upgraded(cls, path)})
    version = said["version"]
    if version == cls.version() and not include_defaults:
        return Upgrade(path, version, before, before, loses_comments=False)
    meant = cls.version(), dump_config(config)
    for after in (
        *_edited(text, path, target, said),
        _top_comments(text, path) + format_text(path, target),
    ):
        if _reads_as(cls, path, after) == meant:
            lost = _comments(text, path) - _comments(after, path)
            after = after.replace("\n", "\r\n") if is_crlf else after
            return Upgrade(path, version, before, after, loses_comments=bool(lost))
    raise ConfigError(f"{path}: not written, as it would not be read back the same")


def write_whole(path: Path, text: str) -> None:
    """Replace a file by a text, at once or not at all.

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
            mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
            Path(temporary).chmod(mode)
            Path(temporary).replace(path)
        finally:
            Path(temporary).unlink(missing_ok=True)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


def _reads_as(cls: type[Any], path: Path, text: str) -> tuple[int, str] | None:
    """The version that a text says and the configuration that it is, as RON; None if it is none."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder, path.name)
        copy.write_bytes(text.encode())
        try:
            return read_file(copy)["version"], dump_config(load_config(cls, copy))
        except ConfigError:
            return None


def _named(kind: Any, value: Any) -> Any:
    """What a file says, with its sections named by their classes."""
    kind = within_optional(kind)
    if is_dataclass(kind) and isinstance(value, dict):
        kinds = get_type_hints(kind)
        fields = {name: _named(kinds.get(name), item) for name, item in value.items()}
        return ron.Struct(getattr(kind, "__name__", ""), fields)
    if get_origin(kind) is list and isinstance(value, list):
        return [_named(get_args(kind)[0], item) for item in value]
    return value


# Edits that keep what is there


def _edited(text: str, path: Path, target: ron.Struct, said: Mapping[str, Any]) -> Iterator[str]:
    """The text with another version number and what it lacks, if that is all.

    One for each place that looks like the version: some may be in comments or in quotes, and
    reading the result tells which one was it.
    """
    for number in _VERSION.finditer(text):
        if number[2] != str(said["version"]):
            continue
        edits = [(number.start(2), number.end(2), str(target.fields["version"]))]
        if path.suffix == ".ron":
            plain, starts = ron.loads_with_starts(text)
            additions: dict[int, str] = {}
            if not _find_additions(text, plain, target, starts, number, additions):
                continue
            edits += [(at, at, added) for at, added in additions.items()]
        elif _without_version(said) != _without_version(_plain(target)):
            return
        after = text
        for start, end, new in sorted(edits, reverse=True):
            after = after[:start] + new + after[end:]
        yield after


def _find_additions(
    text: str,
    said: Any,
    target: Any,
    starts: Mapping[int, int],
    number: re.Match[str],
    additions: dict[int, str],
) -> bool:
    """Find what to put in where; whether that makes the one of the other."""
    if not (isinstance(said, dict) and isinstance(target, ron.Struct)):
        return bool(said == _plain(target))
    if not said.keys() <= target.fields.keys():
        return False
    lacking = {name: item for name, item in target.fields.items() if name not in said}
    if lacking:
        if id(said) not in starts:
            return False
        at = starts[id(said)]
        indent = re.match(r"[^\n]*\n([ \t]*)", text[at:])
        lines = [
            f"{name}: {_dumped(item, indent[1] if indent else '')}"
            for name, item in lacking.items()
        ]
        if "version" in said:  # which stays first
            after = re.compile(r"\s*,").match(text, number.end())
            if after is None:
                return False
            at = after.end()
        space = f"\n{indent[1]}" if indent else " "
        put = "".join(f"{space}{line}," for line in lines)
        additions[at] = put if indent or "version" in said else put[1:] + " "
    return all(
        name == "version"
        or _find_additions(text, item, target.fields[name], starts, number, additions)
        for name, item in said.items()
    )


def _dumped(value: Any, indent: str) -> str:
    return ron.dumps(value).replace("\n", f"\n{indent}")


def _plain(value: Any) -> Any:
    return ron.loads(ron.dumps(value))


def _without_version(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "version"}


def _top_comments(text: str, path: Path) -> str:
    """The comments and empty lines before everything else."""
    start = format_of(path).comment
    kept = []
    for line in text.splitlines(keepends=True):
        if start is None or (line.strip() and not line.lstrip().startswith(start)):
            break
        kept.append(line)
    return "".join(kept)


def _comments(text: str, path: Path) -> set[str]:
    """What may be comments; something inside quotes may look like one."""
    start = format_of(path).comment
    if start is None:
        return set()
    found = {line.partition(start)[2].strip() for line in text.splitlines() if start in line}
    return found | set(re.findall(r"/\*.*?\*/", text, re.DOTALL) if start == "//" else [])
