"""Checkpoints on disk: a directory per save that is complete or absent.

    run/
      step-000000012800/     one save; never modified after the rename that makes it visible, but
                             replaced as a whole by one with the same weights that knows more
        manifest.json        sizes and sha256 of every file, and of its own other bytes
        config.ron  state.ron  state.agent.safetensors  ...
      index.json             convenience only: rebuilt from the directories

This module knows names and bytes, not what is in them. Files are written to a hidden sibling
directory, flushed to the disk, and renamed; nothing is deleted before its successor was verified.
"""

import errno
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from enn_trainer.checkpoints import disk
from enn_trainer.checkpoints.folder_lock import locked
from enn_trainer.checkpoints.look_again import SaveGone, looking_again, reading
from enn_trainer.checkpoints.made_by import made_by
from enn_trainer.checkpoints.manifest import MANIFEST as MANIFEST
from enn_trainer.checkpoints.manifest import manifest_bytes, read_manifest
from enn_trainer.checkpoints.plain_file import (
    MAX_TEXT_BYTES,
    OpenFiles,
    plain_file,
    refuse_pickles,
    size_of,
)
from enn_trainer.errors import CheckpointError

C = TypeVar("C")
WRITING = ".writing-"
DAMAGED = ".damaged-"
SUPERSEDED = ".superseded-"
WEIGHTS = "state.agent.safetensors"
"""The file that tells two saves of a step apart."""
_SAVE_NAME = re.compile(r"step-(\d{12,})")


@dataclass(frozen=True)
class Checkpoint:
    """A verified save.

    Attributes:
        path: its directory.
        manifest: what its manifest says.
        held: its files, open: they can be read when a run that goes on has deleted the save.
    """

    path: Path
    manifest: Mapping[str, Any]
    held: OpenFiles | None = field(default=None, compare=False, repr=False, kw_only=True)

    @property
    def step(self) -> int:
        """The step it was saved at."""
        return int(self.manifest["step"])

    def read(self, name: str) -> bytes:
        """The bytes of a file, verified.

        Raises:
            CheckpointError: the file is not in the manifest, or is not what was written.
        """
        with self._opened(name) as file:
            data = file.read()
        self._compare(name, hashlib.sha256(data).hexdigest())
        return data

    def text(self, name: str) -> str:
        """The text of a file, verified.

        Raises:
            CheckpointError: as of `read`; or it is no text, or too long for one.
        """
        size = self.manifest["files"].get(name, {"size": 0})["size"]
        if size > MAX_TEXT_BYTES:
            raise CheckpointError(
                f"{self.path / name}: expected at most {MAX_TEXT_BYTES} bytes, got {size}"
            )
        try:
            return self.read(name).decode()
        except UnicodeDecodeError as error:
            raise CheckpointError(f"{self.path / name}: damaged, no text: {error}") from None

    def check(self, name: str) -> None:
        """Compare a file with the manifest, without keeping its bytes.

        Raises:
            CheckpointError: as of `read`.
        """
        with self._opened(name) as file:
            self._compare(name, hashlib.file_digest(file, "sha256").hexdigest())  # type: ignore[arg-type]

    def release(self) -> None:
        """Close the files that are held open, as soon as no more is read."""
        if self.held is not None:
            self.held.close()

    def _compare(self, name: str, sha256: str) -> None:
        if sha256 != self.manifest["files"][name]["sha256"]:
            raise CheckpointError(
                f"{self.path / name}: damaged, its sha256 is not that of the manifest"
            )

    @contextmanager
    def _opened(self, name: str) -> Iterator[BinaryIO]:
        """A file of the size that the manifest says."""
        expected = self.manifest["files"].get(name)
        if expected is None:
            raise CheckpointError(f"{self.path}: has no {name}")
        with ExitStack() as stack:
            if self.held is None or self.held.is_closed:
                file = stack.enter_context(plain_file(self.path / name))
            else:
                file = self.held.rewound(name)
            if size_of(file) != expected["size"]:
                raise CheckpointError(
                    f"{self.path / name}: expected {expected['size']} bytes, got {size_of(file)}"
                )
            yield file


