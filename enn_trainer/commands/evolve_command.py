"""`enn checkpoints diff` and `enn checkpoints evolve`: saves whose environment has changed."""

import argparse
import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.migrate.config_diff import changes, renamed_config
from enn_trainer.checkpoints.migrate.evolve import evolve
from enn_trainer.checkpoints.migrate.evolve_rules import Rules, read_renames, rename_lines
from enn_trainer.checkpoints.migrate.space_diff import diff_spaces
from enn_trainer.checkpoints.saved_run import read_saved_run
from enn_trainer.checkpoints.saved_state import read_config, read_state
from enn_trainer.command import add_rename_arguments
from enn_trainer.commands.load_world import make_any_world, parse_kwargs
from enn_trainer.commands.next_steps import resume_command
from enn_trainer.config import TrainConfig
from enn_trainer.config.load import dump_config, load_with_sources
from enn_trainer.start_folder import located
from entity_env.spaces import ActionSpace, ObsSpace

DIFFERENT = 1


def add_diff_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `enn checkpoints diff` for environments."""
    _add_world(parser, required=False)


def add_evolve_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `enn checkpoints evolve`."""
    parser.add_argument("one", type=Path, metavar="SAVE")
    _add_world(parser, required=True)
    parser.add_argument(
        "--to", type=Path, required=True, metavar="RUN", help="the folder of the new run"
    )
    parser.add_argument(
        "--new-label-prob",
        type=float,
        default=Rules().new_label_prob,
        metavar="P",
        help="maximal total probability of the labels that are added to an action",
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        nargs="*",
        default=[],
        metavar="FIELD=VALUE",
        help="settings of the new run, such as net.n_layer=3",
    )


def diff_world(options: argparse.Namespace) -> int:
    """Print the differences between an environment and that of a save.

    Args:
        options: parsed arguments of `add_diff_arguments`.

    Returns:
        0 if names have another order at most, else 1.

    Raises:
        CheckpointError, ConfigError, EntityEnvError: the save or the environment cannot be used.
    """
    saved = read_saved_run(options.one)
    rules = _rules(options, saved.obs_space, saved.action_space)
    renamed, spaces = rules.spaces(saved.obs_space, saved.action_space), _spaces(options)
    rules.check_known(*spaces)
    diff = diff_spaces(*renamed, *spaces)
    print(diff)
    return DIFFERENT if diff.changed else 0


def evolve_command(options: argparse.Namespace) -> int:
    """Save a checkpoint that is upgraded to an environment, and print a report.

    Args:
        options: parsed arguments of `add_evolve_arguments`.

    Returns:
        0.

    Raises:
        CheckpointError, ConfigError, EntityEnvError: the save or the environment cannot be used.
    """
    saved, folder = find(options.one), Path.cwd()
    before, state = read_config(saved), read_state(saved)
    rules = _rules(options, state["obs_space"], state["action_space"])
    spaces = _spaces(options)
    # The environment may have changed the working directory.
    saved = replace(saved, path=located(saved.path, folder))
    begun = renamed_config(before, rules, state["obs_space"], *spaces)
    begun.env.id, begun.env.kwargs = options.env, json.dumps(_env_kwargs(options))
    config, _ = load_with_sources(
        TrainConfig,
        None,
        options.overrides,
        text=dump_config(begun),
        environment=os.environ,
        text_source=f"checkpoint {saved.path}",
    )
    evolved = evolve(saved, *spaces, config, rules)
    written = evolved.save(located(options.to, folder))
    print(evolved.report)
    for change in changes(before, config):
        print(f"setting: {change}")
    resume = resume_command(options.to, evolved.config, evolved.state)
    print(f"saved {written.path}; to continue: {resume}")
    return 0


def _add_world(parser: argparse.ArgumentParser, required: bool) -> None:
    parser.add_argument(
        "--env",
        required=required,
        metavar="ENV",
        help="the new world: file.py:Name, package.module:Name, or one of `enn envs`",
    )
    parser.add_argument(
        "--env-kwargs", nargs="*", default=[], metavar="KEY=VALUE", help="arguments of ENV"
    )
    add_rename_arguments(parser)


def _rules(
    options: argparse.Namespace, obs_space: ObsSpace, action_space: dict[str, ActionSpace]
) -> Rules:
    lines = rename_lines(options.rename_file) if options.rename_file else []
    renamed = read_renames([*options.rename, *lines], obs_space, action_space)
    prob = getattr(options, "new_label_prob", Rules().new_label_prob)
    return Rules(renamed, prob)


def _spaces(options: argparse.Namespace) -> tuple[ObsSpace, dict[str, ActionSpace]]:
    world = make_any_world(options.env, _env_kwargs(options), "--env-kwargs")
    try:
        return world.obs_space(), dict(world.action_space())
    finally:
        world.close()


def _env_kwargs(options: argparse.Namespace) -> dict[str, Any]:
    return parse_kwargs(options.env_kwargs, "--env-kwargs")
