"""Atomic writing of checkpoints, on schedule, by a thread in the background."""

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
"""Reason to replace a checkpoint that was saved before the evaluation of its step."""
RETRY_S = 60.0
"""Seconds before the next attempt after a failed one, or the interval of saving if shorter."""


IfExists: TypeAlias = Literal["raise", "keep", "supersede"]
"""Handling of an existing checkpoint of the same step."""


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
    """Write a checkpoint of a run atomically; keep a valid checkpoint of the same step.

    An existing checkpoint is replaced, also atomically, if the new one has the same weights and
    adds metrics, as after an evaluation. Files are written to a hidden sibling directory, flushed
    to the disk, verified, and renamed; nothing is deleted before its successor is verified.

    Args:
        run_dir: the folder of the run.
        step: step of the run.
        files: contents of the files by name.
        why: the reason for saving, for the manifest.
        facts: more fields of the manifest, such as the metrics of this step; plain data.
        say: prints a line if a damaged checkpoint is moved or a checkpoint with other weights kept.
        if_exists: "raise" if the step exists, "keep" a valid checkpoint of the step, or "supersede"
            it if the new one adds metrics.
        shared: sha256 by name of files that never change, which are hard-linked from an earlier
            checkpoint that has them.

    Raises:
        CheckpointError: the checkpoint cannot be written, or the step exists. Existing files are
            unchanged.
    """
    facts, shared = facts or {}, shared or {}
    target = run_dir / save_name(step)

    # An existing checkpoint of the step is kept, replaced, or moved if it is damaged.
    damaged: CheckpointError | None = None
    is_replaced = False
    if os.path.lexists(target):
        if if_exists == "raise":
            raise CheckpointError(f"{target}: expected a new checkpoint, it exists already")
        try:
            existing = verify(target)
        except CheckpointError as error:
            damaged = error
        else:
            old = existing.manifest["files"].get(WEIGHTS, {}).get("sha256")
            new = hashlib.sha256(files[WEIGHTS]).hexdigest() if WEIGHTS in files else None
            if new not in (None, old):
                say(f"{target}: exists already, with other weights; it is kept")
            has_same_weights = new is not None and new == old
            is_replaced = (
                if_exists == "supersede"
                and has_same_weights
                and adds_metrics(facts, existing.manifest)
            )
            if not is_replaced:
                return existing

    # Write and flush the files, verify them, and only then take the name.
    temporary = run_dir / f"{WRITING}{target.name}-{os.getpid()}"
    disk.remove(temporary)
    try:
        disk.make_dir(temporary)
        new_content = new_manifest(step, files, why, facts, shared)
        linked = _link(run_dir, temporary, {name: len(files[name]) for name in shared}, shared)
        for name, data in {**files, MANIFEST: new_content}.items():
            if name not in linked:
                disk.write_file(temporary / name, data)
        disk.sync_dir(temporary)
        manifest = _verify_new(temporary, {name: files[name] for name in linked})
        if damaged is not None:
            aside = run_dir / f"{DAMAGED}{target.name}-{time.time_ns()}"
            disk.rename(target, aside)
            say(f"moved a damaged checkpoint to {aside.name}: {damaged}")
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
        disk.remove(temporary)  # the replaced checkpoint, if any
    return Checkpoint(target, manifest)


def _link(
    run_dir: Path, folder: Path, sizes: Mapping[str, int], hashes: Mapping[str, str]
) -> set[str]:
    """Hard-link files from the checkpoints of a run into a folder, newest checkpoint first.

    Args:
        run_dir: the folder of the run.
        folder: the folder to link into.
        sizes: sizes in bytes of the files to link, by name.
        hashes: sha256 of these files, by name.

    Returns:
        The names of the linked files.
    """
    linked: set[str] = set()
    for path in RunDir(run_dir).saved_paths() if sizes else ():
        with suppress(CheckpointError):
            saved_files = read_unverified(path).manifest["files"]
            for name, size in sizes.items():
                is_same = saved_files.get(name) == {"size": size, "sha256": hashes[name]}
                if is_same and name not in linked and disk.link_file(path / name, folder / name):
                    linked.add(name)
        if len(linked) == len(sizes):
            break
    return linked


