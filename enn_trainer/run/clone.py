"""Behavioural cloning: supervised training of a network on recordings, with early stopping."""

import copy
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from enn_trainer.algorithms.algorithm import Clock
from enn_trainer.algorithms.cloning.cloning import CloneScore, Cloning
from enn_trainer.algorithms.optimizers import check_finite_weights, value_norm
from enn_trainer.base.errors import ConfigError
from enn_trainer.base.policy import PPOAgent
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.checkpoints.state import State, init_train_state
from enn_trainer.checkpoints.state_files import to_files
from enn_trainer.checkpoints.writer import save
from enn_trainer.config import CloneRunConfig
from enn_trainer.config.load import load_config
from enn_trainer.config.schedules import follow_schedules
from enn_trainer.config.train_config import SEQ_LEN
from enn_trainer.experience.demonstrations import Demonstrations, open_recordings
from enn_trainer.experience.read_demonstrations import (
    RecordingReader,
    check_player,
    check_recorded_ids,
)
from enn_trainer.run.joining import choose_precision
from enn_trainer.runtime.execution import ExecutionContext, ThreadPool
from enn_trainer.runtime.interrupt import Interrupts
from enn_trainer.runtime.process import choose_device, cudnn_deterministic
from enn_trainer.tracking.progress import format_duration
from entity_env.process import ignore_broken_pipe
from entity_env.recording.read_recording import Recording
from entity_env.seeding import derive_seed

_STATS_BATCH = 4096  # frames per update of input statistics


print_now = partial(print, flush=True)
"""Prints without buffering, so that a line is visible at once."""


class CloneResult(NamedTuple):
    """Result of cloning.

    Attributes:
        state: initial state of a run, with the cloned network.
        checkpoint: path of the checkpoint; None if it is not saved.
        epochs: number of completed epochs.
        train: training score of the last epoch; None if none was completed.
        test: score of the final weights on test episodes; None if there are none.
        interrupted: True if a signal requested to stop.
        interrupted_by: number of the signal, or 0.
    """

    state: State
    checkpoint: Path | None
    epochs: int
    train: CloneScore | None
    test: CloneScore | None
    interrupted: bool
    interrupted_by: int = 0


def clone(
    recordings: str | Path | Sequence[str | Path],
    config: CloneRunConfig | None = None,
    checkpoint_dir: str | Path | None = None,
    agent: PPOAgent | None = None,
    say: Callable[[str], None] = print_now,
) -> CloneResult:
    """Train a network on recordings; PPO can continue from the result.

    The result is a function of the recordings and the configuration. The first Ctrl-C or SIGTERM
    during training ends it after the current optimizer step, with the best weights so far.

    Args:
        recordings: recordings of one environment, of this project or of entity-gym.
        config: configuration of cloning, and of a run that continues from it.
        checkpoint_dir: folder for the checkpoint, without a run; None to save nothing.
        agent: a custom network instead of `RogueNet`.
        say: prints a line of progress.

    Raises:
        ConfigError: the configuration is invalid, or does not match the recordings.
        CheckpointError: `checkpoint_dir` has a run already, or cannot be written to.
        RecordingError: a file is not a recording, or is damaged.
        NotFiniteError: a loss, a gradient or a weight is NaN or infinite; nothing is saved.
    """
    # Arguments.
    config = load_config(CloneRunConfig, None) if config is None else copy.deepcopy(config)
    paths = [recordings] if isinstance(recordings, str | Path) else list(recordings)
    if not paths:
        raise ConfigError("RECORDING: expected one or more files, got none")
    run_dir = None if checkpoint_dir is None else RunDir(Path(checkpoint_dir))
    if run_dir is not None:
        run_dir.check_unused()
    with ExitStack() as stack:
        stack.enter_context(ignore_broken_pipe())
        stack.enter_context(cudnn_deterministic(config.torch_deterministic))

        # Network and frames.
        files = open_recordings(paths)
        first = next(iter(files.values()))
        if not first.action_space:
            raise ConfigError("RECORDING: expected one with actions, its action space is empty")
        spaces = {"obs_space": first.obs_space, "action_space": first.action_space}
        device = choose_device(config.cuda)
        for line in choose_precision(config, device):
            say(line)
        state = init_train_state(config, {**spaces, "agent": agent})
        follow_schedules(config, state)
        state.to(device)
        threads = stack.enter_context(ThreadPool.of(state.agent))
        stack.enter_context(threads.at_work())
        train, test = _read(config, files, state, device, say)
        if run_dir is not None:
            stack.enter_context(run_dir.begin(say))

        # Training. Signals are handled from here on; before, there is nothing to save.
        interrupts = stack.enter_context(Interrupts())
        for start in range(0, len(train), _STATS_BATCH):
            some = slice(start, min(start + _STATS_BATCH, len(train)))
            state.agent.update_input_stats(replace(train.batch, past=None).slice(some))
        if state.reward_scaling is not None:
            # PPO continues with the scale of the recorded returns.
            state.reward_scaling.begin(train.returns[~train.returns.isnan()])
            scale = state.reward_scaling.deviation().to(train.returns)
            train = replace(train, returns=train.returns / scale)
            test = None if test is None else replace(test, returns=test.returns / scale)
        value_norm(state.agent).add(train.returns[~train.returns.isnan()])

        def check() -> None:
            if interrupts.requested:
                raise CloningStopped

        context = ExecutionContext(threads, check)
        algorithm = Cloning(config, state.agent, train)
        epochs, best = run_epochs(algorithm, train, test, context, say)

        # Save.
        saved = None
        if run_dir is not None:
            why = "interrupted" if interrupts.requested else "cloned"
            run_dir.check_unused()  # again, as a process without the lock may have saved
            content = to_files(config.of_run(), state)
            saved = save(run_dir.path, 0, content, why, if_exists="raise").path
        stopped, number = interrupts.requested, interrupts.number
        return CloneResult(state, saved, epochs, algorithm.trained, best, stopped, number)


