"""Folder of a run: its saves, the lock on it, and which saves are pinned, kept and deleted."""

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
from enn_trainer.checkpoints import disk, legacy_0_1_16, retention
from enn_trainer.checkpoints.format import (
    METRICS_FILE,
    MOST_LOOKS,
    RUN_FILE,
    Checkpoint,
    SaveGone,
    VerifiedSaves,
    first_valid,
    folder_id,
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
BESIDE = (INDEX, PINS, "eval-step-*.json", "eval-opponent-*.json", *LOGS)
"""Files beside the saves of a run that belong to it; recordings may be of another one."""
WRITING, DELETING, DAMAGED, SUPERSEDED = ".writing-", ".deleting-", ".damaged-", ".superseded-"
"""Prefixes of saves that are being written and deleted, were set aside, and are being replaced."""
SET_ASIDE = ".replaced-"
"""Prefix of the folder of a run that another one replaced."""
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


class Pruned(NamedTuple):
    """Saves of a run after some were deleted.

    Attributes:
        deleted: manifests of those that were deleted, or would have been, by name.
        reasons: why each of the others stays, by name.
        manifests: of those that stay, by name.
    """

    deleted: dict[str, Mapping[str, Any]]
    reasons: dict[str, list[str]]
    manifests: dict[str, Mapping[str, Any]]


class Entry(NamedTuple):
    """File or folder in the folder of a run.

    Attributes:
        path: of it.
        kind: "valid" or "damaged" for a save of ours, otherwise another word.
        problems: what is wrong with it, in words.
        notes: what is strange but harmless.
        step: of a save, None if that is not known.
        size: bytes of all files.
        manifest: the content of the manifest, if it can be read.
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

    Reading needs no lock. Whoever trains there holds `lock`; pins are changed, and saves deleted or
    replaced, under `folder_lock`.

    Attributes:
        path: of the folder, which need not exist.
    """

    path: Path

    # Saves.

    def saved_paths(self) -> list[Path]:
        """Return the directories of the saves, newest first, whether they are valid or not."""
        found: list[tuple[int, Path]] = []
        # A folder is no snapshot: the first look may miss the old save as well as the new one.
        for _ in range(2):
            if not found and self.path.is_dir():
                steps = {path: step_of(path) for path in self.path.iterdir() if path.is_dir()}
                found = [(i, path) for path, i in steps.items() if i is not None and is_save(path)]
        return [path for _, path in sorted(found, reverse=True)]

    def all_saves(self) -> list[Path]:
        """Return all that makes the folder that of a run, oldest first.

        These are its saves, valid or damaged, and those of enn_trainer 0.1.16.
        """
        if not self.path.is_dir():
            return []
        ours = self.saved_paths()  # one with a pickle in it is a damaged one of ours
        others = [path for path in sorted(self.path.iterdir()) if path not in ours]
        return [*filter(legacy_0_1_16.is_published, others), *reversed(ours)]

    def newest(self, say: Callable[[str], None] = print) -> Checkpoint | None:
        """Return the newest valid save, and say what was wrong with newer ones.

        Saves share the files of opponents, and so their damage. If no save is valid, it is the
        newest one that is valid without its damaged opponents.

        Raises:
            CheckpointError: there are saves, but none is valid.
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
        say(f"no save is whole, using {saved.path.name} without damaged opponents: {lost}")
        return saved

    def entries(self) -> list[Entry]:
        """Return what is in the folder, the newest save first and other things last."""
        saves, found = self.saved_paths(), []
        for path in saves:
            # If a run replaces a save meanwhile, look at the one that is there now.
            for _ in range(MOST_LOOKS):
                before, entry = folder_id(path), examine(path)
                if not entry.problems or folder_id(path) in (before, None):
                    break
            found.append(entry)
        for path in sorted(self.path.iterdir()):
            is_known = any(fnmatch.fnmatch(path.name, known) for known in (*BESIDE, "*.rec", LOCK))
            if path in saves or is_known or disk.is_leftover_of(path.name, (INDEX, PINS)):
                continue
            kinds = [kind for prefix, kind in _KINDS.items() if path.name.startswith(prefix)]
            if not kinds and legacy_0_1_16.is_published(path):
                found.append(examine(path))
            else:
                kind = [*kinds, "not a checkpoint"][0]
                found.append(Entry(path, kind, [], [], None, disk.size_of_all(path), {}))
        return [entry for entry in found if entry.path.exists()]  # a run that goes on deletes saves

    def restore_superseded(self) -> None:
        """Put back saves that a killed process had moved away, and not yet replaced.

        Raises:
            CheckpointError: one cannot be renamed.
        """
        for path in self.path.glob(f"{SUPERSEDED}*"):
            name = path.name.removeprefix(SUPERSEDED).rpartition("-")[0]
            target = self.path / name
            if step_of(target) is not None and not target.exists():
                disk.rename(path, target)

    # A new run, and the one before it.

    @property
    def is_save(self) -> bool:
        """True if the folder is itself a save, ours or one of enn_trainer 0.1.16."""
        return (self.path / MANIFEST).exists() or legacy_0_1_16.is_published(self.path)

    def check_unused(self) -> None:
        """Raise if no run can begin in the folder, as there is one already.

        Raises:
            CheckpointError: it has saves, valid or not, of any step and version; or is a save.
        """
        if self.is_save:
            raise CheckpointError(
                f"{self.path}: expected a folder for a new run, it is a save of one; name another"
            )
        saves = self.all_saves()
        if saves:
            raise CheckpointError(
                f"{self.path}: expected a folder for a new run, it has saves, up to "
                f"{saves[-1].name}; name another"
            )

    @contextmanager
    def begin(self, say: Callable[[str], None] = print) -> Iterator[None]:
        """Make the folder for a new run, and lock it while the context is open.

        Args:
            say: prints a line if the file system has no locks.

        Raises:
            CheckpointError: as for `check_unused`; another process trains there; or it cannot be
                made.
        """
        self.check_unused()  # before there is a lock in it
        disk.make_run_dir(self.path)
        with self.lock(say):
            self.check_unused()
            yield

    def set_aside(self) -> Path | None:
        """Move the run that is here into a hidden folder inside, for another run in its place.

        If this is interrupted the newest saves are still where they were.

        Returns:
            That folder; None if there is no run.

        Raises:
            CheckpointError: it cannot be moved.
        """
        beside = [path for pattern in BESIDE for path in sorted(self.path.glob(pattern))]
        moved = [*self.all_saves(), *beside]  # files alone, if this failed after the last save
        if not moved:
            return None
        base = f"{SET_ASIDE}{time.strftime('%Y%m%d-%H%M%S')}"
        names = itertools.chain([base], (f"{base}-{i}" for i in itertools.count(2)))
        aside = next(path for path in map(self.path.joinpath, names) if not os.path.lexists(path))
        problem = "cannot be set aside, and what was not moved is there"
        with disk.naming(f"--force: {self.path}", problem):
            aside.mkdir()
            for path in moved:
                path.rename(aside / path.name)
        return aside

    def put_back(self, aside: Path) -> None:
        """Undo `set_aside`, unless another run is here already.

        Raises:
            CheckpointError: a file or folder that was set aside cannot be moved.
        """
        if self.all_saves():
            return
        for pattern in LOGS:  # of the run that did not begin
            for path in self.path.glob(pattern):
                disk.remove(path)
        problem = "cannot be put back, and what was not moved is there"
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
            CheckpointError: another process has it, or the lock file cannot be written.
        """
        return closing(RunLock(self.path, _remove_leftovers, say))

    # Pins: saves that are never deleted, in `pins.json`, notes by names of saves. It is written
    # whole or not at all, and only under a lock, so that nothing is lost while a run goes on.

    def pins(self) -> dict[str, str]:
        """Return the notes of the pinned saves, by the names of the saves.

        Raises:
            CheckpointError: the file is damaged, so that it is not known what is pinned.
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
                f"{path}: expected notes by the names of saves, got something else; repair or "
                "remove it"
            )
        return pins

    def pin(self, name: str, note: str = "") -> None:
        """Let a save never be deleted; one that is pinned gets another note.

        Raises:
            SaveGone: it was deleted in this moment.
            CheckpointError: this cannot be written.
        """
        with folder_lock(self.path):
            pins = {**self.pins(), name: note}
            self._write_pins(pins)
            if not (self.path / name).is_dir():  # deleted before it was locked
                del pins[name]
                self._write_pins(pins)
                raise SaveGone(f"{self.path / name}: was deleted while it was to be pinned")

    def unpin(self, name: str) -> None:
        """Let a save be deleted again, which need not be valid nor exist.

        Raises:
            CheckpointError: it is not pinned, or this cannot be written.
        """
        with folder_lock(self.path):
            pins = self.pins()
            if name not in pins:
                names = ", ".join(sorted(pins)) or "none"
                raise CheckpointError(
                    f"{self.path / name}: expected a pinned save, pinned are: {names}"
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
        known: VerifiedSaves | None = None,
        written: str | None = None,
    ) -> Pruned:
        """Delete the saves that nothing keeps, and write the index anew.

        The newest valid save stays in any case. Directories that are no valid save are neither
        counted nor deleted.

        Args:
            policy: the settings.
            dry_run: delete nothing, and only return what would be deleted.
            known: remembers between calls what was verified.
            written: the name of a save that was just written, which stays.

        Raises:
            CheckpointError: it is not known what is pinned, and nothing is deleted; or a save
                cannot be removed, or the index cannot be written.
        """
        known = VerifiedSaves() if known is None else known
        known.update(self.saved_paths())  # takes minutes for large saves: before others wait for it
        with folder_lock(self.path):  # nothing is pinned or replaced between the look and the deed
            saves = {saved.path.name: saved.manifest for saved in known.update(self.saved_paths())}
            try:
                pins = self.pins()
            except CheckpointError as error:
                raise CheckpointError(
                    f"no save is deleted, as pins cannot be read: {error}"
                ) from None
            reasons = retention.reasons_to_keep(saves, policy, pins)
            if written is not None and reasons.get(written) == []:
                reasons[written] = [WRITTEN]
            pruned = Pruned(
                {name: saves[name] for name in saves if not reasons[name]},
                {name: why for name, why in reasons.items() if why},
                {name: saves[name] for name in saves if reasons[name]},
            )
            if dry_run:
                return pruned
            # A renamed save is gone in one step; to remove its files takes longer.
            trash = {name: f"{DELETING}{name}-{os.getpid()}" for name in pruned.deleted}
            for name, renamed in trash.items():
                disk.rename(self.path / name, self.path / renamed)
        for renamed in trash.values():
            disk.remove(self.path / renamed)
        disk.replace_file(self.path / INDEX, self._index(pruned))
        return pruned

    def _index(self, kept: Pruned) -> bytes:
        """Return the index, newest save first, for people and programs."""
        index = [
            {
                "name": name,
                **{key: manifest.get(key) for key in ("step", "created", "time_used", "why")},
                "kept": kept.reasons[name],
                "size": size_of_save(manifest),
                "sha256": hashlib.sha256((self.path / name / MANIFEST).read_bytes()).hexdigest(),
                "metrics": manifest.get("metrics", {}),
            }
            for name, manifest in kept.manifests.items()
        ]
        return json.dumps(index, indent=1).encode()


def new_run_dir(runs: Path, world: str) -> Path:
    """Make the folder of a new run, `<world>-<n>` with the smallest n that is free.

    Two processes that begin at once get two folders.

    Args:
        runs: the folder to make it in.
        world: the name of the environment, of which characters unusual in file names are replaced.

    Raises:
        CheckpointError: it cannot be made.
    """
    name = re.sub(r"[^\w.-]", "_", world)[:50]
    with disk.naming(runs, "expected a folder to make that of the run in, or --no-save"):
        runs.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            path = runs / f"{name}-{number}"
            with suppress(FileExistsError):
                path.mkdir()
                break
    return path


def is_any_save(path: Path) -> bool:
    """Return True if a folder is a save, ours or of enn_trainer 0.1.16, which may be damaged."""
    return is_save(path) or legacy_0_1_16.is_published(path)


def examine(path: Path) -> Entry:
    """Compare every file of a save with the manifest, or read one of enn_trainer 0.1.16.

    One that is deleted meanwhile is damaged.
    """
    step = step_of(path)
    try:
        if step is None and legacy_0_1_16.is_published(path):
            published = legacy_0_1_16.find(path)
            assert published is not None
            notes = [f"{path}: {PUBLISHED}, which kept no sums to compare with"]
            return Entry(path, PUBLISHED, [], notes, published.step, disk.size_of_all(path), {})
        saved = read_unverified(path)
    except CheckpointError as error:
        return Entry(path, "damaged", [str(error)], [], step, disk.size_of_all(path), {})
    problems = [str(problem) for problem in saved.problems()]
    notes = []
    try:
        known = {MANIFEST, *saved.manifest["files"]}
        unknown = [file for file in sorted(path.iterdir()) if file.name not in known]
        notes = [f"{file}: not in the manifest" for file in unknown]
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
    kind = "damaged" if problems else "valid"
    return Entry(path, kind, problems, notes, saved.step, disk.size_of_all(path), saved.manifest)


def _remove_leftovers(run_dir: Path) -> None:
    RunDir(run_dir).restore_superseded()
    for entry in run_dir.iterdir():
        if _LEFTOVER.fullmatch(entry.name) or disk.is_leftover_of(entry.name, (INDEX, PINS)):
            disk.remove(entry)