def _verify_new(folder: Path, linked: Mapping[str, bytes]) -> Mapping[str, Any]:
    """Verify a new checkpoint, rewrite linked files that are damaged, and return its manifest.

    Args:
        folder: the folder.
        linked: contents of the files that are linked from earlier checkpoints, by name.

    Raises:
        CheckpointError: another file is damaged, or a file cannot be written.
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
    """Replace a checkpoint by its successor of the same step; `target` is valid at any moment.

    On systems that cannot swap folders, it is missing between two renames. After a kill in that
    moment `RunDir.restore_superseded` restores the old one.
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
    """Run at a step, ready to be saved.

    Attributes:
        run_dir: folder of the run.
        step: step of the run.
        facts: more fields of the manifest.
        policy: settings of saving and retention.
        copy: returns the contents of the files as copies that training does not modify.
        supersedes: True to replace a checkpoint of this step that lacks some of the metrics.
    """

    run_dir: Path
    step: int
    facts: Mapping[str, Any]
    policy: CheckpointConfig
    copy: Callable[[], Mapping[str, FileContent]]
    supersedes: bool = True


@dataclass
class WriteResult:
    """Result of writing a checkpoint.

    Attributes:
        saved: the checkpoint; None if it could not be written.
        problem: error message of writing or, if that succeeded, of pruning.
        notes: lines to print.
        manifests: manifests of all remaining checkpoints, by name; None if unknown.
        write_ms: duration in milliseconds.
    """

    saved: Checkpoint | None = None
    problem: str | None = None
    notes: list[str] = field(default_factory=list)
    manifests: dict[str, Mapping[str, Any]] | None = None
    write_ms: float = 0.0


