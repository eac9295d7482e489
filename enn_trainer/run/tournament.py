"""Round robins of players, and agents that are trained against one player alone."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import torch

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.policy import Opponent
from enn_trainer.checkpoints.lookup import SavedRun, members_of, pool_of_run, read_saved_run
from enn_trainer.checkpoints.named_code import code_of_members, keys_of_bots
from enn_trainer.checkpoints.run_dir import new_run_dir
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.config import TrainConfig
from enn_trainer.config.selfplay_config import RANDOM, SelfplayConfig, result_metric
from enn_trainer.evaluation.load_agent import network_in_world
from enn_trainer.evaluation.members import make_opponent
from enn_trainer.evaluation.opponents import NamedOpponents, create_opponent
from enn_trainer.evaluation.payoff import (
    Payoff,
    Results,
    count_results,
    find_rings,
    metric_payoff,
    round_robin,
    score_payoff,
    unbeaten_mixture,
)
from enn_trainer.experience.bot_player import BotPlayer
from enn_trainer.experience.envs import EnvSource, env_factory
from enn_trainer.experience.players import AgentPlayer, SeatPlayer
from enn_trainer.run.trainer import train
from enn_trainer.runtime.start_folder import located
from enn_trainer.runtime.trust import TYPED, Trust
from enn_trainer.selfplay.elo import Ratings, bradley_terry
from enn_trainer.selfplay.league import POOL_OF_RUN, unique_name
from enn_trainer.selfplay.play_games import play_games
from entity_env.arrays import FloatArray, IntArray
from entity_env.bot import Bot
from entity_env.named_world import names_bot
from entity_env.seeding import derive_seed
from entity_env.spaces import Spaces
from entity_env.vec.vec_env import VecEnv

CPU = torch.device("cpu")
_DIVISIBLE = 120  # by any small number of sides
MOST_MATCHES = 64
"""Matches that are played at the same time."""


@dataclass(frozen=True)
class Tournament:
    """Results of a round robin of P players.

    Attributes:
        names: of the players.
        payoff: (P, P) scores, or mean returns or another metric, with 95% intervals over deals.
        deals: number of deals of each pair.
        games: number of games of each pair, of which those of a deal have the same seeds.
        ratings: Elo of the players by maximum likelihood; None of another metric than scores.
        rings: positions of three players each, of whom the first beats the second, the second the
            third, and the third the first; none of another metric.
        mixture: (P,) float64, probabilities of players that no player beats by more than .001; None
            of another metric.
    """

    names: Sequence[str]
    payoff: Payoff
    deals: int
    games: int
    ratings: Ratings | None = None
    rings: Sequence[tuple[int, int, int]] = ()
    mixture: FloatArray | None = None


def opponents_by_name(
    paths: Sequence[str | type[Bot]],
    spaces: Spaces,
    is_trusting: bool = False,
    saved: Mapping[str, SavedRun] = MappingProxyType({}),
) -> dict[str, Opponent]:
    """Return the networks and bots that paths lead to, by different names.

    Args:
        paths: saves and runs in any form of `eval.opponent`, RUN@opponents, "random", and bots.
        spaces: of the environment.
        is_trusting: True to import also the bots that only members of a pool name.
        saved: saves that were read already, by path; with their pools for RUN@opponents.

    Raises:
        CheckpointError: there is no such save, or it is of another world.
        ConfigError: there is no such bot, or only a pool names it.
    """
    found: dict[str, Opponent] = {}
    advice = "name it as a player too, or pass trust=True if you trust the save"
    trust = TYPED if is_trusting else Trust(keys_of_bots(paths), advice=advice)
    for path in paths:
        if isinstance(path, str) and path.endswith(POOL_OF_RUN):
            members = pool_of_run(saved[path]) if path in saved else members_of(located(path))
            trust.check(code_of_members(members, path))
            for member in members:
                made = make_opponent(member, None, NamedOpponents(trust, "PLAYER"), spaces, CPU)
                found[unique_name(member.name, found)] = made
            continue
        if isinstance(path, str) and path in saved:
            try:
                made = network_in_world(saved[path], spaces)
            except CheckpointError as error:
                raise CheckpointError(f"PLAYER: {error}") from None
        else:
            made = create_opponent(path, spaces.obs_space, spaces.action_space, CPU, "PLAYER")
        name = path if isinstance(path, str) else path.__name__
        found[unique_name(name.rpartition(":")[2].strip("/"), found)] = made
    return found


def players_of(
    opponents: Mapping[str, Opponent], seed: int, spaces: Spaces, sides: int
) -> dict[str, SeatPlayer]:
    """Return players of networks and bots, whose choices are a function of a seed and the game."""
    of_networks, of_bots = derive_seed(seed, "networks"), derive_seed(seed, "games")
    return {
        name: BotPlayer(made, of_bots, spaces.obs_space, spaces, sides)
        if isinstance(made, type)
        else AgentPlayer(made, of_networks)
        for name, made in opponents.items()
    }


def play_league(
    players: Sequence[str | type[Bot]],
    env: EnvSource,
    games: int = 200,
    seed: int = 0,
    *,
    config: TrainConfig | None = None,
    metric: str | None = None,
    processes: int = 1,
    max_steps: int = 1_000_000,
    watch: Callable[[float], None] = lambda share: None,
    trust: bool = False,
    saved: Mapping[str, SavedRun] = MappingProxyType({}),
) -> Tournament:
    """Play a round robin: each pair plays each deal once in every seat.

    The games of a deal have the same seeds, so that luck is shared out, and count as one
    observation. The result is a function of players, world, games and seed, not of processes.

    Args:
        players: saves and runs, RUN@opponents, "random", and bots, by path or class.
        env: a match class or factory, as for `train`.
        games: games of each pair, rounded up to whole deals: of two sides to an even number, of
            S > 2 sides to a multiple of 2 S, each player alone in each seat.
        seed: seed of matches and choices.
        config: configuration with the arguments of the world; None for its defaults.
        metric: a metric whose means are shown, such as "episodic_reward", in place of scores.
        processes: number of worker processes.
        max_steps: limit of the steps of all games of a match.
        watch: called with the share of games that have ended, from 0 to 1.
        trust: True to import the bots that only a pool names, RUN@opponents; by default those
            that are players themselves.
        saved: saves among the players that were read already, see `opponents_by_name`.

    Raises:
        CheckpointError: there is no such save, or it is of another world.
        ConfigError: there are fewer than two players, the world is no match, or only a pool names
            a bot.
        InvalidObservation: games do not end, or a side gives no result.
    """
    settings = config or TrainConfig()
    make = env_factory(env)

    def matches(count: int, sides: int) -> VecEnv:
        return make(settings.env, count * sides, min(processes, count), 0)

    # Players and games. The number of sides is known once there are environments.
    num_envs = _DIVISIBLE if config is None else config.rollout.num_envs
    spaces, sides = _spaces_and_sides(env, settings, num_envs)
    made = opponents_by_name(players, spaces, trust, saved)
    if len(made) < 2:
        raise ConfigError(f"PLAYER: expected at least two players, got {', '.join(made) or 'none'}")
    names, lineups = [*made], round_robin(len(made), sides, games)

    # Play.
    deals = [[[names[i] for i in seats] for seats in of_deal] for of_deal in lineups.tolist()]
    envs = matches(min(MOST_MATCHES, len(lineups)), sides)
    by = metric or result_metric(settings.selfplay)
    try:
        results = play_games(
            envs,
            players_of(made, seed, spaces, sides),
            deals,
            by,
            seed,
            max_steps=max_steps,
            watch=lambda ended: watch(ended * sides / lineups.size),
        )
    finally:
        envs.close()
    return tournament_of(names, lineups, results, is_score=metric is None)


def _spaces_and_sides(env: EnvSource, config: TrainConfig, num_envs: int) -> tuple[Spaces, int]:
    """Return the spaces of a match, and its number of sides.

    Args:
        env: a match class or factory.
        config: configuration with the arguments of the world.
        num_envs: a number of environments that makes whole matches.

    Raises:
        ConfigError: the world has one side.
    """
    envs = env_factory(env)(config.env, num_envs, 1, 0)
    spaces, sides = Spaces.of(envs), envs.sides
    envs.close()
    if sides < 2:
        raise ConfigError(f"env: expected a world with several sides, got one with {sides}")
    return spaces, sides


def tournament_of(
    names: Sequence[str], lineups: IntArray, results: FloatArray, is_score: bool
) -> Tournament:
    """Return the tables of a round robin.

    Args:
        names: of the players.
        lineups: (D, L, S) int64, the player in each seat of the games of each deal.
        results: (D, L, S) float64, the result of each seat.
        is_score: True to compare results as wins, draws and losses; False for their means.
    """
    num_deals = len(lineups) // math.comb(len(names), 2)
    num_games = num_deals * lineups.shape[1]
    if not is_score:
        rows, columns, values = [], [], []
        for deal, of_deal in zip(lineups, results, strict=True):
            pair = np.unique(deal).tolist()
            for player, other in zip(pair, reversed(pair), strict=True):
                is_own = deal == player
                of_games = np.where(is_own, of_deal, 0).sum(axis=1) / is_own.sum(axis=1)
                rows.append(player)
                columns.append(other)
                values.append(float(of_games.mean()))
        payoff = metric_payoff(np.array(rows), np.array(columns), np.array(values), len(names))
        return Tournament(names, payoff, num_deals, num_games)
    counted: Results = count_results(lineups, results, len(names))
    payoff = score_payoff(counted)
    excess = np.nan_to_num(payoff.mean - 0.5)
    return Tournament(
        names,
        payoff,
        num_deals,
        num_games,
        bradley_terry(counted.scores, counted.effective_games()),
        find_rings(payoff),
        unbeaten_mixture((excess - excess.T) / 2),
    )


class Exploited(NamedTuple):
    """Result of an agent that was trained against one player alone.

    Attributes:
        score: mean score of the new agent against it, in all seats equally often: a lower bound of
            what can be won.
        ci95: half the width of its 95% confidence interval.
        path: the run of the new agent.
    """

    score: float
    ci95: float
    path: Path


def kept_player(folder: Path, saved: str) -> str:
    """Return the path of a player as a run has it that was trained against this one alone.

    The run of the player may go on: its path leads to another save later, or to none.

    Args:
        folder: of the run.
        saved: the player, which is returned if it is no network.
    """
    pool = members_of(folder)
    is_kept = len(pool) == 1 and bool(pool[0].config)
    return f"{folder}@opponent:{pool[0].name}" if is_kept else saved


def exploit(
    saved: str | Path,
    env: EnvSource,
    config: TrainConfig,
    folder: str | Path | None = None,
    games: int = 400,
) -> Exploited:
    """Train a new agent against one player alone, and measure its score.

    Args:
        saved: the player, in any form of `eval.opponent`.
        env: a match class or factory, as for `train`.
        config: configuration of the new run, whose `selfplay` is replaced; minibatches have at
            most the frames that are the agent's.
        folder: folder of the new run; by default a new one in `exploits`, beside the saves of the
            player or, for one that is not saved, in `data_dir`.
        games: games to measure the score by.

    Raises:
        CheckpointError: there is no such save, or it is of another world.
        ConfigError: the world is no match.
    """
    if folder is None:
        is_saved = saved != RANDOM and not names_bot(str(saved))
        beside = read_saved_run(located(saved)).path.parent if is_saved else config.data_dir
        folder = new_run_dir(Path(beside, "exploits"), f"seed-{config.seed}")
    alone = SelfplayConfig(
        share=1.0,
        opponents=[str(saved)],
        snapshot_every=0,
        choose="uniform",
        result="" if config.selfplay is None else config.selfplay.result,
    )
    rollout = config.rollout
    _, sides = _spaces_and_sides(env, config, rollout.num_envs)
    most = rollout.steps * rollout.num_envs // sides
    optim = replace(config.optim, bs=min(config.optim.bs, most))
    manager = StateManager(checkpoint_dir=Path(folder))
    manager._config = replace(config, selfplay=alone, optim=optim)
    train(manager, env)
    seed = derive_seed(config.seed, "exploit")
    rival = kept_player(Path(folder), str(saved))
    played = play_league([str(folder), rival], env, games, seed, config=config)
    low, high = played.payoff.low[0, 1], played.payoff.high[0, 1]
    return Exploited(float(played.payoff.mean[0, 1]), float(high - low) / 2, Path(folder))