def save(
    run_dir: Path,
    step: int,
    files: Mapping[str, bytes],
    why: str,
    facts: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = print,
    must_be_new: bool = False,
    supersedes: bool = True,
) -> Checkpoint:
    """Write a save of a run; if the run already has a valid one of this step, keep that.

    It is replaced in one step if the new one has the same weights and metrics that it lacks, as
    after an evaluation.

    Args:
        run_dir: the folder of the run.
        step: the step of the run.
        files: names and contents.
        why: the reason for saving, for the manifest.
        facts: what else the manifest tells, such as the metrics of this step; plain data.
        say: is told what was moved aside, and of a save that is kept though it has other weights.
        must_be_new: whether to refuse if anything of this step is there.
        supersedes: whether the save may replace one that lacks some of its metrics.

    Raises:
        CheckpointError: it cannot be written, or has to be new and is not. What was there before
            is as it was.
    """
    target = run_dir / save_name(step)
    damaged: CheckpointError | None = None
    is_replaced = False
    if os.path.lexists(target):
        if must_be_new:
            raise CheckpointError(f"{target}: expected none, it is there; nothing was written")
        try:
            there = verify(target)
        except CheckpointError as error:
            damaged = error
        else:
            has_same_weights = WEIGHTS in files and _holds(there, WEIGHTS, files[WEIGHTS])
            if WEIGHTS in files and not has_same_weights:
                say(f"{target}: there already, with other weights; a save is never changed")
            is_replaced = supersedes and has_same_weights and adds_metrics(facts, there.manifest)
            if not is_replaced:
                return there
    temporary = run_dir / f"{WRITING}{target.name}-{os.getpid()}"
    disk.remove(temporary)
    try:
        disk.make_dir(temporary)
        for name, data in [*files.items(), (MANIFEST, _manifest(step, files, why, facts or {}))]:
            disk.write_file(temporary / name, data)
        disk.sync_dir(temporary)
        manifest = verify(temporary).manifest
        if damaged is not None:
            aside = run_dir / f"{DAMAGED}{target.name}-{time.time_ns()}"
            disk.rename(target, aside)
            say(f"moved aside what is no valid save, to {aside.name}: {damaged}")
        if is_replaced:
            _replace(target, temporary)
        else:
            disk.rename(temporary, target)
    except CheckpointError:
        disk.remove(temporary)
        raise
    try:
        disk.sync_dir(run_dir)
    finally:
        disk.remove(temporary)  # the save that was replaced, if one was
    return Checkpoint(target, manifest)


def _replace(target: Path, successor: Path) -> None:
    """Exchange a save and its successor, of the same step; `target` is valid at any moment.

    Where the system cannot exchange folders, it is missing between two renames. After a kill in
    that moment `restore_superseded` puts the old one back.
    """
    with locked(target.parent):
        if disk.exchange(target, successor):
            return
        aside = target.with_name(f"{SUPERSEDED}{target.name}-{os.getpid()}")
        disk.rename(target, aside)
        try:
            disk.rename(successor, target)
        except CheckpointError:
            disk.rename(aside, target)
            raise
    disk.remove(aside)


def restore_superseded(run_dir: Path) -> None:
    """Put back saves that a killed process had moved away, and not yet replaced.

    Raises:
        CheckpointError: one cannot be renamed.
    """
    for path in run_dir.glob(f"{SUPERSEDED}*"):
        name = path.name.removeprefix(SUPERSEDED).rpartition("-")[0]
        if _SAVE_NAME.fullmatch(name) and not (run_dir / name).exists():
            disk.rename(path, run_dir / name)


def adds_metrics(facts: Mapping[str, Any] | None, manifest: Mapping[str, Any]) -> bool:
    """Return whether facts for a manifest have metrics that a manifest of the same step lacks."""
    return not _metric_tags(facts or {}) <= _metric_tags(manifest)


