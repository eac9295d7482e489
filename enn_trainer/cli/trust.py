"""Trust in code that a save names, and the command lines to type next, which name such code.

Code is trusted if it ships with the program or is on the command line.
"""

import json
import math
import shlex
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from enn_trainer.algorithms.optimizers import total_steps
from enn_trainer.config import EnvConfig, TrainConfig
from enn_trainer.config.eval_config import EvalEnvConfig
from enn_trainer.config.load import Names, load_config
from enn_trainer.errors import ConfigError
from enn_trainer.evaluation.bots import bots_named_in
from enn_trainer.experience.recording import run_folder
from enn_trainer.session import TrainResult
from enn_trainer.state import State
from enn_trainer.state_manager import StateManager
from enn_trainer.stop_conditions import Now, read_bound
from entity_env.errors import short_repr
from entity_env.examples import __name__ as EXAMPLES

TRUST = "--trust"


class NamedEnv(NamedTuple):
    """An environment as a configuration names it.

    Attributes:
        path: path of its section, such as `("eval", "env")`.
        id: its name.
        kwargs: its arguments.
    """

    path: Names
    id: str
    kwargs: Mapping[str, Any]


class UntrustedCode(NamedTuple):
    """Code that only a save names.

    Attributes:
        field: the setting that names it, such as `eval.env.id`.
        text: its name.
        is_argument: True if an argument of an environment names it.
    """

    field: str
    text: str
    is_argument: bool

    def refusal(self, save: Path, remedy: str) -> ConfigError:
        """Return the error for a command line that would run it.

        Args:
            save: path of the save.
            remedy: advice, as text.
        """
        expected, is_code = "an environment of `enn envs` or one named on the command line", "is"
        if self.is_argument:
            expected, is_code = "arguments without a colon, or given on the command line", "may be"
        got = f"{short_repr(self.text, 200)} from {save}"
        run = f"which {is_code} code that would be imported and run"
        return ConfigError(f"{self.field}: expected {expected}, got {got}, {run}; {remedy}")


def envs_named_in(config: TrainConfig) -> list[NamedEnv]:
    """Return each environment that a configuration names: of training, evaluation and suites."""
    base, evaluation = config.env, config.eval
    envs: dict[Names, EnvConfig | EvalEnvConfig | None] = {("env",): config.env}
    if evaluation is not None:
        envs["eval", "env"], base = evaluation.env, evaluation.env or base
        for name, suite in evaluation.suites.items():
            envs["eval", "suites", name, "env"] = suite.env
    return [
        NamedEnv(path, env.id or base.id, json.loads(env.kwargs))
        for path, env in envs.items()
        if env is not None
    ]


def names_code(env_id: str) -> bool:
    """Return True if an environment id names code that does not ship with this program."""
    module, colon, _ = env_id.rpartition(":")
    return bool(colon) and module != EXAMPLES


def find_untrusted(
    saved: Iterable[NamedEnv],
    typed_ids: Collection[str | None],
    typed_kwargs: Collection[Mapping[str, Any]],
) -> UntrustedCode | None:
    """Return the first code of a save that the command line does not name, or None without any.

    Nothing is imported: importing a module of a stranger already runs it.

    Args:
        saved: the environments that the save names.
        typed_ids: names of environments that the command line, or a file given there, names.
        typed_kwargs: arguments of environments from there.
    """
    for env in saved:
        if not names_code(env.id):
            continue
        field = ".".join(env.path)
        if env.id not in typed_ids:
            return UntrustedCode(f"{field}.id", env.id, is_argument=False)
        code = next(code_in(env.kwargs), None)
        if code is not None and env.kwargs not in typed_kwargs:
            return UntrustedCode(f"{field}.kwargs", code, is_argument=True)
    return None