@final
class Hashes:
    """Cache of the sha256 of immutable contents, by object identity."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[bytes, str]] = {}

    def update(self, contents: Mapping[str, bytes]) -> dict[str, str]:
        """Return the sha256 of contents by name, and drop all other entries."""
        before, self._entries = self._entries, {}
        for name, data in contents.items():
            cached, sha256 = before.get(name, (None, ""))
            self._entries[name] = data, sha256 if cached is data else sha256_of(data)
        return {name: sha256 for name, (_, sha256) in self._entries.items()}


@final
class RunSaver:
    """Saves a run on schedule or on demand.

    A background thread writes a copy of the state, one checkpoint at a time.

    Args:
        say: prints a line.
    """

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._valid, self._hashes = VerifiedSaves(), Hashes()
        self._writing: futures.Future[WriteResult] | None = None
        self._last_save_s = time.monotonic()
        self._manifests: dict[str, Mapping[str, Any]] | None = None  # None after a failed save
        self._run_saves: Mapping[str, Mapping[str, Any]] = {}  # the last manifests that were read
        self._is_failing = False
        self._is_prune_failing = False
        self._num_failed = 0
        self._numbers: dict[str, float] = {}

    def step(self, run: Saveable) -> Path | None:
        """Start saving if a checkpoint is due; return the one completed since the last call."""
        is_writing = self._writing is not None and not self._writing.done()
        path = None if is_writing and self._manifests is not None else self.wait()
        reasons = self._reasons(run)
        # Training waits for the previous checkpoint if this one would be missed otherwise: the best
        # state is gone soon, and the first checkpoint of a window must not depend on speed.
        is_for_keeps = any(reason != INTERVAL for reason in reasons)
        is_missed = is_for_keeps or (reasons and run.policy.every_seconds == 0)
        if self._writing is not None and is_missed:
            path = self.wait()
            reasons = self._reasons(run)  # the completed checkpoint may have met some
        if reasons and self._writing is None:
            self._begin(run, ", ".join(reasons))
        return path

    def save(self, run: Saveable, why: str) -> Path:
        """Save now, after waiting for a checkpoint in progress.

        Raises:
            CheckpointError: it could not be written; names the newest checkpoint.
        """
        self.wait()
        self._begin(run, why)
        result = self._finish(on_demand=True)
        assert result is not None
        if result.saved is None:
            newest = RunDir(run.run_dir).newest(self._say)
            stands = "nothing is saved" if newest is None else f"the newest save is {newest.path}"
            raise CheckpointError(f"{result.problem}; {stands}")
        return result.saved.path

    def wait(self) -> Path | None:
        """Wait for a checkpoint in progress, and return it."""
        result = self._finish()
        return None if result is None or result.saved is None else result.saved.path

    def after_writing(self, act: Callable[[], None]) -> None:
        """Call a function once nothing is being written, without blocking."""
        if self._writing is None:
            act()
        else:
            self._writing.add_done_callback(lambda _: act())

    def adopt_saves(self, run_dir: Path) -> None:
        """Register the checkpoints in a folder as checkpoints of this run."""
        self.wait()
        self._run_saves = self._valid_saves(run_dir)

    def foreign_save(self, run_dir: Path) -> str | None:
        """Return the name of a valid checkpoint in a folder that another process saved, or None."""
        self.wait()
        saves = self._valid_saves(run_dir).items()
        return next(
            (name for name, manifest in saves if manifest != self._run_saves.get(name)), None
        )

    def forget(self) -> None:
        """Forget the checkpoints, as the folder of the run changes."""
        self.wait()
        self._manifests = None

    def reset(self) -> None:
        """Forget the checkpoints, and make the next one due at once."""
        self.forget()
        self._last_save_s = -math.inf
        self._is_failing = False

    def pop_metrics(self) -> dict[str, float]:
        """Return the metrics of saving since the last call, by tag."""
        numbers, self._numbers = self._numbers, {}
        return numbers

    def close_in_child(self) -> None:
        """Forget the checkpoint in progress, as a forked child does not have the writer thread."""
        self._writing = None

    def _valid_saves(self, run_dir: Path) -> dict[str, Mapping[str, Any]]:
        """Return the manifests of all valid checkpoints of a run, by name."""
        saves = self._valid.update(RunDir(run_dir).saved_paths())
        return {saved.path.name: saved.manifest for saved in saves}

    def _reasons(self, run: Saveable) -> list[str]:
        """Return the reasons to save the run now; [] if there are none."""
        if self._manifests is None:  # not read yet, or unknown after a failure
            self._manifests = self._run_saves = self._valid_saves(run.run_dir)
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
        """Start writing a copy of a run; no checkpoint may be in progress."""
        start = time.perf_counter()
        write = partial(_write, run, why, run.copy(), self._valid, self._hashes)
        self._numbers["checkpoint/copy_ms"] = (time.perf_counter() - start) * 1e3
        self._last_save_s = time.monotonic()
        close_in_children(self)
        # One thread per checkpoint, so that none is queued. The interpreter waits for it at exit.
        pool = futures.ThreadPoolExecutor(1, "save")
        try:
            self._writing = pool.submit(write)
        except RuntimeError:  # the system has no more threads: training waits
            self._writing = futures.Future()
            self._writing.set_result(write())
        pool.shutdown(wait=False)

    def _finish(self, on_demand: bool = False) -> WriteResult | None:
        """Wait for the checkpoint in progress, and print, record and return its result."""
        if self._writing is None:
            return None
        futures.wait([self._writing])  # an interrupt here does not stop the writing
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

        # Record.
        self._is_failing = saved is None
        self._num_failed += self._is_failing
        self._manifests = result.manifests
        self._numbers["checkpoint/failed"] = float(self._num_failed)
        if saved is not None:
            self._is_prune_failing = result.problem is not None
            self._run_saves = result.manifests or {
                **self._run_saves,
                saved.path.name: saved.manifest,
            }
            self._numbers["checkpoint/bytes"] = float(size_of_save(saved.manifest))
            self._numbers["checkpoint/write_ms"] = result.write_ms
        return result


def _write(
    run: Saveable,
    why: str,
    contents: Mapping[str, FileContent],
    verified: VerifiedSaves,
    hashes: Hashes,
) -> WriteResult:
    """Write a copy of a run, and prune its checkpoints.

    Args:
        run: the run.
        why: the reason for saving.
        contents: contents of the files.
        verified: cache of verified checkpoints, updated in place.
        hashes: cache of the hashes of shared files, updated in place.
    """
    start, result = time.perf_counter(), WriteResult()
    try:
        shared = {n: one.data for n, one in contents.items() if isinstance(one, SharedFile)}
        saved = save(
            *(run.run_dir, run.step, as_bytes(contents), why, run.facts, result.notes.append),
            if_exists="supersede" if run.supersedes else "keep",
            shared=hashes.update(shared),
        )
        verified.add(saved)
        result.saved = saved
        pruned = RunDir(run.run_dir).prune(run.policy, valid=verified, written=saved.path.name)
        result.manifests = pruned.manifests
    except (CheckpointError, OSError) as error:
        result.problem = str(error)
    result.write_ms = (time.perf_counter() - start) * 1e3
    return result
