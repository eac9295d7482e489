"""A folder that has a run in it already: continued, refused, or set aside for a new one."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, TypeAlias

from enn_trainer.checkpoints import checkpoint, published_checkpoint
from enn_trainer.checkpoints.find_save import newest
from enn_trainer.checkpoints.keep import INDEX
from enn_trainer.checkpoints.pins import PINS
from enn_trainer.checkpoints.run_lock import run_lock
from enn_trainer.errors import CheckpointError

Existing: TypeAlias = Literal["continue", "resume", "refuse", "replace"]
"""What to do with the run in a folder: continue it if there is one, continue it, have none, or
begin another one in its place."""
EXISTING: tuple[Existing, ...] = ("continue", "resume", "refuse", "replace")

SET_ASIDE = ".replaced-"
"""How the folder of a run that was replaced begins."""
BESIDE = (INDEX, PINS, "eval-step-*.json")
"""What lies beside the saves of a run and belongs to them."""


def saves_of(run_dir: Path) -> list[Path]:
    """What makes a folder that of a run, oldest first.

    Its saves, valid or damaged, and those of enn_trainer 0.1.16.
    """
    if not run_dir.is_dir():
        return []
    ours = checkpoint.saved_paths(run_dir)  # one with a pickle in it is a damaged one of ours
    published = [
        path
        for path in sorted(run_dir.iterdir())
        if path not in ours and published_checkpoint.is_published(path)
    ]
    return [*published, *reversed(ours)]


def refuse_used(run_dir: Path) -> None:
    """Refuse a folder that no run can begin in, as there is one already.

    Raises:
        CheckpointError: it has saves, valid or not, of any step and version; or is a save.
    """
    if _is_save(run_dir):
        raise CheckpointError(
            f"{run_dir}: expected a folder for a new run, it is a save of one; name another"
        )
    saves = saves_of(run_dir)
    if saves:
        raise CheckpointError(
            f"{run_dir}: expected a folder for a new run, it has saves, up to {saves[-1].name}; "
            "name another"
        )


@contextmanager
def new_run(run_dir: Path, say: Callable[[str], None] = print) -> Iterator[None]:
    """Make a folder for a run that begins, and have it for oneself until its first save.

    Args:
        run_dir: the folder.
        say: is told if the file system has no locks.

    Raises:
        CheckpointError: as of `refuse_used`; another process trains there; or it cannot be made.
    """
    refuse_used(run_dir)  # before there is a lock in it
    checkpoint.make_run_dir(run_dir)
    with run_lock(run_dir, say):
        refuse_used(run_dir)
        yield


def save_to_continue(
    run_dir: Path, existing: Existing, say: Callable[[str], None]
) -> checkpoint.Checkpoint | None:
    """The newest valid save of the run in a folder; None for a run that begins there.

    Args:
        run_dir: the folder.
        existing: what to do with a run that is there.
        say: is told what was wrong with newer saves.

    A save that a killed process was about to replace is put back first.

    Raises:
        CheckpointError: there is a run and should be none, or the other way round; or it cannot be
            continued.
    """
    if _is_save(run_dir):
        raise CheckpointError(
            f"--checkpoint-dir: expected the folder of a run, {run_dir} is one of its saves; "
            "--resume-from starts from it"
        )
    if existing == "replace":
        return None
    if run_dir.is_dir():
        checkpoint.restore_superseded(run_dir)
    saves = saves_of(run_dir)
    if not saves:
        if existing == "resume":
            raise CheckpointError(
                f"--resume: expected a run to continue in {run_dir}, there is none; "
                "--resume-or-start begins one then"
            )
        return None
    if existing == "refuse":
        raise CheckpointError(
            f"--checkpoint-dir: expected a folder without a run, {run_dir} has one, up to "
            f"{saves[-1].name}; --resume continues it, --force starts over and sets it aside, "
            "--resume-or-start is for jobs that are started again and again"
        )
    return newest(run_dir, say, to_continue=True)


def set_aside(run_dir: Path) -> Path | None:
    """Move the run in a folder into a hidden one beside, for another run in its place.

    If this is interrupted the newest saves are still where they were.

    Returns:
        Where it is now; None if there is none.

    Raises:
        CheckpointError: it cannot be moved.
    """
    beside = [path for pattern in BESIDE for path in sorted(run_dir.glob(pattern))]
    moved = [*saves_of(run_dir), *beside]  # the files alone, if this failed after the last save
    if not moved:
        return None
    try:
        aside = _new_folder(run_dir)
        for path in moved:
            path.rename(aside / path.name)
    except OSError as error:
        raise CheckpointError(
            f"--force: {run_dir} cannot be set aside: {error.strerror}; what was not moved is there"
        ) from None
    return aside


def put_back(aside: Path) -> None:
    """Undo `set_aside`, unless another run is there already.

    Raises:
        CheckpointError: what was set aside cannot be moved.
    """
    run_dir = aside.parent
    if saves_of(run_dir):
        return
    try:
        for path in sorted(aside.iterdir(), reverse=True):
            path.rename(run_dir / path.name)
        aside.rmdir()
    except OSError as error:
        raise CheckpointError(
            f"--force: {aside} cannot be put back: {error.strerror}; what was not moved is there"
        ) from None


def _is_save(path: Path) -> bool:
    return (path / checkpoint.MANIFEST).exists() or published_checkpoint.is_published(path)


def _new_folder(run_dir: Path) -> Path:
    base = f"{SET_ASIDE}{time.strftime('%Y%m%d-%H%M%S')}"
    for i in range(1, 1000):
        folder = run_dir / (base if i == 1 else f"{base}-{i}")
        try:
            folder.mkdir()
            return folder
        except FileExistsError:  # another one within the same second
            continue
    raise CheckpointError(f"{run_dir}: too many folders named {base}")
