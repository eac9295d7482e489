"""The command `enn`."""

import functools
import importlib
import signal
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import NamedTuple

from enn_trainer.cli.arguments import (
    EXPECTED_ERRORS,
    USAGE_ERROR,
    ArgumentsExit,
    OneLineParser,
    failed,
)
from enn_trainer.cli.failures import REPORT, disk_problem, is_unforeseen, torch_problem
from enn_trainer.cli.guesses.typed_line import line_to_type, typed_line
from enn_trainer.cli.guesses.words import UNAVAILABLE
from enn_trainer.runtime.interrupt import ended_by, one_line_if_interrupted
from entity_env.errors import as_error, did_you_mean
from entity_env.imports.extras import remedy
from entity_env.process import ignore_broken_pipe


class Command(NamedTuple):
    """A command: the function `NAME_command` of the module `NAME_command`, imported when used.

    These modules do not import PyTorch; their functions do, if they need it.

    Attributes:
        name: name of the command.
        help: one line for `enn --help`.
    """

    name: str
    help: str

    def load(self) -> Callable[[Sequence[str]], int | None]:
        """Import and return the function; it returns an exit status, or None for 0."""
        command: Callable[[Sequence[str]], int | None] = getattr(
            self._module, f"{self.name}_command"
        )
        return command

    def parser(self) -> OneLineParser:
        """Return the argument parser of the command."""
        parser: OneLineParser = self._module.parser()
        return parser

    @property
    def _module(self) -> ModuleType:
        return importlib.import_module(f"{__name__}.{self.name}_command")


_HELP = {
    "train": "train an agent: enn train TreasureHunt, or enn train my_file.py:MyEnv --lr 0.003",
    "resume": "continue a run: enn resume runs/Xor-1 total_timesteps=2000000",
    "runs": "list runs: environment, steps, return, newest and best save, size: enn runs",
    "clone": "train an agent on recordings: enn clone mine.rec --checkpoint-dir runs/mine",
    "tune": "search settings: enn tune Xor 'optim.lr=loguniform 1e-4 1e-2' --trials 40 ...",
    "check": "report the problems of an environment: enn check my_file.py:MyEnv",
    "watch": "show what an agent sees and does: enn watch runs/xor",
    "serve": "play with or in place of an agent in a browser: enn serve runs/duel",
    "eval": "measure an agent: enn eval runs/xor --episodes 1000",
    "export": "write an agent for onnxruntime and games: enn export runs/xor --to out",
    "league": "rate and play the opponents of a run, exploit one: enn league show runs/duel",
    "checkpoints": "list, verify, delete, pin, show, compare saves: enn checkpoints list runs/xor",
    "inspect": "describe a file or folder: enn inspect runs/xor",
    "play": "play an environment by hand: enn play Minefield --record mine.rec",
    "config": "upgrade configuration files, check their schema: enn config upgrade-config mine.ron",
    "plot": "draw return, entropy, KL and speed of runs: enn plot runs/Xor-*",
    "profile": "measure where the time of a run goes: enn profile my_file.py:MyEnv",
    "init": "write a starter environment: enn init garden, or --from gymnasium:CartPole-v1",
    "doctor": "check the installation and suggest fixes: enn doctor --try",
    "envs": "list the built-in environments, or describe one: enn envs TreasureHunt",
    "completion": "complete arguments in bash or zsh: source <(enn completion bash)",
}
COMMANDS = {name: Command(name, help) for name, help in _HELP.items()}


_MORE = "Run enn COMMAND --help for details."


def usage() -> str:
    """Return the text of `enn --help`, with one line per command."""
    lines = [f"  {name:13}{command.help}" for name, command in COMMANDS.items()]
    return "\n".join(["usage: enn COMMAND ... | --version", "", "commands:", *lines, "", _MORE])


def main() -> None:
    """Run the command `enn` with the arguments of the process."""
    with ignore_broken_pipe(), one_line_if_interrupted():
        sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit status."""
    if arguments[:1] == ["help"] and len(arguments) > 1:
        arguments = [arguments[1], "--help"]
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] in ("--version", "version"):
        from enn_trainer.runtime.versions import versions  # starts other programs

        print(versions())
        return 0
    parsers = {name: functools.partial(_parser_of, name) for name in COMMANDS}
    with typed_line("enn", arguments, parsers):
        return _run_command(arguments[0], arguments[1:])


def _parser_of(name: str) -> OneLineParser:
    return COMMANDS[name].parser()


def _run_command(name: str, rest: Sequence[str]) -> int:
    if name in COMMANDS:
        try:
            with ended_by(signal.SIGINT):
                command = COMMANDS[name].load()
            return command(rest) or 0
        except EXPECTED_ERRORS as error:
            return failed(error)
        except ArgumentsExit:
            raise
        except Exception as error:
            problem = torch_problem(error) or disk_problem(error)
            if problem is not None:
                return failed(error, problem)
            if isinstance(error, ModuleNotFoundError) and remedy(error):  # an extra is missing
                return failed(error, f"{error}{remedy(error)}")
            if is_unforeseen(error):
                error.add_note(REPORT)
            raise
        except SystemExit as error:  # raised by an environment, as commands return a status
            raise as_error(error) from error
    names = " or ".join(", ".join(COMMANDS).rsplit(", ", 1))
    problem = f"command: expected {names}, got {name!r}{did_you_mean(name, COMMANDS)}"
    if name in UNAVAILABLE:
        got = f"{name}, which is not available: {UNAVAILABLE[name][0]}"
        problem = f"command: expected a command of enn --help, got {got}"
    print(f"error: {problem}{line_to_type(problem)}", file=sys.stderr)
    return USAGE_ERROR
