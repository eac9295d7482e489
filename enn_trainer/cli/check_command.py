"""The command `enn check`."""

import json
from collections.abc import Sequence

from enn_trainer.cli.arguments import OneLineParser, positive
from enn_trainer.cli.load_world import load_world
from enn_trainer.errors import ConfigError
from entity_env.check_env import check_env


def check_command(arguments: Sequence[str]) -> int:
    """Run `enn check`: report all problems of an environment.

    Returns:
        0 if there are none, 1 if there are some.

    Raises:
        ConfigError: the arguments name no environment.
    """
    about = "Play random actions and report all problems of an environment."
    parser = OneLineParser(prog="enn check", description=about)
    where = "file.py:Name, package.module:Name, or one of `enn envs`"
    parser.add_argument("env", metavar="ENV", help=where)
    parser.option("--kwargs", "JSON", "arguments of ENV", default="{}")
    parser.option("--episodes", "N", type=positive, default=3)
    parser.option("--max-steps", "N", type=positive, default=1000)
    parser.option("--seed", "N", type=int, default=0)
    options = parser.parse_args(arguments)

    try:
        kwargs = json.loads(options.kwargs)
    except ValueError as error:
        raise ConfigError(f"--kwargs: expected JSON, got {options.kwargs!r} ({error})") from None
    if not isinstance(kwargs, dict):
        raise ConfigError(f'--kwargs: expected JSON such as {{"size": 3}}, got {options.kwargs!r}')
    create_env = load_world(options.env, kwargs, "--kwargs")
    report = check_env(create_env, options.episodes, options.max_steps, options.seed)
    report.name = options.env.rpartition(":")[2]
    print(report)
    return 0 if report.ok else 1
