"""The command `enn envs`."""

import inspect
import json
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from enn_trainer.base.errors import ConfigError
from enn_trainer.base.tables import aligned, feature_texts, show_lines, show_table
from enn_trainer.cli.arguments import OneLineParser
from enn_trainer.cli.known_worlds import KNOWN_WORLDS, KnownWorld, without_facts
from enn_trainer.cli.load_world import load_world, make_any_world
from enn_trainer.cli.typed_settings import parse_kwargs
from enn_trainer.evaluation.eval_metrics import with_interval
from enn_trainer.evaluation.random_return import random_return
from enn_trainer.runtime.start_folder import paths_from
from enn_trainer.runtime.trust import TYPED
from entity_env.environment import Environment
from entity_env.examples import ENV_REGISTRY
from entity_env.match import Match
from entity_env.vec.vec_env import VecEnv

RANDOM_EPISODES = 100
RANDOM_SECONDS = 20.0

_EPILOG = """\
Frames, minutes and returns of training were measured with the settings of each environment, on one
core. This command measures the return of random play.

examples:
  enn envs
  enn envs TreasureHunt
  enn envs orchard.py:Orchard trees=9"""


def parser() -> OneLineParser:
    """Return the parser of `enn envs`."""
    description = "List the built-in environments, or describe one of them or one of yours."
    parser = OneLineParser(prog="enn envs", description=description, epilog=_EPILOG)
    parser.world(required=False)
    parser.flag("--json", "print JSON")
    return parser


def envs_command(arguments: Sequence[str]) -> None:
    """Run `enn envs`: list the built-in environments, or describe one.

    Raises:
        ConfigError: the environment does not exist, or does not accept the arguments.
    """
    options = parser().parse_intermixed_args(arguments)
    typed, console = [*options.kwargs, *options.env_kwargs], Console()
    if options.env is None:
        if typed:
            raise ConfigError(f"ENV: expected an environment before {typed[0]}, got none")
        worlds = [
            facts(KNOWN_WORLDS.get(name, without_facts(name)), create())
            for name, create in ENV_REGISTRY.items()
        ]
        if options.json:
            print(json.dumps(worlds))
        else:
            _show_list(worlds, console)
        return
    with paths_from(Path.cwd()):
        description = describe(options.env, typed)
    text = json.dumps(description) if options.json else as_text(description)
    show_lines(text.splitlines(), console)


def facts(known_world: KnownWorld | None, world: Environment | Match | VecEnv) -> dict[str, Any]:
    """Return the facts and spaces of an environment as plain data for JSON."""
    obs_space, actions = world.obs_space(), world.action_space()
    return {
        **(known_world._asdict() if known_world else {}),
        "global_features": feature_texts(obs_space.global_entity),
        "entities": {name: feature_texts(entity) for name, entity in obs_space.entities.items()},
        "actions": {
            name: {"kind": a.kind, "labels": list(a.labels)}
            | ({"bounds": a.bounds_by_name()} if a.components else {})
            for name, a in actions.items()
        },
    }


def describe(name: str, typed: Sequence[str]) -> dict[str, Any]:
    """Describe an environment as plain data, with the return of random play.

    Args:
        name: name of the environment.
        typed: arguments of the environment; the arguments of its settings if empty.

    Raises:
        ConfigError: the environment does not exist, or does not accept the arguments.
    """
    # The facts hold only for the arguments of the settings.
    known_world = None if typed else KNOWN_WORLDS.get(name)
    kwargs = known_world.kwargs if known_world else parse_kwargs(typed, "KEY=VALUE")
    create_world = load_world(name, kwargs, "KEY=VALUE", trust=TYPED)
    with closing(make_any_world(name, kwargs, "KEY=VALUE", trust=TYPED)) as world:
        env_facts = facts(known_world, world)
    played = random_return(create_world, RANDOM_EPISODES, RANDOM_SECONDS)
    return {
        **env_facts,
        "name": name,
        "kwargs": kwargs,
        "rules": inspect.cleandoc(vars(type(world)).get("__doc__") or ""),
        "return_random": None if played is None else with_interval(played),
        "type": _next_commands(name, kwargs, known_world is not None, isinstance(world, VecEnv)),
    }


def as_text(description: Mapping[str, Any]) -> str:
    """Format the description of an environment."""
    info = SimpleNamespace(**{"config": "", "learnt": None, "best": None, **description})
    kwargs = ", ".join(f"{name}={json.dumps(value)}" for name, value in info.kwargs.items())
    lines = [f"{info.name}({kwargs})" if kwargs else info.name, ""]
    lines += [info.rules, ""] if info.rules else []

    # Spaces.
    features = {"global": info.global_features} if info.global_features else {}
    features |= info.entities
    rows = [[f"  {name}", ", ".join(names) or "-"] for name, names in features.items()]
    lines += ["entities and their features", *aligned(rows), ""]
    actions = info.actions.items()
    rows = [[f"  {n}", a["kind"], ", ".join(a["labels"]) or "an entity"] for n, a in actions]
    lines += ["actions", *aligned(rows), ""]

    # Returns and settings.
    limit = f"not measured, as {RANDOM_EPISODES} episodes take over {RANDOM_SECONDS:.0f} s"
    rows = [["  random play", info.return_random or limit]]
    if info.learnt is not None:
        reached = f"{info.learnt:g} {info.measure}".strip()
        rows += [["  learnt", f"{reached} after {info.frames:,} frames, {info.minutes:g} minutes"]]
    if info.best is not None:
        rows += [["  best possible", f"{info.best:g}"]]
    lines += ["mean return", *aligned(rows), ""]
    lines += [f"settings: configs/{info.config}.ron", ""] if info.config else []
    return "\n".join([*lines, "type", *(f"  {line}" for line in info.type)])


def _next_commands(
    name: str, kwargs: Mapping[str, Any], is_known: bool, is_vectorised: bool
) -> list[str]:
    """Return command lines to type for an environment, with its arguments if needed."""
    pairs = [f"{argument}={json.dumps(value)}" for argument, value in kwargs.items()]
    settings = [f"env.kwargs={json.dumps(kwargs)}"] if kwargs and not is_known else []
    lines = [["train", name, *settings], ["play", name, *pairs], ["check", name, *pairs]]
    num = 1 if is_vectorised else 2 if is_known else 3
    return [shlex.join(["enn", *line]) for line in lines[:num]]


def _show_list(worlds: Sequence[Mapping[str, Any]], console: Console) -> None:
    rows = []
    for world in worlds:
        info = SimpleNamespace(**world)
        row = [info.name, ", ".join(info.entities) or "-", ", ".join(info.actions)]
        numbers = ["-", "-", "-"]
        if info.learnt is not None:
            learnt = f"{info.learnt:.2f} {info.measure or f'of {info.best}'}"
            numbers = [f"{info.frames:,}", str(info.minutes), learnt]
        rows.append([*row, info.teaches, *numbers])
    columns = ("world", "entities", "actions", "teaches", "frames", "minutes", "return")
    show_table(columns, rows, console, num_left=4)
    print("Run enn envs ENV to describe one.")
