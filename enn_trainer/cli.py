"""The command `enn`."""

import difflib
import functools
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from enn_trainer.command import ArgumentsExit, run_command
from enn_trainer.commands.check_command import check_command
from enn_trainer.commands.checkpoints_command import checkpoints_command
from enn_trainer.commands.clone_command import clone_command
from enn_trainer.commands.config_command import config_command
from enn_trainer.commands.eval_command import eval_command
from enn_trainer.commands.load_world import envs_by_id, factory_of
from enn_trainer.commands.play_command import play_command
from enn_trainer.commands.plot_command import plot_command
from enn_trainer.commands.profile_command import profile_command
from enn_trainer.commands.trust import check_run, line_with_trust, naming_env
from enn_trainer.loop import train
from enn_trainer.run import TrainResult
from enn_trainer.state_manager import StateManager
from entity_env.examples import ENV_REGISTRY
from entity_env.standard_streams import reader_may_leave
from entity_env.world_errors import as_error

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
    """Entry point of `enn`."""
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
            return _COMMANDS[name](rest)
        except ArgumentsExit:
            raise
        except SystemExit as error:  # by an environment: nothing of ours ends a command like this
            raise as_error(error) from error
    nearest = difflib.get_close_matches(name, _COMMANDS, n=1)
    hint = f", did you mean {nearest[0]}?" if nearest else ""
    names = " or ".join(", ".join(_COMMANDS).rsplit(", ", 1))
    print(f"error: command: expected {names}, got {name!r}{hint}", file=sys.stderr)
    return 2


def train_command(arguments: Sequence[str], program: str) -> int:
    """`enn train`: train in the world that `env.id` names."""
    line = line_with_trust(program, arguments)
    return run_command(arguments, program, _train, check=functools.partial(check_run, line=line))


def envs_command() -> int:
    """`enn envs`: the worlds that ship with the project."""
    for name, env in ENV_REGISTRY.items():
        print(f"{name:20}{(env.__doc__ or '').strip().splitlines()[0]}")
    return 0


_COMMANDS: dict[str, Callable[[Sequence[str]], int]] = {
    "train": lambda rest: train_command(rest, "enn train"),
    "clone": clone_command,
    "check": check_command,
    "eval": eval_command,
    "checkpoints": checkpoints_command,
    "play": play_command,
    "config": config_command,
    "plot": plot_command,
    "profile": profile_command,
    "envs": lambda rest: envs_command(),
}


def _train(manager: StateManager) -> None:
    config = manager.config
    factory_of(config.env, "env")
    if config.eval is not None and config.eval.env is not None:
        factory_of(config.eval.env, "eval.env")
    result = train(manager, envs_by_id)
    if result.checkpoint is not None and not manager.is_dry:
        print(_next_steps(result, manager))


def _next_steps(result: TrainResult, manager: StateManager) -> str:
    """What to type next, in the form that works in this shell."""
    run_dir, config = manager.checkpoint_dir, manager.config
    enn, python, tensorboard = (_as_typed(name) for name in ("enn", "python", "tensorboard"))
    named = naming_env(config)
    if result.interrupted:
        return f"\nto continue:\n  {enn} train --checkpoint-dir {run_dir} --resume{named}"
    more = 2 * config.total_timesteps
    if more <= result.step:  # the run continued one that was longer
        more = 2 * result.step
    return f"""
next:
  {tensorboard} --logdir {config.data_dir}/runs
  {python} docs/act.py {run_dir}
  {enn} train --checkpoint-dir {run_dir} --resume{named} total_timesteps={more}"""


def _as_typed(program: str) -> str:
    """A program of this environment: by its name if that is the one a shell would find."""
    beside = Path(sys.executable).with_name(program)
    found = shutil.which(program)
    if found is not None and Path(found) == beside:
        return program
    return str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside)
