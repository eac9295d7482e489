"""The command `enn check`."""

import argparse
from collections.abc import Sequence

from enn_trainer.cli.arguments import OneLineParser, not_negative, positive
from enn_trainer.cli.load_world import load_world
from enn_trainer.cli.typed_settings import parse_kwargs
from enn_trainer.runtime.trust import TYPED, bot_class
from entity_env.testing.check_env import check_env

_EPILOG = """\
examples:
  enn check Minefield
  enn check orchard.py:Orchard trees=9 --episodes 10
  enn check Duel --bot bots.py:Greedy"""


def parser() -> OneLineParser:
    """Return the parser of `enn check`."""
    description = "Play random actions and report all problems of an environment."
    parser = OneLineParser(prog="enn check", description=description, epilog=_EPILOG)
    parser.world()
    hidden = {"dest": "env_kwargs", "nargs": "+", "action": "extend"}  # the former spelling
    parser.option("--kwargs", "KEY=VALUE", argparse.SUPPRESS, **hidden)
    parser.option("--bot", "NAME", "also check a bot, file.py:Name or module:Name")
    parser.option("--episodes", "N", "episodes to play (default: 3)", type=positive, default=3)
    most = "maximal steps of an episode (default: 1000)"
    parser.option("--max-steps", "N", most, type=positive, default=1000)
    parser.option("--seed", "N", "random seed (default: 0)", type=not_negative, default=0)
    return parser


def check_command(arguments: Sequence[str]) -> int:
    """Run `enn check`: report all problems of an environment.

    Returns:
        0 without problems, 1 otherwise.

    Raises:
        ConfigError: the environment does not exist.
    """
    options = parser().parse_intermixed_args(arguments)
    kwargs = parse_kwargs([*options.kwargs, *options.env_kwargs], "KEY=VALUE")
    create_env = load_world(options.env, kwargs, "KEY=VALUE", trust=TYPED)
    bot = None if options.bot is None else bot_class(options.bot, "--bot", TYPED)
    report = check_env(create_env, options.episodes, options.max_steps, options.seed, bot)
    report.name = options.env.rpartition(":")[2]
    print(report)
    return 0 if report.ok else 1
