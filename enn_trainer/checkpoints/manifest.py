"""Manifest of a checkpoint: creation, reading and validation."""

import hashlib
import json
import math
import platform
import re
import shlex
import socket
import sys
import time
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, TypeAlias

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.checkpoints.disk import read_plain_file
from enn_trainer.config import ron
from enn_trainer.config.validation import dict_of_unique
from enn_trainer.runtime.start_folder import start_folder
from enn_trainer.runtime.versions import package_version, revision_of
from entity_env.errors import short_repr

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 20
MAX_TEXT = 10_000
"""Maximal length of a text in a manifest, except for the command."""
_PACKAGES = ("enn-trainer", "torch", "numpy", "safetensors", "msgpack")
_FILE_NAME = re.compile(r"\w[\w.-]{0,200}", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}")
_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", re.ASCII)


def new_manifest(
    step: int,
    files: Mapping[str, bytes],
    why: str,
    facts: Mapping[str, Any],
    hashes: Mapping[str, str] | None = None,
) -> bytes:
    """Return the manifest of a new checkpoint.

    Args:
        step: step of the run.
        files: contents of the files by name.
        why: the reason for saving.
        facts: more fields, such as the metrics of this step.
        hashes: precomputed sha256 of files by name.
    """
    hashes = hashes or {}
    content = {
        "format": FORMAT_VERSION,
        "step": step,
        "why": why,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "files": {
            name: {"size": len(data), "sha256": hashes.get(name) or sha256_of(data)}
            for name, data in files.items()
        },
        **facts,
        "packages": {name: package_version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "git": git_revision(),
        "command": shlex.join(sys.argv),
        "host": socket.gethostname(),
    }
    return _as_json({**content, "sha256": own_hash(content)})


def sha256_of(data: bytes) -> str:
    """Return the sha256 of bytes as hexadecimal digits."""
    return hashlib.sha256(data).hexdigest()


def git_revision() -> str | None:
    """Return the git revision of the start folder; None outside of a repository."""
    return revision_of(start_folder())


def _as_json(content: Mapping[str, Any]) -> bytes:
    return json.dumps(content, indent=1).encode()


def own_hash(content: Mapping[str, Any]) -> str:
    """Return the sha256 of the content of a manifest without its `sha256` field."""
    fields = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(fields, sort_keys=True).encode()).hexdigest()


def read_manifest(path: Path) -> Mapping[str, Any]:
    """Read a manifest and validate every field.

    Raises:
        CheckpointError: it is missing, damaged, from a newer version, or has an invalid value.
    """
    data = read_plain_file(path, MAX_MANIFEST_BYTES)
    try:
        content: Mapping[str, Any] = json.loads(data, object_pairs_hook=dict_of_unique)
        is_whole = isinstance(content, dict) and content.get("sha256") == own_hash(content)
        # Reject other spellings of the same JSON, such as 1E-05 for 1e-05.
        is_as_written = is_whole and data == _as_json(content)
    except ConfigError as error:
        raise CheckpointError(f"{path}: damaged: {error}") from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path}: damaged, not JSON") from None
    if not is_as_written:
        problem = "not in the format of the writer" if is_whole else "its sha256 does not match"
        raise CheckpointError(f"{path}: damaged, {problem}")
    version: Any = content.get("format")
    if is_count(version) and version > FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: written by a newer version (format {version}, this one reads up to "
            f"{FORMAT_VERSION}); upgrade enn-trainer"
        )

    # Fields with a wrong type or range.
    problems = field_problems(content, _FIELDS, _REQUIRED, _OTHER_FIELD)
    files = content.get("files")
    for name, entry in files.items() if isinstance(files, dict) else ():
        if not is_file_name(name):
            raise CheckpointError(f"{path}: names a file outside the checkpoint: {name[:80]!r}")
        is_entry = isinstance(entry, dict) and is_count(entry.get("size"))
        if not is_entry or not _matches(_SHA256, entry.get("sha256")):
            problems.append(f"files[{name!r}]: expected a size and a sha256")
    if problems:
        raise CheckpointError(f"{path}: damaged: {'; '.join(problems[:5])}")
    return content


def size_of_save(manifest: Mapping[str, Any]) -> int:
    """Return the total size of the files of a checkpoint without the manifest, in bytes."""
    return sum(file["size"] for file in manifest["files"].values())


def is_file_name(name: str) -> bool:
    """Return True for a plain file name, without a path."""
    return _FILE_NAME.fullmatch(name) is not None


def is_count(value: object) -> bool:
    """Return True for an int of at least 0 that fits into 64 bits."""
    return type(value) is int and 0 <= value < 2**63


FieldCheck: TypeAlias = tuple[Callable[[Any], bool], str]
"""Predicate for the value of a field, and a description of the expected value."""


def field_problems(
    content: Mapping[str, Any],
    checks: Mapping[str, FieldCheck],
    required: Collection[str],
    other: FieldCheck = (lambda _: True, ""),
) -> list[str]:
    """Return a message for each missing or invalid field.

    Args:
        content: values by field.
        checks: checks of the known fields.
        required: the required fields.
        other: check of unknown fields.
    """
    missing = [name for name in required if name not in content]
    problems = [f"{name}: expected {checks[name][1]}, got nothing" for name in missing]
    for name, value in content.items():
        is_valid, expected = checks.get(name, other)
        if not is_valid(value):
            where = name if name in checks else repr(name[:80])
            problems.append(f"{where}: expected {expected}, got {short_repr(value)}")
    return problems


def _is_text(value: object) -> bool:
    return isinstance(value, str) and len(value) <= MAX_TEXT


def _is_finite(value: object) -> bool:
    is_int = type(value) is int and abs(value) < 2**63
    return is_int or (type(value) is float and math.isfinite(value))


def _matches(pattern: re.Pattern[str], value: object) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


def _is_dict_of(value: object, is_item: Callable[[object], bool]) -> bool:
    return isinstance(value, dict) and all(_is_text(k) and is_item(v) for k, v in value.items())


_COUNT_FIELD: FieldCheck = (is_count, "a number of at least 0")
SECONDS_FIELD: FieldCheck = (lambda v: _is_finite(v) and v >= 0, "a number of seconds")
_TEXT_FIELD: FieldCheck = (_is_text, f"a text of at most {MAX_TEXT} characters")
_FIELDS: Mapping[str, FieldCheck] = {
    "format": (is_count, "a number"),
    "step": _COUNT_FIELD,
    "why": _TEXT_FIELD,
    "created": (lambda v: _matches(_TIME, v), "a time such as 2026-11-21T19:07:08Z"),
    "files": (lambda v: isinstance(v, dict), "files by name"),
    "sha256": (lambda v: isinstance(v, str), "a sha256"),
    "time_used": SECONDS_FIELD,
    "metrics": (lambda v: _is_dict_of(v, _is_finite), "finite numbers by tag"),
    "seed": (
        lambda v: type(v) is int and ron.is_writable(v),
        f"a whole number of at most {ron.MAX_NUMBER_LENGTH} characters",
    ),
    "config_version": _COUNT_FIELD,
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
"""Checks of all known fields."""
_REQUIRED = ("format", "step", "why", "created", "files", "sha256")
_OTHER_FIELD: FieldCheck = (
    lambda v: v is None or isinstance(v, bool) or _is_text(v) or _is_finite(v),
    "a text, a finite number or nothing",
)
"""Check of unknown fields, as later versions may add: only values that can be displayed."""
