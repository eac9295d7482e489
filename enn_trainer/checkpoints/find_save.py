"""Saves by what a person calls them: their folders, RUN@STEP, RUN@latest, RUN@best."""

from collections.abc import Callable
from pathlib import Path

from enn_trainer.checkpoints import checkpoint, published_checkpoint
from enn_trainer.checkpoints.keep import Verified, best_of
from enn_trainer.checkpoints.look_again import SaveGone, looking_again, reading
from enn_trainer.checkpoints.saved_state import read_config
from enn_trainer.errors import CheckpointError


def find(
    path: Path, say: Callable[[str], None] = print, to_continue: bool = False
) -> checkpoint.Checkpoint:
    """The save that a path means: its own, or the newest valid one of a run.

    One of enn_trainer 0.1.16 is taken only where there is none of ours: a run that was continued
    with this program is newer than what it began with.

    Args:
        path: a checkpoint, or the folder of a run; or as `resolve` says.
        say: told what was wrong with newer ones.
        to_continue: whether the run goes on, which needs all of a save.

    Raises:
        CheckpointError: there is no valid checkpoint.
    """
    return looking_again(path, lambda: _find(path, say, to_continue))


def _find(named: Path, say: Callable[[str], None], to_continue: bool) -> checkpoint.Checkpoint:
    path = resolve(named, say)
    if not path.is_dir():
        if path != named:
            raise SaveGone(f"{path}: deleted")
        raise CheckpointError(f"{path}: expected a checkpoint directory, there is none")
    if checkpoint.is_save(path):
        return reading(path, checkpoint.verify)
    saved = newest(path, say, to_continue)
    if saved is None:
        if not path.is_dir():  # since it was found
            raise SaveGone(f"{path}: deleted")
        raise CheckpointError(
            f"{path}: expected a checkpoint, or the folder of a run with some in it "
            f"(named step-...), found neither"
        )
    return saved


def newest(
    run_dir: Path, say: Callable[[str], None] = print, to_continue: bool = False
) -> checkpoint.Checkpoint | None:
    """As `find`, of the folder of a run; None without a save.

    Raises:
        CheckpointError: there are saves, but none is valid.
    """
    saved = checkpoint.newest(run_dir, say)
    return published_checkpoint.find(run_dir, say, to_continue) if saved is None else saved


def resolve(path: Path, say: Callable[[str], None] = print) -> Path:
    """The folder or file that a path means; what is there is meant by its own name.

    `RUN@STEP` is the save of a run at that step, `RUN@latest` its newest valid one as of `find`,
    and `RUN@best` the best one by the first entry of `checkpoint.best` of its configuration.

    Args:
        path: of something, or in one of these forms.
        say: told what was wrong with newer ones.

    Raises:
        CheckpointError: the run has no such save.
    """
    name, at, which = path.name.rpartition("@")
    run_dir = path.with_name(name) if name else path
    if not at or path.exists() or not run_dir.is_dir():
        return path
    if which.isdecimal():
        return _at_step(run_dir, int(which))
    if which == "latest":
        return find(run_dir, say).path
    if which == "best":
        return looking_again(path, lambda: _best(run_dir).path)
    raise CheckpointError(f"{path}: expected {run_dir}@STEP, @latest or @best, got @{which}")


def valid_saves(run_dir: Path) -> list[checkpoint.Checkpoint]:
    """Return the valid saves of a run, oldest first.

    Raises:
        SaveGone: there were some, and all were deleted meanwhile.
    """
    paths = checkpoint.saved_paths(run_dir) or checkpoint.saved_paths(run_dir)
    saves = Verified().saves(reversed(paths))
    if not saves and not all(path.exists() for path in paths):
        raise SaveGone(f"{run_dir}: its saves were deleted while they were read")
    return saves


def _at_step(run_dir: Path, step: int) -> Path:
    path = run_dir / checkpoint.save_name(step)
    if not path.is_dir():
        steps = [str(checkpoint.step_of(path)) for path in checkpoint.saved_paths(run_dir)]
        raise CheckpointError(
            f"{run_dir}@{step}: expected a save of that step, there are those of "
            f"{', '.join(reversed(steps)) or 'none'}"
        )
    return path


def _best(run_dir: Path) -> checkpoint.Checkpoint:
    saves = valid_saves(run_dir)
    if not saves:
        raise CheckpointError(f"{run_dir}@best: expected a run with saves, there are none")
    config = reading(saves[-1].path, lambda _: read_config(saves[-1]))
    by = config.checkpoint.best
    if not by:
        raise CheckpointError(
            f"{run_dir}@best: expected a run that keeps its best saves, as with "
            "'checkpoint.best=[\"eval/episodic_reward.mean max\"]'; this one does not"
        )
    by_name = {saved.path.name: saved for saved in saves}
    best = best_of({name: saved.manifest for name, saved in by_name.items()}, by[0], 1)
    if not best:
        raise CheckpointError(f"{run_dir}@best: no save has what it is judged by, {by[0]}")
    return by_name[best[0]]
