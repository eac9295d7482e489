"""Dry run: a short trial of updates, evaluations, saves and a resume, before the run itself."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.errors import CheckpointError
from enn_trainer.state_manager import StateManager

STEPS = 8
"""Maximal number of steps of rollouts and evaluations in a dry run."""


def dry_run(
    manager: StateManager,
    run: Callable[[StateManager], object],
    say: Callable[[str], None] = print,
) -> None:
    """Evaluate, update and save; then resume from the save, and do the same again.

    Environments, processes and networks are those of the run; rollouts, evaluations and epochs are
    short. Nothing is sent to trackers, and all files go to a temporary folder, also if the run has
    a folder in which it would continue.

    Args:
        manager: state manager of the run.
        run: trains with a manager.
        say: prints a line.

    Raises:
        CheckpointError: the second half did not start from the save of the first.
    """
    # Steps at which the halves end.
    config, saved = manager.config, manager.resumed_from
    before = 0 if saved is None else saved.step
    frames = min(STEPS, config.rollout.steps) * config.rollout.num_envs

    # Two halves, the second of which resumes the first.
    start = time.monotonic()
    with TemporaryDirectory(prefix="dry-run-") as folder:
        say(f"dry run: two rounds of an evaluation, an update of {frames} frames and a save")
        for half in (1, 2):
            of_the_run = manager.config_cls, manager.state_cls, manager._initial_state
            trial = StateManager(*of_the_run, checkpoint_dir=Path(folder, "run"))
            if half == 1:  # the second half gets its settings from the save
                trial.init_path = manager.init_path if saved is None else saved.path
                trial.init_from = manager.init_from if saved is None else None
                trial.overrides, trial.environment = manager.overrides, manager.environment
            trial.is_dry = True
            _shorten(trial.config, before + half * frames, folder)
            run(trial)
            if trial.is_interrupted:
                say("dry run: interrupted")
                return
            if trial.state.step != before + half * frames:
                raise CheckpointError(
                    f"dry run: expected step {before + half * frames} at the end, got "
                    f"{trial.state.step}"
                )
    say(f"dry run: all is well, after {time.monotonic() - start:.1f} s; its files are removed")


def _shorten(config: TrainConfig, end: int, folder: str) -> None:
    """Shorten the configuration of a run in place, and turn off its trackers."""
    config.data_dir, config.track = folder, False
    config.total_timesteps, config.max_train_time, config.stop = end, None, []
    config.rollout.steps = min(STEPS, config.rollout.steps)
    config.optim.bs = min(config.optim.bs, config.rollout.steps * config.rollout.num_envs)
    config.optim.update_epochs = 1
    if config.capture_samples:
        config.capture_samples = "rollouts.rec"
    evaluation = config.eval or EvalConfig(steps=STEPS)
    config.eval = replace(
        evaluation,
        interval=2**62,  # once at the beginning, once at the end
        run_on_first_step=True,
        steps=STEPS,
        episodes=None,
        capture_samples="evals.rec" if evaluation.capture_samples else "",
        suites={
            name: replace(suite, steps=None, episodes=None)
            for name, suite in evaluation.suites.items()
        },
    )
