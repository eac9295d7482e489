"""A checkpoint of an older version, or of enn_trainer 0.1.16, written as a save of today."""

from pathlib import Path

from enn_trainer.agent import PPOAgent
from enn_trainer.checkpoints import checkpoint
from enn_trainer.checkpoints.find_save import find
from enn_trainer.checkpoints.saved_state import read_config
from enn_trainer.checkpoints.state_files import restore, to_files
from enn_trainer.errors import CheckpointError


def upgrade_checkpoint(
    path: str | Path, run_dir: str | Path, agent: PPOAgent | None = None
) -> checkpoint.Checkpoint:
    """Write a checkpoint in today's format; the old one stays as it is.

    Everything is restored as it is for a run that continues, and saved as that run would save it.

    Args:
        path: a checkpoint, or the folder of a run, of which the newest valid one is taken.
        run_dir: the folder of the run that gets it; made if it is not there.
        agent: the user's own network, if the checkpoint is of one.

    Returns:
        The save.

    Raises:
        CheckpointError: there is no valid checkpoint, or the folder has a save of its step.
    """
    run_dir = Path(run_dir)
    saved = find(Path(path), to_continue=True)
    config = read_config(saved)
    taken = [save for save in checkpoint.saved_paths(run_dir) if _step(save) == saved.step]
    if taken:
        raise CheckpointError(
            f"{taken[0]}: expected a folder without a save of step {saved.step}, there is one; "
            "name another folder"
        )
    files = to_files(config, restore(saved, config, agent))
    checkpoint.make_run_dir(run_dir)
    return checkpoint.save(run_dir, saved.step, files, f"upgraded from {saved.path.name}")


def _step(path: Path) -> int:
    return int(path.name.rpartition("-")[2])
