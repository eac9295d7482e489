"""The command `enn`."""

import difflib
import importlib
import signal
import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from enn_trainer.cli.arguments import EXPECTED_ERRORS, ArgumentsExit, OneLineParser, failed
from enn_trainer.cli.failures import REPORT, is_unforeseen, torch_problem
from enn_trainer.runtime.interrupt import ended_by, one_line_if_interrupted
from entity_env.errors import as_error
from entity_env.extras import remedy
from entity_env.process import reader_may_leave


class Command(NamedTuple):
    """A command: one line of help, and the function that runs it, imported when it is used.

    Attributes:
        help: one line for `enn --help`.
        place: `module:function` below `enn_trainer.cli`; the function takes the arguments and
            returns an exit status, None for 0.
    """

    help: str
    place: str

    def load(self) -> Callable[[Sequence[str]], int | None]:
        """Import the function and return it."""
        module, _, function = self.place.partition(":")
        found: Callable[[Sequence[str]], int | None]
        found = getattr(importlib.import_module(f"{__name__}.{module}"), function)
        return found

    def parser(self) -> OneLineParser:
        """Return the parser of the arguments, which every module of a command has."""
        module = importlib.import_module(f"{__name__}.{self.place.partition(':')[0]}")
        parser: OneLineParser = module.parser()
        return parser


COMMANDS = {
    "train": Command(
        "train an agent: enn train TreasureHunt, or enn train my_file.py:MyEnv --lr 0.003",
        "train_command:train_command",
    ),
    "resume": Command(
        "continue a run: enn resume runs/Xor-1 total_timesteps=2000000",
        "resume_command:resume_command",
    ),
    "runs": Command(
        "list runs: world, steps, return, newest and best save, size: enn runs",
        "runs_command:runs_command",
    ),
    "clone": Command(
        "train an agent on recordings: enn clone mine.rec --checkpoint-dir runs/mine",
        "clone_command:clone_command",
    ),
    "check": Command(
        "say what is wrong with an environment: enn check my_file.py:MyEnv",
        "check_command:check_command",
    ),
    "eval": Command(
        "measure an agent: enn eval runs/xor --episodes 1000",
        "eval_command:eval_command",
    ),
    "checkpoints": Command(
        "list, verify, delete, pin, show and compare saves: enn checkpoints list runs/xor",
        "checkpoints_command:checkpoints_command",
    ),
    "inspect": Command(
        "say what a file or folder is: enn inspect runs/xor",
        "inspect_command:inspect_command",
    ),
    "play": Command(
        "play an environment by hand: enn play Minefield --record mine.rec",
        "play_command:play_command",
    ),
    "config": Command(
        "upgrade configuration files, check their schema: enn config upgrade-config mine.ron",
        "config_command:config_command",
    ),
    "plot": Command(
        "draw return, entropy, KL and speed of runs: enn plot runs/Xor-*",
        "plot_command:plot_command",
    ),
    "profile": Command(
        "say where the time of a run goes: enn profile my_file.py:MyEnv",
        "profile_command:profile_command",
    ),
    "init": Command(
        "write a world to begin with: enn init garden, or --from gymnasium:CartPole-v1",
        "init_command:init_command",
    ),
    "doctor": Command(
        "say what is installed, what is missing and what to type: enn doctor --try",
        "doctor_command:doctor_command",
    ),
    "envs": Command(
        "list the worlds that ship with this program, describe one: enn envs TreasureHunt",
        "envs_command:envs_command",
    ),
    "completion": Command(
        "complete arguments in bash or zsh: source <(enn completion bash)",
        "completion_command:completion_command",
    ),
}


def usage() -> str:
    """Return the help of `enn`, one line per command."""
    lines = [f"  {name:13}{command.help}" for name, command in COMMANDS.items()]
    return "\n".join(
        [
            "usage: enn COMMAND ... | --version",
            "",
            "commands:",
            *lines,
            "",
            "enn COMMAND --help tells more.",
        ]
    )


def main() -> None:
    """Run the command `enn` with the arguments of the process."""
    with reader_may_leave(), one_line_if_interrupted():
        sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return 0 if arguments else 2
    if arguments[0] == "--version":
        from enn_trainer.runtime.versions import versions  # starts other programs

        print(versions())
        return 0
    name, rest = arguments[0], arguments[1:]
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
            problem = torch_problem(error)
            if problem is not None:
                return failed(error, problem)
            if isinstance(error, ModuleNotFoundError) and remedy(error):  # an extra is missing
                return failed(error, f"{error}{remedy(error)}")
            if is_unforeseen(error):
                error.add_note(REPORT)
            raise
        except SystemExit as error:  # raised by an environment, as commands return a status
            raise as_error(error) from error
    nearest = difflib.get_close_matches(name, COMMANDS, n=1)
    hint = f", did you mean {nearest[0]}?" if nearest else ""
    names = " or ".join(", ".join(COMMANDS).rsplit(", ", 1))
    print(f"error: command: expected {names}, got {name!r}{hint}", file=sys.stderr)
    return 2
