"""Checkpoints on disk: a directory per save that is complete or absent.

    run/
      step-000000012800/     one save; never modified after the rename that makes it visible
        manifest.json        sizes and sha256 of every file, and of its own other bytes
        config.ron  state.ron  state.agent.safetensors  ...
      index.json             convenience only: rebuilt from the directories

This module knows names and bytes, not what is in them. Files are written to a hidden sibling
directory, flushed to the disk, and renamed; nothing is deleted before its successor was verified.
"""

import errno
import hashlib
import json
import os
import re
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from enn_trainer.checkpoints import disk
from enn_trainer.checkpoints.made_by import made_by
from enn_trainer.errors import CheckpointError

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 1 << 20
WRITING = ".writing-"
_SAVE_NAME = re.compile(r"step-(\d{12,})")


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


def save(
    run_dir: Path,
    step: int,
    files: Mapping[str, bytes],
    why: str,
    facts: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = print,
) -> Checkpoint:
    """Write a save of a run; if the run already has a valid one of this step, keep that.

    Args:
        run_dir: the folder of the run.
        step: the step of the run.
        files: names and contents.
        why: the reason for saving, for the manifest.
        facts: what else the manifest tells, such as the metrics of this step; plain data.
        say: is told what was moved aside.

    Raises:
        CheckpointError: it cannot be written. What was there before is as it was.
    """
    target = run_dir / save_name(step)
    if target.exists():
        try:
            return verify(target)
        except CheckpointError as error:
            damaged: CheckpointError | None = error
    else:
        damaged = None
    temporary = run_dir / f"{WRITING}{target.name}-{os.getpid()}"
    disk.remove(temporary)
    try:
        disk.make_dir(temporary)
        for name, data in [*files.items(), (MANIFEST, _manifest(step, files, why, facts or {}))]:
            disk.write_file(temporary / name, data)
        disk.sync_dir(temporary)
        manifest = verify(temporary).manifest
        if damaged is not None:
            aside = run_dir / f".damaged-{target.name}-{time.time_ns()}"
            disk.rename(target, aside)
            say(f"moved aside what is no valid save, to {aside.name}: {damaged}")
        disk.rename(temporary, target)
    except CheckpointError:
        disk.remove(temporary)
        raise
    disk.sync_dir(run_dir)
    return Checkpoint(target, manifest)


def save_name(step: int) -> str:
    """The name of the directory of a save."""
    return f"step-{step:012d}"


def holds(saved: Checkpoint, name: str, data: bytes) -> bool:
    """Whether a file of a save has these bytes."""
    there = saved.manifest["files"].get(name)
    return there is not None and bool(there["sha256"] == hashlib.sha256(data).hexdigest())


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
    checkpoint = Checkpoint(path, _read_manifest(path / MANIFEST))
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


def read_manifests(run_dir: Path) -> dict[str, Mapping[str, Any]]:
    """What the manifests of a run's saves say, by name, without looking at the other files."""
    manifests = {}
    for path in saved_paths(run_dir):
        with suppress(CheckpointError):
            manifests[path.name] = _read_manifest(path / MANIFEST)
    return manifests


def is_valid(path: Path) -> bool:
    """Whether a directory is a save with nothing missing or damaged."""
    try:
        verify(path)
    except CheckpointError:
        return False
    return True


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


def _manifest(step: int, files: Mapping[str, bytes], why: str, facts: Mapping[str, Any]) -> bytes:
    content = {
        "format": FORMAT_VERSION,
        "step": step,
        "why": why,
        "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "files": {
            name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            for name, data in files.items()
        },
        **facts,
        **made_by(),
    }
    content["sha256"] = _own_hash(content)
    return json.dumps(content, indent=1).encode()


def _own_hash(content: Mapping[str, Any]) -> str:
    others = {key: value for key, value in content.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def _read_manifest(path: Path) -> Mapping[str, Any]:
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
