"""Command lines of runs, and dry runs."""

import functools
import inspect
import os
import shlex
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import torch

from enn_trainer.base.errors import CheckpointError, ConfigError, RankError
from enn_trainer.checkpoints.migrate.evolve_rules import PARTS
from enn_trainer.checkpoints.named_code import trust_of_run
from enn_trainer.checkpoints.state import State, init_train_state
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.cli.arguments import EXISTING_OPTIONS, EXPECTED_ERRORS, failed, renames, run_parser
from enn_trainer.cli.guesses.typed_line import typed_line
from enn_trainer.cli.typed_settings import parse_typed, typed_settings
from enn_trainer.config import EvalConfig, TrainConfig
from enn_trainer.config.help import hps_info
from enn_trainer.config.load import show_config
from enn_trainer.run.joining import join
from enn_trainer.runtime.interrupt import (
    StoppedAtOnce,
    interrupted_status,
    is_raised_by_code,
    stopped_by,
)
from enn_trainer.runtime.torch_group import current_group
from enn_trainer.runtime.trust import TYPED
from entity_env.process import ignore_broken_pipe

T = TypeVar("T")
DRY_STEPS = 8
"""Maximal number of steps of a rollout or evaluation in a dry run."""


def command(
    config_cls: type[TrainConfig] = TrainConfig,
    state_cls: type[State] = State,
    initial_state: Callable[[TrainConfig, dict[str, Any]], State] = init_train_state,
) -> Callable[[Callable[[StateManager], T]], Callable[[], T]]:
    """Decorate a function of a state manager as a command with the arguments of `enn train`.

    An invalid argument ends the program with one line and status 2. If a signal ended the run, the
    program exits with status 130 or 143 after the function returns.

    Example:
        >>> @command()
        ... def main(state_manager: StateManager) -> None:
        ...     train(state_manager=state_manager, env=TreasureHunt)
    """
    if not inspect.isclass(config_cls):
        raise TypeError("command: write @command(), with parentheses")

    def decorate(function: Callable[[StateManager], T]) -> Callable[[], T]:
        @functools.wraps(function)
        def main() -> T:
            outcome: list[T] = []

            def run(manager: StateManager) -> None:
                outcome.append(function(manager))

            words, program = sys.argv[1:], Path(sys.argv[0]).name
            parsers = {"train": functools.partial(run_parser, program)}
            with typed_line(f"python {shlex.quote(sys.argv[0])}", words, parsers):
                status = run_command(words, program, run, config_cls, state_cls, initial_state)
            if status or not outcome:
                sys.exit(status)
            return outcome[0]

        return main

    return decorate


@ignore_broken_pipe()
def run_command(
    arguments: Sequence[str],
    program: str,
    run: Callable[[StateManager], object],
    config_cls: type[TrainConfig] = TrainConfig,
    state_cls: type[State] = State,
    initial_state: Callable[[TrainConfig, dict[str, Any]], State] = init_train_state,
    check: Callable[[StateManager], object] | None = None,
    takes_world: bool = False,
) -> int:
    """Parse the arguments of a run, run it, and return the exit status.

    Args:
        arguments: arguments without the name of the program.
        program: name of the program, for the usage.
        run: function of the state manager that runs the command.
        config_cls: class of the configuration, which overrides refer to.
        state_cls: class of the state.
        initial_state: makes the state of a new run.
        check: raises before `run` if the run must not start; not called with `--trust`.
        takes_world: True if the first word may name the environment.
    """
    # Parse, and list settings.
    options = parse_typed(run_parser(program), arguments, config_cls)
    if options.hps_info is not None:
        print(hps_info(config_cls, options.hps_info or None))
        return 0
    try:
        # Mutually exclusive arguments.
        flags = [flag for flag in EXISTING_OPTIONS if vars(options)[flag]]
        if len(flags) > 1:
            raise ConfigError(f"{' and '.join(flags)}: expected one of them, got {len(flags)}")
        if flags and not options.checkpoint_dir:
            raise ConfigError(f"{flags[0]}: expected the folder as --checkpoint-dir, got none")
        if options.no_save and options.checkpoint_dir:
            raise ConfigError("--no-save and --checkpoint-dir: expected one of them, got both")
        if options.config and options.resume_from:
            raise ConfigError("--config and --resume-from: expected one of them, got both")
        if not takes_world and options.overrides and "=" not in options.overrides[0]:
            got = f"FIELD=VALUE, got {options.overrides[0]!r}"
            raise ConfigError(f"{program}: expected {got}; its environment is in the program")
        is_new = not options.resume_from and flags != ["--resume"]
        typed = typed_settings(config_cls, options.overrides, options.config, is_new)

        # Configuration and state.
        manager = StateManager(
            config_cls,
            state_cls,
            initial_state,
            init_path=typed.config or options.resume_from,
            checkpoint_dir=options.checkpoint_dir,
            overrides=typed.overrides,
            environment=os.environ,
            existing=EXISTING_OPTIONS[flags[0]][0] if flags else "refuse",
            init_from=options.init_from,
            init_parts=PARTS if options.init_parts is None else options.init_parts.split(","),
            init_renames=renames(options),
        )
        manager.is_saved_by_default = not options.no_save
        manager.trusts_save = options.trust
        join(manager)
        if options.resume_from and not (manager.init_path and manager.init_path.is_dir()):
            raise ConfigError(f"--resume-from: expected a checkpoint, got {options.resume_from}")

        # Print or run.
        if options.print_config:
            print(show_config(manager.config, manager.sources))
            return 0
        if options.verbose:
            print(manager.config)
        if typed.note and manager.resumed_from is None:
            manager.say(typed.note)
        with stopped_by(signal.SIGINT):
            if check is not None and not options.trust:
                check(manager)
            dry_run(manager, run) if options.dry_run else run(manager)
    except (*EXPECTED_ERRORS, torch.OutOfMemoryError) as error:
        if options.verbose:
            traceback.print_exception(error)
        if isinstance(error, RankError):  # there may be no group
            return failed(error)
        group = current_group()
        group.fail(error)
        return failed(error, f"rank {group.rank}: {error}" if group.rank else None)
    except StoppedAtOnce as stop:
        stands = "stopped at once; the newest save stands"
        print(stands if manager.newest_save() else "interrupted", file=sys.stderr)
        return stop.status
    except KeyboardInterrupt as error:  # before the run started
        if is_raised_by_code(error):
            raise
        print("interrupted", file=sys.stderr)
        return interrupted_status(signal.SIGINT)
    return interrupted_status(manager.interrupted_by)


