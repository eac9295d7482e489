"""The command `enn clone`."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from enn_trainer.algorithms.cloning.clone import CloneResult, clone
from enn_trainer.checkpoints.migrate.space_diff import space_differences
from enn_trainer.command import STOPPED_AT_ONCE, OneLineParser, failed
from enn_trainer.commands.load_world import make_world
from enn_trainer.commands.next_steps import resume_command
from enn_trainer.commands.trust import names_code
from enn_trainer.config import CloneRunConfig, EnvConfig
from enn_trainer.config.help import hps_info
from enn_trainer.config.load import load_with_sources
from enn_trainer.errors import CheckpointError, ConfigError, NotFiniteError
from enn_trainer.state import State
from entity_env.errors import EntityEnvError
from entity_env.examples import ENV_REGISTRY

_EPILOG = """\
Settings are those of enn train, for the network and for the run that continues from the clone, and
those that begin with clone. such as clone.epochs=5; --hps-info lists them.

examples:
  enn clone mine.rec env.id=Minefield --checkpoint-dir runs/mine
  enn train --checkpoint-dir runs/mine --resume"""


def clone_command(arguments: Sequence[str]) -> int:
    """Run `enn clone`: train a network to imitate recordings.

    Returns:
        0 after cloning, also if it was asked to stop; 1 if it fails or a recording is damaged; 2
        for a mistake in the arguments; 130 if it is interrupted while it reads, or twice.
    """
    options = _parser().parse_intermixed_args(arguments)
    if options.hps_info is not None:
        print(hps_info(CloneRunConfig, options.hps_info or None))
        return 0
    files = [a for a in options.arguments if "=" not in a or Path(a).is_file()]
    overrides = [a for a in options.arguments if a not in files]
    try:
        if options.checkpoint_dir is None:
            raise ConfigError("--checkpoint-dir: expected a folder to save the clone in, got none")
        if options.config and not options.config.is_file():
            raise ConfigError(f"--config: expected a configuration file, got {options.config}")
        config, _ = load_with_sources(
            CloneRunConfig, options.config, overrides, environment=os.environ
        )
        result = clone(files, config, options.checkpoint_dir)
    except (ConfigError, CheckpointError, EntityEnvError, NotFiniteError) as error:
        return failed(error)
    except KeyboardInterrupt:  # no code of an environment runs here
        print("interrupted; nothing was saved", file=sys.stderr)
        return STOPPED_AT_ONCE
    print(_summary(result, options.checkpoint_dir, config))
    return 0


def _summary(result: CloneResult, run_dir: Path, config: CloneRunConfig) -> str:
    """Return the result, and the commands to type next."""
    lines = [f"{'interrupted, ' if result.interrupted else ''}saved {result.checkpoint}"]
    if result.test is not None:
        lines.append(f"on episodes set apart: {result.test.in_words()}")
    lines += ["", "next:"]
    resume, env_id = resume_command(run_dir, config, result.state), config.env.id
    if _is_known_to_fit(config.env, result.state):
        return "\n".join([*lines, f"  {resume} env.id={env_id}"])
    lines.append(f"  {resume}" if names_code(env_id) else f"  {resume} env.id=...")
    lines.append(
        "env.id=... must name the world of the recordings there; it is not known whether "
        f"{env_id} is that"
    )
    return "\n".join(lines)


def _is_known_to_fit(env: EnvConfig, state: State) -> bool:
    """Return True if the environment is an example with the spaces of the recordings."""
    if env.id not in ENV_REGISTRY:
        return False
    try:
        world = make_world(env.id, json.loads(env.kwargs), "env.kwargs", "env.id")
    except (ConfigError, EntityEnvError):
        return False
    spaces = world.obs_space(), world.action_space()
    world.close()
    return not space_differences(state.obs_space, state.action_space, *spaces)


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="enn clone",
        description="Train a network to imitate recordings.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "arguments",
        nargs="*",
        metavar="RECORDING | FIELD=VALUE",
        help="files of one world, also of entity-gym; and settings, such as clone.loss=kl",
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="a configuration file (RON)")
    parser.add_argument(
        "--checkpoint-dir", type=Path, metavar="DIR", help="save the clone here; a new folder"
    )
    parser.add_argument(
        "--hps-info", nargs="?", const="", metavar="QUERY", help="list the settings, or search them"
    )
    return parser
