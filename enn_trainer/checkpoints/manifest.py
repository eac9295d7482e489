"""Manifest of a save: made, written, read back and checked."""

import functools
import hashlib
import json
import math
import platform
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from enn_trainer.checkpoints.plain_file import read_plain_file
from enn_trainer.config import ron
from enn_trainer.config.validation import dict_of_unique
from enn_trainer.errors import CheckpointError, ConfigError
from enn_trainer.start_folder import start_folder
from entity_env.short_repr import short_repr

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 20
MAX_TEXT = 10_000
"""Characters of a text in a manifest, but for the command, which the manifest's own size bounds."""
_PACKAGES = ("enn-trainer", "torch", "numpy", "safetensors", "msgpack")
_FILE_NAME = re.compile(r"\w[\w.-]{0,200}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


def new_manifest(
    step: int, files: Mapping[str, bytes], why: str, facts: Mapping[str, Any]
) -> bytes:
    """Return the manifest of a save that is made now.

    Args:
        step: of the run.
        files: names and contents.
        why: the reason for saving.
        facts: more fields, such as the metrics of this step.
    """
    made_by = {
        "packages": {name: _package_version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "git": git_revision(),
        "command": shlex.join(sys.argv),
        "host": socket.gethostname(),
    }
    return manifest_bytes(
        {
            "step": step,
            "why": why,
            "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "files": {
                name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
                for name, data in files.items()
            },
            **facts,
            **made_by,
        }
    )


@functools.cache  # it reads files of the package, and saves are many
def _package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@functools.cache
def git_revision() -> str | None:
    """Return the git revision of the folder that the run was started in, None if it has none."""
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
            cwd=start_folder(),
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None


def manifest_bytes(content: Mapping[str, Any]) -> bytes:
    """Return the file of a manifest, with its format and the sha256 of its own other bytes."""
    content = {"format": FORMAT_VERSION, **content}
    return _as_json({**content, "sha256": own_hash(content)})


def _as_json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode()


def own_hash(content: Mapping[str, Any]) -> str:
    """Return the sha256 of the content of a manifest, but for this hash."""
    others = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def read_manifest(path: Path) -> Mapping[str, Any]:
    """Read a manifest and check every field of it.

    Raises:
        CheckpointError: it is missing, damaged, from a newer version, or has a value that no
            writer of this format writes.
    """
    data = read_plain_file(path, MAX_MANIFEST_BYTES)
    try:
        content = json.loads(data, object_pairs_hook=dict_of_unique)
        if not isinstance(content, dict) or content.get("sha256") != own_hash(content):
            raise CheckpointError(f"{path}: damaged, its sha256 does not fit")
        if data != _as_json(content):  # 1E-05 means what 1e-05 does, but nobody wrote it
            raise CheckpointError(f"{path}: damaged, it is not written as it was")
    except ConfigError as error:
        raise CheckpointError(f"{path}: damaged: {error}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: damaged, not JSON") from None
    if not is_count(content.get("format")):
        got = _shown(content.get("format"))
        raise CheckpointError(f"{path}: format: expected a number, got {got}")
    if content["format"] > FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: written by a newer version (format {content['format']}, this one reads up "
            f"to {FORMAT_VERSION}); upgrade enn-trainer"
        )
    _check_fields(path, content)
    return content


def is_count(value: object) -> bool:
    """Return True for an int of at least 0 that fits into 64 bits."""
    return type(value) is int and 0 <= value < 2**63


def _check_fields(path: Path, content: Mapping[str, Any]) -> None:
    """Raise if a field has another type or range than a writer of this format gives it."""
    wrong = [
        f"{name}: expected {_FIELDS[name][1]}, got nothing"
        for name in _REQUIRED
        if name not in content
    ]
    wrong += [
        f"{name}: expected {expected}, got {_shown(content[name])}"
        for name, (is_one, expected) in _FIELDS.items()
        if name in content and not is_one(content[name])
    ]
    # A field of no known name, as of a later writer, has to be something that can be shown.
    wrong += [
        f"{name[:80]!r}: expected a text, a finite number or nothing, got {_shown(value)}"
        for name, value in content.items()
        if name not in _FIELDS
        and not (value is None or isinstance(value, bool) or _is_text(value) or _is_finite(value))
    ]
    files = content.get("files")
    for name, entry in files.items() if isinstance(files, dict) else ():
        if not _FILE_NAME.fullmatch(name):
            raise CheckpointError(f"{path}: names a file outside the checkpoint: {name[:80]!r}")
        if not _is_file_entry(entry):
            wrong.append(f"files[{name!r}]: expected a size and a sha256")
    if wrong:
        raise CheckpointError(f"{path}: damaged: {'; '.join(wrong[:5])}")


def _shown(value: object) -> str:
    """Return a value for a message; of one that holds others only its type."""
    return type(value).__name__ if isinstance(value, dict | list) else short_repr(value)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT


def _is_finite(value: object) -> bool:
    if type(value) is int:
        return abs(value) < 2**63
    return type(value) is float and math.isfinite(value)


def _is_file_entry(entry: object) -> bool:
    if not isinstance(entry, dict) or not is_count(entry.get("size")):
        return False
    sha256 = entry.get("sha256")
    return isinstance(sha256, str) and _SHA256.fullmatch(sha256) is not None


def _is_dict_of(value: object, is_item: Callable[[object], bool]) -> bool:
    return isinstance(value, dict) and all(_is_text(k) and is_item(v) for k, v in value.items())


_TEXT_FIELD = (_is_text, f"a text of at most {MAX_TEXT} characters")
_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "format": (is_count, "a number"),
    "step": (is_count, "a number of at least 0"),
    "why": _TEXT_FIELD,
    "created": (
        lambda v: isinstance(v, str) and _TIME.fullmatch(v) is not None,
        "a time such as 2026-11-21T19:07:08Z",
    ),
    "files": (lambda v: isinstance(v, dict), "files by name"),
    "sha256": (lambda v: isinstance(v, str), "a sha256"),
    "time_used": (lambda v: _is_finite(v) and v >= 0, "a number of seconds"),
    "metrics": (lambda v: _is_dict_of(v, _is_finite), "finite numbers by tag"),
    "seed": (
        lambda v: type(v) is int and ron.is_writable(v),
        f"a whole number of at most {ron.MAX_NUMBER_LENGTH} characters",
    ),
    "config_version": (is_count, "a number of at least 0"),
    "run_name": _TEXT_FIELD,
    "packages": (
        lambda v: _is_dict_of(v, lambda one: one is None or _is_text(one)),
        "versions by name",
    ),
    "python": _TEXT_FIELD,
    "git": (lambda v: v is None or _is_text(v), "a revision, or nothing"),
    "command": (lambda v: isinstance(v, str), "a text"),
    "host": _TEXT_FIELD,
}
"""All fields that are written, a check of each, and what it expects."""
_REQUIRED = ("format", "step", "why", "created", "files", "sha256")
