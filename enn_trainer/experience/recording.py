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
from entity_env.recording.recording_format import Decisions
from entity_env.seeding import derive_seed
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
