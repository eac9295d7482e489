"""Behavioural cloning: training a network to do what was done in recordings."""

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from enn_trainer.agent import PPOAgent
from enn_trainer.checkpoints.run_dir import RunDir
from enn_trainer.checkpoints.state_files import to_files
from enn_trainer.checkpoints.writer import save
from enn_trainer.cloning.clone_epochs import Cloning
from enn_trainer.cloning.clone_score import CloneScore
from enn_trainer.cloning.demonstrations import Demonstrations, Reading, open_recordings
from enn_trainer.config import CloneRunConfig
from enn_trainer.config.load import load_config
from enn_trainer.config.schedules import follow_schedules
from enn_trainer.errors import ConfigError
from enn_trainer.interrupt import Interrupts
from enn_trainer.lanes import Lanes
from enn_trainer.runtime.process import choose_device, cudnn_deterministic
from enn_trainer.state import State, init_train_state
from entity_env.recording.read_recording import Recording
from entity_env.seeding import derive_seed
from entity_env.standard_streams import reader_may_leave

_AT_ONCE = 4096  # frames whose statistics are taken together


def print_now(line: str) -> None:
    """Print a line without delay, so that a person who waits sees it."""
    print(line, flush=True)


class CloneResult(NamedTuple):
    """How cloning ended.

    Attributes:
        state: of a run that begins, with the cloned network.
        checkpoint: where it is saved; None if nowhere.
        epochs: how many were completed.
        train: the last epoch's score, while it learnt; None if none was completed.
        test: the score of the weights that were kept, on the episodes set apart; None without any.
        interrupted: whether it was asked to stop.
    """

    state: State
    checkpoint: Path | None
    epochs: int
    train: CloneScore | None
    test: CloneScore | None
    interrupted: bool


def clone(
    recordings: str | Path | Sequence[str | Path],
    config: CloneRunConfig | None = None,
    checkpoint_dir: str | Path | None = None,
    agent: PPOAgent | None = None,
    say: Callable[[str], None] = print_now,
) -> CloneResult:
    """Train a network on recordings; PPO can continue from the result.

    The result is a function of the recordings and the configuration. The first Ctrl-C or SIGTERM
    while it trains ends it after the running optimizer step, with the best weights so far.

    Args:
        recordings: files of one world, of this project or of entity-gym.
        config: of cloning, and of the run that may follow.
        checkpoint_dir: the folder of that run, without saves; None to save nowhere.
        agent: a network of your own instead of `RogueNet`.
        say: is told how it goes, line by line.

    Raises:
        ConfigError: the configuration cannot be used, or not with these recordings.
        CheckpointError: `checkpoint_dir` has a run already, or cannot be written to.
        RecordingError: a file is no recording, or is damaged.
        NotFiniteError: a loss, a gradient or a weight is infinite or no number; nothing is saved.
    """
    config = load_config(CloneRunConfig, None) if config is None else config
    paths = [recordings] if isinstance(recordings, str | Path) else list(recordings)
    if not paths:
        raise ConfigError("RECORDING: expected one or more files, got none")
    run_dir = None if checkpoint_dir is None else RunDir(Path(checkpoint_dir))
    if run_dir is not None:
        run_dir.check_unused()
    with ExitStack() as stack:
        stack.enter_context(reader_may_leave())
        stack.enter_context(cudnn_deterministic(config.torch_deterministic))
        files = open_recordings(paths)
        state = _fresh_state(config, next(iter(files.values())), agent)
        device = choose_device(config.cuda)
        state.to(device)
        lanes = stack.enter_context(Lanes.of(state.agent))
        stack.enter_context(lanes.at_work())
        train, test = _read(config, files, state, device, say)
        if run_dir is not None:
            stack.enter_context(run_dir.begin(say))
        interrupts = stack.enter_context(Interrupts())  # reading alone leaves nothing to save
        _take_input_stats(state.agent, train)
        cloning = Cloning(config, state, train, test, say, interrupts.is_requested, lanes)
        cloning.run()
        saved = None
        if run_dir is not None:
            why = "interrupted" if interrupts.requested else "cloned"
            run_dir.check_unused()  # again: somebody may have written there without the lock
            content = to_files(config.of_run(), state)
            saved = save(run_dir.path, 0, content, why, must_be_new=True).path
        return CloneResult(
            state, saved, cloning.epochs, cloning.trained, cloning.best, interrupts.requested
        )


def _fresh_state(config: CloneRunConfig, recording: Recording, agent: PPOAgent | None) -> State:
    if not recording.action_space:
        raise ConfigError("RECORDING: expected one with actions, its action space is empty")
    spaces = {"obs_space": recording.obs_space, "action_space": recording.action_space}
    state = init_train_state(config, {**spaces, "agent": agent})
    follow_schedules(config, state)
    return state


def _read(
    config: CloneRunConfig,
    files: dict[Path, Recording],
    state: State,
    device: torch.device,
    say: Callable[[str], None],
) -> tuple[Demonstrations, Demonstrations | None]:
    """What to train on and what to test on."""
    settings = config.clone
    say(f"reading {', '.join(map(str, files))}")
    for path, recording in files.items():
        if not recording.complete:
            say(f"{path}: its end is torn off and left out")
    reading = Reading(
        state.obs_space,
        float(config.ppo.gamma),
        device,
        "clone.loss='kl'" if settings.loss == "kl" else None,
        settings.max_frames,
    )
    seed = derive_seed(config.seed, "clone split")
    parts = {path: r.split(settings.test_fraction, seed) for path, r in files.items()}
    train = reading.read({path: part[0] for path, part in parts.items()})
    test = reading.read({path: part[1] for path, part in parts.items()})
    if train is None or not train.num_actors().any():
        hint = "; lower clone.test_fraction" if test is not None else ""
        if train is not None and settings.max_frames is not None:
            hint = "; raise clone.max_frames"
        raise ConfigError(
            "RECORDING: expected episodes to train on in which something is chosen, got none" + hint
        )
    if test is not None and not test.num_actors().any():
        test = None
    say(f"{len(train)} frames to train on, {0 if test is None else len(test)} to test on")
    if test is None:
        say("no episode to test on: no early stopping, the last weights are kept")
    _say_what_has_no_return(config, train, say)
    return train, test


def _say_what_has_no_return(
    config: CloneRunConfig, train: Demonstrations, say: Callable[[str], None]
) -> None:
    unknown = int(train.returns.isnan().sum())
    if unknown and config.clone.value_coef:
        why = ", ".join(f"{n} of {ending} episodes" for ending, n in train.endings.items())
        say(
            f"the value function does not learn from {unknown} of {len(train)} frames, whose "
            f"return is not known ({why})"
        )


def _take_input_stats(agent: Any, train: Demonstrations) -> None:
    for start in range(0, len(train), _AT_ONCE):
        frames = np.arange(start, min(start + _AT_ONCE, len(train)))
        agent.update_input_stats(train.batch.take(frames))