def check_run(manager: StateManager, line: str) -> None:
    """Raise if a run continues from a save that names code which the command line does not.

    Args:
        manager: state manager of the run.
        line: the command line with `--trust`, for the message.

    Raises:
        ConfigError: there is such code; the message names the field, the code and what to type.
    """
    if manager.resumed_from is None:
        return
    named, sources = envs_named_in(manager.config), manager.sources
    ids = {env.id for env in named if sources.is_given((*env.path, "id"))}
    kwargs = [env.kwargs for env in named if sources.is_given((*env.path, "kwargs"))]
    if manager.init_path is not None and manager.init_path.is_file():
        given = envs_named_in(load_config(type(manager.config), manager.init_path))
        ids |= {env.id for env in given}
        kwargs += [env.kwargs for env in given]
    untrusted = find_untrusted(named, ids, kwargs)
    if untrusted is not None:
        again = f"give {untrusted.field}=... again; or, " if untrusted.is_argument else ""
        remedy = f"{again}if you trust the save, type: {line}"
        raise untrusted.refusal(manager.resumed_from.path, remedy)


def line_with_trust(program: str, arguments: Sequence[str]) -> str:
    """Return a command line with `--trust`, as it can be typed."""
    return shlex.join([*program.split(), TRUST, *arguments])


def code_in(value: object) -> Iterator[str]:
    """Yield texts that may name code, such as the id `module:Env-v0`, which imports a module."""
    if isinstance(value, str) and ":" in value:
        yield value
    elif isinstance(value, Mapping):
        yield from code_in(list(value.items()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from code_in(item)


def next_steps(result: TrainResult, manager: StateManager) -> str:
    """Return the commands to type after `enn train`, in the form that works in this shell."""
    run_dir, config = manager.checkpoint_dir, manager.config
    assert run_dir is not None
    resume = resume_command(run_dir, config, manager.state)
    if result.interrupted:
        return f"\nto continue:\n  {resume}"
    logs = run_folder(manager) or Path(config.data_dir, "runs")
    board = shell_command("tensorboard", "--logdir", str(logs))
    return "\n  ".join(["\nnext:", board, measure_command(run_dir, config), resume])


def measure_command(path: Path, config: TrainConfig) -> str:
    """Return the command that evaluates a save, or the newest save of a run."""
    env, naming = config.env, []
    if names_code(env.id):
        naming = [TRUST] if any(code_in(json.loads(env.kwargs))) else ["--env", env.id]
    return shell_command("enn", "eval", str(path), *naming)


def resume_command(
    path: Path, config: TrainConfig, reached: State | Now, in_place: bool = True
) -> str:
    """Return the command that continues a run, with raised bounds where it reached them.

    Args:
        path: folder of the run; or of the save from which a run in a new folder starts.
        config: configuration of the run.
        reached: step, time and metrics of the run.
        in_place: False for a run in a new folder.
    """
    where = ["resume", str(path)]
    if not in_place:
        where = ["train", "--resume-from", str(path)]
    named, naming = [env for env in envs_named_in(config) if names_code(env.id)], []
    if bots_named_in(config):
        naming = [TRUST]
    elif named:
        is_all = find_untrusted(named, {config.env.id}, []) is None
        naming = [f"env.id={config.env.id}"] if is_all else [TRUST]
    return shell_command("enn", *where, *naming, *raised_bounds(config, reached))


def raised_bounds(config: TrainConfig, reached: State | Now) -> list[str]:
    """Return settings that raise or remove each bound that the run has reached."""
    settings = []
    if reached.step >= total_steps(config):
        settings.append(f"total_timesteps={2 * max(config.total_timesteps, reached.step)}")
    limit = config.max_train_time
    if limit is not None and reached.time_used >= limit:
        settings.append(f"max_train_time={2 * max(limit, math.ceil(reached.time_used), 1)}")
    now = Now(reached.step, reached.time_used, reached.metrics, frozenset(), 0)
    open_bounds = [text for text in config.stop if not read_bound(text, "stop").is_met(now, {})]
    if len(open_bounds) < len(config.stop):
        settings.append(f"stop={json.dumps(open_bounds, ensure_ascii=False)}")
    return settings


def shell_command(program: str, *arguments: str) -> str:
    """Return a command line in the form that works in this shell.

    The program is one beside this Python: by its name, or by its path if the shell finds another.
    """
    beside, found = Path(sys.executable).with_name(program), shutil.which(program)
    if found is None or Path(found) != beside:
        is_below = beside.is_relative_to(Path.cwd())
        program = str(beside.relative_to(Path.cwd()) if is_below else beside)
    return shlex.join([program, *arguments])
