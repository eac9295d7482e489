"""Folder of a run: its checkpoints, lock, pins and retention."""

import fnmatch
import hashlib
import itertools
import json
import os
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, final

from enn_trainer.base.errors import CheckpointError
from enn_trainer.checkpoints import disk, retention
from enn_trainer.checkpoints.format import (
    METRICS_FILE,
    MOST_LOOKS,
    RUN_FILE,
    Checkpoint,
    SaveGone,
    VerifiedSaves,
    first_valid,
    folder_id,
    is_published,
    is_save,
    read_unverified,
    retry_while_gone,
    step_of,
    verify,
)
from enn_trainer.checkpoints.manifest import MANIFEST, size_of_save
from enn_trainer.checkpoints.run_lock import LOCK, RunLock, folder_lock
from enn_trainer.config import CheckpointConfig

INDEX, PINS = "index.json", "pins.json"
LOGS = (
    *(f"{METRICS_FILE}*", f"{RUN_FILE}*", "spans.json*", "events.out.tfevents.*"),
    *("videos", "replays", "wandb", ".wandb"),
)
"""Metrics, timers, videos and replays of a run."""
METADATA = (INDEX, PINS, "eval-step-*.json", "eval-opponent-*.json", *LOGS)
"""Patterns of the other files of a run. Recordings may belong to another run."""
WRITING, DELETING, DAMAGED, SUPERSEDED = ".writing-", ".deleting-", ".damaged-", ".superseded-"
"""Prefixes of checkpoints that are being written, being deleted, set aside, and being replaced."""
SET_ASIDE = ".replaced-"
"""Prefix of the folder of a run that a new run replaced."""
WRITTEN = "just written"
PUBLISHED = "of enn_trainer 0.1.16"
MAX_PINS_BYTES = 1 << 20
_KINDS = {
    WRITING: "not complete",
    DELETING: "being deleted",
    DAMAGED: "damaged, set aside",
    SUPERSEDED: "being replaced",
    SET_ASIDE: "a run that was replaced",
}
_LEFTOVER = re.compile(
    rf"({'|'.join(map(re.escape, (WRITING, DELETING, SUPERSEDED)))})step-\d+-\d+"
)


class PruneResult(NamedTuple):
    """Checkpoints of a run after pruning.

    Attributes:
        deleted: manifests of deleted checkpoints, by name; in a dry run of the ones to delete.
        reasons: reasons to keep each remaining checkpoint, by name.
        manifests: manifests of the remaining checkpoints, by name.
    """

    deleted: dict[str, Mapping[str, Any]]
    reasons: dict[str, list[str]]
    manifests: dict[str, Mapping[str, Any]]


class RunEntry(NamedTuple):
    """File or folder in the folder of a run.

    Attributes:
        path: path of the file or folder.
        kind: "valid" or "damaged" for a checkpoint of today's format, otherwise a description.
        problems: messages about errors.
        notes: messages about harmless oddities.
        step: step of a checkpoint; None if unknown.
        size: total size in bytes.
        manifest: content of the manifest; {} if it cannot be read.
    """

    path: Path
    kind: str
    problems: list[str]
    notes: list[str]
    step: int | None
    size: int
    manifest: Mapping[str, Any]