def _read(
    config: CloneRunConfig,
    files: dict[Path, Recording],
    state: State,
    device: torch.device,
    say: Callable[[str], None],
) -> tuple[Demonstrations, Demonstrations | None]:
    """Read the recordings; return the training frames and, if there are any, the test frames."""
    # Read.
    settings = config.clone
    say(f"reading {', '.join(map(str, files))}")
    for path, recording in files.items():
        if not recording.complete:
            say(f"{path}: truncated, the incomplete end is not read")
    reading = RecordingReader(
        state.obs_space,
        float(config.ppo.gamma),
        device,
        teacher_for="clone.loss='kl'" if settings.loss == "kl" else None,
        max_frames=settings.max_frames,
        who=settings.who,
        player=settings.player,
        agent=state.agent,
        seq_len=settings.seq_len or SEQ_LEN,
    )
    seed = derive_seed(config.seed, "clone split")
    parts = {path: r.split(settings.test_fraction, seed) for path, r in files.items()}
    train_part = {path: part[0] for path, part in parts.items()}
    train = reading.read(train_part)
    test = reading.read({path: part[1] for path, part in parts.items()})

    # Check that there are choices to train on.
    if train is None or not train.num_actors().any():
        check_player(settings.player, files.values(), "clone.player")
        hint = "; lower clone.test_fraction" if test is not None else ""
        if train is not None and settings.max_frames is not None:
            hint = "; raise clone.max_frames"
        everybody = replace(reading, who="all").read(train_part)
        if everybody is not None and everybody.num_actors().any():
            hint = "; all choices are of agents, set clone.who=all to learn from them"
        raise ConfigError("RECORDING: expected episodes with choices to train on, got none" + hint)
    if test is not None and not test.num_actors().any():
        test = None
    for line in check_recorded_ids(state.agent, train, "RECORDING"):
        say(line)
    say(f"{len(train)} frames to train on, {0 if test is None else len(test)} to test on")
    if test is None:
        say("no test episodes: no early stopping, the last weights are kept")
    unknown = train.endings.total()
    if unknown and settings.value_coef:
        why = ", ".join(f"{n} of {ending} episodes" for ending, n in train.endings.items())
        say(
            f"the value function does not learn from {unknown} of {len(train)} frames without a "
            f"known return ({why})"
        )
    return train, test


