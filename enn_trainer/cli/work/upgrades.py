"""Upgrades of checkpoints, and comparison of checkpoints with environments."""

import argparse
import contextlib
import itertools
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from enn_trainer.base.errors import ConfigError
from enn_trainer.checkpoints.lookup import find
from enn_trainer.checkpoints.migrate.config_diff import changes, renamed_config
from enn_trainer.checkpoints.migrate.evolve import EvolvedRun, evolve, upgrade_checkpoint
from enn_trainer.checkpoints.migrate.evolve_rules import Rules, read_renames
from enn_trainer.checkpoints.named_code import NamedEnv
from enn_trainer.checkpoints.saved_run import read_saved_run
from enn_trainer.checkpoints.saved_state import read_config, read_lessons, read_state
from enn_trainer.checkpoints.state_manager import load_checkpoint
from enn_trainer.cli.arguments import renames
from enn_trainer.cli.load_world import envs_by_id, make_any_world
from enn_trainer.cli.trust import resume_command
from enn_trainer.cli.typed_settings import parse_kwargs
from enn_trainer.config import EnvConfig, TrainConfig
from enn_trainer.config.eval_config import all_suites, suite_path
from enn_trainer.config.load import dump_config, load_with_sources
from enn_trainer.curriculum.lessons import Groups, Lessons
from enn_trainer.run.curriculum import check_varied
from enn_trainer.runtime.start_folder import located
from enn_trainer.runtime.trust import TYPED, NamedCode, Trust
from entity_env.match import Match
from entity_env.spaces import Spaces
from entity_env.vec.variation import read_samplers
from rogue_net.space_diff import SpaceDiff, diff_spaces


def evolve_save(options: argparse.Namespace) -> None:
    """Upgrade a checkpoint to a changed environment, save it and print a report."""
    saved, folder = find(options.path), Path.cwd()
    before, state = read_config(saved), read_state(saved)
    varied = read_lessons(saved).names(before)
    eval_arguments = [name for _, suite in _evaluations(before) for name in suite.env.vary]
    arguments = [*dict.fromkeys([*varied, *eval_arguments])]
    old_spaces = Spaces(state["obs_space"], state["action_space"])
    rules, spaces = _new_environment(options, old_spaces, arguments)
    # The environment may have changed the working directory.
    saved = replace(saved, path=located(saved.path, folder))
    if len({rules.new("parameter", name) for name in varied}) < len(varied):
        raise ConfigError(f"rename: expected distinct new names for {', '.join(varied)}")
    initial = renamed_config(before, rules, old_spaces.obs_space, spaces)
    kwargs = parse_kwargs(options.env_kwargs, "--env-kwargs")
    _evaluate_in(initial, options.env)
    initial.env.id, initial.env.kwargs = options.env, json.dumps(kwargs)
    source = f"checkpoint {saved.path}"
    config, _ = load_with_sources(
        TrainConfig, None, options.overrides, dump_config(initial), os.environ, source
    )
    evolved = evolve(saved, spaces.obs_space, spaces.action_space, config, rules)
    _check_arguments(evolved)
    written = evolved.save(located(options.to, folder))
    print(evolved.report)
    for change in changes(before, evolved.config):
        print(f"setting: {change}")
    resume = resume_command(options.to, evolved.config, evolved.state)
    print(f"saved {written.path}; to continue: {resume}")


def environment_diff(options: argparse.Namespace) -> SpaceDiff:
    """Return the differences between the spaces of a save and of an environment."""
    spaces_of_save = read_saved_run(options.path).spaces
    rules, spaces = _new_environment(options, spaces_of_save)
    renamed = rules.spaces(spaces_of_save)
    rules.check_new_names(spaces)
    return diff_spaces(renamed, spaces)


def _new_environment(
    options: argparse.Namespace, spaces: Spaces, arguments: Sequence[str] = ()
) -> tuple[Rules, Spaces]:
    """Return the upgrade rules of the options, and the spaces of the new environment."""
    renamed = read_renames(renames(options), spaces, arguments)
    rules = Rules(renamed, options.new_label_prob)
    kwargs = parse_kwargs(options.env_kwargs, "--env-kwargs")
    world = make_any_world(options.env, kwargs, "--env-kwargs", trust=TYPED)
    with contextlib.closing(world):
        return rules, Spaces.of(world)


def _evaluations(config: TrainConfig) -> list[tuple[str, Any]]:
    """Return the evaluations of a configuration by name, see `all_suites`; [] without `eval`."""
    return [] if config.eval is None else [*all_suites(config.eval, config.env)]


def _evaluate_in(config: TrainConfig, env_id: str) -> None:
    """Replace the environment in all evaluations that use the environment of rollouts."""
    if config.eval is None:
        return
    for env in (config.eval.env, *(suite.env for suite in config.eval.suites.values())):
        if env is not None and env.id == config.env.id:
            env.id = env_id


def _check_arguments(evolved: EvolvedRun) -> None:
    """Match the curriculum stages by name, and raise if an environment rejects an argument."""
    config, lessons = evolved.config, evolved.state.part(Lessons)
    assert lessons is not None
    for message in lessons.arrange(config.curricula, evolved.state.step):
        print(message)
    all_lessons = {name: one.all_lessons() for name, one in config.curricula.items()}
    varied = [(config.env, lessons.groups(config, all_lessons))]
    for name, suite in _evaluations(config):
        field = f"eval.{f'{suite_path(name)}.' if name else ''}env.vary"
        samplers = read_samplers(suite.env.vary, field)
        varied.append((suite.env, {field: [(1.0, samplers)]} if samplers else {}))
    typed = NamedEnv(("env",), config.env.id, json.loads(config.env.kwargs))
    trust = Trust(frozenset(code.key for code in typed.code()))
    for env, groups in varied:
        kwargs = json.loads(env.kwargs)
        # Code that only the save names is not run: the user has to trust the run first.
        if not groups or trust.find_untrusted(_code_of(env, groups)):
            continue
        world = make_any_world(env.id, kwargs, "--env-kwargs", trust=trust)
        with contextlib.closing(world):
            sides = world.num_sides if isinstance(world, Match) else 1
        with contextlib.closing(envs_by_id(env, sides, 1, 0, trust)) as envs:
            check_varied(envs, groups)


def _code_of(env: EnvConfig, groups: Groups) -> Iterator[NamedCode]:
    """Yield the code named by an environment, once for each set of varied arguments."""
    for _, samplers in itertools.chain.from_iterable(groups.values()):
        vary = {name: sampler.text for name, sampler in samplers.items()}
        yield from NamedEnv(("env",), env.id, json.loads(env.kwargs), vary).code()


def upgrade_save(options: argparse.Namespace) -> None:
    """Write a save of an older version in the current format."""
    saved = upgrade_checkpoint(options.path, options.to)
    manager = load_checkpoint(saved.path)
    resume = resume_command(options.to, manager.config, manager.state)
    print(f"saved {saved.path}; to continue: {resume}")
