"""The command `enn train`."""

import functools
from collections.abc import Sequence

from enn_trainer.cli.load_world import envs_by_id, factory_of
from enn_trainer.cli.trust import check_run, line_with_trust, next_steps
from enn_trainer.command import run_command
from enn_trainer.state_manager import StateManager
from enn_trainer.trainer import train


def train_command(
    arguments: Sequence[str], program: str = "enn train", trusting: str | None = None
) -> int:
    """Run `enn train`: train in the environment that `env.id` names.

    Args:
        arguments: arguments without the name of the program.
        program: name of the program, for the usage.
        trusting: the command line with `--trust` as it can be typed, if another command was typed.
    """
    line = trusting or line_with_trust(program, arguments)
    return run_command(arguments, program, _train, check=functools.partial(check_run, line=line))


def _train(manager: StateManager) -> None:
    config = manager.config
    factory_of(config.env, "env")
    if config.eval is not None and config.eval.env is not None:
        factory_of(config.eval.env, "eval.env")
    result = train(manager, envs_by_id)
    if result.checkpoint is not None and not manager.is_dry:
        print(next_steps(result, manager))
