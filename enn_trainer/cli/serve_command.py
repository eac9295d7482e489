"""The command `enn serve`."""

import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.cli.arguments import OneLineParser, failed, line_with_trust, not_negative
from enn_trainer.cli.playing_options import (
    add_positions_option,
    add_world_options,
    with_option_names,
)
from enn_trainer.runtime.interrupt import StoppedAtOnce, ended_by, stopped_by
from enn_trainer.runtime.start_folder import paths_from
from enn_trainer.viewer.page import DEFAULT_FPS, HOST
from entity_env.errors import InvalidView

DEFAULT_PORT = 8765
_EPILOG = f"""\
A live version of the page of `enn watch`: the agent plays, and you can take over an actor or a
side. Then the game waits for your choices, or goes on with --fps. Only this machine can open it.

examples:
  enn serve runs/duel --opponent bots.py:Greedy
  enn serve runs/orchard --env orchard.py:Orchard trees=9 --record corrections.rec
  enn serve runs/duel --follow --fps {DEFAULT_FPS:g}"""


def serve_command(arguments: Sequence[str]) -> int:
    """Run `enn serve`: let an agent play on a page where a person can take over.

    Returns:
        0 after Ctrl-C, 1 if the environment fails, 2 for a mistake in the arguments.

    Raises:
        EntityEnvError: the environment or the recording breaks its contract.
    """
    options = parser().parse_intermixed_args(arguments)
    options.env_kwargs = [*options.kwargs, *options.env_kwargs]
    options.suite, options.baseline, options.processes, options.episodes = [], [], 1, 1
    options.num_envs, options.max_steps = 1, 1  # required by `config_of`, not used
    options.line = line_with_trust("enn serve", arguments)
    with ended_by(signal.SIGINT):
        from enn_trainer.cli.work.serve import serve  # imports PyTorch
    try:
        with stopped_by(signal.SIGINT, signal.SIGTERM), paths_from(Path.cwd()):
            serve(options)
    except (ConfigError, CheckpointError, InvalidView) as error:
        return failed(ConfigError(with_option_names(error).replace("positions:", "--positions:")))
    except StoppedAtOnce:
        print("\nthe server has ended", file=sys.stderr)
        if options.record is not None:
            print(f"recorded in {options.record}; enn clone {options.record} imitates your choices")
    return 0


def parser() -> OneLineParser:
    """Return the parser of `enn serve`."""
    description = "Let an agent play on a page on this machine, where you can take over."
    parser = OneLineParser(prog="enn serve", description=description, epilog=_EPILOG)
    # The agent, its opponent and the environment.
    parser.run("checkpoint", "RUN", "a checkpoint, or a run's folder")
    parser.option("--opponent", "PATH", 'a checkpoint, a bot (file.py:Name), or "random"')
    parser.flag("--follow", "play each episode with the newest save of the run")
    add_world_options(parser)

    # The pace, the page and the recording.
    rate = "steps per second, also while you choose (default: wait for you)"
    parser.option("--fps", "N", rate, type=float)
    parser.option("--record", "FILE", "record to FILE; append if it exists", type=Path)
    add_positions_option(parser)
    port = f"port (default: {DEFAULT_PORT}); 0 for a free one"
    parser.option("--port", "N", port, type=not_negative, default=DEFAULT_PORT)
    parser.option("--host", "ADDRESS", f"address to listen on; only {HOST}", default=HOST)
    parser.flag("--open", "open the page in the browser")
    return parser
