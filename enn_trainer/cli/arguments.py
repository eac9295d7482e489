"""Arguments of commands, and one-line errors with an exit status. Imports nothing large."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from enn_trainer.base.errors import (
    CheckpointError,
    ConfigError,
    NotFiniteError,
    RankError,
    ServerError,
)
from enn_trainer.cli.guesses.typed_line import line_to_type
from enn_trainer.runtime.start_folder import path_of_run
from entity_env.errors import EntityEnvError
from entity_env.serialization.plain_open import replace_file

if TYPE_CHECKING:
    from enn_trainer.checkpoints.lookup import Existing

TRUST = "--trust"
FAILURE = 1
USAGE_ERROR = 2
EXPECTED_ERRORS = (
    ConfigError,
    CheckpointError,
    EntityEnvError,
    NotFiniteError,
    RankError,
    ServerError,
)
"""Errors that are printed in one line; others are printed with a traceback."""


def failed(error: Exception, message: str | None = None) -> int:
    """Print an error in one line and return the exit status.

    Args:
        error: the error; `ConfigError` and `CheckpointError` have the status `USAGE_ERROR`.
        message: message to print instead of the message of the error.
    """
    text = str(error) if message is None else message
    print(f"error: {text}{line_to_type(text)}", file=sys.stderr)
    return USAGE_ERROR if isinstance(error, ConfigError | CheckpointError) else FAILURE


_WORLD = "one of `enn envs`, file.py:Name, package.module:Name, gymnasium:ID or pettingzoo:MODULE"


class ArgumentsExit(SystemExit):
    """Exit because of the command line: a mistake in it, or `--help`."""


class OneLineParser(argparse.ArgumentParser):
    """Argument parser with one-line errors that keeps the line breaks of its epilog."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": argparse.RawDescriptionHelpFormatter, **options})

    def option(self, name: str, metavar: str, help: str | None = None, **more: Any) -> None:
        """Add an option with a value."""
        self.add_argument(name, metavar=metavar, help=help, **more)

    def flag(self, name: str, help: str) -> None:
        """Add an option without a value."""
        self.add_argument(name, action="store_true", help=help)

    def run(self, name: str, metavar: str, help: str | None = None, **more: Any) -> None:
        """Add the path of a run or save as an argument; see `path_of_run`."""
        self.add_argument(name, metavar=metavar, type=path_of_run, help=help, **more)

    def world(self, required: bool = True) -> None:
        """Add the arguments `ENV KEY=VALUE ...`, also as `--env-kwargs`."""
        self.add_argument("env", metavar="ENV", nargs=None if required else "?", help=_WORLD)
        help = "arguments of ENV"
        self.add_argument("kwargs", nargs="*", metavar="KEY=VALUE", help=help, default=[])
        self._env_kwargs("""arguments of ENV, also as JSON: '{"size": 3}'""")

    def vary(self) -> None:
        """Add the option `--vary`; see `load_world.samplers_of`."""
        help = "arguments of the environment that vary from episode to episode: 'size=int 1 9'"
        more: dict[str, Any] = {"nargs": "+", "action": "extend", "default": []}
        self.option("--vary", "NAME=SAMPLER", help, **more)

    def env_options(self, help: str, kwargs_help: str, required: bool = False) -> None:
        """Add the options `--env` and `--env-kwargs`."""
        self.option("--env", "ENV", f"{help}: {_WORLD}", required=required)
        self._env_kwargs(kwargs_help)

    def _env_kwargs(self, help: str) -> None:
        self.option("--env-kwargs", "KEY=VALUE", help, nargs="+", action="extend", default=[])

    def error(self, message: str) -> NoReturn:
        """Exit with an error message and `USAGE_ERROR`."""
        hint = line_to_type(message) or f"; see {self.prog} --help"
        self.exit(USAGE_ERROR, f"error: {message}{hint}\n")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """Raise ArgumentsExit, to be distinguished from a SystemExit of an environment."""
        if message:
            print(message, end="", file=sys.stderr)
        raise ArgumentsExit(status)


def positive(text: str) -> int:
    """Parse an integer above 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {number}")
    return number


def not_negative(text: str) -> int:
    """Parse an integer of at least 0."""
    number = int(text)
    if number < 0:
        raise argparse.ArgumentTypeError(f"expected a number of at least 0, got {number}")
    return number


def normalize_json_option(arguments: Sequence[str]) -> list[str]:
    """Replace `--json FILE.json`, the former spelling, by `--out FILE.json`."""
    following = [*arguments[1:], ""][: len(arguments)]
    return [
        "--out" if one == "--json" and after.endswith(".json") else one
        for one, after in zip(arguments, following, strict=False)
    ]


def writable(path: Path, field: str) -> Path:
    """Resolve the links of a path and check that the file can be written.

    Raises:
        ConfigError: the file cannot be written, or replacing it would replace a device or a pipe.
    """
    try:
        target = path.resolve()
        is_free = target.is_file() or not target.exists()
        ok = is_free and target.parent.is_dir() and os.access(target.parent, os.W_OK)
    except (OSError, RuntimeError):  # the name is too long, or the links form a loop
        ok = False
    if not ok:
        raise ConfigError(f"{field}: expected a file in a folder to write to, got {path}")
    return target


def is_writable_at(path: Path) -> bool:
    """Return whether a file can be created or replaced at a path."""
    return path.parent.is_dir() and os.access(path.parent, os.W_OK)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file atomically, replacing an existing one."""
    data = (json.dumps(content, indent=1, allow_nan=False) + "\n").encode()
    replace_file(path, data, path.with_name(f".writing-{path.name}"))


