"""Recordings of rollouts and of evaluations."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.experience import players
from enn_trainer.runtime.start_folder import absolute, located
from entity_env.ragged import Ragged
from entity_env.recording.record import RecordingWriter
from entity_env.recording.recording_format import RecordedFrames
from entity_env.seeding import derive_seed
from entity_env.vec.variation import RunningArguments
from entity_env.vec.vec_env import VecEnv, VecObs
from rogue_net.ragged import EntityBatch


class Recorder(RecordingWriter):
    """Watcher that writes each step of a collector to a file."""

    def before_step(
        self, obs: VecObs, batch: EntityBatch, decisions: players.Decisions, run_step: int | None
    ) -> None:
        """Store the frames, choices, probabilities and values until the step is complete."""
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
        record = RecordedFrames(
            obs,
            decisions.chosen_on_host(),
            probs,
            logits,
            values,
            dict(decisions.by_hand),
            drawn=drawn,
        )
        if decisions.players:
            record = replace(record, player=np.array(decisions.players, dtype=object))
        self.keep(record, run_step)


@dataclass(frozen=True)
class Capture:
    """Settings of one recording.

    Attributes:
        field: name of the setting that enables it.
        path: the file.
        logits: True to record the log-probabilities of all choices.
        subsample: record one in this number of frames.
        seed: seed of the sample of frames.
        num_envs: number of recorded environments.
    """

    field: str
    path: Path
    logits: bool
    subsample: int
    seed: int
    num_envs: int


def capture_of_rollouts(config: TrainConfig, folder: Path | None) -> Capture | None:
    """Return the settings of the recording of rollouts, or None if disabled; see `run_folder`."""
    return _capture(config, config, config.rollout.num_envs, folder)


def capture_of_evals(config: TrainConfig, folder: Path | None) -> Capture | None:
    """Return the settings of the recording of evaluations, or None if disabled."""
    if config.eval is None:
        return None
    return _capture(config, config.eval, config.eval_num_envs, folder)


def _capture(
    config: TrainConfig, section: TrainConfig | EvalConfig, num_envs: int, folder: Path | None
) -> Capture | None:
    """Return the recording settings of a section of the configuration, or None if disabled."""
    if not section.capture_samples:
        return None
    path = [] if section is config else ["eval"]
    is_set = config.data_dir != type(config).data_dir
    base = config.data_dir if folder is None or is_set else folder
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
    """Create the recorder of environments in a list, which is empty if `capture` is None.

    Args:
        capture: settings of the recording.
        envs: the environments.
        run: name of the run.
        stack: context that closes the file.
        running: arguments of the running episodes, to be recorded.
        make: creates the recorder.
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
