"""The command `enn watch`."""

import argparse
import re
import signal
import sys
import webbrowser
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from enn_trainer.base.errors import CheckpointError, ConfigError, ReplayError
from enn_trainer.base.policy import PPOAgent
from enn_trainer.checkpoints.lookup import SavedRun, read_saved_run
from enn_trainer.cli.arguments import (
    OneLineParser,
    failed,
    is_writable_at,
    positive,
    with_out,
    writable,
)
from enn_trainer.cli.eval_command import (
    add_playing_options,
    add_positions_option,
    as_typed,
    config_of,
    eval_progress,
    fit_to_worlds,
    fitting_num_envs,
)
from enn_trainer.cli.load_world import trusted_envs
from enn_trainer.cli.trust import check_trusted, line_with_trust
from enn_trainer.evaluation.evaluation import EXPLAINING
from enn_trainer.evaluation.evaluator import Evaluator
from enn_trainer.evaluation.opponents import POOL, NamedOpponents, create_agent
from enn_trainer.experience.demonstrations import open_recording
from enn_trainer.experience.memories import remembering_of, tracked_types
from enn_trainer.runtime.execution import Lanes
from enn_trainer.runtime.interrupt import StoppedAtOnce, stopped_by
from enn_trainer.runtime.start_folder import paths_from
from enn_trainer.viewer.episodes import episodes_of
from enn_trainer.viewer.moments import explain_replay, find_moments
from enn_trainer.viewer.played import (
    EPISODES,
    MOST_STEPS,
    ReplaySettings,
    SuiteReplay,
    plain_view,
)
from enn_trainer.viewer.replay import Episode, Replay
from enn_trainer.viewer.replay_format import check_replaceable, write_replay
from entity_env.errors import InvalidView
from entity_env.recording.recording_format import RecordingError

