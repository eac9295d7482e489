"""Export of an agent for onnxruntime."""

import argparse
import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from functools import partial

from enn_trainer.base.errors import ConfigError
from enn_trainer.checkpoints.saved_run import SavedRun, read_model, read_saved_run
from enn_trainer.checkpoints.weights import names_of_custom
from enn_trainer.cli.load_world import trusted_envs
from enn_trainer.cli.trust import check_trusted
from enn_trainer.cli.typed_settings import parse_kwargs
from enn_trainer.config.eval_config import EvalEnvConfig, with_env
from enn_trainer.experience.envs import sides_of
from enn_trainer.export.export import check_folder, export_model
from enn_trainer.export.frames import NUM_FRAMES
from enn_trainer.runtime.trust import names_code
from entity_env.errors import EntityEnvError
from entity_env.spaces import Spaces
from entity_env.vec.vec_env import VecEnv
from rogue_net.space_diff import diff_spaces


def export(options: argparse.Namespace) -> None:
    """Write an agent, and print what was written."""
    check_folder(options.to)
    where, model = read_model(options.checkpoint)
    is_custom = bool(names_of_custom(model.weights))
    if is_custom:
        result = export_model(model, None, options.to)
    else:
        saved = read_saved_run(where)
        create_envs, frames = _environments(saved, options)
        result = export_model(model, saved.agent, options.to, create_envs, options.opset)
    size = sum(result.files.values()) / 1e3
    print(f"{result.folder}: {', '.join(result.files)}, {size:,.0f} kB, step {model.step}")
    if is_custom:
        print("a custom network: only its weights are exported")
    else:
        print(f"onnxruntime equals PyTorch within {result.difference:.1g} in {frames}")
        print(f"next: pip install onnxruntime numpy && python {result.folder / 'play.py'}")


def _environments(
    saved: SavedRun, options: argparse.Namespace
) -> tuple[Callable[[int], VecEnv] | None, str]:
    """Return a factory of environments for frames, or None; and the name of the frames.

    Frames are random if the checkpoint names code that the user does not, or another version of the
    environment.
    """
    kwargs = json.dumps(parse_kwargs(options.env_kwargs, "--env-kwargs"))
    env = with_env(replace(saved.config.env, vary={}), EvalEnvConfig(kwargs, options.env))
    is_typed = options.env is not None or options.trust
    if not is_typed and names_code(env.id):
        return None, f"{NUM_FRAMES} random frames; --env names the environment"
    trust = check_trusted(saved, replace(saved.config, env=env), options)
    make = partial(trusted_envs(trust), env)
    try:
        sides = sides_of(make, 1)
        with closing(make(sides, 1, 0)) as envs:
            spaces = Spaces.of(envs)
    except (ConfigError, EntityEnvError):
        if is_typed:
            raise
        return None, f"{NUM_FRAMES} random frames, as its environment cannot be created"
    diff = diff_spaces(saved.spaces, spaces)
    if differences := [*diff.changed, *diff.reordered, *diff.reordered_labels]:
        if is_typed:
            raise ConfigError(
                f"--env: {env.id} is not the environment of the agent: {'; '.join(differences)}; "
                "for a changed environment, upgrade the checkpoint first: enn checkpoints evolve"
            )
        return None, f"{NUM_FRAMES} random frames, as {env.id} has changed"
    return lambda n: make(n + -n % sides, 1, 0), f"{NUM_FRAMES} frames of {env.id}"
