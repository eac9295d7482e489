"""The command `enn`."""

import difflib
import sys
from collections.abc import Sequence

from enn_trainer.command import run_command
from enn_trainer.errors import ConfigError
from enn_trainer.loop import train
from enn_trainer.state_manager import StateManager
from entity_env.examples import ENV_REGISTRY

USAGE = """usage: enn COMMAND ...

commands:
  train    train an agent: enn train env.id=Xor optim.lr=0.003 --checkpoint-dir runs/xor
  envs     list the worlds that env.id can name

enn COMMAND --help tells more."""


def main() -> None:
    """Entry point of `enn`."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run a command; the exit status."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE)
        return 0 if arguments else 2
    name, rest = arguments[0], arguments[1:]
    if name == "train":
        return train_command(rest, "enn train")
    if name == "envs":
        return envs_command()
    nearest = difflib.get_close_matches(name, ["train", "envs"], n=1)
    hint = f", did you mean {nearest[0]}?" if nearest else ""
    print(f"error: command: expected train or envs, got {name!r}{hint}", file=sys.stderr)
    return 2


def train_command(arguments: Sequence[str], program: str) -> int:
    """`enn train`: train in the world that `env.id` names."""
    return run_command(arguments, program, _train)


def envs_command() -> int:
    """`enn envs`: the worlds that ship with the project."""
    for name, env in ENV_REGISTRY.items():
        print(f"{name:20}{(env.__doc__ or '').strip().splitlines()[0]}")
    return 0


def _train(manager: StateManager) -> None:
    env_id = manager.config.env.id
    if env_id not in ENV_REGISTRY:
        nearest = difflib.get_close_matches(env_id, ENV_REGISTRY, n=1, cutoff=0.0)
        raise ConfigError(
            f"env.id: expected one of {', '.join(ENV_REGISTRY)}; got {env_id!r}, "
            f"did you mean {nearest[0]}?"
        )
    result = train(manager, ENV_REGISTRY[env_id])
    if result.checkpoint is not None:
        print(_next_steps(result.checkpoint.parent, manager))


def _next_steps(run_dir: object, manager: StateManager) -> str:
    config = manager.config
    return f"""
next:
  tensorboard --logdir {config.data_dir}/runs
  python docs/act.py {run_dir}
  enn train --resume-from {run_dir} total_timesteps={2 * config.total_timesteps}"""
