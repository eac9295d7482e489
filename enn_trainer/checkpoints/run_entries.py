"""List of what is in the folder of a run: saves, valid or damaged, and everything else."""

import contextlib
import fnmatch
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from enn_trainer.checkpoints import disk, legacy_0_1_16
from enn_trainer.checkpoints.format import (
    DAMAGED,
    MOST_LOOKS,
    SUPERSEDED,
    WRITING,
    folder_id,
    read_unverified,
    step_of,
)
from enn_trainer.checkpoints.manifest import MANIFEST
from enn_trainer.checkpoints.plain_file import check_no_pickles
from enn_trainer.checkpoints.run_dir import BESIDE, DELETING, INDEX, PINS, SET_ASIDE, RunDir
from enn_trainer.checkpoints.run_lock import LOCK
from enn_trainer.errors import CheckpointError

PUBLISHED = "of enn_trainer 0.1.16"
_KINDS = {
    WRITING: "not complete",
    DELETING: "being deleted",
    DAMAGED: "damaged, set aside",
    SUPERSEDED: "being replaced",
    SET_ASIDE: "a run that was replaced",
}


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


def entries(run_dir: Path) -> list[Entry]:
    """Return what is in the folder of a run, the newest save first and other things last."""
    saves = RunDir(run_dir).saved_paths()
    others = [
        path
        for path in sorted(run_dir.iterdir())
        if path not in saves
        and not any(fnmatch.fnmatch(path.name, known) for known in (*BESIDE, LOCK))
        and not disk.is_leftover_of(path.name, (INDEX, PINS))
    ]
    found = [_examine_again(path) for path in saves] + [_examine_other(path) for path in others]
    return [entry for entry in found if entry.path.exists()]  # a run that goes on deletes saves


def _examine_again(path: Path) -> Entry:
    """Examine a save; if a run replaced it meanwhile, the one that is there now."""
    for _ in range(MOST_LOOKS):
        before = folder_id(path)
        entry = examine(path)
        if not entry.problems or folder_id(path) in (before, None):
            break
    return entry


def examine(path: Path) -> Entry:
    """Compare every file of a save with the manifest, or read one of enn_trainer 0.1.16.

    One that is deleted meanwhile is damaged.
    """
    step = step_of(path)
    if step is None and legacy_0_1_16.is_published(path):
        return _examine_published(path)
    try:
        saved = read_unverified(path)
    except CheckpointError as error:
        return Entry(path, "damaged", [str(error)], [], step, _size(path), {})
    problems = []
    for name in saved.manifest["files"]:
        try:
            saved.check(name)
        except CheckpointError as error:
            problems.append(str(error))
    notes = []
    try:
        check_no_pickles(path)
        known = {MANIFEST, *saved.manifest["files"]}
        unknown = [file for file in sorted(path.iterdir()) if file.name not in known]
        notes = [f"{file}: not in the manifest" for file in unknown]
    except CheckpointError as error:
        problems.append(str(error))
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
    kind = "damaged" if problems else "valid"
    return Entry(path, kind, problems, notes, saved.step, _size(path), saved.manifest)


def _examine_published(path: Path) -> Entry:
    try:
        saved = legacy_0_1_16.find(path)
        assert saved is not None
    except CheckpointError as error:
        return Entry(path, "damaged", [str(error)], [], None, _size(path), {})
    notes = [f"{path}: {PUBLISHED}, which kept no sums to compare with"]
    return Entry(path, PUBLISHED, [], notes, saved.step, _size(path), {})


def _examine_other(path: Path) -> Entry:
    kinds = [kind for prefix, kind in _KINDS.items() if path.name.startswith(prefix)]
    if not kinds and legacy_0_1_16.is_published(path):
        return _examine_published(path)
    return Entry(path, [*kinds, "not a checkpoint"][0], [], [], None, _size(path), {})


def _size(path: Path) -> int:
    """Return the bytes of all files that still exist."""
    within = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    total = 0
    for file in [path, *within]:
        with contextlib.suppress(OSError):
            total += file.lstat().st_size if file.is_file() else 0
    return total
