"""The command `enn watch`."""

import argparse
import json
import signal
import sys
import tempfile
import webbrowser
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from enn_trainer.checkpoints.lookup import SavedRun, read_saved_run
from enn_trainer.cli.arguments import (
    OneLineParser,
    failed,
    positive,
    with_out,
    writable,
)
from enn_trainer.cli.eval_command import (
    add_playing_options,
    as_typed,
    check_trusted,
    config_of,
    eval_progress,
    fit_to_worlds,
)
from enn_trainer.cli.load_world import envs_by_id, make_any_world
from enn_trainer.cli.trust import line_with_trust
from enn_trainer.errors import CheckpointError, ConfigError, ReplayError
from enn_trainer.evaluation.evaluator import Evaluator, create_opponent, eval_mode
from enn_trainer.policy import PPOAgent
from enn_trainer.runtime.execution import Lanes
from enn_trainer.runtime.interrupt import StoppedAtOnce, stopped_by
from enn_trainer.runtime.start_folder import paths_from
from enn_trainer.viewer.annotate import annotate
from enn_trainer.viewer.episodes import episodes_of, first_episodes
from enn_trainer.viewer.moments import find_moments
from enn_trainer.viewer.replay import Episode, Replay
from enn_trainer.viewer.replay_format import write_replay
from entity_env.errors import InvalidView
from entity_env.match import match_of
from entity_env.recording.read_recording import Recording
from entity_env.recording.recording_format import RecordingError
from entity_env.spaces import ObsSpace
from entity_env.vec.vec_env import VecEnv
from entity_env.view import View, view_of
from rogue_net.config import RogueNetConfig
from rogue_net.wiring import Wired

DEFAULT_EPISODES = 3
DEFAULT_MB = 20.0
DEFAULT_STEPS = 2000
"""Fewer than in an evaluation, as each costs room and forward passes."""
_EPILOG = """\
The agent plays whole episodes, as in `enn eval` with the same arguments, and the page shows what it
saw, with the probabilities of all its choices and the values. It is one file that needs no network:
open it in a browser, send it, keep it. A recording (.rec) of a run or a person is shown likewise.

examples:
  enn watch runs/xor
  enn watch runs/mines --episodes 5 --seed 7 --out mines.html
  enn watch runs/duel --opponent random
  enn watch runs/orchard --env orchard.py:Orchard trees=9"""


def watch_command(arguments: Sequence[str]) -> int:
    """Run `enn watch`: write a page on which episodes can be watched.

    Returns:
        0, 1 if the environment fails or the page could not be written, 2 for a mistake in the
        arguments.

    Raises:
        EntityEnvError: the environment does not keep its contract.
    """
    arguments = with_out(arguments)
    options = parser().parse_intermixed_args(arguments)
    options.env_kwargs = [*options.kwargs, *options.env_kwargs]
    options.suite, options.baseline, options.processes = [], [], 1
    options.line = line_with_trust("enn watch", arguments)
    try:
        with stopped_by(signal.SIGINT, signal.SIGTERM), paths_from(Path.cwd()):
            return _watch(options)
    except (ConfigError, CheckpointError) as error:
        return failed(error, as_typed(error))
    except (RecordingError, ReplayError) as error:
        return failed(ConfigError(str(error).replace("max_mb:", "--max-mb:")))
    except StoppedAtOnce as stop:
        print("interrupted; no page was written", file=sys.stderr)
        return stop.status


def _watch(options: argparse.Namespace) -> int:
    """Play or read the episodes, and write the page; return the exit status."""
    path = Path(options.checkpoint)
    if path.is_file() and path.suffix == ".rec":
        out = writable(options.out or path.with_suffix(".html"), "--out")
        replay = _of_recording(path, options)
    else:
        saved = read_saved_run(path)
        out = writable(options.out or saved.path.resolve().parent / "replay.html", "--out")
        replay = _play(saved, options)
    if not replay.episodes:
        raise ConfigError(f"{path}: expected an episode to show, got a recording without steps")
    written = write_replay(replay, out, max_mb=options.max_mb)

    # The page, and the next step.
    size = f"{written.num_bytes / 1e3:,.0f} kB"
    print(f"{out}: {written.num_episodes} episodes, {len(replay.moments)} moments, {size}")
    unfinished = sum(not (one.terminated or one.truncated) for one in replay.episodes)
    if unfinished:
        print(f"{unfinished} did not end: --max-steps, or the recording, ends before them")
    for note in written.notes:
        print(note)
    if options.open:
        webbrowser.open(out.as_uri())
    else:
        print("open it in a browser; --episodes shows more, --open opens it at once")
    return 0


