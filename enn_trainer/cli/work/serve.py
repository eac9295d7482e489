"""Server of a page where an agent plays and a person can take over."""

import argparse
import itertools
import json
import os
import sys
import webbrowser
from contextlib import ExitStack, closing, suppress
from pathlib import Path

import torch

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.checkpoints.saved_run import SavedRun, read_saved_run
from enn_trainer.cli.arguments import writable
from enn_trainer.cli.load_world import envs_by_id, make_any_world
from enn_trainer.cli.trust import check_trusted
from enn_trainer.cli.work.evaluate import config_of
from enn_trainer.evaluation.load_agent import adapt_network
from enn_trainer.evaluation.opponents import RandomAgent, create_opponent
from enn_trainer.experience.bot_player import BotPlayer
from enn_trainer.experience.collector import Collector
from enn_trainer.experience.players import AgentPlayer, Players, SeatPlayer
from enn_trainer.experience.recording import Recorder
from enn_trainer.experience.seated_players import AGENT, SeatedPlayers, against
from enn_trainer.viewer.live import LiveGame
from enn_trainer.viewer.page import HOST, MAX_FPS
from enn_trainer.viewer.played import plain_view
from enn_trainer.viewer.replay import Replay
from entity_env.errors import EntityEnvError
from entity_env.match import match_of
from entity_env.seeding import derive_seed
from entity_env.spaces import Spaces
from entity_env.vec.vec_env import VecEnv


def serve(options: argparse.Namespace) -> None:
    """Play episodes until a signal arrives."""
    from enn_trainer.viewer.serve import LiveServer  # needs an extra

    # The agent, its opponent and the environment.
    _check(options)
    path = Path(options.checkpoint)
    saved = read_saved_run(path)
    config = config_of(saved.config, argparse.Namespace(**{**vars(options), "opponent": None}))
    trust = check_trusted(saved, config, options)
    kwargs = json.loads(config.env.kwargs)
    with ExitStack() as stack:
        world = make_any_world(config.env.id, kwargs, "env.kwargs", "--env", trust=trust)
        with closing(world):
            view = None if isinstance(world, VecEnv) else match_of(world).view()
            sides = world.sides if isinstance(world, VecEnv) else match_of(world).num_sides
        envs = stack.enter_context(closing(envs_by_id(config.env, sides, 1, 0, trust)))
        with suppress(EntityEnvError):  # raised where entities have no ids
            envs.track()
        spaces = Spaces.of(envs)
        seed = derive_seed(config.seed if options.seed is None else options.seed, "eval")

        agent = AgentPlayer(
            adapt_network(saved, spaces),
            None if options.deterministic else seed,
        )
        seats: list[SeatPlayer] = [agent] * sides
        players: Players = agent
        if options.opponent is not None:
            if sides < 2:
                raise ConfigError(
                    "--opponent: expected a match of several sides, got a single-agent environment"
                )
            other = _opponent(options, envs, seed)
            seats = [other if side % 2 else agent for side in range(sides)]
            by_name = {AGENT: agent, options.opponent: other}
            players = SeatedPlayers(by_name, against(options.opponent, sides), sides)

        # The game and its server.
        def newest() -> str:
            nonlocal saved
            if options.follow:
                saved = _newest(path, saved)
                agent.agent = adapt_network(saved, spaces)
            return f"step {saved.step:,} of the run"

        info = {"save": str(saved.path), "environment": f"{config.env.id} {config.env.kwargs}"}
        replay = Replay(
            config.env.id, info, spaces.obs_space, spaces.action_space, sides, config.ppo.gamma
        )
        replay.view = plain_view(view, spaces.obs_space, options.positions, config.net)
        try:
            server = stack.enter_context(closing(LiveServer(options.port)))
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            raise ConfigError(f"--port: {options.port} cannot be used: {reason}") from None
        game = LiveGame(players, seats, replay, server, options.fps, newest)
        watchers = []
        if options.record is not None:
            watchers.append(Recorder(options.record, spaces.action_space))
            stack.callback(watchers[0].close)

        # Play.
        collector = Collector(envs, game, watchers=watchers)
        collector.seed(seed)
        with torch.no_grad():
            collector.reset(spaces.obs_space)
            print(
                f"{server.address}\nopen it in a browser on this machine; Ctrl-C stops the server"
            )
            sys.stdout.flush()
            if options.open:
                webbrowser.open(server.address)
            for t in itertools.count():
                collector.step(t, None)


def _opponent(options: argparse.Namespace, envs: VecEnv, seed: int) -> SeatPlayer:
    """Create the player of `--opponent`."""
    spaces = Spaces.of(envs)
    opponent = create_opponent(
        options.opponent,
        spaces.obs_space,
        spaces.action_space,
        torch.device("cpu"),
        "--opponent",
    )
    if isinstance(opponent, type):
        return BotPlayer(opponent, seed, spaces.obs_space, spaces, envs.sides)
    is_greedy = options.deterministic and not isinstance(opponent, RandomAgent)
    return AgentPlayer(opponent, None if is_greedy else seed)


def _check(options: argparse.Namespace) -> None:
    """Check the options of the server and of the recording.

    Raises:
        ConfigError: an option is invalid; the message names it.
    """
    if options.host not in (HOST, "localhost"):
        tunnel = f"ssh -L {options.port}:{HOST}:{options.port} THIS-MACHINE"
        raise ConfigError(
            f"--host: expected {HOST}, because anyone with access to the page can play, got "
            f"{options.host}; to play from another machine, type there: {tunnel}"
        )
    if options.fps is not None and not 0 < options.fps <= MAX_FPS:
        raise ConfigError(f"--fps: expected more than 0 and at most {MAX_FPS:g}, got {options.fps}")
    if not 0 <= options.port < 2**16:
        raise ConfigError(f"--port: expected 0 to 65535, got {options.port}")
    if options.record is not None:
        options.record = writable(options.record, "--record")


def _newest(path: Path, saved: SavedRun) -> SavedRun:
    """Return the newest save of a run, or the previous one if it cannot be read."""
    with suppress(CheckpointError):
        newest = read_saved_run(path)
        if (newest.obs_space, newest.action_space) == (saved.obs_space, saved.action_space):
            return newest
    return saved
