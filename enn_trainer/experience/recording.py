"""Recordings of rollouts and of evaluations."""

import os
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from enn_trainer.checkpoints.format import METRICS_FILE
from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.errors import ConfigError
from enn_trainer.experience import players
from enn_trainer.runtime.start_folder import absolute, located
from enn_trainer.state_manager import StateManager
from entity_env.ragged import Ragged
from entity_env.recording.record import RecordingWriter, end_before, holds_no_step, recording_header
from entity_env.recording.recording_format import Decisions, RecordingError
from entity_env.seeding import derive_seed
from entity_env.serialization.plain_open import append_plain
from entity_env.spaces import ActionName, ActionSpace
from entity_env.vec.variation import RunningArguments
from entity_env.vec.vec_env import VecEnv, VecObs
from rogue_net.ragged import EntityBatch


class Recorder(RecordingWriter):
    """Watcher of a collector that writes each step to a file."""

    def before_step(
        self, obs: VecObs, batch: EntityBatch, decisions: players.Decisions, run_step: int | None
    ) -> None:
        """Keep the frames, with choices, probabilities and values, until the step is taken."""
        logits = {}
        if self.keep_logits:
            for name, action in batch.actions.items():
                rows = decisions.distributions[name].to_rows(action)
                logits[name] = Ragged(rows.values.float().cpu().numpy(), rows.lengths)
        # In double precision, so that the logarithm gives back the log-probability exactly.
        probs = {
            name: Ragged(rows.values.double().exp().cpu().numpy(), rows.lengths)
            for name, rows in decisions.logprobs.items()
        }
        values = decisions.values.float().cpu().numpy()
        drawn = {
            name: Ragged(decisions.chosen[name].values.cpu().numpy(), rows.lengths)
            for name, rows in decisions.numbers.items()
        }
        kept = Decisions(
            obs,
            decisions.chosen_on_host(),
            probs,
            logits,
            values,
            dict(decisions.by_hand),
            drawn=drawn,
        )
        if decisions.players:
            kept = replace(kept, player=np.array(decisions.players, dtype=object))
        self.keep(kept, run_step)


@dataclass(frozen=True)
class Capture:
    """Settings of one recording.

    Attributes:
        field: the setting that switches it on.
        path: the file.
        logits: True to keep the log-probabilities of all choices.
        subsample: one frame of this many is kept.
        seed: seed of the choice of these frames.
        num_envs: number of environments that are recorded.
    """

    field: str
    path: Path
    logits: bool
    subsample: int
    seed: int
    num_envs: int


def capture_of_rollouts(config: TrainConfig, folder: Path | None) -> Capture | None:
    """Return the settings of the recording of rollouts, or None; see `run_folder`."""
    return _capture(config, config, config.rollout.num_envs, folder)


def capture_of_evals(config: TrainConfig, folder: Path | None) -> Capture | None:
    """Return the settings of the recording of evaluations, or None; see `run_folder`."""
    if config.eval is None:
        return None
    return _capture(config, config.eval, config.eval_num_envs, folder)


def _capture(
    config: TrainConfig, section: TrainConfig | EvalConfig, num_envs: int, folder: Path | None
) -> Capture | None:
    """Return the recording settings of a section of the configuration, or None."""
    if not section.capture_samples:
        return None
    path = [] if section is config else ["eval"]
    is_given = config.data_dir != type(config).data_dir
    base = config.data_dir if folder is None or is_given else folder
    return Capture(
        field=".".join([*path, "capture_samples"]),
        path=located(Path(base, section.capture_samples)),
        logits=section.capture_logits,
        subsample=section.capture_samples_subsample,
        seed=derive_seed(config.seed, *path, "capture"),
        num_envs=num_envs,
    )


def recorders(
    capture: Capture | None,
    envs: VecEnv,
    run: str,
    stack: ExitStack,
    running: RunningArguments | None = None,
    make: Callable[..., Recorder] = Recorder,
) -> list[Recorder]:
    """Return the watchers that record environments: one if `capture` is set, else none.

    Args:
        capture: settings of the recording.
        envs: the environments.
        run: name of the run.
        stack: closes the file.
        running: the arguments of their running episodes, to record them.
        make: makes the watcher.
    """
    if capture is None:
        return []
    path, actions = absolute(capture.path), envs.action_space()
    recorder = make(
        path,
        actions,
        capture.subsample,
        capture.seed,
        run=run,
        keep_logits=capture.logits,
        running=running,
    )
    stack.callback(recorder.close)
    return [recorder]


def prepare_captures(
    manager: StateManager, actions_of_evals: Callable[[], Mapping[ActionName, ActionSpace]]
) -> None:
    """Check and truncate the recordings of a run, before it begins; with several ranks, in rank 0.

    A new run needs new files, also if it starts from a save elsewhere. A run that continues appends
    to its own files, from which everything after the save is cut off, as the run repeats that part.

    Args:
        manager: state manager of the run.
        actions_of_evals: returns the actions of the environments of evaluations, which may have
            labels in another order.

    Raises:
        ConfigError: a file cannot be written, or its content would be lost or mixed up.
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
        own_actions = actions_of_evals if capture is evals else None
        try:
            ends.append(_where_to_begin(capture, manager, own_actions))
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
        if holds_no_step(path):  # a process that was killed before the run was first saved
            return 0
        raise ConfigError(
            f"{capture.field}: expected a new file for a run that begins here, {path} is there "
            "already; give another path, or remove it"
        )

    # A run that continues keeps the part that it will not repeat.
    if path.stat().st_size == 0:
        return 0
    actions, again = state.action_space, state.step
    if actions_of_evals is not None:
        actions = dict(actions_of_evals())
        # An evaluation at this step is not repeated if its clock was advanced already.
        again += state.next_eval_step is not None and state.next_eval_step > state.step
    header = recording_header(
        state.obs_space, actions, capture.num_envs, capture.subsample, capture.seed, state.run_name
    )
    return end_before(path, header, again)


def continues(manager: StateManager) -> bool:
    """Return True for a run that owns its recordings; one from a save elsewhere does not."""
    if not manager.state.run_name:  # never trained, as an upgraded save
        return False
    # Without a save it was trained before in this process.
    return manager.resumed_from is None or manager.is_resumed_in_place


def run_folder(manager: StateManager) -> Path | None:
    """Return the folder for metrics, videos and recordings; None for folders below `data_dir`.

    It is that of the saves. A run that an earlier release began continues where its metrics are.
    """
    run_dir, state = manager.checkpoint_dir, manager.state
    if run_dir is None or not continues(manager) or os.path.lexists(run_dir / METRICS_FILE):
        return run_dir
    earlier = absolute(manager.config.data_dir, manager.start_folder) / "runs" / state.run_name
    return None if earlier.is_dir() else run_dir
