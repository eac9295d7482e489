"""The command `enn train`."""

import functools
from collections.abc import Sequence

from enn_trainer.cli.arguments import OneLineParser
from enn_trainer.cli.load_world import envs_by_id, factory_of
from enn_trainer.cli.trust import check_run, line_with_trust, next_steps
from enn_trainer.command import run_command, run_parser
from enn_trainer.state_manager import StateManager
from enn_trainer.trainer import train


def parser() -> OneLineParser:
    """Return the parser of `enn train`."""
    return run_parser("enn train")


def train_command(arguments: Sequence[str], program: str = "enn train") -> int:
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