SAY_EVERY_S = 10.0
"""Interval of progress messages within an epoch."""


class CloningStopped(Exception):  # noqa: N818 (not an error)
    """Raised by the interrupt check to end an epoch or a test early."""


def run_epochs(
    algorithm: Cloning,
    train: Demonstrations,
    test: Demonstrations | None,
    context: ExecutionContext,
    say: Callable[[str], None],
) -> tuple[int, CloneScore | None]:
    """Train with early stopping on the test loss, and load the best weights into the network.

    Args:
        algorithm: trains the network.
        train: frames to train on.
        test: frames to select the best weights with; None to keep the last weights.
        context: threads, and an interrupt check that raises `CloningStopped`.
        say: prints a line of progress.

    Returns:
        The number of completed epochs, and the test score of the best weights or None.

    Raises:
        NotFiniteError: a loss, a gradient or a weight is NaN or infinite.
    """
    settings, agent = algorithm.config.clone, algorithm.agent
    progress = _EpochProgress(settings.epochs, say)
    context = replace(context, on_optimizer_step=progress.on_batch)
    num, best, best_epoch = 0, None, 0
    best_weights: dict[str, Tensor] | None = None

    def check_weights() -> None:
        check_finite_weights(agent, f"epoch {max(1, num)}, after the update", rate="clone.lr")

    try:
        while num < settings.epochs:
            progress.begin_epoch(num, len(algorithm.batches(train, num)))
            algorithm.update(train, Clock(num, progress.elapsed()), context)
            num += 1
            check_weights()

            # Keep the weights of the lowest test loss.
            tested = None
            if test is not None:
                tested = algorithm.score(test, num, context)
                loss = tested.mean_loss(settings.value_coef)
                if best is None or loss < best.mean_loss(settings.value_coef):
                    best, best_epoch = tested, num
                    best_weights = copy.deepcopy(agent.state_dict())
            assert algorithm.trained is not None
            parts = [f"loss {algorithm.trained.mean_loss(settings.value_coef):.4f}"]
            if tested is not None:
                parts.append(f"test loss {loss:.4f}")
            parts.append((tested or algorithm.trained).in_words())
            progress.say(f"epoch {num}/{settings.epochs}", *parts)
            if best and settings.patience is not None and num - best_epoch >= settings.patience:
                say(f"no better for {num - best_epoch} epochs")
                break
    except CloningStopped:
        pass
    if best_weights is not None:
        agent.load_state_dict(best_weights)
    check_weights()  # also after an interrupted epoch
    agent.eval()
    return num, best


class _EpochProgress:
    """Progress messages of cloning, with the remaining time."""

    def __init__(self, num_epochs: int, say: Callable[[str], None]) -> None:
        self._num_epochs, self._say = num_epochs, say
        self._epoch = self._num_steps = 0  # epochs, and optimizer steps of this one
        self._num_batches = 1
        self._start = self._printed = time.monotonic()

    def begin_epoch(self, epoch: int, num_batches: int) -> None:
        """Start an epoch with a number of optimizer steps."""
        self._epoch, self._num_steps, self._num_batches = epoch, 0, num_batches

    def elapsed(self) -> float:
        """Return the seconds since the start."""
        return time.monotonic() - self._start

    def on_batch(self, _: object) -> None:
        """Count an optimizer step, and print a line at most every `SAY_EVERY_S` seconds."""
        self._num_steps += 1
        if time.monotonic() - self._printed >= SAY_EVERY_S and self._num_steps < self._num_batches:
            batch = f"batch {self._num_steps}/{self._num_batches}"
            self.say(f"epoch {self._epoch + 1}/{self._num_epochs}  {batch}")

    def say(self, start: str, *parts: str) -> None:
        """Print a line with the remaining time."""
        done = (self._epoch + self._num_steps / self._num_batches) / self._num_epochs
        left = format_duration(self.elapsed() * (1 - done) / done)
        self._say("  ".join([start, f"left {left}", *parts]))
        self._printed = time.monotonic()
