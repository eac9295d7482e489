"""Round-robin tournaments, and training of exploiters against a fixed player."""

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
from enn_trainer.checkpoints.lookup import members_of
from enn_trainer.checkpoints.named_code import code_of_members, keys_of_bots
from enn_trainer.checkpoints.run_dir import new_run_dir
from enn_trainer.checkpoints.saved_run import SavedRun, pool_of_run, read_saved_run
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.config import TrainConfig
from enn_trainer.config.selfplay_config import RANDOM, SelfplayConfig, result_metric
from enn_trainer.evaluation.load_agent import adapt_network
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
from enn_trainer.selfplay.league import POOL_SUFFIX, unique_name
from enn_trainer.selfplay.play_games import play_games
from entity_env.arrays import FloatArray, IntArray
from entity_env.bot import Bot
from entity_env.named_world import is_bot_name
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
        names: names of the players.
        payoff: (P, P) scores, or mean returns or another metric, with 95% intervals over deals.
        deals: number of deals of each pair.
        games: number of games of each pair; the games of a deal share their seeds.
        ratings: Elo of the players by maximum likelihood; None for other metrics than scores.
        rings: cycles of three players, as indices: the first beats the second, the second the
            third, and the third the first; () for other metrics.
        mixture: (P,) float64, mixed strategy that no player beats by more than .001; None for other
            metrics.
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
    """Load networks and bots, and return them by unique names.

    Args:
        paths: checkpoints and runs in any form of `eval.opponent`, RUN@opponents, "random", bots.
        spaces: spaces of the environment.
        is_trusting: True to import bots that only a pool names.
        saved: checkpoints that are read already, by path; with their pools for RUN@opponents.

    Raises:
        CheckpointError: there is no such checkpoint, or it is of another environment.
        ConfigError: there is no such bot, or only a pool names it.
    """
    opponents: dict[str, Opponent] = {}
    advice = "name it as a player too, or pass trust=True if you trust the save"
    trust = TYPED if is_trusting else Trust(keys_of_bots(paths), advice=advice)
    for path in paths:
        if isinstance(path, str) and path.endswith(POOL_SUFFIX):
            members = pool_of_run(saved[path]) if path in saved else members_of(located(path))
            trust.check(code_of_members(members, path))
            for member in members:
                opponent = make_opponent(member, None, NamedOpponents(trust, "PLAYER"), spaces, CPU)
                opponents[unique_name(member.name, opponents)] = opponent
            continue
        if isinstance(path, str) and path in saved:
            try:
                opponent = adapt_network(saved[path], spaces)
            except CheckpointError as error:
                raise CheckpointError(f"PLAYER: {error}") from None
        else:
            opponent = create_opponent(path, spaces.obs_space, spaces.action_space, CPU, "PLAYER")
        name = path if isinstance(path, str) else path.__name__
        opponents[unique_name(name.rpartition(":")[2].strip("/"), opponents)] = opponent
    return opponents