@final
@dataclass(frozen=True)
class RunDir:
    """Folder of a run.

    Reading needs no lock. The training process holds `lock`; changes of pins, deletions and
    replacements of checkpoints hold `folder_lock`.

    Attributes:
        path: path of the folder, which may not exist.
    """

    path: Path

    # Checkpoints.

    def saved_paths(self) -> list[Path]:
        """Return the directories of all checkpoints, valid or damaged, newest first."""
        saves: list[tuple[int, Path]] = []
        # Listing is not atomic: it may miss both the old checkpoint and its replacement.
        for _ in range(2):
            if not saves and self.path.is_dir():
                steps = {path: step_of(path) for path in self.path.iterdir() if path.is_dir()}
                saves = [(i, path) for path, i in steps.items() if i is not None and is_save(path)]
        return [path for _, path in sorted(saves, reverse=True)]

    def all_saves(self) -> list[Path]:
        """Return all checkpoints, valid or damaged, oldest first; also of enn_trainer 0.1.16."""
        if not self.path.is_dir():
            return []
        saved_paths = self.saved_paths()  # including damaged ones with a pickle
        other_paths = [path for path in sorted(self.path.iterdir()) if path not in saved_paths]
        return [*filter(is_published, other_paths), *reversed(saved_paths)]

    def newest(self, say: Callable[[str], None] = print) -> Checkpoint | None:
        """Return the newest valid checkpoint, and report the errors of newer ones.

        Checkpoints share the files of opponents. If damaged opponents make all of them invalid, the
        newest one is returned without its damaged opponents.

        Raises:
            CheckpointError: there are checkpoints, but none is valid.
        """
        return retry_while_gone(self.path, lambda: self._newest(say))

    def _newest(self, say: Callable[[str], None]) -> Checkpoint | None:
        paths = self.saved_paths()
        try:
            return first_valid(self.path, paths, verify, say)
        except SaveGone:
            raise
        except CheckpointError:
            saved = first_valid(self.path, paths, partial(verify, without_lost=True), say)
        assert saved is not None, "there are some"
        lost = "; ".join(saved.lost.values())
        say(f"no undamaged checkpoint, using {saved.path.name} without damaged opponents: {lost}")
        return saved

    def entries(self) -> list[RunEntry]:
        """Return the entries of the folder: checkpoints, newest first, then everything else."""
        saves, result = self.saved_paths(), []
        for path in saves:
            # Retry if a run replaces the checkpoint meanwhile.
            for _ in range(MOST_LOOKS):
                before, entry = folder_id(path), examine(path)
                if not entry.problems or folder_id(path) in (before, None):
                    break
            result.append(entry)
        for path in sorted(self.path.iterdir()):
            is_known = any(fnmatch.fnmatch(path.name, p) for p in (*METADATA, "*.rec", LOCK))
            if path in saves or is_known or disk.is_leftover_of(path.name, (INDEX, PINS)):
                continue
            kinds = [kind for prefix, kind in _KINDS.items() if path.name.startswith(prefix)]
            if not kinds and is_published(path):
                result.append(examine(path))
            else:
                kind = [*kinds, "not a checkpoint"][0]
                result.append(RunEntry(path, kind, [], [], None, disk.size_of_all(path), {}))
        return [entry for entry in result if entry.path.exists()]  # a run may delete saves

    def restore_superseded(self) -> None:
        """Restore checkpoints that a killed process had moved away before replacing them.

        Raises:
            CheckpointError: a checkpoint cannot be renamed.
        """
        for path in self.path.glob(f"{SUPERSEDED}*"):
            name = path.name.removeprefix(SUPERSEDED).rpartition("-")[0]
            target = self.path / name
            if step_of(target) is not None and not target.exists():
                disk.rename(path, target)

    # A new run, and the run that it replaces.

    @property
    def is_save(self) -> bool:
        """True if the folder itself is a checkpoint, also one of enn_trainer 0.1.16."""
        return (self.path / MANIFEST).exists() or is_published(self.path)

    def check_unused(self) -> None:
        """Raise if the folder is or contains a checkpoint.

        Raises:
            CheckpointError: it does, valid or damaged, of any step and version.
        """
        if self.is_save:
            raise CheckpointError(
                f"{self.path}: expected a folder for a new run, got a checkpoint; use another"
            )
        saves = self.all_saves()
        if saves:
            raise CheckpointError(
                f"{self.path}: expected a folder for a new run, got one with checkpoints up to "
                f"{saves[-1].name}; use another"
            )

    @contextmanager
    def begin(self, say: Callable[[str], None] = print) -> Iterator[None]:
        """Create the folder for a new run, and lock it while the context is open.

        Args:
            say: prints a line if the file system has no locks.

        Raises:
            CheckpointError: as for `check_unused`; or another process trains there; or the folder
                cannot be created.
        """
        self.check_unused()  # before the lock file is created
        disk.make_run_dir(self.path)
        with self.lock(say):
            self.check_unused()
            yield

    def set_aside(self) -> Path | None:
        """Move the existing run into a hidden subfolder, so that a new run can replace it.

        The newest checkpoints are moved last, so that an interruption leaves them in place.

        Returns:
            The subfolder; None if there is no run.

        Raises:
            CheckpointError: a file or folder cannot be moved.
        """
        files = [path for pattern in METADATA for path in sorted(self.path.glob(pattern))]
        paths = [*self.all_saves(), *files]  # files alone, if this failed after the last save
        if not paths:
            return None
        base = f"{SET_ASIDE}{time.strftime('%Y%m%d-%H%M%S')}"
        names = itertools.chain([base], (f"{base}-{i}" for i in itertools.count(2)))
        aside = next(path for path in map(self.path.joinpath, names) if not os.path.lexists(path))
        problem = "cannot be set aside, files that were not moved are there"
        with disk.naming(f"--force: {self.path}", problem):
            aside.mkdir()
            for path in paths:
                path.rename(aside / path.name)
        return aside

    def put_back(self, aside: Path) -> None:
        """Undo `set_aside`, unless the new run has saved a checkpoint.

        Raises:
            CheckpointError: a file or folder cannot be moved back.
        """
        if self.all_saves():
            return
        for pattern in LOGS:  # of the new run, which did not start
            for path in self.path.glob(pattern):
                disk.remove(path)
        problem = "cannot be put back, files that were not moved are there"
        with disk.naming(f"--force: {aside}", problem):
            for path in sorted(aside.iterdir(), reverse=True):
                path.rename(self.path / path.name)
            aside.rmdir()

    # Lock.

    def lock(self, say: Callable[[str], None] = print) -> closing[RunLock]:
        """Lock the folder until the context is closed, and remove leftovers of dead processes.

        Args:
            say: prints a line if the file system has no locks.

        Raises:
            CheckpointError: another process has the lock, or the lock file cannot be written.
        """
        return closing(RunLock(self.path, _remove_leftovers, say))

    # Pins: `pins.json` maps the names of checkpoints that are never deleted to notes. It is
    # replaced atomically and under a lock, so that a running process loses nothing.

    def pins(self) -> dict[str, str]:
        """Return the notes of the pinned checkpoints, by checkpoint name.

        Raises:
            CheckpointError: the file is damaged.
        """
        path = self.path / PINS
        if not os.path.lexists(path):
            return {}
        data = disk.read_plain_file(path, MAX_PINS_BYTES)
        try:
            pins = json.loads(data)
        except (ValueError, RecursionError):
            raise CheckpointError(f"{path}: damaged, not JSON; repair or remove it") from None
        if not isinstance(pins, dict) or not all(isinstance(note, str) for note in pins.values()):
            raise CheckpointError(
                f"{path}: expected notes by checkpoint name, got other JSON; repair or remove it"
            )
        return pins

    def pin(self, name: str, note: str = "") -> None:
        """Pin a checkpoint, so that it is never deleted; replace the note of a pinned one.

        Raises:
            SaveGone: the checkpoint was deleted meanwhile.
            CheckpointError: the pins cannot be written.
        """
        with folder_lock(self.path):
            pins = {**self.pins(), name: note}
            self._write_pins(pins)
            if not (self.path / name).is_dir():  # deleted before the folder was locked
                del pins[name]
                self._write_pins(pins)
                raise SaveGone(f"{self.path / name}: was deleted while it was to be pinned")

    def unpin(self, name: str) -> None:
        """Unpin a checkpoint, which may be damaged or missing.

        Raises:
            CheckpointError: it is not pinned, or the pins cannot be written.
        """
        with folder_lock(self.path):
            pins = self.pins()
            if name not in pins:
                names = ", ".join(sorted(pins)) or "none"
                raise CheckpointError(
                    f"{self.path / name}: expected a pinned checkpoint, pinned are: {names}"
                )
            del pins[name]
            self._write_pins(pins)

    def _write_pins(self, pins: dict[str, str]) -> None:
        disk.replace_file(self.path / PINS, (json.dumps(pins, indent=1) + "\n").encode())

    # Retention.

    def prune(
        self,
        policy: CheckpointConfig,
        dry_run: bool = False,
        valid: VerifiedSaves | None = None,
        written: str | None = None,
    ) -> PruneResult:
        """Delete checkpoints without a reason to keep, and rewrite the index.

        The newest valid checkpoint is always kept. Other directories are neither counted nor
        deleted.

        Args:
            policy: the settings.
            dry_run: True to return what would be deleted without deleting it.
            valid: cache of verified checkpoints, reused between calls.
            written: name of a checkpoint that was just written, which is kept.

        Raises:
            CheckpointError: the pins cannot be read, and nothing is deleted; or a checkpoint cannot
                be removed, or the index cannot be written.
        """
        valid = VerifiedSaves() if valid is None else valid
        valid.update(self.saved_paths())  # takes minutes for large files, so before the lock
        with folder_lock(self.path):  # nothing is pinned or replaced between reading and deleting
            saves = {saved.path.name: saved.manifest for saved in valid.update(self.saved_paths())}
            try:
                pins = self.pins()
            except CheckpointError as error:
                raise CheckpointError(
                    f"no checkpoint is deleted, as pins cannot be read: {error}"
                ) from None
            reasons = retention.reasons_to_keep(saves, policy, pins)
            if written is not None and reasons.get(written) == []:
                reasons[written] = [WRITTEN]
            pruned = PruneResult(
                {name: saves[name] for name in saves if not reasons[name]},
                {name: why for name, why in reasons.items() if why},
                {name: saves[name] for name in saves if reasons[name]},
            )
            if dry_run:
                return pruned
            # Renaming deletes a checkpoint atomically; removing its files takes longer.
            trash = {name: f"{DELETING}{name}-{os.getpid()}" for name in pruned.deleted}
            for name, renamed in trash.items():
                disk.rename(self.path / name, self.path / renamed)
        for renamed in trash.values():
            disk.remove(self.path / renamed)
        disk.replace_file(self.path / INDEX, self._index(pruned))
        return pruned

    def _index(self, pruned: PruneResult) -> bytes:
        """Return the content of `index.json`, newest checkpoint first."""
        index = [
            {
                "name": name,
                **{key: manifest.get(key) for key in ("step", "created", "time_used", "why")},
                "kept": pruned.reasons[name],
                "size": size_of_save(manifest),
                "sha256": hashlib.sha256((self.path / name / MANIFEST).read_bytes()).hexdigest(),
                "metrics": manifest.get("metrics", {}),
            }
            for name, manifest in pruned.manifests.items()
        ]
        return json.dumps(index, indent=1).encode()