DEFAULT_MB = 20.0
_OF_RUNS = ["beside", "pictures", "opponent", "env", "env_kwargs"]
_OF_RUNS += ["seed", "num_envs", "deterministic"]
"""Options of agents that play, which recordings have none of."""
_NAMED = re.compile("^(?=(max-mb|positions|pictures):)")
"""Begin of messages about arguments of functions, which are options of the command."""
_EPILOG = """\
The agent plays whole episodes, as in `enn eval` with the same arguments, and the page shows what it
saw, with the probabilities of all its choices and the values. It is one file that needs no network:
open it in a browser, send it, keep it. A recording (.rec) of a run or a person is shown likewise.

examples:
  enn watch runs/xor
  enn watch runs/mines --episodes 5 --seed 7 --out mines.html
  enn watch runs/duel --opponent random
  enn watch runs/mines --beside random
  enn watch mine.rec --agent random
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
    except (ConfigError, CheckpointError, RecordingError, ReplayError, InvalidView) as error:
        message = as_typed(error).replace("max_mb:", "max-mb:", 1)
        return failed(ConfigError(_NAMED.sub("--", message)))
    except StoppedAtOnce as stop:
        print("interrupted; no page was written", file=sys.stderr)
        return stop.status


def _watch(options: argparse.Namespace) -> int:
    """Play or read the episodes, and write the page; return the exit status."""
    path = Path(options.checkpoint)
    if path.is_file():
        for name in _OF_RUNS:
            if (given := getattr(options, name)) not in (None, []) and given is not False:
                option = f"--{name.replace('_', '-')}"
                expected = f"{option}: expected a run to play, got the recording {path}"
                raise ConfigError(f"{expected}; --agent shows what an agent would have done in it")
        out = writable(options.out or _page_beside(path.with_suffix(".html")), "--out")
        check_replaceable(out)
        replay = _of_recording(path, options)
    else:
        if options.agent is not None:
            raise ConfigError(
                f"--agent: expected a recording (.rec) to answer to, got {path}; "
                "--beside shows another agent in the frames that a run's agent plays"
            )
        saved = read_saved_run(path, with_pool=options.opponent == POOL)
        beside = saved.path.resolve().parent / "replay.html"
        out = writable(options.out or _page_beside(beside), "--out")
        check_replaceable(out)
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


def _page_beside(path: Path) -> Path:
    """Return a path for a page, or one in the current folder where that is in a read-only one."""
    return path if is_writable_at(path) else Path(path.name)


def _of_recording(path: Path, options: argparse.Namespace) -> Replay:
    """Return the first episodes of a recording."""
    recording = open_recording(path)
    # The file does not say which frames are those of one match.
    replay = Replay(
        path.name, {}, recording.obs_space, recording.action_space, sides=1, discount=1.0
    )
    replay.view = plain_view(None, replay.obs_space, options.positions)
    episodes = episodes_of(recording, max_steps=options.max_steps)
    replay.episodes = list(islice(episodes, options.episodes))
    if options.agent is None:
        replay.moments = find_moments(replay)
        return replay
    agent = create_agent("--agent", options.agent, recording.spaces)
    replay.about["agent beside"] = options.agent
    if any(remembering_of(agent)):
        replay.about["agent beside"] += _remembered_in(path, replay.episodes, agent)
    with eval_progress() as watch:
        explain_replay(
            replay, None, agent, lambda episode, side: True, lambda share: watch(EXPLAINING, share)
        )
    return replay


def _remembered_in(path: Path, episodes: Sequence[Episode], agent: PPOAgent) -> str:
    """Return what an agent lacks in a recording to remember entities, as text; "" if nothing.

    Raises:
        ConfigError: frames or rewards were left out, so that it remembers less than in play.
    """
    is_whole = [one.steps is None and bool(np.isfinite(one.obs.reward).all()) for one in episodes]
    if not all(is_whole):
        raise ConfigError(
            f"--agent: expected an agent without memory for {path}, which lacks frames of its "
            "episodes (capture_samples_subsample), got one with net.memory"
        )
    types = tracked_types(agent)
    has_identity = any(name in one.obs.identity for one in episodes for name in types)
    return "" if has_identity or not types else ", which knows no entity again: no ids recorded"


def _play(saved: SavedRun, options: argparse.Namespace) -> Replay:
    """Let the agent play, and return the first episodes."""
    config = config_of(saved.config, options)
    trust = check_trusted(saved, config, options)
    sides = fit_to_worlds(saved, config, options, trust)
    assert config.eval is not None
    if options.num_envs is None:  # an episode of all sides in each match, if they are few
        agents = 1 if options.opponent is None else 2
        frames = options.episodes * max(sides, agents)
        config.eval.num_envs = fitting_num_envs(saved.config, frames, sides, agents)
    lanes, device = Lanes.of(saved.agent), torch.device("cpu")
    make_envs, make_opponent = trusted_envs(trust), NamedOpponents(trust)
    evaluator = Evaluator(config, make_envs, make_opponent, saved, device, lanes)
    settings = ReplaySettings(
        episodes=options.episodes,
        max_steps=options.max_steps,
        positions=options.positions,
        pictures=options.pictures,
        beside=None
        if options.beside is None
        else partial(create_agent, "--beside", options.beside),
    )
    with lanes, lanes.at_work(), eval_progress() as watch:
        results = evaluator.measure(watch=watch, captures=[SuiteReplay(settings)])
        replay: Replay = results[""].replay
    if options.beside is not None:
        replay.about["agent beside"] = options.beside
    return replay


def parser() -> OneLineParser:
    """Return the parser of `enn watch`."""
    about = "Write a page on which the episodes of an agent can be watched."
    parser = OneLineParser(prog="enn watch", description=about, epilog=_EPILOG)
    # The agent, its opponent and the episodes.
    parser.add_argument(
        "checkpoint", metavar="RUN", help="a checkpoint, a run's folder, or a recording (.rec)"
    )
    parser.option("--opponent", "PATH", 'a checkpoint, a bot (file.py:Name), or "random"')
    parser.option("--beside", "PATH", "another agent, that sees the same frames without acting")
    parser.option("--agent", "PATH", "for a recording: an agent, that sees its frames")
    many = f"episodes to show (default: {EPISODES})"
    parser.option("--episodes", "N", many, type=positive, default=EPISODES)

    # The environment, choices and output.
    add_playing_options(parser, MOST_STEPS)
    add_positions_option(parser)
    parser.option("--out", "FILE", "page (default: replay.html beside the checkpoint)", type=Path)
    size = f"largest size of the page in megabytes (default: {DEFAULT_MB:g})"
    parser.option("--max-mb", "MB", size, type=float, default=DEFAULT_MB)
    parser.flag("--pictures", "show the environment's own pictures beside each step")
    parser.flag("--open", "open the page in the browser")
    return parser
