"""Replay pages of an agent or a recording, as `enn watch` writes them."""

import argparse
import webbrowser
from collections.abc import Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from enn_trainer.base.errors import ConfigError
from enn_trainer.base.policy import PPOAgent
from enn_trainer.checkpoints.saved_run import SavedRun, read_saved_run
from enn_trainer.cli.arguments import is_writable_at, writable
from enn_trainer.cli.load_world import trusted_envs
from enn_trainer.cli.trust import check_trusted
from enn_trainer.cli.work.evaluate import (
    config_of,
    eval_progress,
    fit_num_envs,
    fitting_num_envs,
    sides_of,
)
from enn_trainer.evaluation.evaluation import EXPLAINING
from enn_trainer.evaluation.evaluator import Evaluator
from enn_trainer.evaluation.opponents import NamedOpponents, create_agent
from enn_trainer.experience.demonstrations import open_recording
from enn_trainer.experience.memories import memory_specs, tracked_types
from enn_trainer.runtime.execution import ThreadPool
from enn_trainer.selfplay.league import POOL
from enn_trainer.viewer.episodes import episodes_of
from enn_trainer.viewer.moments import explain_replay, find_highlights
from enn_trainer.viewer.played import ReplaySettings, SuiteReplay, plain_view
from enn_trainer.viewer.replay import Replay, ReplayEpisode
from enn_trainer.viewer.replay_format import check_replaceable, write_replay

_RUN_OPTIONS = ["beside", "pictures", "opponent", "env", "env_kwargs"]
_RUN_OPTIONS += ["seed", "num_envs", "deterministic"]
"""Options for playing an agent, which recordings do not accept."""


def watch(options: argparse.Namespace) -> int:
    """Play or read the episodes, and write the page; return the exit status."""
    path = Path(options.checkpoint)
    if path.is_file():
        for name in _RUN_OPTIONS:
            if (value := getattr(options, name)) not in (None, []) and value is not False:
                option = f"--{name.replace('_', '-')}"
                expected = f"{option}: expected a run to play, got the recording {path}"
                raise ConfigError(f"{expected}; use --agent to show the choices of an agent in it")
        out = writable(options.out or _writable_page(path.with_suffix(".html")), "--out")
        check_replaceable(out)
        replay = _replay_of_recording(path, options)
    else:
        if options.agent is not None:
            raise ConfigError(
                f"--agent: expected a recording (.rec), got {path}; "
                "use --beside to show another agent in the frames of a run's agent"
            )
        saved = read_saved_run(path, with_pool=options.opponent == POOL)
        default_page = saved.path.resolve().parent / "replay.html"
        out = writable(options.out or _writable_page(default_page), "--out")
        check_replaceable(out)
        replay = _play(saved, options)
    if not replay.episodes:
        raise ConfigError(f"{path}: expected an episode to show, got a recording without steps")
    written = write_replay(replay, out, max_mb=options.max_mb)

    # The page, and the command to type next.
    size = f"{written.num_bytes / 1e3:,.0f} kB"
    print(f"{out}: {written.num_episodes} episodes, {len(replay.moments)} moments, {size}")
    unfinished = sum(not (one.terminated or one.truncated) for one in replay.episodes)
    if unfinished:
        print(f"{unfinished} unfinished, because of --max-steps or the end of the recording")
    for note in written.notes:
        print(note)
    if options.open:
        webbrowser.open(out.as_uri())
    else:
        print("open it in a browser; --episodes shows more, --open opens it at once")
    return 0


def _writable_page(path: Path) -> Path:
    """Return a path for a page, in the current folder if its folder is read-only."""
    return path if is_writable_at(path) else Path(path.name)


def _replay_of_recording(path: Path, options: argparse.Namespace) -> Replay:
    """Return the first episodes of a recording."""
    recording = open_recording(path)
    # Recordings do not say which frames belong to the same match.
    replay = Replay(
        path.name, {}, recording.obs_space, recording.action_space, sides=1, discount=1.0
    )
    replay.view = plain_view(None, replay.obs_space, options.positions)
    episodes = episodes_of(recording, max_steps=options.max_steps)
    replay.episodes = list(islice(episodes, options.episodes))
    if options.agent is None:
        replay.moments = find_highlights(replay)
        return replay
    agent = create_agent("--agent", options.agent, recording.spaces)
    replay.about["second agent"] = options.agent
    if any(memory_specs(agent)):
        replay.about["second agent"] += _check_memory(path, replay.episodes, agent)
    with eval_progress() as watch:
        explain_replay(
            replay, None, agent, lambda episode, side: True, lambda share: watch(EXPLAINING, share)
        )
    return replay


def _check_memory(path: Path, episodes: Sequence[ReplayEpisode], agent: PPOAgent) -> str:
    """Return a note if a recording lacks the ids for an agent's memory of entities, else "".

    Raises:
        ConfigError: the recording lacks frames or rewards that the recurrent state needs.
    """
    is_whole = [one.steps is None and bool(np.isfinite(one.obs.reward).all()) for one in episodes]
    if not all(is_whole):
        raise ConfigError(
            f"--agent: expected an agent without memory, because {path} lacks frames of its "
            "episodes (capture_samples_subsample), got one with net.memory"
        )
    types = tracked_types(agent)
    has_identity = any(name in one.obs.identity for one in episodes for name in types)
    return "" if has_identity or not types else ", without memory of entities: no ids recorded"


def _play(saved: SavedRun, options: argparse.Namespace) -> Replay:
    """Let the agent play and return the first episodes."""
    config = config_of(saved.config, options)
    trust = check_trusted(saved, config, options)
    sides = sides_of(fit_num_envs(saved, config, options, trust))
    assert config.eval is not None
    if options.num_envs is None:  # no more environments than episodes to show
        agents = 1 if options.opponent is None else 2
        frames = options.episodes * max(sides, agents)
        config.eval.num_envs = fitting_num_envs(saved.config, frames, sides, agents)
    threads, device = ThreadPool.of(saved.agent), torch.device("cpu")
    make_envs, make_opponent = trusted_envs(trust), NamedOpponents(trust)
    evaluator = Evaluator(config, make_envs, make_opponent, saved, device, threads)
    settings = ReplaySettings(
        episodes=options.episodes,
        max_steps=options.max_steps,
        positions=options.positions,
        pictures=options.pictures,
        create_other=None
        if options.beside is None
        else partial(create_agent, "--beside", options.beside),
    )
    with threads, threads.at_work(), eval_progress() as watch:
        results = evaluator.measure(watch=watch, captures=[SuiteReplay(settings)])
        replay: Replay = results[""].replay
    if options.beside is not None:
        replay.about["second agent"] = options.beside
    return replay
