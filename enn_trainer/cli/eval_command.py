"""The command `enn eval`."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from enn_trainer.base.errors import CheckpointError, ConfigError, ReplayError
from enn_trainer.cli.arguments import (
    OneLineParser,
    failed,
    line_with_trust,
    normalize_json_option,
    positive,
)
from enn_trainer.cli.playing_options import BASELINES, add_playing_options, with_option_names
from enn_trainer.runtime.interrupt import StoppedAtOnce, ended_by, stopped_by
from enn_trainer.runtime.start_folder import paths_from

DEFAULT_EPISODES = 256


_EPILOG = """\
The agent plays whole episodes in the environment of its training, or in --env. It samples its
actions, or takes the most probable ones with --deterministic. Against an --opponent it plays in
the environments with even indices (in a match of two, the first side), and only these count. The
results do not depend on --processes.

examples:
  enn eval runs/xor --episodes 1000 --json
  enn eval runs/mines --episodes 20 --suite nmines=3 --suite nmines=1,nrobots=2 --out mines.json
  enn eval runs/mines --vary 'nmines=int 1 4' --by nmines --png mines.png
  enn eval runs/xor --episodes 100 --baseline random --baseline greedy
  enn eval runs/duel --episodes 20 --opponent random
  enn eval runs/duel --episodes 20 --opponent bots.py:Greedy
  enn eval runs/orchard --env orchard.py:Orchard trees=9 --video orchard.gif"""


def eval_command(arguments: Sequence[str]) -> int:
    """Run `enn eval`: evaluate the agent of a checkpoint.

    Returns:
        0; 1 if the environment fails, episodes did not end, or a file could not be written; 2 for
        a mistake in the arguments.

    Raises:
        EntityEnvError: the environment breaks its contract.
    """
    arguments = normalize_json_option(arguments)
    options = parser().parse_intermixed_args(arguments)
    options.env_kwargs = [*options.kwargs, *options.env_kwargs]
    options.line = line_with_trust("enn eval", arguments)
    with ended_by(signal.SIGINT):
        from enn_trainer.cli.work.evaluate import evaluate  # imports PyTorch
    try:
        # Signals raise an exception, so that incomplete files are removed.
        with stopped_by(signal.SIGINT, signal.SIGTERM), paths_from(Path.cwd()):
            return evaluate(options)
    except (ConfigError, CheckpointError) as error:
        return failed(error, with_option_names(error))
    except ReplayError as error:
        return failed(ConfigError(f"--replay: {error}"))
    except StoppedAtOnce as stop:
        print("interrupted; nothing was measured", file=sys.stderr)
        return stop.status


def parser() -> OneLineParser:
    """Return the parser of `enn eval`."""
    description = "Evaluate the agent of a checkpoint."
    parser = OneLineParser(prog="enn eval", description=description, epilog=_EPILOG)
    # The agent, its opponent and the episodes.
    parser.run("checkpoint", "CHECKPOINT", "a checkpoint, or a run's folder")
    parser.option("--opponent", "PATH", 'a checkpoint, a bot (file.py:Name), or "random"')
    episodes_help = f"episodes of each suite (default: {DEFAULT_EPISODES})"
    parser.option("--episodes", "N", episodes_help, type=positive, default=DEFAULT_EPISODES)
    suite = "also evaluate with these arguments of the environment; repeatable"
    baseline = "also evaluate a random player, or the most probable actions, in the same episodes"
    names = "{random,greedy}"
    more: dict[str, Any] = {"action": "append", "default": [], "choices": BASELINES}
    parser.option("--baseline", names, f"{baseline}; repeatable", **more)
    parser.option("--suite", "KEY=VALUE[,...]", suite, action="append", default=[])

    # The environment, choices, speed and output.
    add_playing_options(parser)
    workers = "number of worker processes (default: 1)"
    parser.option("--processes", "N", workers, type=positive, default=1)
    parser.vary()
    by_value = "also compare returns by the value of an argument of --vary"
    parser.option("--by", "NAME", by_value)
    parser.option("--png", "FILE", "plot of the comparison of --by: .png", type=Path)
    parser.option("--ray", "ADDRESS", "play the suites on a Ray cluster: auto, or HOST:PORT")
    out_help = "report (default: eval-step-....json in the folder of the run)"
    parser.option("--out", "FILE", out_help, type=Path)
    parser.flag("--json", "print the report as JSON")
    parser.flag("--all", "print all metrics, also steps and entity counts")
    page = "replay page of the first episodes, as of `enn watch`: .html"
    parser.option("--replay", "FILE", page, type=Path)
    parser.option("--video", "FILE", "video of the first episodes: .mp4, .gif", type=Path)
    return parser
