"""`SelfPlay`: snapshots, draws, results and ratings of a run with a pool of opponents."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from zlib import crc32

import numpy as np
import torch

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.policy import CreateOpponent, Opponent, PPOAgent
from enn_trainer.callbacks.callback import Callback, RunningTrainer
from enn_trainer.checkpoints.lookup import members_of
from enn_trainer.checkpoints.state import State
from enn_trainer.checkpoints.state_manager import StateManager
from enn_trainer.config import TrainConfig
from enn_trainer.config.load import load_config
from enn_trainer.config.selfplay_config import RANDOM, SelfplayConfig
from enn_trainer.evaluation.members import (
    copy_with,
    make_opponent,
    member_of_save,
    network_of,
    read_opponent,
    snapshot_of,
)
from enn_trainer.evaluation.opponents import NamedOpponents, bot_class
from enn_trainer.experience.bot_player import BotPlayer
from enn_trainer.experience.collector import Rollout
from enn_trainer.experience.episodes import Episodes
from enn_trainer.experience.players import AgentPlayer, Players, SeatPlayer
from enn_trainer.experience.seated_players import AGENT
from enn_trainer.run.joining import check_same
from enn_trainer.runtime.start_folder import located
from enn_trainer.selfplay.league import (
    LEAGUE,
    PLAYERS,
    POOL_OF_RUN,
    SNAPSHOT,
    GameResult,
    League,
    Matchmaker,
    Member,
    add_games,
    members_under_way,
    unique_name,
)
from enn_trainer.selfplay.league_players import LeaguePlayers
from enn_trainer.selfplay.matchmaking import NAMED, draw_in_play
from enn_trainer.selfplay.seating import Game, Seating, Table
from entity_env.named_world import names_bot
from entity_env.seeding import derive_seed
from entity_env.vec.vec_env import AddMetricsWrapper


class SelfPlay(Callback):
    """Pool of a run: draws who plays in an update, and counts its results after it.

    Args:
        manager: state manager of the run, whose configuration has the section `selfplay`.
        envs: the environments of rollouts.
        agent: plays, and learns.
        create_opponent: makes opponents that are named.
        matchmaker: replaces the weights of `selfplay.choose`; None for these.
        device: device of the networks.

    Attributes:
        league: members, results and ratings.
        players: the players in all environments.

    Raises:
        ConfigError: settings do not fit the environments.
        CheckpointError: an opponent cannot be used.
    """

    def __init__(
        self,
        manager: StateManager,
        envs: AddMetricsWrapper,
        agent: AgentPlayer,
        create_opponent: CreateOpponent,
        matchmaker: Matchmaker | None,
        device: torch.device,
    ) -> None:
        config, state = manager.config, manager.state
        assert config.selfplay is not None
        self._config, self._settings, self._state = config, config.selfplay, state
        self._create_opponent, self._matchmaker, self._device = create_opponent, matchmaker, device
        self.league, self._seating = league_of(state)
        assert self._seating.table is not None
        self._table = self._seating.table
        self._group = manager.group
        if self._group.size > 1:
            self._seating.take_columns(agent.shards.columns)
        known = {member.name for member in self.league.members}
        self._seating.memories.keep({AGENT, *known})
        for name in self.league.lost:
            manager.say(f"selfplay: {name} is left out, as its file is damaged in all saves")
        self._update_named(manager)
        members = [(m.name, m.config, crc32(m.weights)) for m in self.league.members]
        check_same(self._group, {"opponents": members})
        if (every := self._settings.snapshot_every) > 0:
            # Perhaps more often than before; at once if there is none, as after a loss.
            has_any = any(member.origin == SNAPSHOT for member in self.league.pool)
            soonest = (state.step // every + 1) * every if has_any else state.step
            self.league.next_snapshot = min(self.league.next_snapshot, soonest)
        seed, self._agent = derive_seed(config.seed, "selfplay"), agent
        self.players: Players = agent
        if self._table.num_pool:
            sides = self._settings.sides
            players = LeaguePlayers(agent, self._seating, self._player, sides, seed)
            players.members_identify = any(map(_remembers_entities, self.league.members))
            players.redraw(self.league.lost)
            envs.filter = players.counted
            self.players = players
        self._seed, self._in_play = seed, 0
        self._made: dict[tuple[str, str], PPOAgent] = {}  # by configuration and spaces
        self._games: list[Game] = []
        self._results: list[list[GameResult] | None] = []

    def on_train_start(self, trainer: RunningTrainer) -> None:
        """Take the first snapshot, for an evaluation before the first update."""
        self._add_snapshot_if_due()

    def on_update_start(self, trainer: RunningTrainer) -> None:
        """Take the first snapshot, and draw the members that are in play in this update."""
        self._add_snapshot_if_due()
        if not isinstance(self.players, LeaguePlayers):
            return
        settings, step, pool = self._settings, self._state.step, self.league.pool
        weights = self.league.weights(settings, self._matchmaker, step)
        drawn = draw_in_play(weights, settings.in_play, self._seed, step)
        self._in_play = len(drawn)
        self.players.begin_update([pool[i].name for i in drawn], weights[drawn])

    def on_rollout_end(self, trainer: RunningTrainer, rollout: Rollout) -> None:
        """Take the results of games; they count once the update has succeeded."""
        self._games, self._results = [], []
        if isinstance(self.players, LeaguePlayers):
            self._games = self._ended(self.players, rollout.episodes)
            self._results = [None if game.is_lost else [] for game in self._games]
            if self._settings.result:
                self._results = results_of(
                    self._games, rollout.episodes, self._table, self._settings.result
                )

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Count the results of whole rounds, rate, take a snapshot, and add metrics."""
        league, settings, table = self.league, self._settings, self._table
        matches = np.array([game.match for game in self._games], np.int64)
        matches -= table.first_pool
        results, num_games = add_games(league.rounds, matches, table.num_pool, self._results)
        league.count(results, num_games, table.sides, settings.half_life)
        per_step = table.num_matches * table.sides - table.num_learnt
        league.opponent_frames += self._config.rollout.steps * per_step
        self._add_snapshot_if_due()
        league.forget(self._seating.seated() | members_under_way(league.rounds))
        with_results = [of_game for of_game in self._results if of_game is not None]
        scores = [result.score for of_game in with_results for result in of_game]
        if scores:
            metrics["selfplay/score"] = float(np.mean(scores))
            metrics["selfplay/draws"] = scores.count(0.5) / len(scores)
        if steps := [member.step for member in league.pool if member.origin == SNAPSHOT]:
            metrics["selfplay/oldest_step"] = float(min(steps))
        metrics |= {
            "selfplay/elo": league.elo,
            "selfplay/elo_ci95": league.ci95,
            "selfplay/games": float(len(with_results)),
            "selfplay/members": float(len(league.pool)),
            "selfplay/in_play": float(self._in_play),
            "selfplay/opponent_frames": float(league.opponent_frames),
        }

    def _ended(self, players: LeaguePlayers, episodes: Episodes) -> list[Game]:
        """Return the games of all ranks in order, and take the players of their matches."""
        if self._group.size == 1:
            return players.ended
        own, seating = players.pool, self._seating
        numbers, names = seating.games[own.start : own.stop], seating.players[own.start : own.stop]
        games = [*map(list, players.ended)]
        message = [games, [own.start, own.stop], numbers.tolist(), names]
        of_match: dict[int, list[Game]] = {}
        for ended, pool, numbers, names in self._group.gather(message, "collecting"):
            seating.take_games(range(pool[0], pool[1]), numbers, names)
            for game in ended:
                of_match.setdefault(game[0], []).append(Game._make(game))
        first_sides = episodes.environment[episodes.environment % self._table.sides == 0]
        matches = (first_sides // self._table.sides).tolist()
        return [of_match[match].pop(0) for match in matches if match in of_match]

    def _add_snapshot_if_due(self) -> None:
        """Let a copy of the agent join the pool if one is due."""
        state, settings, league = self._state, self._settings, self.league
        if settings.snapshot_every and state.step >= league.next_snapshot:
            if any(m.origin == SNAPSHOT and m.step == state.step for m in league.members):
                return
            snapshot = snapshot_of(state.agent, state.spaces, state.step)
            name = unique_name(snapshot.name, {member.name for member in league.members})
            snapshot = replace(snapshot, name=name)
            league.add_snapshot(snapshot, settings.capacity, settings.snapshot_every)

    def _update_named(self, manager: StateManager) -> None:
        """Let the opponents that the settings name join, and those that they name no more leave."""
        league, wanted, say = self.league, self._settings.opponents, manager.say
        # Members that the run once had may come back, but it does not need their path again.
        is_of_save = manager.resumed_from is not None and not manager.sources.is_given(
            ("selfplay", "opponents")
        )
        gone = [m for m in league.pool if m.origin != SNAPSHOT and m.origin not in wanted]
        if gone:
            league.remove([member.name for member in gone])
            names = ", ".join(member.name for member in gone)
            say(f"selfplay.opponents: {names} left the pool, as the settings name them no more")
        for i, entry in enumerate(wanted):
            if any(member.origin == entry and member.is_in_pool for member in league.members):
                continue
            try:
                found = self._named(entry)
            except CheckpointError as error:
                text = f"selfplay.opponents[{i}]: {error}"
                if not (is_of_save or entry in league.lost_entries):
                    raise CheckpointError(text) from None
                say(f"{text}; the run goes on without it")
                continue
            for member in found:
                taken = {one.name for one in league.members}
                league.add(replace(member, name=unique_name(member.name, taken)))
        if not league.pool and not self._settings.snapshot_every:
            raise ConfigError("selfplay.opponents: expected a member, got none")

    def _named(self, entry: str) -> list[Member]:
        """Return the members that an entry of `selfplay.opponents` names.

        Raises:
            CheckpointError: there is no such save, or it is of another world.
            ConfigError: there is no such bot.
        """
        state = self._state
        if entry == RANDOM:
            return [Member(RANDOM, NAMED, entry, "random")]
        create = self._create_opponent
        if not isinstance(create, NamedOpponents):
            create(entry, state.obs_space, state.action_space, self._device)  # raises if none
            return [Member(unique_name(Path(entry).name, ()), NAMED, entry, "custom")]
        if names_bot(entry):
            bot_class(entry, "selfplay.opponents", create.trust)  # raises if there is none
            return [Member(entry.rpartition(":")[2], NAMED, entry, "bot")]
        if entry.endswith(POOL_OF_RUN):
            found = [
                Member(m.name, NAMED, entry, m.kind, m.config, m.spaces, m.weights)
                for m in members_of(located(entry))
                if m.kind in ("network", "random")  # code of bots is named by hand
            ]
            for member in found:
                if member.kind == "network":
                    network_of(member, state.agent, state.spaces, CPU)  # raises if it does not fit
            return found
        saved = read_opponent(located(entry), state.agent, state.spaces)
        name = saved.member or f"{saved.path.parent.name}-{saved.step}"
        return [member_of_save(saved, name, entry)]

    def _player(self, name: str) -> SeatPlayer:
        """Return the player of a member in all environments in which it is seated."""
        state, agent, member = self._state, self._agent, self.league.member(name)
        spaces, kind = state.spaces, (member.config, member.spaces)
        made: Opponent
        if member.config and kind in self._made:  # a copy takes a tenth of the time
            made = copy_with(self._made[kind], member)
        else:
            made = make_opponent(member, state.agent, self._create_opponent, spaces, self._device)
            if member.config and not isinstance(made, type):
                self._made[kind] = made
        if isinstance(made, type):
            first = agent.shards.columns.start
            return BotPlayer(made, self._seed, spaces.obs_space, spaces, self._table.sides, first)
        own = derive_seed(self._seed, "opponents act")
        return AgentPlayer(made, own, agent.lanes, spans=agent.spans, shards=agent.shards)


CPU = torch.device("cpu")


def _remembers_entities(member: Member) -> bool:
    """Return whether the network of a member remembers entities, as its settings say."""
    if not member.config:
        return False
    memory = load_config(TrainConfig, None, text=member.config).net.memory
    return memory is not None and memory.of_entities


def seat_players(config: TrainConfig, state: State, num_envs: int, sides: int) -> None:
    """Let the state of a run know the sizes of its environments, which say who learns from what.

    Raises:
        ConfigError: settings do not fit the environments.
    """
    assert config.selfplay is not None
    table = table_of(config.selfplay, num_envs, sides)
    check_minibatches(config.optim.bs, config.rollout.steps, table)
    _, seating = league_of(state)
    seating.arrange(table)


def league_of(state: State) -> tuple[League, Seating]:
    """Return the parts of a state that self-play has.

    Raises:
        ConfigError: an `initial_state` of the user's own did not make them.
    """
    league, seating = state.part(League), state.part(Seating)
    if league is None or seating is None:
        raise ConfigError(
            f"selfplay: expected the parts {LEAGUE} and {PLAYERS} in State.parts, which "
            "init_train_state makes, got none: let initial_state call it"
        )
    return league, seating


def table_of(settings: SelfplayConfig, num_envs: int, sides: int) -> Table:
    """Return the sizes of the environments of a run.

    Raises:
        ConfigError: settings do not fit the environments.
    """
    if sides < 2:
        raise ConfigError(
            f"selfplay: expected a world with several sides (a Match, or a VecEnv whose `sides` "
            f"says so), got one with {sides}"
        )
    table = Table.of(num_envs, sides, settings.share)
    problems = []
    if settings.share and not table.num_pool:
        problems.append(
            f"selfplay.share: expected a share of {table.num_matches} matches that is at least one "
            f"of them, got {settings.share}; set it to 0, or raise rollout.num_envs"
        )
    if wrong := [side for side in settings.sides if side >= sides]:
        problems.append(f"selfplay.sides: expected seats from 0 to {sides - 1}, got {wrong}")
    if problems:
        raise ConfigError(*problems)
    return table


def check_minibatches(bs: int, steps: int, table: Table) -> None:
    """Raise if a minibatch has more frames than the agent has in a rollout.

    Raises:
        ConfigError: it has.
    """
    frames = steps * table.num_learnt
    if bs > frames:
        raise ConfigError(
            f"optim.bs: expected at most the {frames} frames of a rollout that are the agent's "
            f"({table.num_learnt} of {table.num_matches * table.sides} in each step, the others "
            f"are those of opponents), got {bs}"
        )


def results_of(
    games: Sequence[Game], episodes: Episodes, table: Table, metric: str
) -> list[list[GameResult] | None]:
    """Return the results of the agent against each member, side by side; None of lost games.

    Args:
        games: games against the pool that ended in a rollout, in order.
        episodes: episodes that ended in it.
        table: sizes of the environments.
        metric: the larger one wins.

    Raises:
        InvalidObservation: a side gave no such metric at the end, or one that is not finite.
    """
    first = table.first_pool * table.sides
    is_pool = episodes.environment >= first
    is_lost = np.repeat(np.array([game.is_lost for game in games], np.bool_), table.sides)
    counted = is_pool.copy()
    counted[is_pool] = ~is_lost
    values = episodes.results(metric, table.sides, "selfplay.result: ", counted)[is_pool]
    results: list[list[GameResult] | None] = []
    for game, of_sides in zip(games, values.reshape(-1, table.sides), strict=True):
        seat = game.players.index(AGENT)
        of_game = [
            GameResult(name, seat, 0.5 + 0.5 * float(np.sign(of_sides[seat] - value)))
            for name, value in zip(game.players, of_sides, strict=True)
            if name != AGENT
        ]
        results.append(None if game.is_lost else of_game)
    return results
