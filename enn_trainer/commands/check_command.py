"""The command `enn check`."""

import argparse
import json
from collections.abc import Sequence
from typing import Any

from enn_trainer.command import OneLineParser, failed
from enn_trainer.commands.load_world import load_world
from enn_trainer.errors import ConfigError
from entity_env.check_env import check_env


def check_command(arguments: Sequence[str]) -> int:
    """Run `enn check`: report all problems of an environment.

    Returns:
        0 if there are none, 1 if there are some, 2 if the arguments name no environment.
    """
    options = _parser().parse_args(arguments)
    try:
        create_env = load_world(options.env, _json_kwargs(options.kwargs), "--kwargs")
    except ConfigError as error:
        return failed(error)
    report = check_env(create_env, options.episodes, options.max_steps, options.seed)
    report.name = options.env.rpartition(":")[2]
    print(report)
    return 0 if report.ok else 1


def _json_kwargs(text: str) -> dict[str, Any]:
    try:
        kwargs = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"--kwargs: expected JSON, got {text!r} ({error})") from None
    if not isinstance(kwargs, dict):
        raise ConfigError(f'--kwargs: expected JSON such as {{"size": 3}}, got {text!r}')
    return kwargs


def _parser() -> argparse.ArgumentParser:
    parser = OneLineParser(
        prog="enn check",
        description="Play random actions and report all problems of an environment.",
    )
    parser.add_argument(
        "env", metavar="ENV", help="file.py:Name, package.module:Name, or one of `enn envs`"
    )
    parser.add_argument("--kwargs", default="{}", metavar="JSON", help="arguments of ENV")
    parser.add_argument("--episodes", type=positive, default=3, metavar="N")
    parser.add_argument("--max-steps", type=positive, default=1000, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="N")
    return parser


def positive(text: str) -> int:
    """Return the value of an argument that has to be a number above 0."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {number}")
    return number
