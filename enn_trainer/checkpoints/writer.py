"""Writing of saves: when they are due, by a thread beside training, each complete or absent."""

import hashlib
import math
import os
import time
from collections.abc import Callable, Mapping
from concurrent import futures
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, final

from enn_trainer.base.errors import CheckpointError
from enn_trainer.checkpoints import disk
from enn_trainer.checkpoints.format import (
    WEIGHTS,
    Checkpoint,
    VerifiedSaves,
    read_unverified,
    save_name,
    verify,
)
from enn_trainer.checkpoints.manifest import MANIFEST, new_manifest, sha256_of, size_of_save
from enn_trainer.checkpoints.retention import adds_metrics, reasons_to_save
from enn_trainer.checkpoints.run_dir import DAMAGED, SUPERSEDED, WRITING, RunDir
from enn_trainer.checkpoints.run_lock import folder_lock
from enn_trainer.checkpoints.state_files import FileContent, SharedFile, as_bytes
from enn_trainer.config import CheckpointConfig
from entity_env.process import close_in_children

INTERVAL = "interval"
EVALUATED = "evaluated"
"""Why a save of this step is replaced: it was made before the evaluation of the step."""
RETRY_S = 60.0
"""After a save that failed, no other is due for so long, or for as long as between two saves."""


IfExists: TypeAlias = Literal["raise", "keep", "supersede"]
"""Handling of a save of a step that the run has already."""


