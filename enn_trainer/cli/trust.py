"""Trust in code that a save names, and command lines that name such code."""

import argparse
import json
import math
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from enn_trainer.checkpoints.lookup import members_of
from enn_trainer.checkpoints.named_code import (
    NamedEnv,
    code_in_config,
    code_of_members,
    code_of_ray,
    keys_of_bots,
)
from enn_trainer.cli.arguments import TRUST
from enn_trainer.cli.typed_settings import parse_kwargs
from enn_trainer.config import TrainConfig
from enn_trainer.config.schedules import total_steps
from enn_trainer.runtime.trust import (
    TYPED,
    Key,
    NamedCode,
    Trust,
    names_code,
    refusal,
    texts_of_code,
)
from enn_trainer.selfplay.league import POOL, POOL_SUFFIX, League, Member
from enn_trainer.stop_conditions import Now, read_bound

if TYPE_CHECKING:
    from enn_trainer.checkpoints.saved_run import SavedRun
    from enn_trainer.checkpoints.state import State


def check_trusted(
    saved: "SavedRun",
    config: TrainConfig,
    options: argparse.Namespace,
    players: Sequence[str] = (),
    is_trained: bool = False,
) -> Trust:
    """Check that the command runs no code that only the save names.

    Args:
        saved: the save.
        config: configuration of the run with the environment of the command line.
        options: options of the command.
        players: further typed paths and names of players.
        is_trained: True if the command trains with the settings of the save.

    Returns:
        The trust in code that saves name.

    Raises:
        CheckpointError: a save of a pool cannot be read.
        ConfigError: the command would run code that is not trusted.
    """
    # Name and arguments of the environment; another environment does not get the saved arguments.
    source, trained, kwargs = str(saved.path), saved.config.env, dict[str, Any]()
    opponent = getattr(options, "opponent", None)
    typed = parse_kwargs(options.env_kwargs, "--env-kwargs")
    if config.env.id == trained.id:
        kwargs = {n: value for n, value in json.loads(trained.kwargs).items() if n not in typed}
    trust = _typed_trust(options, [opponent, *players], typed)
    vary = config.env.vary if is_trained else {}
    code = trust.find_untrusted(NamedEnv(("env",), config.env.id, kwargs, vary).code(source))
    if code is not None:
        remedy = trust.advice
        names = [name for name, value in kwargs.items() if any(texts_of_code({name: value}))]
        if options.env is None:
            remedy += "; if it was trained in your own environment, name it with --env"
        elif names and all(
            map(str.isidentifier, names)
        ):  # `--env-kwargs` gives no argument another name
            remedy = f"give --env-kwargs {','.join(f'{name}=...' for name in names)}; or, {remedy}"
        raise refusal(code, remedy)

    # Opponents in the state, and code that is sent to hosts of a cluster.
    if opponent == POOL:  # read with the save, because a running run may delete the save
        trust.check(code_of_members(saved.pool or (), f"{saved.path}{POOL_SUFFIX}"))
    _check_players(players, trust)
    if is_trained or getattr(options, "ray", None) is not None:
        codes = code_of_ray(config, source)
        trust.check(code for code in codes if is_trained or code.kind != "ray")
    return trust


def _typed_trust(
    options: argparse.Namespace, players: Iterable[str | None], kwargs: Mapping[str, Any]
) -> Trust:
    """Return the trust of a command in code that its saves name: the code that the user typed.

    Args:
        options: options of the command; `line` is the command line with `--trust`.
        players: typed paths and names of players.
        kwargs: typed arguments of the environment.
    """
    if options.trust:
        return TYPED
    keys: set[Key] = {*keys_of_bots(players)}
    keys |= {("argument", text) for text in texts_of_code(kwargs)}
    if options.env is not None:
        keys.add(("environment", options.env))
    return Trust(frozenset(keys), advice=f"if you trust the save, type: {options.line}")


def _check_players(players: Iterable[str | None], trust: Trust) -> None:
    """Raise if the pools of players contain bots that are not trusted.

    Args:
        players: paths and names; RUN@opponents is the pool of a run.
        trust: code that may run.

    Raises:
        CheckpointError: the save does not exist, or has no pool.
        ConfigError: a bot is not trusted.
    """
    for player in players:
        if player is not None and player.endswith(POOL_SUFFIX) and not trust.is_complete:
            trust.check(code_of_members(members_of(Path(player)), player))


def next_steps(
    run_dir: Path, config: TrainConfig, lines: Sequence[str], env: str | None = None
) -> str:
    """Return the commands to type after training, which watch, evaluate and continue the run.

    Args:
        run_dir: folder of the run.
        config: configuration of the run.
        lines: command that continues the run, and further ones.
        env: environment to name; None for the environment of the configuration.
    """
    naming = "" if env is None else f" --env {env}"
    playing = [f"{measure_command(run_dir, config, name)}{naming}" for name in ("watch", "eval")]
    return "\n  ".join(["\nnext:", *playing, *lines])


def measure_command(path: Path, config: TrainConfig, name: str = "eval") -> str:
    """Return the command line that evaluates or watches a save, or the newest save of a run."""
    env, naming = config.env, []
    if names_code(env.id):
        naming = [TRUST] if any(texts_of_code(json.loads(env.kwargs))) else ["--env", env.id]
    if name == "eval" and config.selfplay is not None:
        naming += ["--opponent", "random"]
    return shell_command("enn", name, str(path), *naming)


def resume_command(
    path: Path,
    config: TrainConfig,
    reached: "State | Now",
    in_place: bool = True,
    members: Sequence[Member] = (),
) -> str:
    """Return the command line that continues a run, and raises the bounds that it has reached.

    Args:
        path: folder of the run, or of the save to start a new run from.
        config: configuration of the run.
        reached: step, time and metrics of the run.
        in_place: False for a run in a new folder.
        members: pool members, if `reached` is not the state of the run.
    """
    where = ["resume", str(path)]
    if not in_place:
        where = ["train", "--resume-from", str(path)]
    league = None if isinstance(reached, Now) else reached.part(League)
    if league is not None:
        members = league.members
    named, naming = code_in_config(config), list[str]()
    if config.selfplay is not None:
        named += code_of_members(members, str(path))
    if named:
        env = NamedCode("environment", config.env.id, ("env", "id"))
        is_all = all(code.key == env.key for code in named)
        naming = [f"env.id={config.env.id}"] if is_all else [TRUST]
    return shell_command("enn", *where, *naming, *raised_bounds(config, reached))


def raised_bounds(config: TrainConfig, reached: "State | Now") -> list[str]:
    """Return settings that raise or remove the bounds that a run has reached."""
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
    """Return a command line in a form that works in this shell.

    The program is installed with this Python; it is named by its path if the name finds another.
    """
    sibling, on_path = Path(sys.executable).with_name(program), shutil.which(program)
    if on_path is None or Path(on_path) != sibling:
        is_below = sibling.is_relative_to(Path.cwd())
        program = str(sibling.relative_to(Path.cwd()) if is_below else sibling)
    return shlex.join([program, *arguments])
