"""Checkpoints on disk: a directory per save that is complete or absent.

    run/
      step-000000012800/     one save; never modified after the rename that makes it visible
        manifest.json        sizes and sha256 of every file, and of its own other bytes
        config.ron  state.ron  state.agent.safetensors  ...
      index.json             convenience only: rebuilt from the directories

This module knows names and bytes, not what is in them. Files are written to a hidden sibling
directory, flushed to the disk, and renamed; nothing is deleted before its successor was verified.
"""

import contextlib
import errno
import functools
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from enn_trainer.errors import CheckpointError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 20
_SAVE_NAME = re.compile(r"step-(\d{12,})")
_PACKAGES = ("enn-trainer", "torch", "numpy", "safetensors", "msgpack")


@dataclass(frozen=True)
class Checkpoint:
    """A verified save.

    Attributes:
        path: its directory.
        manifest: what its manifest says.
    """

    path: Path
    manifest: Mapping[str, Any]

    @property
    def step(self) -> int:
        """The step it was saved at."""
        return int(self.manifest["step"])

    def read(self, name: str) -> bytes:
        """The bytes of a file, verified.

        Raises:
            CheckpointError: the file is not in the manifest, or is not what was written.
        """
        expected = self.manifest["files"].get(name)
        if expected is None:
            raise CheckpointError(f"{self.path}: has no {name}")
        file = self.path / name
        try:
            if file.stat().st_size != expected["size"]:
                raise CheckpointError(
                    f"{file}: expected {expected['size']} bytes, got {file.stat().st_size}"
                )
            data = file.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{file}: cannot be read: {error.strerror}") from None
        if hashlib.sha256(data).hexdigest() != expected["sha256"]:
            raise CheckpointError(f"{file}: damaged, its sha256 is not that of the manifest")
        return data


def save(run_dir: Path, step: int, files: Mapping[str, bytes], why: str) -> Checkpoint:
    """Write a save of a run; if the run already has a valid one of this step, keep that.

    Args:
        run_dir: the folder of the run.
        step: the step of the run.
        files: names and contents.
        why: the reason for keeping it, for the manifest.
    """
    target = run_dir / f"step-{step:012d}"
    if target.exists():
        try:
            return verify(target)
        except CheckpointError:
            target.rename(run_dir / f".damaged-{target.name}-{time.time_ns()}")
    manifest = _manifest(step, files, why)
    temporary = run_dir / f".writing-{target.name}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir()
    for name, data in [*files.items(), (MANIFEST, manifest)]:
        _write(temporary / name, data)
    _sync(temporary)
    temporary.rename(target)
    _sync(run_dir)
    return verify(target)


def holds(saved: Checkpoint, name: str, data: bytes) -> bool:
    """Whether a file of a save has these bytes."""
    return bool(saved.manifest["files"][name]["sha256"] == hashlib.sha256(data).hexdigest())


