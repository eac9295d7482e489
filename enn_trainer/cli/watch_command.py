"""The command `enn watch`."""

import re
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from enn_trainer.base.errors import CheckpointError, ConfigError, ReplayError
from enn_trainer.cli.arguments import (
    OneLineParser,
    failed,
    line_with_trust,
    normalize_json_option,
    positive,
)
from enn_trainer.cli.playing_options import (
    add_playing_options,
    add_positions_option,
    with_option_names,
)
from enn_trainer.runtime.interrupt import StoppedAtOnce, ended_by, stopped_by
from enn_trainer.runtime.start_folder import paths_from
from enn_trainer.viewer.page import EPISODES, MAX_STEPS
from entity_env.errors import InvalidView
from entity_env.recording.recording_format import RecordingError

DEFAULT_MB = 20.0
_OPTION = re.compile("^(?=(max-mb|positions|pictures):)")
"""Start of messages that name an argument of a function, which is an option of the command."""
_EPILOG = """\
The agent plays whole episodes, as in `enn eval` with the same arguments. The page shows its
observations, the probabilities of its choices and the values. It is a single file that works
offline. It can also show a recording (.rec) of a run or a person.

examples:
  enn watch runs/xor
  enn watch runs/mines --episodes 5 --seed 7 --out mines.html
  enn watch runs/duel --opponent random
  enn watch runs/mines --beside random
  enn watch mine.rec --agent random
  enn watch runs/orchard --env orchard.py:Orchard trees=9"""


def watch_command(arguments: Sequence[str]) -> int:
    """Run `enn watch`: write a replay page of episodes.

    Returns:
        0; 1 if the environment fails or the page could not be written; 2 for a mistake in the
        arguments.

    Raises:
        EntityEnvError: the environment breaks its contract.
    """
    arguments = normalize_json_option(arguments)
    options = parser().parse_intermixed_args(arguments)
    options.env_kwargs = [*options.kwargs, *options.env_kwargs]
    options.suite, options.baseline, options.processes = [], [], 1
    options.line = line_with_trust("enn watch", arguments)
    with ended_by(signal.SIGINT):
        from enn_trainer.cli.work.watch import watch  # imports PyTorch
    try:
        with stopped_by(signal.SIGINT, signal.SIGTERM), paths_from(Path.cwd()):
            return watch(options)
    except (ConfigError, CheckpointError, RecordingError, ReplayError, InvalidView) as error:
        message = with_option_names(error).replace("max_mb:", "max-mb:", 1)
        return failed(ConfigError(_OPTION.sub("--", message)))
    except StoppedAtOnce as stop:
        print("interrupted; no page was written", file=sys.stderr)
        return stop.status


def parser() -> OneLineParser:
    """Return the parser of `enn watch`."""
    description = "Write a replay page of the episodes of an agent."
    parser = OneLineParser(prog="enn watch", description=description, epilog=_EPILOG)
    # The agent, its opponent and the episodes.
    recordings = "a checkpoint, a run's folder, or a recording (.rec)"
    parser.run("checkpoint", "RUN", recordings)
    parser.option("--opponent", "PATH", 'a checkpoint, a bot (file.py:Name), or "random"')
    parser.option("--beside", "PATH", "another agent that observes the same frames without acting")
    parser.option("--agent", "PATH", "for a recording: an agent that observes its frames")
    many = f"episodes to show (default: {EPISODES})"
    parser.option("--episodes", "N", many, type=positive, default=EPISODES)

    # The environment, choices and output.
    add_playing_options(parser, MAX_STEPS)
    add_positions_option(parser)
    page = "page (default: replay.html in the folder of the run)"
    parser.option("--out", "FILE", page, type=Path)
    size = f"largest size of the page in megabytes (default: {DEFAULT_MB:g})"
    parser.option("--max-mb", "MB", size, type=float, default=DEFAULT_MB)
    parser.flag("--pictures", "show the environment's rendering of each step")
    parser.flag("--open", "open the page in the browser")
    return parser
