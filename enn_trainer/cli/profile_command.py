"""The command `enn profile`: the time that each part of a run takes, measured in training."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path

from rich.console import Console

from enn_trainer.cli.arguments import (
    OneLineParser,
    normalize_json_option,
    positive,
    writable,
    write_json,
)
from enn_trainer.cli.typed_settings import parse_typed, typed_settings
from enn_trainer.config import TrainConfig
from enn_trainer.runtime.interrupt import StoppedAtOnce, ended_by, stopped_by
from enn_trainer.runtime.trust import TYPED

SECONDS = 10.0


_EPILOG = """\
Settings are the settings of enn train. The trained agent is discarded.

examples:
  enn profile env.id=Xor rollout.processes=2 --updates 3
  enn profile --config mine.ron --updates 2 --out profile.json"""


def parser() -> OneLineParser:
    """Return the parser of `enn profile`."""
    description = "Train for some seconds and print the time of each part."
    parser = OneLineParser(prog="enn profile", description=description, epilog=_EPILOG)
    parser.add_argument("overrides", nargs="*", metavar="FIELD=VALUE", help="settings")
    parser.option("--config", "FILE", "a configuration file", type=Path)
    length = f"measure N updates (default: {SECONDS:g} seconds)"
    parser.option("--updates", "N", length, type=positive)
    parser.option("--out", "FILE", "also write the numbers to FILE, as JSON", type=Path)
    parser.flag("--json", "print the numbers as JSON")
    return parser


def profile_command(arguments: Sequence[str]) -> int:
    """Run `enn profile`: train for some seconds and print the time of each part.

    Returns:
        0, or 130 if it is interrupted.

    Raises:
        ConfigError, CheckpointError, EntityEnvError, NotFiniteError: a mistake in the arguments,
            or the run fails.
    """
    options = parse_typed(parser(), normalize_json_option(arguments), TrainConfig)
    with ended_by(signal.SIGINT):
        from enn_trainer.checkpoints.state_manager import StateManager  # imports PyTorch
        from enn_trainer.cli.load_world import factory_of
        from enn_trainer.cli.work.profile import bottleneck_advice, profile, show

    typed = typed_settings(TrainConfig, options.overrides, options.config, is_new=True)
    path = None if options.out is None else writable(options.out, "--out")
    manager = StateManager(
        init_path=typed.config, overrides=typed.overrides, environment=os.environ
    )
    manager.say = partial(print, file=sys.stderr)
    if typed.note:
        manager.say(typed.note)
    # Measure.
    create_envs = factory_of(manager.config.env, "env", TYPED)
    try:
        with stopped_by(signal.SIGINT):
            measured = profile(manager, create_envs, SECONDS, options.updates)
    except StoppedAtOnce as stop:
        print("interrupted; nothing was measured", file=sys.stderr)
        return stop.status
    # Print and write.
    content = asdict(measured)
    content |= content.pop("resources")
    content |= {"frames_per_s": measured.frames_per_s, "limit": bottleneck_advice(measured)}
    content["entities_per_frame"] = measured.entities_per_frame
    if options.json:
        print(json.dumps(content, indent=1))
    else:
        show(measured, Console())
    if path is not None:
        write_json(path, content)
    return 0