def save(
    run_dir: Path,
    step: int,
    files: Mapping[str, bytes],
    why: str,
    facts: Mapping[str, Any] | None = None,
    say: Callable[[str], None] = print,
    if_exists: IfExists = "supersede",
    shared: Mapping[str, str] | None = None,
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
        if_exists: of a save of this step: raise if anything is there, keep a valid one, or keep it
            unless the new one adds metrics.
        shared: sha256 by name of the files that never change, which are linked to those of an
            earlier save that has them.

    Raises:
        CheckpointError: it cannot be written, or has to be new and is not. Everything that was
            there before is as it was.
    """
    facts, shared = facts or {}, shared or {}
    target = run_dir / save_name(step)

    # What is there: nothing, a save that stays, one to replace, or a damaged one.
    damaged: CheckpointError | None = None
    is_replaced = False
    if os.path.lexists(target):
        if if_exists == "raise":
            raise CheckpointError(f"{target}: expected none, it is there; nothing was written")
        try:
            there = verify(target)
        except CheckpointError as error:
            damaged = error
        else:
            old = there.manifest["files"].get(WEIGHTS, {}).get("sha256")
            new = hashlib.sha256(files[WEIGHTS]).hexdigest() if WEIGHTS in files else None
            if new not in (None, old):
                say(f"{target}: there already, with other weights; a save is never changed")
            has_same_weights = new is not None and new == old
            is_replaced = (
                if_exists == "supersede"
                and has_same_weights
                and adds_metrics(facts, there.manifest)
            )
            if not is_replaced:
                return there

    # Write and flush the files, verify them, and only then take the name.
    temporary = run_dir / f"{WRITING}{target.name}-{os.getpid()}"
    disk.remove(temporary)
    try:
        disk.make_dir(temporary)
        about = new_manifest(step, files, why, facts, shared)
        linked = _link(run_dir, temporary, {name: len(files[name]) for name in shared}, shared)
        for name, data in {**files, MANIFEST: about}.items():
            if name not in linked:
                disk.write_file(temporary / name, data)
        disk.sync_dir(temporary)
        manifest = _verified(temporary, {name: files[name] for name in linked})
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


def _link(
    run_dir: Path, folder: Path, sizes: Mapping[str, int], hashes: Mapping[str, str]
) -> set[str]:
    """Link files of the saves of a run into a folder, the newest first.

    Args:
        run_dir: the folder of the run.
        folder: the folder to link them into.
        sizes: bytes of the wanted files, by name.
        hashes: their sha256, by name.

    Returns:
        The names of those that are linked.
    """
    linked: set[str] = set()
    for path in RunDir(run_dir).saved_paths() if sizes else ():
        with suppress(CheckpointError):
            there = read_unverified(path).manifest["files"]
            for name, size in sizes.items():
                is_same = there.get(name) == {"size": size, "sha256": hashes[name]}
                if is_same and name not in linked and disk.link_file(path / name, folder / name):
                    linked.add(name)
        if len(linked) == len(sizes):
            break
    return linked


def _verified(folder: Path, linked: Mapping[str, bytes]) -> Mapping[str, Any]:
    """Return the manifest of the new save in a folder, verified.

    Links share damage. Files that are damaged are written anew, so that this save is whole.

    Args:
        folder: the folder.
        linked: contents of the files that are linked to those of earlier saves, by name.

    Raises:
        CheckpointError: another file is damaged, or one cannot be written.
    """
    try:
        return verify(folder).manifest
    except CheckpointError:
        damaged = read_unverified(folder).damaged(linked)
        if not damaged:
            raise
    for name in damaged:
        disk.remove(folder / name)
        disk.write_file(folder / name, linked[name])
    disk.sync_dir(folder)
    return verify(folder).manifest


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
        problem: the reason why it could not be written or, of a save, why others could not be
            removed; in words.
        notes: lines for the person who trains.
        manifests: of all saves that are kept, by name; None if that is not known.
        write_ms: duration.
    """

    saved: Checkpoint | None = None
    problem: str | None = None
    notes: list[str] = field(default_factory=list)
    manifests: dict[str, Mapping[str, Any]] | None = None
    write_ms: float = 0.0


@final
class Hashes:
    """Sha256 of contents that never change, computed once for each object."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[bytes, str]] = {}

    def update(self, contents: Mapping[str, bytes]) -> dict[str, str]:
        """Return the sha256 of contents, by name, and forget all others."""
        before, self._known = self._known, {}
        for name, data in contents.items():
            known, sha256 = before.get(name, (None, ""))
            self._known[name] = data, sha256 if known is data else sha256_of(data)
        return {name: sha256 for name, (_, sha256) in self._known.items()}


@final
class RunSaver:
    """Saves a run when a save is due, or on demand.

    A thread writes one save at a time, of a copy of the state.

    Args:
        say: prints a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._known, self._hashes = VerifiedSaves(), Hashes()
        self._writing: futures.Future[WriteResult] | None = None
        self._last_save_s = time.monotonic()
        self._manifests: dict[str, Mapping[str, Any]] | None = None  # of what is kept, if known
        self._own: Mapping[str, Mapping[str, Any]] = {}  # of what was kept when it was last known
        self._is_failing = False
        self._is_prune_failing = False
        self._num_failed = 0
        self._numbers: dict[str, float] = {}

    def step(self, run: Saveable) -> Path | None:
        """Begin to save if a save is due; return the one completed since the last call, if any."""
        is_writing = self._writing is not None and not self._writing.done()
        path = None if is_writing and self._manifests is not None else self.wait()
        reasons = self._reasons(run)
        # Training waits for the save before if this one would be missed otherwise: the best state
        # is gone soon, and which save is the first of a window is no matter of speed.
        is_for_keeps = any(reason != INTERVAL for reason in reasons)
        is_missed = is_for_keeps or (reasons and run.policy.every_seconds == 0)
        if self._writing is not None and is_missed:
            path = self.wait()
            reasons = self._reasons(run)  # which may be among those of that save
        if reasons and self._writing is None:
            self._begin(run, ", ".join(reasons))
        return path

    def save(self, run: Saveable, why: str) -> Path:
        """Save now, after what is being written.

        Raises:
            CheckpointError: it could not be written; names the newest save.
        """
        self.wait()
        self._begin(run, why)
        result = self._finish(on_demand=True)
        assert result is not None
        if result.saved is None:
            newest = RunDir(run.run_dir).newest(self._say)
            there = "nothing is saved" if newest is None else f"the newest save is {newest.path}"
            raise CheckpointError(f"{result.problem}; {there}")
        return result.saved.path

    def wait(self) -> Path | None:
        """Wait until nothing is being written; return the save completed meanwhile, if any."""
        result = self._finish()
        return None if result is None or result.saved is None else result.saved.path

    def after_writing(self, act: Callable[[], None]) -> None:
        """Call a function as soon as nothing is being written, without waiting for that."""
        if self._writing is None:
            act()
        else:
            self._writing.add_done_callback(lambda _: act())

    def adopt_saves(self, run_dir: Path) -> None:
        """Count the saves that are in a folder now as those of the run."""
        self.wait()
        self._own = self._valid_saves(run_dir)

    def foreign_save(self, run_dir: Path) -> str | None:
        """Return the name of a valid save in a folder that is not of the run, or None."""
        self.wait()
        there = self._valid_saves(run_dir).items()
        return next((name for name, manifest in there if manifest != self._own.get(name)), None)

    def forget(self) -> None:
        """Forget what is saved, as the run is in another folder from now on."""
        self.wait()
        self._manifests = None

    def begin_anew(self) -> None:
        """Forget what is saved, and let the next save be due at once."""
        self.forget()
        self._last_save_s = -math.inf
        self._is_failing = False

    def take_numbers(self) -> dict[str, float]:
        """Return and forget the metrics of saving since the last call, by tag."""
        numbers, self._numbers = self._numbers, {}
        return numbers

    def close_in_child(self) -> None:
        """Forget the save that is being written: a forked child has not the thread that does."""
        self._writing = None

    def _valid_saves(self, run_dir: Path) -> dict[str, Mapping[str, Any]]:
        """Return the manifests of all valid saves of a run, by name; nothing is being written."""
        saves = self._known.update(RunDir(run_dir).saved_paths())
        return {saved.path.name: saved.manifest for saved in saves}

    def _reasons(self, run: Saveable) -> list[str]:
        """Return why the run should be saved now; none if it need not be, or is."""
        if self._manifests is None:  # not yet, or a save failed; none is being written
            self._manifests = self._own = self._valid_saves(run.run_dir)
        name = save_name(run.step)
        since_s = time.monotonic() - self._last_save_s
        interval_s = run.policy.every_seconds
        saved = self._manifests.get(name)
        if saved is not None and not adds_metrics(run.facts, saved):
            return []
        if self._is_failing and since_s < min(interval_s, RETRY_S):
            return []
        if saved is not None:
            return [EVALUATED]
        reasons = [INTERVAL] if since_s >= interval_s else []
        manifest = {"step": run.step, **run.facts}
        return reasons + reasons_to_save(self._manifests, name, manifest, run.policy)

    def _begin(self, run: Saveable, why: str) -> None:
        """Begin to write a copy of a run; nothing is being written."""
        start = time.perf_counter()
        write = partial(_write, run, why, run.copy(), self._known, self._hashes)
        self._numbers["checkpoint/copy_ms"] = (time.perf_counter() - start) * 1e3
        self._last_save_s = time.monotonic()
        close_in_children(self)
        # A thread of its own, so that no save is left waiting. A program that ends by itself ends
        # when the save is complete.
        pool = futures.ThreadPoolExecutor(1, "save")
        try:
            self._writing = pool.submit(write)
        except RuntimeError:  # the system has no more threads: training waits
            self._writing = futures.Future()
            self._writing.set_result(write())
        pool.shutdown(wait=False)

    def _finish(self, on_demand: bool = False) -> WriteResult | None:
        """Wait for the save that is being written; print and count its result, and return it."""
        if self._writing is None:
            return None
        futures.wait([self._writing])  # if this is interrupted, it is still being written
        writing, self._writing = self._writing, None
        result = writing.result()
        saved = result.saved

        # Print.
        for note in result.notes:
            self._say(note)
        if result.problem is not None and saved is not None and not self._is_prune_failing:
            self._say(f"{result.problem}; training goes on, and is saved")
        if saved is None and not on_demand and not self._is_failing:
            self._say(f"{result.problem}; training goes on, and saving is tried again")

        # Count.
        self._is_failing = saved is None
        self._num_failed += self._is_failing
        self._manifests = result.manifests
        self._numbers["checkpoint/failed"] = float(self._num_failed)
        if saved is not None:
            self._is_prune_failing = result.problem is not None
            self._own = result.manifests or {**self._own, saved.path.name: saved.manifest}
            self._numbers["checkpoint/bytes"] = float(size_of_save(saved.manifest))
            self._numbers["checkpoint/write_ms"] = result.write_ms
        return result


def _write(
    run: Saveable,
    why: str,
    contents: Mapping[str, FileContent],
    known: VerifiedSaves,
    hashes: Hashes,
) -> WriteResult:
    """Write a copy of a run, and delete the saves that nothing keeps.

    Args:
        run: the run.
        why: the reason for saving.
        contents: the copy.
        known: the saves that are valid, so that they are not read again; it is updated.
        hashes: of files that never change, so that they are not computed again; likewise.
    """
    start, result = time.perf_counter(), WriteResult()
    try:
        shared = {n: one.data for n, one in contents.items() if isinstance(one, SharedFile)}
        saved = save(
            *(run.run_dir, run.step, as_bytes(contents), why, run.facts, result.notes.append),
            if_exists="supersede" if run.supersedes else "keep",
            shared=hashes.update(shared),
        )
        known.add(saved)
        result.saved = saved
        pruned = RunDir(run.run_dir).prune(run.policy, known=known, written=saved.path.name)
        result.manifests = pruned.manifests
    except (CheckpointError, OSError) as error:
        result.problem = str(error)
    result.write_ms = (time.perf_counter() - start) * 1e3
    return result