def _metric_tags(manifest: Mapping[str, Any]) -> set[str]:
    metrics = manifest.get("metrics")
    return set(metrics) if isinstance(metrics, Mapping) else set()


def save_name(step: int) -> str:
    """The name of the directory of a save."""
    return f"step-{step:012d}"


def step_of(path: Path) -> int | None:
    """The step that the name of a directory says; None if it is none of a save."""
    match = _SAVE_NAME.fullmatch(path.name)
    return None if match is None else int(match[1])


def _holds(saved: Checkpoint, name: str, data: bytes) -> bool:
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

    Its files are held open, and closed with the last reference to it, or by `release`.

    Raises:
        CheckpointError: something is missing, damaged, or from a newer version; or there is a
            pickle beside it.
    """
    checkpoint = opened(path)
    checkpoint = replace(checkpoint, held=OpenFiles(path, checkpoint.manifest["files"]))
    for name in checkpoint.manifest["files"]:
        checkpoint.check(name)
    refuse_pickles(path)
    return checkpoint


def opened(path: Path) -> Checkpoint:
    """Return the save in a directory by its manifest alone, whatever its files are.

    Raises:
        CheckpointError: the manifest is missing or damaged, or of another step than the name of
            the directory: then it is not known which of the two is wrong.
    """
    saved = Checkpoint(path, read_manifest(path / MANIFEST))
    if step_of(path) is not None and path.name != save_name(saved.step):
        raise CheckpointError(
            f"{path}: damaged: its manifest is of step {saved.step}: expected the name "
            f"{save_name(saved.step)}; rename the folder if it is that save"
        )
    return saved


def is_save(path: Path) -> bool:
    """Return whether a directory is a save of ours, which may be damaged, and not a run.

    A save has a manifest. One that lost it is known by its name; it holds files alone, whereas the
    folder of a run, whatever it is called, holds its saves.
    """
    if os.path.lexists(path / MANIFEST):
        return True
    if step_of(path) is None or not path.is_dir():
        return False
    try:
        return not any(entry.is_dir() for entry in path.iterdir())
    except OSError:  # cannot be looked into
        return True


def saved_paths(run_dir: Path) -> list[Path]:
    """The directories of a run's saves, newest first, whether they are valid or not."""
    if not run_dir.is_dir():
        return []
    steps = {path: step_of(path) for path in run_dir.iterdir() if path.is_dir()}
    found = [(step, path) for path, step in steps.items() if step is not None and is_save(path)]
    return [path for _, path in sorted(found, reverse=True)]


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

    def look() -> Checkpoint | None:
        # A folder is no snapshot: the first look may miss the old save as well as the new one.
        paths = saved_paths(run_dir) or saved_paths(run_dir)
        return first_valid(run_dir, paths, lambda path: reading(path, verify), say)

    return looking_again(run_dir, look)


def first_valid(
    run_dir: Path, paths: Iterable[Path], read: Callable[[Path], C], say: Callable[[str], None]
) -> C | None:
    """The first of some directories of a run that can be read; None if there are none.

    Args:
        run_dir: the folder of the run.
        paths: of the saves in question, the most wanted first.
        read: reads one.
        say: told what was wrong with those before it.

    Raises:
        CheckpointError: there are some, but none is valid.
    """
    problems = []
    for path in paths:
        try:
            checkpoint = read(path)
        except SaveGone:
            raise
        except CheckpointError as error:
            problems.append(str(error))
            continue
        for problem in problems:
            say(f"skipped a damaged checkpoint, using {path.name} instead: {problem}")
        return checkpoint
    if problems:
        raise CheckpointError(f"{run_dir}: no valid checkpoint: {'; '.join(problems)}")
    return None


def _manifest(step: int, files: Mapping[str, bytes], why: str, facts: Mapping[str, Any]) -> bytes:
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
            **made_by(),
        }
    )
