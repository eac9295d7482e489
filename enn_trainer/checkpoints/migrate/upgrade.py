"""Upgrade of a checkpoint of an older version, or of enn_trainer 0.1.16, to today's format."""

from dataclasses import replace
from pathlib import Path

from enn_trainer.checkpoints.format import Checkpoint
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.checkpoints.saved_state import read_config
from enn_trainer.checkpoints.state_files import restore, to_files
from enn_trainer.checkpoints.writer import save
from enn_trainer.policy import PPOAgent


def upgrade_checkpoint(
    path: str | Path, run_dir: str | Path, agent: PPOAgent | None = None
) -> Checkpoint:
    """Write a checkpoint in today's format; the old one stays as it is.

    The upgraded run has the whole state of the old one, so that it can be resumed, but new logs and
    new tracker runs, so that the old ones stay unchanged.

    Args:
        path: a checkpoint, or the folder of a run, whose newest valid checkpoint is taken.
        run_dir: the folder of the new run, created if missing.
        agent: the user's own network, if the checkpoint has one.

    Returns:
        The save.

    Raises:
        CheckpointError: there is no valid checkpoint, or `run_dir` has a run already.
    """
    run_dir = Path(run_dir)
    saved = find(Path(path), to_continue=True)
    config = read_config(saved)
    state = replace(restore(saved, config, agent), run_name="", tracker_ids={})
    files, why = to_files(config, state), f"upgraded from {saved.path.name}"
    with RunDir(run_dir).begin():
        return save(run_dir, saved.step, files, why, must_be_new=True)
