"""Command lines that continue, measure or plot a run after it has ended."""

import math
import shlex
import shutil
import sys
from pathlib import Path

from enn_trainer.algorithms.optimizers import total_steps
from enn_trainer.commands.trust import naming_env, naming_measured_env
from enn_trainer.config import TrainConfig
from enn_trainer.session import TrainResult
from enn_trainer.state import State
from enn_trainer.state_manager import StateManager
from enn_trainer.stop_conditions import Now, read_bound


def next_steps(result: TrainResult, manager: StateManager) -> str:
    """Return the commands to type after `enn train`, in the form that works in this shell."""
    run_dir, config = manager.checkpoint_dir, manager.config
    assert run_dir is not None
    resume = resume_command(run_dir, config, manager.state)
    if result.interrupted:
        return f"\nto continue:\n  {resume}"
    return "\n".join(
        [
            "\nnext:",
            f"  {shell_command('tensorboard', '--logdir', f'{config.data_dir}/runs')}",
            f"  {measure_command(run_dir, config)}",
            f"  {resume}",
        ]
    )


# These commands name or trust the environment code of the save, as `trust.py` requires.


def measure_command(path: Path, config: TrainConfig) -> str:
    """Return the command that evaluates a save, or the newest save of a run."""
    return shell_command("enn", "eval", str(path), *naming_measured_env(config.env))


def resume_command(run_dir: Path, config: TrainConfig, state: State) -> str:
    """Return the command that continues a saved run, with raised bounds where it reached them."""
    more = [*naming_env(config), *raised_bounds(config, state)]
    return shell_command("enn", "train", "--checkpoint-dir", str(run_dir), "--resume", *more)


def resume_from_command(save: Path, config: TrainConfig, reached: Now) -> str:
    """Return the command that continues a save in a new folder, with raised bounds.

    Args:
        save: folder of the save.
        config: configuration of its run.
        reached: step, time and metrics of the save.
    """
    more = [*naming_env(config), *raised_bounds(config, reached)]
    where = ["--checkpoint-dir", "NEW", "--resume-from", str(save)]
    return shell_command("enn", "train", *where, *more)


def raised_bounds(config: TrainConfig, state: State | Now) -> list[str]:
    """Return settings that raise or remove each bound that the run has reached."""
    settings = []
    if state.step >= total_steps(config):
        settings.append(f"total_timesteps={2 * max(config.total_timesteps, state.step)}")
    limit = config.max_train_time
    if limit is not None and state.time_used >= limit:
        settings.append(f"max_train_time={2 * max(limit, math.ceil(state.time_used), 1)}")
    now = Now(state.step, state.time_used, state.metrics, frozenset(), 0)
    open_bounds = [text for text in config.stop if not read_bound(text, "stop").is_met(now, {})]
    if len(open_bounds) < len(config.stop):
        settings.append(f"stop=[{', '.join(map(_quoted, open_bounds))}]")
    return settings


def _quoted(text: str) -> str:
    return f'"{text}"'


def shell_command(program: str, *arguments: str) -> str:
    """Return a command line in the form that works in this shell."""
    return shlex.join([_as_typed(program), *arguments])


def _as_typed(program: str) -> str:
    """Return the name of a program beside this Python, or its path if the shell finds another."""
    beside = Path(sys.executable).with_name(program)
    found = shutil.which(program)
    if found is not None and Path(found) == beside:
        return program
    return str(beside.relative_to(Path.cwd()) if beside.is_relative_to(Path.cwd()) else beside)