def make_run_dir(run_dir: Path) -> None:
    """Make the folder of a run, before time is spent on the run.

    Raises:
        CheckpointError: it cannot be made or written to.
    """
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        if not os.access(run_dir, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise CheckpointError(
            f"--checkpoint-dir: expected a folder to write to, got {run_dir} ({error.strerror})"
        ) from None


def verify(path: Path) -> Checkpoint:
    """The save in a directory, after comparing every file with the manifest.

    Raises:
        CheckpointError: something is missing, damaged, or from a newer version.
    """
    checkpoint = Checkpoint(path, read_manifest(path / MANIFEST))
    for name in checkpoint.manifest["files"]:
        checkpoint.read(name)
    return checkpoint


def saved_paths(run_dir: Path) -> list[Path]:
    """The directories of a run's saves, newest first, whether they are valid or not."""
    if not run_dir.is_dir():
        return []
    steps = {p: _SAVE_NAME.fullmatch(p.name) for p in run_dir.iterdir() if p.is_dir()}
    found = [(int(match[1]), path) for path, match in steps.items() if match is not None]
    return [path for _, path in sorted(found, reverse=True)]


def newest(run_dir: Path, say: Callable[[str], None] = print) -> Checkpoint | None:
    """The newest valid save of a run; says what was wrong with newer ones.

    Raises:
        CheckpointError: there are saves, but none is valid.
    """
    problems = []
    for path in saved_paths(run_dir):
        try:
            checkpoint = verify(path)
        except CheckpointError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            say(f"skipped a damaged checkpoint, using {path.name} instead: {problem}")
        return checkpoint
    if problems:
        raise CheckpointError(f"{run_dir}: no valid checkpoint: {'; '.join(problems)}")
    return None


def find(path: Path, say: Callable[[str], None] = print) -> Checkpoint:
    """The save that a path means: its own, or the newest of a run.

    Raises:
        CheckpointError: there is none.
    """
    if not path.is_dir():
        raise CheckpointError(f"{path}: expected a checkpoint directory, there is none")
    if (path / MANIFEST).exists():
        return verify(path)
    checkpoint = newest(path, say)
    if checkpoint is None:
        raise CheckpointError(
            f"{path}: expected a checkpoint, or the folder of a run with some in it "
            f"(named step-...), found neither"
        )
    return checkpoint


def keep_newest(run_dir: Path, count: int) -> None:
    """Delete all but the newest valid saves, if there are so many; and rewrite the index.

    Directories that are no valid save are neither counted nor deleted.
    """
    valid: list[Path] = []
    for path in saved_paths(run_dir):
        if len(valid) < count:
            with contextlib.suppress(CheckpointError):
                valid.append(verify(path).path)
        elif (path / MANIFEST).exists():
            path.rename(run_dir / f".deleting-{path.name}-{os.getpid()}")
    for trash in run_dir.glob(".deleting-*"):
        shutil.rmtree(trash, ignore_errors=True)
    _write_index(run_dir, valid)


def _write_index(run_dir: Path, paths: list[Path]) -> None:
    index = []
    for path in paths:
        manifest = read_manifest(path / MANIFEST)
        size = sum(file["size"] for file in manifest["files"].values())
        index.append(
            {
                "name": path.name,
                "step": manifest["step"],
                "created": manifest["created"],
                "why": manifest["why"],
                "size": size,
            }
        )
    temporary = run_dir / f".index-{os.getpid()}"
    _write(temporary, json.dumps(index, indent=1).encode())
    temporary.rename(run_dir / "index.json")


def _manifest(step: int, files: Mapping[str, bytes], why: str) -> bytes:
    content = {
        "format": FORMAT_VERSION,
        "step": step,
        "why": why,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "files": {
            name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in files.items()
        },
        "packages": {name: _package_version(name) for name in _PACKAGES},
        "python": platform.python_version(),
        "git": git_revision(),
    }
    content["sha256"] = _own_hash(content)
    return json.dumps(content, indent=1).encode()


def _own_hash(content: Mapping[str, Any]) -> str:
    others = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def read_manifest(path: Path) -> Mapping[str, Any]:
    """What a manifest says, if it is what was written.

    Raises:
        CheckpointError: it is missing, damaged, or from a newer version.
    """
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise CheckpointError(f"{path}: larger than a manifest can be")
        content = json.loads(path.read_bytes())
        if not isinstance(content, dict) or content.get("sha256") != _own_hash(content):
            raise CheckpointError(f"{path}: damaged, its sha256 does not fit")
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError):
        raise CheckpointError(f"{path}: damaged, not JSON") from None
    if content["format"] > FORMAT_VERSION:
        raise CheckpointError(
            f"{path}: written by a newer version (format {content['format']}, this one reads up "
            f"to {FORMAT_VERSION}); upgrade enn-trainer"
        )
    for name in content["files"]:
        if Path(name).name != name or name in ("", ".", ".."):
            raise CheckpointError(f"{path}: names a file outside the checkpoint: {name!r}")
    return content


def _write(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _package_version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


@functools.cache
def git_revision() -> str | None:
    """The revision of the folder that the run was started in, if it is one of git's."""
    try:
        result = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