# Arguments of runs.

EXISTING_OPTIONS: dict[str, tuple["Existing", str]] = {
    "--resume": ("resume", "continue the run in that folder"),
    "--resume-or-start": ("continue", "continue it, or start a new one: for restarted jobs"),
    "--force": ("replace", "start over; an existing run is set aside"),
}
"""Options for a folder with a run: the value of `existing` for `StateManager`, and the help."""

_EPILOG = """\
examples:
  {0} env.id=Xor total_timesteps=5000 --checkpoint-dir runs/first
  {0} --checkpoint-dir runs/xor --resume total_timesteps=2000
  {0} env.id=Xor rollout.processes=2 --dry-run
  {0} --hps-info "learning rate\""""


def run_parser(program: str) -> OneLineParser:
    """Return the parser of a command that trains, such as `enn train`."""
    # Configuration.
    description = "Train an agent in an environment made of entities."
    parser = OneLineParser(prog=program, description=description, epilog=_EPILOG.format(program))
    settings = (
        "settings, such as optim.lr=0.003 or optim.lr='step: 0.003@0 cos 0@1e6', also as "
        "--lr 0.003; with enn train, an environment may precede them, as in enn train Xor"
    )
    parser.add_argument("overrides", nargs="*", metavar="FIELD=VALUE", help=settings)
    configs = "a configuration file: .ron .yaml .toml .json, or the name of a shipped one: xor"
    parser.option("--config", "FILE", configs, type=Path)

    # Folder of the run.
    advice = "if it has a run already, one of the next three options says what to do"
    folder = "folder of the run (default: a new one, runs/<world>-<n>)"
    parser.option("--checkpoint-dir", "DIR", f"{folder}; {advice}", type=Path)
    parser.flag("--no-save", "write no checkpoints; metrics still go to a folder in runs")
    for flag, (_, text) in EXISTING_OPTIONS.items():
        parser.add_argument(flag, dest=flag, action="store_true", help=text)

    # Checkpoint to start from.
    sources = "start from another run or checkpoint: a folder, RUN@STEP, RUN@latest, RUN@best"
    parser.option("--resume-from", "SAVE", sources, type=Path)
    weights = "start a new run with the weights of a checkpoint, also of a changed environment"
    parser.option("--init-from", "DIR", weights, type=Path)
    from enn_trainer.checkpoints.migrate.evolve_rules import PARTS  # imports NumPy

    parser.option("--init-parts", "PARTS", f"which weights, some of {','.join(PARTS)}")
    add_rename_arguments(parser)
    parser.option("--hps-info", "QUERY", "list the settings, or search them", nargs="?", const="")
    add_ways_to_run(parser)
    return parser


def add_ways_to_run(parser: OneLineParser) -> None:
    """Add the options `--trust`, `--dry-run`, `--print-config` and `--verbose`."""
    parser.flag(TRUST, "use the code and the cluster that the checkpoint names")
    parser.flag("--dry-run", "try each phase of the run in seconds, and keep no files")
    parser.flag("--print-config", "show every setting and where it comes from")
    parser.add_argument("-v", "--verbose", action="store_true", help="show settings, tracebacks")


def add_rename_arguments(parser: OneLineParser) -> None:
    """Add `--rename` and `--rename-file`; see `renames`."""
    from enn_trainer.checkpoints.migrate.evolve_rules import SYNTAX

    help = f"renamed in the environment: {SYNTAX}; repeatable"
    parser.option("--rename", "OLD=NEW", help, action="append", default=[])
    parser.option("--rename-file", "FILE", "a file with such renames, one per line", type=Path)


def renames(options: argparse.Namespace) -> list[str]:
    """Return the renames of `--rename` and `--rename-file`, as OLD=NEW."""
    from enn_trainer.checkpoints.migrate.evolve_rules import rename_lines  # imports NumPy

    file_renames = rename_lines(options.rename_file) if options.rename_file else []
    return [*options.rename, *file_renames]


def line_with_trust(program: str, arguments: Sequence[str]) -> str:
    """Return a command line with `--trust`, as it can be typed."""
    return shlex.join([*program.split(), TRUST, *arguments])
