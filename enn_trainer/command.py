"""Command lines of runs: arguments to a state manager, errors to one line and status 2."""

import argparse
import functools
import inspect
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from enn_trainer.checkpoints.lookup import Existing
from enn_trainer.checkpoints.migrate.evolve_rules import SYNTAX, rename_lines
from enn_trainer.checkpoints.migrate.evolve_tensors import PARTS
from enn_trainer.config import TrainConfig
from enn_trainer.config.help import hps_info
from enn_trainer.config.load import show_config
from enn_trainer.dry_run import dry_run
from enn_trainer.errors import CheckpointError, ConfigError, NotFiniteError
from enn_trainer.interrupt import StoppedAtOnce, stopped_by
from enn_trainer.state import State, init_train_state
from enn_trainer.state_manager import StateManager
from entity_env.errors import EntityEnvError
from entity_env.process import reader_may_leave

T = TypeVar("T")
FAILURE = 1
USAGE_ERROR = 2
STOPPED_AT_ONCE = 130  # as shells have it for programs that Ctrl-C ends

_EXISTING: dict[str, Existing] = {
    "--resume": "resume",
    "--resume-or-start": "continue",
    "--force": "replace",
}


def command(
    config_cls: type[TrainConfig] = TrainConfig,
    state_cls: type[State] = State,
    initial_state: Callable[[TrainConfig, dict[str, Any]], State] = init_train_state,
) -> Callable[[Callable[[StateManager], T]], Callable[[], T]]:
    """Make a command out of a function that takes a state manager.

    It understands the arguments of `enn train`. A mistake in them ends the program with one line
    and status 2.

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

            program = Path(sys.argv[0]).name
            status = run_command(sys.argv[1:], program, run, config_cls, state_cls, initial_state)
            if not outcome:
                sys.exit(status)
            return outcome[0]

        return main

    return decorate


@reader_may_leave()
def run_command(
    arguments: Sequence[str],
    program: str,
    run: Callable[[StateManager], object],
    config_cls: type[TrainConfig] = TrainConfig,
    state_cls: type[State] = State,
    initial_state: Callable[[TrainConfig, dict[str, Any]], State] = init_train_state,
    check: Callable[[StateManager], None] | None = None,
) -> int:
    """Parse the arguments of a run, run it, and return the exit status.

    Args:
        arguments: arguments without the name of the program.
        program: name of the program, for the usage.
        run: function of the state manager that runs the command.
        config_cls: class of the configuration, to which overrides refer.
        state_cls: class of the state.
        initial_state: makes the state of a new run.
        check: raises before `run` if the run must not begin; not called with `--trust`.
    """
    # Parse, and list settings.
    options = _parser(program).parse_intermixed_args(arguments)
    if options.hps_info is not None:
        print(hps_info(config_cls, options.hps_info or None))
        return 0
    try:
        # Arguments that exclude each other.
        given = [flag for flag in _EXISTING if flag in options.existing]
        if len(given) > 1:
            raise ConfigError(f"{' and '.join(given)}: expected one of them, got {len(given)}")
        if given and not options.checkpoint_dir:
            raise ConfigError(f"{given[0]}: expected the folder as --checkpoint-dir, got none")
        if options.config and options.resume_from:
            raise ConfigError("--config and --resume-from: expected one of them, got both")
        if options.config and not options.config.is_file():
            raise ConfigError(f"--config: expected a configuration file, got {options.config}")

        # Configuration and state.
        file_renames = rename_lines(options.rename_file) if options.rename_file else []
        manager = StateManager(
            config_cls,
            state_cls,
            initial_state,
            init_path=options.config or options.resume_from,
            checkpoint_dir=options.checkpoint_dir,
            overrides=options.overrides,
            environment=os.environ,
            existing=_EXISTING[given[0]] if given else "refuse",
            init_from=options.init_from,
            init_parts=PARTS if options.init_parts is None else options.init_parts.split(","),
            init_renames=[*options.rename, *file_renames],
        )
        if options.resume_from and not (manager.init_path and manager.init_path.is_dir()):
            raise ConfigError(f"--resume-from: expected a checkpoint, got {options.resume_from}")

        # Print or run.
        if options.print_config:
            print(show_config(manager.config, manager.sources))
            return 0
        if options.verbose:
            print(manager.config)
        with stopped_by(signal.SIGINT):
            if check is not None and not options.trust:
                check(manager)
            dry_run(manager, run) if options.dry_run else run(manager)
    except (ConfigError, CheckpointError, EntityEnvError, NotFiniteError) as error:
        if options.verbose:
            traceback.print_exception(error)
        return failed(error)
    except StoppedAtOnce:
        print("stopped at once; the newest save stands", file=sys.stderr)
        return STOPPED_AT_ONCE
    return 0


def failed(error: Exception, message: str | None = None) -> int:
    """Print an error in one line and return the exit status, `USAGE_ERROR` for wrong settings.

    Args:
        error: the error; its type determines the status.
        message: message to print instead of that of the error.
    """
    print(f"error: {error if message is None else message}", file=sys.stderr)
    return USAGE_ERROR if isinstance(error, ConfigError | CheckpointError) else FAILURE


class ArgumentsExit(SystemExit):
    """Exit of a program because of its arguments: a mistake in them, or `--help`."""


class OneLineParser(argparse.ArgumentParser):
    """Argument parser whose errors are one line each."""

    def error(self, message: str) -> NoReturn:
        """Exit with an error message and `USAGE_ERROR`."""
        self.exit(USAGE_ERROR, f"error: {message}; see {self.prog} --help\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Exit by ArgumentsExit, as distinct from a SystemExit that an environment raises."""
        if message:
            print(message, end="", file=sys.stderr)
        raise ArgumentsExit(status)


