"""The command `enn clone`."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from enn_trainer.base.errors import ConfigError
from enn_trainer.cli.arguments import OneLineParser
from enn_trainer.cli.trust import next_steps, resume_command
from enn_trainer.cli.typed_settings import parse_typed
from enn_trainer.config import CloneRunConfig, EnvConfig
from enn_trainer.config.help import hps_info
from enn_trainer.config.load import load_with_sources
from enn_trainer.config.shipped import find_config
from enn_trainer.runtime.interrupt import ended_by, interrupted_status
from enn_trainer.runtime.trust import TYPED, names_code
from entity_env.errors import EntityEnvError
from entity_env.examples import ENV_REGISTRY
from entity_env.spaces import Spaces
from rogue_net.space_diff import diff_spaces

if TYPE_CHECKING:
    from enn_trainer.checkpoints.state import State
    from enn_trainer.run.clone import CloneResult

_EPILOG = """\
Settings are the settings of enn train, for the network and for the run that continues from the
clone, and the settings of cloning, such as clone.epochs=5; --hps-info lists them.

examples:
  enn clone mine.rec env.id=Minefield --checkpoint-dir runs/mine
  enn clone --hps-info epochs"""


def parser() -> OneLineParser:
    """Return the parser of `enn clone`."""
    description = "Train a network to imitate recordings."
    parser = OneLineParser(prog="enn clone", description=description, epilog=_EPILOG)
    files = "recordings of one environment, also of entity-gym; and settings such as clone.loss=kl"
    what = "RECORDING | FIELD=VALUE"
    parser.add_argument("arguments", nargs="*", metavar=what, help=files)
    parser.option("--config", "FILE", "a configuration file (RON)", type=Path)
    parser.option("--checkpoint-dir", "DIR", "save the clone here; a new folder", type=Path)
    parser.option("--player", "NAME", "imitate this player instead of the agent")
    parser.option("--hps-info", "QUERY", "list the settings, or search them", nargs="?", const="")
    return parser


def clone_command(arguments: Sequence[str]) -> int:
    """Run `enn clone`: train a network to imitate recordings.

    Returns:
        0 after cloning; 130 or 143 if a signal ended it, even if the clone was saved.

    Raises:
        ConfigError, CheckpointError, EntityEnvError, NotFiniteError: a mistake in the arguments,
            a recording is damaged, or it fails.
    """
    options = parse_typed(parser(), arguments, CloneRunConfig)
    if options.hps_info is not None:
        print(hps_info(CloneRunConfig, options.hps_info or None))
        return 0

    with ended_by(signal.SIGINT):
        from enn_trainer.run.clone import clone  # imports PyTorch

    # Clone.
    recordings = [a for a in options.arguments if "=" not in a or Path(a).is_file()]
    overrides = [a for a in options.arguments if a not in recordings]
    if options.player is not None:
        overrides.append(f"clone.player={options.player}")
    try:
        if options.checkpoint_dir is None:
            raise ConfigError("--checkpoint-dir: expected a folder to save the clone in, got none")
        file = find_config(options.config)
        config, _ = load_with_sources(CloneRunConfig, file, overrides, environment=os.environ)
        result = clone(recordings, config, options.checkpoint_dir)
    except KeyboardInterrupt:  # cannot come from an environment: none is created
        print("interrupted; nothing was saved", file=sys.stderr)
        return interrupted_status(signal.SIGINT)
    print(_summary(result, options.checkpoint_dir, config))
    return interrupted_status(result.interrupted_by)


def _summary(result: "CloneResult", run_dir: Path, config: CloneRunConfig) -> str:
    """Return the result and the commands to type next as text."""
    lines = [f"{'interrupted, ' if result.interrupted else ''}saved {result.checkpoint}"]
    if result.test is not None:
        lines.append(f"on held-out episodes: {result.test.in_words()}")
    resume, env_id = resume_command(run_dir, config, result.state), config.env.id
    if _is_known_to_fit(config.env, result.state):
        return "\n".join([*lines, next_steps(run_dir, config, [f"{resume} env.id={env_id}"])])
    unknown = f"{env_id} was not checked"
    note = f"env.id=... must name the environment of the recordings; {unknown}"
    if names_code(env_id):
        return "\n".join([*lines, next_steps(run_dir, config, [resume]), note])
    named = next_steps(run_dir, config, [f"{resume} env.id=..."], env="...")
    return "\n".join([*lines, named, f"--env ... and {note}"])


def _is_known_to_fit(env: EnvConfig, state: "State") -> bool:
    """Return True if the environment is built in and has the spaces of the recordings."""
    if env.id not in ENV_REGISTRY:
        return False
    from enn_trainer.cli.load_world import make_world  # imports all adapters

    try:
        kwargs = json.loads(env.kwargs)
        with closing(make_world(env.id, kwargs, "env.kwargs", "env.id", trust=TYPED)) as world:
            spaces = Spaces.of(world)
    except (ConfigError, EntityEnvError):
        return False
    return not diff_spaces(state.spaces, spaces).changed
