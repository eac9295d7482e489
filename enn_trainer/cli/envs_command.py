"""The command `enn envs`."""

import inspect
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from enn_trainer.cli.arguments import OneLineParser
from enn_trainer.cli.known_worlds import KNOWN_WORLDS, KnownWorld
from enn_trainer.cli.load_world import load_world, make_any_world, parse_kwargs
from enn_trainer.errors import ConfigError
from enn_trainer.evaluation.eval_metrics import with_interval
from enn_trainer.evaluation.random_return import random_return
from enn_trainer.runtime.start_folder import paths_from
from enn_trainer.tables import aligned, printable, show_table
from entity_env.environment import Environment
from entity_env.examples import ENV_REGISTRY
from entity_env.match import Match
from entity_env.vec.vec_env import VecEnv

RANDOM_EPISODES = 100
RANDOM_SECONDS = 20.0

_EPILOG = """\
Frames, minutes and returns of training are those measured with the settings of each world, on one
core. The return of random play is measured by this command.

examples:
  enn envs
  enn envs TreasureHunt
  enn envs orchard.py:Orchard trees=9"""


def parser() -> OneLineParser:
    """Return the parser of `enn envs`."""
    about = "List the worlds that ship with this program, or describe one of these or of yours."
    parser = OneLineParser(prog="enn envs", description=about, epilog=_EPILOG)
    parser.world(required=False)
    parser.flag("--json", "print JSON")
    return parser


def envs_command(arguments: Sequence[str]) -> None:
    """Run `enn envs`: list the worlds that ship with this program, or describe one.

    Raises:
        ConfigError: there is no such world, or it does not take the arguments.
    """
    options = parser().parse_intermixed_args(arguments)
    typed = [*options.kwargs, *options.env_kwargs]
    console = Console()

    # The list.
    if options.env is None:
        if typed:
            raise ConfigError(f"ENV: expected the name of a world before {typed[0]}, got none")
        known = list(KNOWN_WORLDS.values())
        if options.json:
            print(json.dumps([facts(world, ENV_REGISTRY[world.name]()) for world in known]))
        else:
            _show_list(known, console)
        return

    # One world.
    with paths_from(Path.cwd()):
        description = describe(options.env, typed)
    text = json.dumps(description) if options.json else as_text(description)
    for line in text.splitlines():
        console.out(printable(line, console.encoding), highlight=False)


def facts(known: KnownWorld, world: Environment | Match | VecEnv) -> dict[str, Any]:
    """Return known facts and spaces of a world as plain data for JSON."""
    measured = known.frames != ""
    return {
        "name": known.name,
        "teaches": known.teaches,
        **spaces(world),
        "settings": f"configs/{known.config}.ron" if known.config else None,
        "frames": int(known.frames) if measured else None,
        "minutes": float(known.minutes) if measured else None,
        "learnt": float(known.learnt) if measured else None,
        "learnt_measure": known.measure or "return",
        "return_best": float(known.best),
    }


def spaces(world: Environment | Match | VecEnv) -> dict[str, Any]:
    """Return the spaces of a world as plain data: features by type, kind and labels by action."""
    obs_space, actions = world.obs_space(), world.action_space()
    return {
        "global_features": list(obs_space.global_features),
        "entities": {name: list(entity.features) for name, entity in obs_space.entities.items()},
        "actions": {
            name: {"kind": a.kind, "labels": list(a.labels)} for name, a in actions.items()
        },
    }


def describe(name: str, typed: Sequence[str]) -> dict[str, Any]:
    """Return the description of a world as plain data, after playing at random in it.

    Args:
        name: name of the world.
        typed: its arguments; without any, those of its settings.

    Raises:
        ConfigError: there is no such world, or it does not take the arguments.
    """
    # The known facts are not those of other arguments.
    known = None if typed else KNOWN_WORLDS.get(name)
    kwargs = parse_kwargs((known.kwargs if known else typed) or (), "KEY=VALUE")
    create_world = load_world(name, kwargs, "KEY=VALUE")
    world = make_any_world(name, kwargs, "KEY=VALUE")
    doc = vars(type(world)).get("__doc__") or ""
    of_world = spaces(world) if known is None else facts(known, world)
    world.close()
    played = random_return(create_world, RANDOM_EPISODES, RANDOM_SECONDS)
    return {
        **of_world,
        "name": name,
        "kwargs": kwargs,
        "rules": inspect.cleandoc(doc),
        "return_random": None if played is None else with_interval(played),
        "type": _lines_to_type(name, kwargs, known, isinstance(world, VecEnv)),
    }


def as_text(description: Mapping[str, Any]) -> str:
    """Return the description of a world as text."""
    kwargs = ", ".join(
        f"{name}={json.dumps(value)}" for name, value in description["kwargs"].items()
    )
    title = f"{description['name']}({kwargs})" if kwargs else description["name"]
    rules = description["rules"].splitlines()
    lines = [title, "", *rules, *([""] if rules else [])]

    # Spaces.
    features = {"global": description["global_features"], **description["entities"]}
    rows = [[f"  {name}", ", ".join(names) or "-"] for name, names in features.items()]
    lines += ["entities and their features", *aligned(rows if rows[0][1] != "-" else rows[1:]), ""]
    actions = description["actions"].items()
    rows = [[f"  {n}", a["kind"], ", ".join(a["labels"]) or "an entity"] for n, a in actions]
    lines += ["actions", *aligned(rows), ""]

    # Returns and settings.
    limit = f"not measured, as {RANDOM_EPISODES} episodes take over {RANDOM_SECONDS:.0f} s"
    rows = [["  random play", description["return_random"] or limit]]
    if description.get("learnt") is not None:
        measure = description["learnt_measure"].removeprefix("return")
        cost = f"after {description['frames']:,} frames, {description['minutes']:g} minutes"
        rows.append(["  learnt", " ".join(f"{description['learnt']:g} {measure} {cost}".split())])
    if "return_best" in description:
        rows.append(["  best possible", f"{description['return_best']:g}"])
    lines += ["mean return", *aligned(rows), ""]
    if description.get("settings"):
        lines += [f"settings: {description['settings']}", ""]
    return "\n".join([*lines, "type", *(f"  {line}" for line in description["type"])])


def _lines_to_type(
    name: str, kwargs: Mapping[str, Any], known: KnownWorld | None, is_vectorised: bool
) -> list[str]:
    """Return command lines to type for a world, with its arguments where they are needed."""
    pairs = [f"{argument}={json.dumps(value)}" for argument, value in kwargs.items()]
    settings = [f"env.kwargs={json.dumps(kwargs)}"] if kwargs and not known else []
    train, play, check = (["enn", command, name] for command in ("train", "play", "check"))
    train, play, check = train + settings, play + pairs, check + pairs
    lines = [train] if is_vectorised else [train, play] if known else [train, play, check]
    return [shlex.join(line) for line in lines]


def _show_list(known: Sequence[KnownWorld], console: Console) -> None:
    rows = []
    for world in known:
        plain = ENV_REGISTRY[world.name]()
        entities, actions = plain.obs_space().entities, plain.action_space()
        frames = f"{int(world.frames):,}" if world.frames else "-"
        learnt = f"{float(world.learnt or 0):.2f} {world.measure or f'of {world.best}'}"
        cells = ", ".join(entities) or "-", ", ".join(actions), world.teaches
        rows.append(
            [world.name, *cells, frames, world.minutes or "-", learnt if world.learnt else "-"]
        )
    columns = ("world", "entities", "actions", "teaches", "frames", "minutes", "return")
    show_table(columns, rows, console, num_left=4)
    print("enn envs ENV tells more of one.")
