"""One of everything that a run does, in seconds, before time is spent on the run itself."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from enn_trainer.config import TrainConfig
from enn_trainer.errors import CheckpointError
from enn_trainer.state_manager import StateManager

STEPS = 8
"""Steps of rollouts and evaluations, where the configuration has more."""


def dry_run(
    manager: StateManager,
    run: Callable[[StateManager], object],
    say: Callable[[str], None] = print,
) -> None:
    """Evaluate, update and save; then resume from that, and do so again.

    Environments, processes and networks are those of the run; rollouts, evaluations and epochs are
    short. Nothing is sent to trackers, and everything happens in a folder that is removed
    afterwards: also where the run has a folder, which it would continue in.

    Args:
        manager: of the run.
        run: trains with a manager.
        say: tells how it goes.

    Raises:
        CheckpointError: what was saved is not what the second half began with.
    """
    config, saved = manager.config, manager.resumed_from
    before = 0 if saved is None else saved.step
    frames = min(STEPS, config.rollout.steps) * config.rollout.num_envs
    start = time.monotonic()
    with TemporaryDirectory(prefix="dry-run-") as folder:
        say(f"dry run: twice an evaluation, an update of {frames} frames and a save")
        for end in (before + frames, before + 2 * frames):
            trial = StateManager(
                manager.config_cls,
                init_path=manager.init_path if saved is None else saved.path,
                checkpoint_dir=Path(folder, "run"),
                overrides=[*(manager.overrides or []), *_short(config, end, folder)],
                environment=manager.environment,
            )
            trial.is_dry = True
            run(trial)
            if trial.state.step != end:
                raise CheckpointError(
                    f"dry run: expected to resume up to step {end}, got {trial.state.step}"
                )
    say(f"dry run: all is well, after {time.monotonic() - start:.1f} s; nothing of it is kept")


def _short(config: TrainConfig, end: int, folder: str) -> Iterator[str]:
    """What is otherwise than in the run itself."""
    steps = min(STEPS, config.rollout.steps)
    frames = steps * config.rollout.num_envs
    yield f"data_dir={folder}"
    yield f"total_timesteps={end}"
    yield f"rollout.steps={steps}"
    yield f"optim.bs={min(int(config.optim.bs), frames)}"
    yield "optim.update_epochs=1"
    yield "max_train_time=None"
    yield "stop=[]"
    yield "track=false"
    yield "eval.interval=1000000000000"  # once at the beginning, once at the end
    yield "eval.run_on_first_step=true"
    yield f"eval.steps={STEPS if config.eval is None else min(STEPS, config.eval.steps)}"
    if config.capture_samples:
        yield "capture_samples=rollouts.rec"
    if config.eval is not None and config.eval.capture_samples:
        yield "eval.capture_samples=evals.rec"
