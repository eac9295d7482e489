"""What lies in the folder of a run: saves that are valid or damaged, and what is none."""

import contextlib
import fnmatch
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from enn_trainer.checkpoints import checkpoint, disk, published_checkpoint
from enn_trainer.checkpoints.existing_run import BESIDE, SET_ASIDE
from enn_trainer.checkpoints.keep import DELETING, INDEX
from enn_trainer.checkpoints.look_again import MOST_LOOKS, identity
from enn_trainer.checkpoints.pins import PINS
from enn_trainer.checkpoints.plain_file import refuse_pickles
from enn_trainer.checkpoints.run_lock import LOCK
from enn_trainer.errors import CheckpointError

PUBLISHED = "of enn_trainer 0.1.16"
_KINDS = {
    checkpoint.WRITING: "not complete",
    DELETING: "being deleted",
    checkpoint.DAMAGED: "damaged, set aside",
    checkpoint.SUPERSEDED: "being replaced",
    SET_ASIDE: "a run that was replaced",
}


class Entry(NamedTuple):
    """Something in the folder of a run.

    Attributes:
        path: where.
        kind: "valid", "damaged", or what it is instead of a save of ours.
        problems: what is wrong with it, in words.
        notes: what is strange but harmless.
        step: of a save, None if that is not known.
        size: bytes of all files.
        manifest: what the manifest says, if it can be read.
    """

    path: Path
    kind: str
    problems: list[str]
    notes: list[str]
    step: int | None
    size: int
    manifest: Mapping[str, Any]


def entries(run_dir: Path) -> list[Entry]:
    """What lies in the folder of a run, the newest save first, what is none last."""
    saves = checkpoint.saved_paths(run_dir)
    others = [
        path
        for path in sorted(run_dir.iterdir())
        if path not in saves
        and not any(fnmatch.fnmatch(path.name, known) for known in (*BESIDE, LOCK))
        and not disk.is_leftover_of(path.name, (INDEX, PINS))
    ]
    found = [_examined_again(path) for path in saves] + [_other(path) for path in others]
    return [entry for entry in found if entry.path.exists()]  # a run that goes on deletes saves


def _examined_again(path: Path) -> Entry:
    """Examine a save; if a run replaced it meanwhile, the one that is there now."""
    for _ in range(MOST_LOOKS):
        before = identity(path)
        entry = examined(path)
        if not entry.problems or identity(path) in (before, None):
            break
    return entry


def examined(path: Path) -> Entry:
    """A save after comparing every file with the manifest, or one of enn_trainer 0.1.16.

    One that is deleted meanwhile is damaged.
    """
    step = checkpoint.step_of(path)
    if step is None and published_checkpoint.is_published(path):
        return _published(path)
    try:
        saved = checkpoint.opened(path)
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
        refuse_pickles(path)
        known = {checkpoint.MANIFEST, *saved.manifest["files"]}
        unknown = [file for file in sorted(path.iterdir()) if file.name not in known]
        notes = [f"{file}: not in the manifest" for file in unknown]
    except CheckpointError as error:
        problems.append(str(error))
    except OSError as error:
        problems.append(f"{path}: cannot be read: {error.strerror}")
    kind = "damaged" if problems else "valid"
    return Entry(path, kind, problems, notes, saved.step, _size(path), saved.manifest)


def _published(path: Path) -> Entry:
    try:
        saved = published_checkpoint.find(path)
        assert saved is not None
    except CheckpointError as error:
        return Entry(path, "damaged", [str(error)], [], None, _size(path), {})
    notes = [f"{path}: {PUBLISHED}, which kept no sums to compare with"]
    return Entry(path, PUBLISHED, [], notes, saved.step, _size(path), {})


def _other(path: Path) -> Entry:
    kinds = [kind for prefix, kind in _KINDS.items() if path.name.startswith(prefix)]
    if not kinds and published_checkpoint.is_published(path):
        return _published(path)
    return Entry(path, [*kinds, "not of this program"][0], [], [], None, _size(path), {})


def _size(path: Path) -> int:
    """Bytes of all files; of what is deleted meanwhile those that were still found."""
    within = [Path(folder, name) for folder, _, names in os.walk(path) for name in names]
    total = 0
    for file in [path, *within]:
        with contextlib.suppress(OSError):
            total += file.lstat().st_size if file.is_file() else 0
    return total
