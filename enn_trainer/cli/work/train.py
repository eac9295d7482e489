"""Training in the environment that the settings name."""

import functools
import json
from collections.abc import Sequence
from pathlib import Path

from enn_trainer.checkpoints.named_code import check_run, trust_of_run
from enn_trainer.checkpoints.run_captures import run_folder
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.cli.load_world import factory_of, load_world, trusted_envs
from enn_trainer.cli.trust import next_steps, resume_command, shell_command
from enn_trainer.command import run_command
from enn_trainer.config import EnvConfig
from enn_trainer.evaluation.random_return import random_return
from enn_trainer.experience.episodes import Measured
from enn_trainer.run.session import TrainResult
from enn_trainer.run.trainer import train
from enn_trainer.runtime.trust import Trust
from enn_trainer.stop_conditions import Now
from entity_env.imports.extras import missing_package

RANDOM_EPISODES = 32
RANDOM_SECONDS = 0.5
"""Limits of random play at the start of a run."""


def train_as_typed(arguments: Sequence[str], program: str, line: str) -> int:
    """Train as the arguments of a command say, and return the exit status.

    Args:
        arguments: arguments without the name of the program.
        program: name of the program, for the usage.
        line: command line with `--trust`, for messages.
    """
    check = functools.partial(check_run, line=line)
    return run_command(arguments, program, _train, check=check, takes_world=True)


def _train(manager: StateManager) -> None:
    config, trust = manager.config, trust_of_run(manager)
    factory_of(config.env, "env", trust)
    if config.eval is not None and config.eval.env is not None:
        factory_of(config.eval.env, "eval.env", trust)
    if not (manager.is_dry or manager.follows):
        manager.random_return = functools.partial(_random_return, config.env, trust)
    result = train(manager, trusted_envs(trust))
    if result.checkpoint is not None and not (manager.is_dry or manager.follows):
        print(_next_steps(result, manager))


def _random_return(env: EnvConfig, trust: Trust) -> Measured | None:
    """Measure the return of random play; None if it takes too long or the environment fails."""
    try:
        kwargs = json.loads(env.kwargs)
        create_world = load_world(env.id, kwargs, "env.kwargs", "env.id", trust=trust)
        return random_return(create_world, RANDOM_EPISODES, RANDOM_SECONDS)
    except Exception:  # of the environment; the run reports it
        return None


def _next_steps(result: TrainResult, manager: StateManager) -> str:
    """Return the commands to type after a run."""
    run_dir, config, state = manager.checkpoint_dir, manager.config, manager.state
    assert run_dir is not None
    reached = Now(state.step, state.time_used, state.metrics_over_rounds(), frozenset(), 0)
    lines = [resume_command(run_dir, config, reached)]
    if result.interrupted:
        return f"\nto continue:\n  {lines[0]}"
    if not missing_package("tensorboard"):
        logs = run_folder(manager) or Path(config.data_dir, "runs")
        lines.append(shell_command("tensorboard", "--logdir", str(logs)))
    return next_steps(run_dir, config, lines)
