"""Recordings of rollouts and of evaluations."""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path

from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.config.eval_config import all_suites
from enn_trainer.envs import EnvFactory, global_randomness_kept
from enn_trainer.errors import ConfigError
from enn_trainer.evaluation.eval_envs import make_envs
from enn_trainer.start_folder import absolute, located
from enn_trainer.state_manager import StateManager
from entity_env.recording.record import RecordingVecEnv, end_before, holds_no_step, recording_header
from entity_env.recording.recording_format import RecordingError
from entity_env.seeding import derive_seed
from entity_env.serialization.plain_open import append_plain
from entity_env.spaces import ActionName, ActionSpace
from entity_env.vec.vec_env import VecEnv


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


def capture_of_rollouts(config: TrainConfig) -> Capture | None:
    """Return the settings of the recording of rollouts, or None."""
    return _capture(config, config, config.rollout.num_envs)


def capture_of_evals(config: TrainConfig) -> Capture | None:
    """Return the settings of the recording of evaluations, or None."""
    return None if config.eval is None else _capture(config, config.eval, config.eval_num_envs)


def _capture(
    config: TrainConfig, section: TrainConfig | EvalConfig, num_envs: int
) -> Capture | None:
    """Return the recording settings of a section of the configuration, or None."""
    if not section.capture_samples:
        return None
    path = [] if section is config else ["eval"]
    return Capture(
        field=".".join([*path, "capture_samples"]),
        path=located(Path(config.data_dir, section.capture_samples)),
        logits=section.capture_logits,
        subsample=section.capture_samples_subsample,
        seed=derive_seed(config.seed, *path, "capture"),
        num_envs=num_envs,
    )


def prepare_captures(manager: StateManager, create_envs: EnvFactory) -> None:
    """Check and truncate the recordings of a run, before it begins.

    A new run needs new files, also if it starts from a save elsewhere. A run that continues appends
    to its own files, from which everything after the save is cut off, as the run repeats that part.

    Args:
        manager: state manager of the run.
        create_envs: makes environments; those of evaluations may have labels in another order.

    Raises:
        ConfigError: a file cannot be written, or its content would be lost or mixed up.
    """
    # Check all files and find their ends.
    captures, ends = list(_captures(manager.config)), []
    for capture in captures:
        try:
            ends.append(_where_to_begin(capture, manager, create_envs))
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


def recorded(envs: VecEnv, capture: Capture | None, run: str, stack: ExitStack) -> VecEnv:
    """Return the environments, with a recorder if `capture` is set; the stack closes the file."""
    if capture is None:
        return envs
    recording = RecordingVecEnv(
        envs,
        absolute(capture.path),
        capture.subsample,
        capture.seed,
        run=run,
        keep_logits=capture.logits,
    )
    stack.callback(recording.stop)
    return recording


def _captures(config: TrainConfig) -> Iterator[Capture]:
    for capture in (capture_of_rollouts(config), capture_of_evals(config)):
        if capture is not None:
            yield capture


def _where_to_begin(capture: Capture, manager: StateManager, create_envs: EnvFactory) -> int:
    """Return the number of bytes of the file to keep."""
    # The file can be written.
    path, state = capture.path, manager.state
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        append_plain(path).close()
    except OSError as error:
        raise ConfigError(
            f"{capture.field}: expected a file to write to, got {path} ({error.strerror})"
        ) from None

    # A new run needs a new file.
    if not continues(manager):
        if holds_no_step(path):  # a process that was killed before the run was first saved
            return 0
        raise ConfigError(
            f"{capture.field}: expected a new file for a run that begins here, {path} is there "
            "already; give another path, or remove it"
        )

    # A run that continues keeps the part that it will not repeat.
    is_of_evals = capture.field.startswith("eval.")
    has_evaluated = state.next_eval_step is not None and state.next_eval_step > state.step
    # An evaluation at this step is not repeated if its clock was advanced already.
    again = state.step + 1 if is_of_evals and has_evaluated else state.step
    if path.stat().st_size == 0:
        return 0
    header = recording_header(
        state.obs_space,
        _actions_of_evals(manager, create_envs) if is_of_evals else state.action_space,
        capture.num_envs,
        capture.subsample,
        capture.seed,
        state.run_name,
    )
    return end_before(path, header, again)


def _actions_of_evals(
    manager: StateManager, create_envs: EnvFactory
) -> Mapping[ActionName, ActionSpace]:
    """Return the action space of the environments of evaluations."""
    config, state = manager.config, manager.state
    assert config.eval is not None
    if config.eval.env is None:
        return state.action_space
    suite = dict(all_suites(config.eval, config.env))[""]
    with (
        global_randomness_kept(),
        closing(make_envs(config, "", suite, create_envs, state, processes=1)) as envs,
    ):
        return envs.action_space()


def continues(manager: StateManager) -> bool:
    """Return True for a run that owns its recordings; one from a save elsewhere does not."""
    if not manager.state.run_name:  # never trained, as an upgraded save
        return False
    if manager.resumed_from is None:
        return True  # trained before in this process
    return manager.is_resumed_in_place
