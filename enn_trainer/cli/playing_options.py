"""Options of commands in which the agent of a checkpoint plays."""

import re
from typing import Any

from enn_trainer.base.errors import ConfigError
from enn_trainer.cli.arguments import OneLineParser, not_negative, positive
from enn_trainer.config import EvalConfig

BASELINES: dict[str, dict[str, Any]] = {
    "random": {"opponent": "random", "opponent_only": True, "deterministic": False},
    "greedy": {"deterministic": True},
}
"""Overrides of the suites that each `--baseline` adds."""

_OPTIONS = {
    "opponent": "--opponent",
    "num_envs": "--num-envs",
    "capture_videos": "--video",
    "capture_replays": "--replay",
    "suites": "--suite",
    "ray": "--ray",
    "env.vary": "--vary",
}
"""Option of the command for each setting of `eval` that messages name."""

_SETTING = re.compile(rf"^(?:rollout\.num_envs, )?(?:eval\.)?({'|'.join(_OPTIONS)})")


def with_option_names(error: object) -> str:
    """Return a message with leading names of settings replaced by options of the command."""
    problems = error.problems if isinstance(error, ConfigError) else [str(error)]
    typed = [_SETTING.sub(lambda setting: _OPTIONS[setting[1]], problem) for problem in problems]
    return "; ".join(" ".join(problem.splitlines()) for problem in typed)


def add_playing_options(parser: OneLineParser, max_steps: int = EvalConfig.max_steps) -> None:
    """Add the options of an environment and of the evaluation in it."""
    add_world_options(parser)
    parser.option("--num-envs", "N", "number of parallel environments", type=positive)
    most = f"maximal steps in each environment (default: {max_steps})"
    parser.option("--max-steps", "N", most, type=positive, default=max_steps)


def add_world_options(parser: OneLineParser) -> None:
    """Add the options of an environment and of the choice of actions."""
    kwargs = "arguments of the environment; they override the arguments of training"
    parser.add_argument("kwargs", nargs="*", metavar="KEY=VALUE", help=kwargs, default=[])
    parser.env_options("another environment", "the same, also as JSON")
    parser.flag("--trust", "import the code that the checkpoint names, such as its environment")
    parser.flag("--deterministic", "take the most probable action")
    parser.option("--seed", "N", "random seed (default: the run's)", type=not_negative)


def add_positions_option(parser: OneLineParser) -> None:
    """Add the option `--positions` of replay pages: a list of features, empty by default."""
    where = "features of the position (default: from the environment's view, then usual names)"
    parser.option("--positions", "A,B[,C]", where, type=_names, default=[])


def _names(text: str) -> list[str]:
    return text.split(",") if text else []