def new_run_dir(runs: Path, world: str) -> Path:
    """Create the folder of a new run, `<world>-<n>` with the smallest free n.

    Processes that start at the same time get different folders.

    Args:
        runs: the parent folder.
        world: name of the environment; unusual characters are replaced.

    Raises:
        CheckpointError: the folder cannot be created.
    """
    name = re.sub(r"[^\w.-]", "_", world)[:50]
    with disk.naming(runs, "expected a writable folder for runs, or --no-save"):
        runs.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = runs / f"{name}-{number}"
            with suppress(FileExistsError):
                path.mkdir()
                break
    return path


def is_any_save(path: Path) -> bool:
    """Return True if a folder is a checkpoint, valid or damaged, also of enn_trainer 0.1.16."""
    return is_save(path) or is_published(path)


def examine(path: Path) -> RunEntry:
    """Verify every file of a checkpoint, also of enn_trainer 0.1.16, and return its entry.

    A checkpoint that is deleted meanwhile counts as damaged.
    """
    step = step_of(path)
    try:
        if step is None and is_published(path):
            from enn_trainer.checkpoints import legacy_0_1_16  # imports PyTorch

            published = legacy_0_1_16.find(path)
            assert published is not None
            notes = [f"{path}: {PUBLISHED}, which wrote no checksums to compare with"]
            return RunEntry(path, PUBLISHED, [], notes, published.step, disk.size_of_all(path), {})
        saved = read_unverified(path)
    except CheckpointError as error:
        return RunEntry(path, "damaged", [str(error)], [], step, disk.size_of_all(path), {})
    problems = [str(problem) for problem in saved.problems()]
    notes = []
    try:
        manifest_files = {MANIFEST, *saved.manifest["files"]}
        unlisted = [file for file in sorted(path.iterdir()) if file.name not in manifest_files]
        notes = [f"{file}: not in the manifest" for file in unlisted]
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
    kind = "damaged" if problems else "valid"
    return RunEntry(path, kind, problems, notes, saved.step, disk.size_of_all(path), saved.manifest)


def _remove_leftovers(run_dir: Path) -> None:
    RunDir(run_dir).restore_superseded()
    for path in run_dir.iterdir():
        if _LEFTOVER.fullmatch(path.name) or disk.is_leftover_of(path.name, (INDEX, PINS)):
            disk.remove(path)