def add_rename_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--rename` and `--rename-file`."""
    parser.add_argument(
        "--rename",
        action="append",
        default=[],
        metavar="OLD=NEW",
        help=f"what the world calls otherwise now: {SYNTAX}; may be repeated",
    )
    parser.add_argument(
        "--rename-file", type=Path, metavar="FILE", help="a file with such renames, one a line"
    )


def _parser(program: str) -> argparse.ArgumentParser:
    # Configuration.
    parser = OneLineParser(prog=program, description="Train an agent in a world made of entities.")
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="FIELD=VALUE",
        help="settings, such as optim.lr=0.003 or optim.lr='step: 0.003@0 cos 0@1e6'",
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="a configuration file: .ron .yaml .toml .json"
    )

    # Folder of the run.
    parser.add_argument(
        "--checkpoint-dir",
        type=Path,
        metavar="DIR",
        help="save the run here; if there is one already, say with one of the next three what "
        "to do with it",
    )
    for flag, text in (
        ("--resume", "continue the run that was saved there"),
        ("--resume-or-start", "continue it, or begin: for jobs that are started again and again"),
        ("--force", "start over; what is there is set aside"),
    ):
        parser.add_argument(
            flag, dest="existing", action="append_const", const=flag, default=[], help=text
        )

    # Start from a save elsewhere.
    parser.add_argument(
        "--resume-from",
        type=Path,
        metavar="SAVE",
        help="start from a save or run elsewhere: a folder, RUN@STEP, RUN@latest, RUN@best",
    )
    parser.add_argument(
        "--init-from",
        type=Path,
        metavar="DIR",
        help="begin a new run with the weights of a checkpoint, also of a world that was changed",
    )
    parser.add_argument(
        "--init-parts", metavar="PARTS", help=f"which of them, some of {','.join(PARTS)}"
    )
    add_rename_arguments(parser)
    parser.add_argument(
        "--trust",
        action="store_true",
        help="import the code that the save names, such as its environment, and run it",
    )

    # Look before running.
    parser.add_argument(
        "--hps-info", nargs="?", const="", metavar="QUERY", help="list the settings, or search them"
    )
    parser.add_argument(
        "--dry-run",
        action="store_true",
        help="try one of everything in seconds, and keep nothing of it",
    )
    parser.add_argument(
        "--print-config", action="store_true", help="show every setting and where it comes from"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="show settings, tracebacks")
    return parser