def players_of(
    opponents: Mapping[str, Opponent], seed: int, spaces: Spaces, sides: int
) -> dict[str, SeatPlayer]:
    """Create the players of networks and bots, seeded by `seed` and the game."""
    network_seed, bot_seed = derive_seed(seed, "networks"), derive_seed(seed, "games")
    return {
        name: BotPlayer(opponent, bot_seed, spaces.obs_space, spaces, sides)
        if isinstance(opponent, type)
        else AgentPlayer(opponent, network_seed)
        for name, opponent in opponents.items()
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

    The games of a deal share their seeds, which reduces the variance by luck, and count as one
    observation. The result is independent of the number of processes.

    Args:
        players: checkpoints and runs, RUN@opponents, "random", and bots, by path or class.
        env: a match class or factory, as for `train`.
        games: games of each pair, rounded up to whole deals: for two sides to an even number, for
            S > 2 sides to a multiple of 2 S, with each player alone in each seat.
        seed: seed of matches and choices.
        config: configuration with the arguments of the environment; None for its defaults.
        metric: a metric to average, such as "episodic_reward", instead of scores.
        processes: number of worker processes.
        max_steps: limit of the steps of all games of a match.
        watch: called with the share of completed games, from 0 to 1.
        trust: True to import bots that only a pool names (RUN@opponents); by default only bots that
            are players themselves are imported.
        saved: checkpoints among the players that are read already, see `opponents_by_name`.

    Raises:
        CheckpointError: there is no such checkpoint, or it is of another environment.
        ConfigError: there are fewer than two players, the environment is not a match, or only a
            pool names a bot.
        InvalidObservation: games do not end, or a side has no result.
    """
    settings = config or TrainConfig()
    make = env_factory(env)

    def matches(count: int, sides: int) -> VecEnv:
        return make(settings.env, count * sides, min(processes, count), 0)

    # Players and games.
    num_envs = _DIVISIBLE if config is None else config.rollout.num_envs
    spaces, sides = _spaces_and_sides(env, settings, num_envs)
    agents = opponents_by_name(players, spaces, trust, saved)
    if len(agents) < 2:
        raise ConfigError(
            f"PLAYER: expected at least two players, got {', '.join(agents) or 'none'}"
        )
    names, lineups = [*agents], round_robin(len(agents), sides, games)

    # Play.
    deals = [[[names[i] for i in seats] for seats in deal] for deal in lineups.tolist()]
    envs = matches(min(MOST_MATCHES, len(lineups)), sides)
    by = metric or result_metric(settings.selfplay)
    try:
        results = play_games(
            envs,
            players_of(agents, seed, spaces, sides),
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
        config: configuration with the arguments of the environment.
        num_envs: a number of environments that is a multiple of the sides.

    Raises:
        ConfigError: the environment has one side.
    """
    envs = env_factory(env)(config.env, num_envs, 1, 0)
    spaces, sides = Spaces.of(envs), envs.sides
    envs.close()
    if sides < 2:
        raise ConfigError(f"env: expected an environment with several sides, got {sides}")
    return spaces, sides


def tournament_of(
    names: Sequence[str], lineups: IntArray, results: FloatArray, is_score: bool
) -> Tournament:
    """Compute the tables of a round robin from the results of D deals.

    Args:
        names: names of the players.
        lineups: (D, L, S) int64, player in each of S seats of the L games of each deal.
        results: (D, L, S) float64, result of each seat.
        is_score: True to count wins, draws and losses; False to average the results.
    """
    num_deals = len(lineups) // math.comb(len(names), 2)
    num_games = num_deals * lineups.shape[1]
    if not is_score:
        rows, columns, values = [], [], []
        for deal, deal_results in zip(lineups, results, strict=True):
            pair = np.unique(deal).tolist()
            for player, other in zip(pair, reversed(pair), strict=True):
                is_player = deal == player
                means = np.where(is_player, deal_results, 0).sum(axis=1) / is_player.sum(axis=1)
                rows.append(player)
                columns.append(other)
                values.append(float(means.mean()))
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


class ExploitResult(NamedTuple):
    """Result of training an exploiter against a fixed player.

    Attributes:
        score: mean score of the exploiter over all seats: a lower bound of the player's
            exploitability.
        ci95: half the width of the 95% confidence interval of the score.
        path: run of the exploiter.
    """

    score: float
    ci95: float
    path: Path


def pool_player(folder: Path, saved: str) -> str:
    """Return the path of the copy of a player in the pool of its exploiter's run.

    The player's own path may lead to another checkpoint later, if its run continues.

    Args:
        folder: folder of the exploiter's run.
        saved: path of the player, which is returned if the player is no network.
    """
    pool = members_of(folder)
    is_saved = len(pool) == 1 and bool(pool[0].config)
    return f"{folder}@opponent:{pool[0].name}" if is_saved else saved


def exploit(
    saved: str | Path,
    env: EnvSource,
    config: TrainConfig,
    folder: str | Path | None = None,
    games: int = 400,
) -> ExploitResult:
    """Train an exploiter against a fixed player, and measure its score.

    Args:
        saved: the player, in any form of `eval.opponent`.
        env: a match class or factory, as for `train`.
        config: configuration of the new run, whose `selfplay` is replaced; `optim.bs` is limited to
            the agent's frames of a rollout.
        folder: folder of the new run; by default a new one in `exploits`, in the run of the player
            or, for bots and "random", in `data_dir`.
        games: number of games of the measurement.

    Raises:
        CheckpointError: there is no such checkpoint, or it is of another environment.
        ConfigError: the environment is not a match.
    """
    if folder is None:
        is_saved = saved != RANDOM and not is_bot_name(str(saved))
        parent = read_saved_run(located(saved)).path.parent if is_saved else config.data_dir
        folder = new_run_dir(Path(parent, "exploits"), f"seed-{config.seed}")
    selfplay = SelfplayConfig(
        share=1.0,
        opponents=[str(saved)],
        snapshot_every=0,
        choose="uniform",
        result="" if config.selfplay is None else config.selfplay.result,
    )
    rollout = config.rollout
    _, sides = _spaces_and_sides(env, config, rollout.num_envs)
    max_frames = rollout.steps * rollout.num_envs // sides
    optim = replace(config.optim, bs=min(config.optim.bs, max_frames))
    manager = StateManager(checkpoint_dir=Path(folder))
    manager._config = replace(config, selfplay=selfplay, optim=optim)
    train(manager, env)
    seed = derive_seed(config.seed, "exploit")
    rival = pool_player(Path(folder), str(saved))
    tournament = play_league([str(folder), rival], env, games, seed, config=config)
    low, high = tournament.payoff.low[0, 1], tournament.payoff.high[0, 1]
    return ExploitResult(float(tournament.payoff.mean[0, 1]), float(high - low) / 2, Path(folder))
