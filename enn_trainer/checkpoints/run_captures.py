"""Recordings of a run: checks and truncation before the run starts."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path

from enn_trainer.base.errors import ConfigError
from enn_trainer.checkpoints.format import METRICS_FILE
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.experience.recording import Capture, capture_of_evals, capture_of_rollouts
from enn_trainer.runtime.start_folder import absolute
from entity_env.recording.record import end_before, holds_no_step, recording_header
from entity_env.recording.recording_format import RecordingError
from entity_env.serialization.plain_open import append_plain
from entity_env.spaces import ActionName, ActionSpace


def prepare_captures(
    manager: StateManager, actions_of_evals: Callable[[], Mapping[ActionName, ActionSpace]]
) -> None:
    """Check and truncate the recordings of a run before it starts; rank 0 does it for all ranks.

    A new run needs new files, even if it starts from the checkpoint of another run. A resumed run
    appends to its files, which are truncated at the step of the checkpoint.

    Args:
        manager: state manager of the run.
        actions_of_evals: returns the action spaces of evaluation environments, whose labels may be
            in another order.

    Raises:
        ConfigError: a file cannot be written, or belongs to another run.
    """
    manager.group.lead(lambda: _truncate_captures(manager, actions_of_evals), "start")


def _truncate_captures(
    manager: StateManager, actions_of_evals: Callable[[], Mapping[ActionName, ActionSpace]]
) -> None:
    """Check and truncate the recordings of a run; see `prepare_captures`."""
    # Check all files and find their ends.
    config, folder, ends = manager.config, run_folder(manager), []
    rollouts, evals = capture_of_rollouts(config, folder), capture_of_evals(config, folder)
    captures = [capture for capture in (rollouts, evals) if capture is not None]
    for capture in captures:
        eval_actions = actions_of_evals if capture is evals else None
        try:
            ends.append(_where_to_begin(capture, manager, eval_actions))
        except OSError as error:
            raise ConfigError(
                f"{capture.field}: expected a file to write to, got {capture.path} "
                f"({error.strerror})"
            ) from None
        except RecordingError as error:
            raise ConfigError(
                f"{capture.field}: expected a new file or that of the same run; {error}"
            ) from None

    # Truncate only after every check has passed.
    for capture, end in zip(captures, ends, strict=True):
        os.truncate(capture.path, end)


def _where_to_begin(
    capture: Capture,
    manager: StateManager,
    actions_of_evals: Callable[[], Mapping[ActionName, ActionSpace]] | None,
) -> int:
    """Return the number of bytes of the file to keep; rollouts have no `actions_of_evals`."""
    # The file can be written.
    path, state = capture.path, manager.state
    path.parent.mkdir(parents=True, exist_ok=True)
    append_plain(path).close()

    # A new run needs a new file.
    if not continues(manager):
        if holds_no_step(path):  # of a process that was killed before the first checkpoint
            return 0
        raise ConfigError(
            f"{capture.field}: expected a new file for a new run, {path} is there already; set "
            "another path, or remove it"
        )

    # A resumed run keeps the steps before its checkpoint.
    if path.stat().st_size == 0:
        return 0
    actions, again = state.action_space, state.step
    if actions_of_evals is not None:
        actions = dict(actions_of_evals())
        # An evaluation at this step is not repeated if the next one is scheduled already.
        again += state.next_eval_step is not None and state.next_eval_step > state.step
    header = recording_header(
        state.obs_space, actions, capture.num_envs, capture.subsample, capture.seed, state.run_name
    )
    return end_before(path, header, again)


def continues(manager: StateManager) -> bool:
    """Return True if the run continues its own recordings, not the checkpoint of another run."""
    if not manager.state.run_name:  # never trained, such as an upgraded checkpoint
        return False
    # Without a checkpoint it was trained earlier in this process.
    return manager.resumed_from is None or manager.is_resumed_in_place


def run_folder(manager: StateManager) -> Path | None:
    """Return the folder for metrics, videos and recordings; None for folders below `data_dir`.

    It is the folder of the checkpoints, except for runs of earlier releases, whose metrics continue
    in their old folder.
    """
    run_dir, state = manager.checkpoint_dir, manager.state
    if run_dir is None or not continues(manager) or os.path.lexists(run_dir / METRICS_FILE):
        return run_dir
    earlier = absolute(manager.config.data_dir, manager.start_folder) / "runs" / state.run_name
    return None if earlier.is_dir() else run_dir