def dry_run(manager: StateManager, run: Callable[[StateManager], object]) -> None:
    """Evaluate, update and save; then resume from that checkpoint, and repeat.

    Environments, processes and networks are as in the run; rollouts, evaluations and epochs are
    short. Nothing is sent to trackers, and all files go to a temporary folder.

    Args:
        manager: state manager of the run.
        run: trains with a manager.

    Raises:
        CheckpointError: the second half did not resume the first.
    """
    config, saved = manager.config, manager.resumed_from
    frames = _dry_steps(config) * config.rollout.num_envs
    end = 0 if saved is None else saved.step
    start = time.monotonic()
    with TemporaryDirectory(prefix="dry-run-") as folder:
        print(f"dry run: two rounds of an evaluation, an update of {frames} frames and a save")
        for half in (1, 2):
            trial = StateManager(
                manager.config_cls,
                manager.state_cls,
                manager._initial_state,
                checkpoint_dir=Path(folder, "run"),
            )
            if half == 1:  # the second half gets its settings from the checkpoint
                trial.init_path = manager.init_path if saved is None else saved.path
                trial.init_from = manager.init_from if saved is None else None
                trial.overrides, trial.environment = manager.overrides, manager.environment
                # Already read, as a running process may delete it at any moment.
                trial._resumed, trial._searched = saved, saved is not None
            trial.is_dry = True
            trial.trust = trust_of_run(manager) if half == 1 else TYPED  # its own checkpoint
            # One more step makes one more update, as runs end with complete updates.
            _shorten(trial.config, end + 1, folder)
            run(trial)
            manager.interrupted_by = trial.interrupted_by
            if trial.is_interrupted:
                print("dry run: interrupted")
                return
            end += trial.config.rollout.steps * trial.state.frames_per_step(trial.config)
            if trial.state.step != end:
                raise CheckpointError(
                    f"dry run: expected step {end} at the end, got {trial.state.step}"
                )
    print(f"dry run: all is well, after {time.monotonic() - start:.1f} s; its files are removed")


def _dry_steps(config: TrainConfig) -> int:
    """Return the steps of a rollout in a dry run, at least one sequence."""
    return min(max(DRY_STEPS, config.ppo.seq_len or 1), config.rollout.steps)


def _dry_minibatch(config: TrainConfig) -> int:
    """Return the minibatch size of a dry run, which has shorter rollouts than `config`.

    Minibatches have no frames of opponents, and whole sequences if the network has memory. In these
    cases their share of the rollout is the same as in the run, so that the division works alike.
    """
    steps, bs, nets = _dry_steps(config), config.optim.bs, (config.net, config.vf_net)
    remembers = any(net is not None and net.memory is not None for net in nets)
    if config.selfplay is None and not remembers:
        return min(bs, steps * config.rollout.num_envs)
    whole = config.ppo.seq_len or (steps if remembers else 1)
    return max(bs * steps // config.rollout.steps // whole, 1) * whole


def _shorten(config: TrainConfig, end: int, folder: str) -> None:
    """Shorten the configuration of a run in place, and turn off its trackers."""
    config.data_dir, config.track = folder, False
    config.total_timesteps, config.max_train_time, config.stop = end, None, []
    config.optim.bs = _dry_minibatch(config)
    config.rollout.steps, config.optim.update_epochs = _dry_steps(config), 1
    if config.capture_samples:
        config.capture_samples = "rollouts.rec"
    evaluation = config.eval or EvalConfig(steps=DRY_STEPS)
    suites = evaluation.suites.items()
    config.eval = replace(
        evaluation,
        interval=2**62,  # once at the beginning, once at the end
        run_on_first_step=True,
        steps=DRY_STEPS,
        episodes=None,
        capture_samples="evals.rec" if evaluation.capture_samples else "",
        suites={name: replace(suite, steps=None, episodes=None) for name, suite in suites},
    )
