"""Writing of saves: each one complete or absent, by a thread beside training."""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, final

from enn_trainer.checkpoints import disk
from enn_trainer.checkpoints.format import (
    DAMAGED,
    SUPERSEDED,
    WEIGHTS,
    WRITING,
    Checkpoint,
    VerifiedSaves,
    save_name,
    verify,
)
from enn_trainer.checkpoints.manifest import MANIFEST, new_manifest
from enn_trainer.checkpoints.retention import adds_metrics
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.checkpoints.run_lock import folder_lock
from enn_trainer.checkpoints.state_files import FileContent, as_bytes
from enn_trainer.config import CheckpointConfig
from enn_trainer.errors import CheckpointError


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
    after an evaluation. Files are written to a hidden sibling directory, flushed to the disk,
    verified, and renamed; nothing is deleted before its successor was verified.

    Args:
        run_dir: the folder of the run.
        step: the step of the run.
        files: names and contents.
        why: the reason for saving, for the manifest.
        facts: more fields of the manifest, such as the metrics of this step; plain data.
        say: prints a line on what was moved aside, and on a save that stays with other weights.
        must_be_new: raise if anything of this step is there.
        supersedes: the save may replace one that lacks some of its metrics.

    Raises:
        CheckpointError: it cannot be written, or has to be new and is not. Everything that was
            there before is as it was.
    """
    facts = facts or {}
    target = run_dir / save_name(step)

    # What is there: nothing, a save that stays, one to replace, or a damaged one.
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
            weights = there.manifest["files"].get(WEIGHTS, {}).get("sha256")
            has_same_weights = (
                WEIGHTS in files and hashlib.sha256(files[WEIGHTS]).hexdigest() == weights
            )
            if WEIGHTS in files and not has_same_weights:
                say(f"{target}: there already, with other weights; a save is never changed")
            is_replaced = supersedes and has_same_weights and adds_metrics(facts, there.manifest)
            if not is_replaced:
                return there

    # Write and flush the files, verify them, and only then take the name.
    temporary = run_dir / f"{WRITING}{target.name}-{os.getpid()}"
    disk.remove(temporary)
    try:
        disk.make_dir(temporary)
        for name, data in [*files.items(), (MANIFEST, new_manifest(step, files, why, facts))]:
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
    that moment `RunDir.restore_superseded` puts the old one back.
    """
    with folder_lock(target.parent):
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


@dataclass(frozen=True)
class Saveable:
    """Run that can be saved as it is now.

    Attributes:
        run_dir: its folder.
        step: of the run.
        facts: more fields of the manifest.
        policy: when it is saved, and which saves are kept.
        copy: copies the content of the files, so that nobody else changes it.
        supersedes: it may replace a save of this step that lacks some of its metrics.
    """

    run_dir: Path
    step: int
    facts: Mapping[str, Any]
    policy: CheckpointConfig
    copy: Callable[[], Mapping[str, FileContent]]
    supersedes: bool = True


@dataclass
class WriteResult:
    """Result of writing a save.

    Attributes:
        saved: the save; None if it could not be written.
        failure: why it could not be written, in words.
        not_pruned: why no others could be removed, in words.
        notes: lines for the person who trains.
        manifests: of all saves that are kept, by name; None if that is not known.
        num_bytes: of its files.
        write_ms: how long it took.
        bug: an error that is not one of the disk.
    """

    saved: Checkpoint | None = None
    failure: str | None = None
    not_pruned: str | None = None
    notes: list[str] = field(default_factory=list)
    manifests: dict[str, Mapping[str, Any]] | None = None
    num_bytes: int = 0
    write_ms: float = 0.0
    bug: Exception | None = None


@final
class SaveWriter:
    """Thread that writes one save at a time, of a copy of the state.

    It remembers which saves are valid, so that they are not read again.
    """

    def __init__(self) -> None:
        self._known = VerifiedSaves()
        self._thread: threading.Thread | None = None
        self._result: WriteResult | None = None

    @property
    def is_busy(self) -> bool:
        """True from `begin` until the result was returned."""
        return self._result is not None

    def manifests(self, run_dir: Path) -> dict[str, Mapping[str, Any]]:
        """Return the manifests of all valid saves of a run, by name; the writer is not busy."""
        assert not self.is_busy
        saves = self._known.update(RunDir(run_dir).saved_paths())
        return {saved.path.name: saved.manifest for saved in saves}

    def begin(self, run: Saveable, why: str, contents: Mapping[str, FileContent]) -> None:
        """Begin to write a copy of a run; the writer is not busy."""
        assert not self.is_busy
        self._result = WriteResult()
        # No daemon: a program that ends by itself ends when the save is complete.
        arguments = (run, why, contents, self._result)
        self._thread = threading.Thread(target=self._write, args=arguments, name="save")
        try:
            self._thread.start()
        except RuntimeError:  # the system has no more threads: training waits
            self._thread = None
            self._write(*arguments)

    def poll(self) -> WriteResult | None:
        """Return the result of a save that is over, if it was not returned yet."""
        if self._thread is not None and self._thread.is_alive():
            return None
        return self.wait()

    def wait(self) -> WriteResult | None:
        """Wait until nothing is being written, and return the result as `poll` does."""
        if self._result is None:
            return None
        if self._thread is not None:
            self._thread.join()
        result, self._result, self._thread = self._result, None, None
        if result.bug is not None:
            raise result.bug
        return result

    def after_writing(self, act: Callable[[], None]) -> None:
        """Call a function as soon as nothing is being written, without waiting for that."""
        writing = self._thread
        if writing is None:
            act()
            return

        def wait_and_act() -> None:
            writing.join()
            act()

        threading.Thread(target=wait_and_act, name="after save").start()

    def _write(
        self, run: Saveable, why: str, contents: Mapping[str, FileContent], result: WriteResult
    ) -> None:
        start = time.perf_counter()
        try:
            files = as_bytes(contents)
            result.num_bytes = sum(map(len, files.values()))
            saved = save(
                *(run.run_dir, run.step, files, why, run.facts, result.notes.append),
                supersedes=run.supersedes,
            )
            self._known.add(saved)
            result.saved = saved
            run_dir, name = RunDir(run.run_dir), saved.path.name
            pruned = run_dir.prune(run.policy, known=self._known, written=name)
            result.manifests = pruned.manifests
        except (CheckpointError, OSError) as error:
            if result.saved is None:
                result.failure = str(error)
            else:
                result.not_pruned = str(error)
        except Exception as error:  # raised again by the thread that trains
            result.bug = error
        result.write_ms = (time.perf_counter() - start) * 1e3