def _of_recording(path: Path, options: argparse.Namespace) -> Replay:
    """Return the first episodes of a recording."""
    recording = Recording.open(path)
    # The file does not say which frames are those of one match.
    replay = Replay(
        path.name, {}, recording.obs_space, recording.action_space, sides=1, discount=1.0
    )
    replay.view = view_in(None, replay.obs_space, options)
    replay.episodes = list(islice(episodes_of(recording), options.episodes))
    replay.moments = find_moments(replay)
    return replay


def view_in(
    own: View | None,
    obs_space: ObsSpace,
    options: argparse.Namespace,
    net: RogueNetConfig | None = None,
) -> dict[str, Any]:
    """Return the view of a world as plain data.

    Raises:
        ConfigError: the view, or `--positions`, does not fit the space.
    """
    of_network: Sequence[str] = ()
    for section in (net.relpos_encoding, net.translation) if net else ():
        of_network = of_network or (section.position_features if section else ())
    positions = options.positions.split(",") if options.positions else ()
    try:
        return asdict(view_of(own, obs_space, positions, of_network))
    except InvalidView as error:
        raise ConfigError(str(error).replace("positions:", "--positions:")) from None


def _play(saved: SavedRun, options: argparse.Namespace) -> Replay:
    """Let the agent play, and return the first whole episodes."""
    # The world, and as many episodes of each side.
    config = config_of(saved.config, options)
    if not options.trust:
        check_trusted(saved, config, options)
    fit_to_worlds(saved, config, options)
    arguments = config.env.id, json.loads(config.env.kwargs), "env.kwargs", "env.id"
    with closing(make_any_world(*arguments)) as world:
        if isinstance(world, VecEnv):
            sides, own = world.sides, None
        else:
            sides, own = match_of(world).num_sides, match_of(world).view()
    seats = 1 if options.opponent is None else 2
    of_sides = {**vars(options), "episodes": max(1, options.episodes * sides // seats)}
    config = config_of(saved.config, argparse.Namespace(**of_sides))
    fit_to_worlds(saved, config, argparse.Namespace(**of_sides))

    # Record an evaluation.
    lanes, device = Lanes.of(saved.agent), torch.device("cpu")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "episodes.rec")
        assert config.eval is not None
        config.eval = replace(config.eval, capture_samples=str(path))
        evaluator = Evaluator(config, envs_by_id, create_opponent, saved, device, lanes)
        with lanes, lanes.at_work(), eval_progress() as watch:
            evaluator.measure(watch=watch, track=True)
        recording = Recording.open(path)
        # Without sides, the opponent plays in environments of its own: every second one.
        every = seats if sides == 1 else 1
        played = [
            replace(one, env=one.env // every)
            for one in episodes_of(recording, sides)
            if one.env is not None and one.env % every == 0
        ]
    about = {
        "save": str(saved.path),
        "step": str(saved.step),
        "environment": f"{config.env.id} {config.env.kwargs}",
    }
    replay = Replay(
        f"{config.env.id}, step {saved.step}",
        about,
        recording.obs_space,
        recording.action_space,
        sides,
        config.ppo.gamma,
    )
    replay.view = view_in(own, replay.obs_space, options, config.net)
    num_matches = (recording.num_envs or 0) // (sides * every)
    replay.episodes = first_episodes(played, options.episodes, num_matches)
    replay.moments = find_moments(replay)

    # Ask the agent again, in its environments: those with even numbers if there is an opponent.
    def is_own(episode: Episode, side: int) -> bool:
        return ((episode.env or 0) * every * sides + side) % seats == 0

    agent: PPOAgent = saved.agent
    if recording.action_space != saved.action_space:  # labels in another order
        known = saved.obs_space, saved.action_space
        agent = Wired(agent, saved.obs_space, recording.action_space, *known)
    with eval_mode(agent):
        annotate(replay, agent, is_own)
    return replay


def parser() -> OneLineParser:
    """Return the parser of `enn watch`."""
    about = "Write a page on which the episodes of an agent can be watched."
    parser = OneLineParser(prog="enn watch", description=about, epilog=_EPILOG)
    # The agent, its opponent and the episodes.
    parser.add_argument(
        "checkpoint", metavar="RUN", help="a checkpoint, a run's folder, or a recording (.rec)"
    )
    parser.option("--opponent", "PATH", 'a checkpoint, or "random"')
    many = f"episodes to show (default: {DEFAULT_EPISODES})"
    parser.option("--episodes", "N", many, type=positive, default=DEFAULT_EPISODES)

    # The environment, choices and output.
    add_playing_options(parser, DEFAULT_STEPS)
    where = "features that are the position (default: the view of the world, then usual names)"
    parser.option("--positions", "A,B[,C]", where)
    parser.option("--out", "FILE", "page (default: replay.html beside the checkpoint)", type=Path)
    size = f"largest size of the page in megabytes (default: {DEFAULT_MB:g})"
    parser.option("--max-mb", "MB", size, type=float, default=DEFAULT_MB)
    parser.flag("--open", "open the page in the browser")
    return parser
