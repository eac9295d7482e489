"""The command `enn`."""

import difflib
import functools
import sys
from collections.abc import Callable, Sequence

from enn_trainer.cli.check_command import check_command
from enn_trainer.cli.checkpoints_command import checkpoints_command
from enn_trainer.cli.clone_command import clone_command
from enn_trainer.cli.config_command import config_command
from enn_trainer.cli.eval_command import eval_command
from enn_trainer.cli.load_world import envs_by_id, factory_of
from enn_trainer.cli.play_command import play_command
from enn_trainer.cli.plot_command import plot_command
from enn_trainer.cli.profile_command import profile_command
from enn_trainer.cli.trust import check_run, line_with_trust, next_steps
from enn_trainer.command import EXPECTED_ERRORS, ArgumentsExit, failed, run_command
from enn_trainer.state_manager import StateManager
from enn_trainer.trainer import train
from entity_env.errors import as_error
from entity_env.examples import ENV_REGISTRY
from entity_env.process import reader_may_leave

USAGE = """usage: enn COMMAND ...

commands:
  train        train an agent: enn train env.id=Xor optim.lr=0.003 --checkpoint-dir runs/xor
  clone        train an agent on recordings: enn clone mine.rec --checkpoint-dir runs/mine
  check        say what is wrong with an environment: enn check my_file.py:MyEnv
  eval         measure an agent: enn eval runs/xor --episodes 1000
  checkpoints  list, verify, delete, pin, show and compare saves: enn checkpoints list runs/xor
  play         play an environment by hand: enn play Minefield --record mine.rec
  config       upgrade configuration files, check their schema: enn config upgrade-config mine.ron
  plot         draw return, entropy, KL and speed of runs: enn plot runs/Xor__*
  profile      say where the time of a run goes: enn profile env.id=my_file.py:MyEnv
  envs         list the worlds that ship with this program

enn COMMAND --help tells more."""


def main() -> None:
    """Run the command `enn` with the arguments of the process."""
    with reader_may_leave():
        sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command and return its exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    name, rest = arguments[0], arguments[1:]
    if name in _COMMANDS:
        try:
            return _COMMANDS[name](rest) or 0
        except EXPECTED_ERRORS as error:
            return failed(error)
        except ArgumentsExit:
            raise
        except SystemExit as error:  # raised by an environment, as commands return a status
            raise as_error(error) from error
    nearest = difflib.get_close_matches(name, _COMMANDS, n=1)
    hint = f", did you mean {nearest[0]}?" if nearest else ""
    names = " or ".join(", ".join(_COMMANDS).rsplit(", ", 1))
    print(f"error: command: expected {names}, got {name!r}{hint}", file=sys.stderr)
    return 2


def train_command(arguments: Sequence[str], program: str) -> int:
    """Run `enn train`: train in the environment that `env.id` names."""
    line = line_with_trust(program, arguments)
    return run_command(arguments, program, _train, check=functools.partial(check_run, line=line))


def _train(manager: StateManager) -> None:
    config = manager.config
    factory_of(config.env, "env")
    if config.eval is not None and config.eval.env is not None:
        factory_of(config.eval.env, "eval.env")
    result = train(manager, envs_by_id)
    if result.checkpoint is not None and not manager.is_dry:
        print(next_steps(result, manager))


def _envs(arguments: Sequence[str]) -> None:
    """Run `enn envs`: list the environments that ship with the project."""
    for name, env in ENV_REGISTRY.items():
        print(f"{name:20}{(env.__doc__ or '').strip().splitlines()[0]}")


_COMMANDS: dict[str, Callable[[Sequence[str]], int | None]] = {
    "train": functools.partial(train_command, program="enn train"),
    "clone": clone_command,
    "check": check_command,
    "eval": eval_command,
    "checkpoints": checkpoints_command,
    "play": play_command,
    "config": config_command,
    "plot": plot_command,
    "profile": profile_command,
    "envs": _envs,
}
