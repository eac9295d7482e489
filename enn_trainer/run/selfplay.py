"""`SelfPlay`: callback for the opponent pool: snapshots, matchmaking, results and ratings."""

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
    copy_with_weights,
    make_opponent,
    member_of_save,
    network_of,
    read_opponent,
    snapshot_of,
)
from enn_trainer.evaluation.opponents import NamedOpponents
from enn_trainer.experience.bot_player import BotPlayer
from enn_trainer.experience.collector import Rollout
from enn_trainer.experience.episodes import Episodes
from enn_trainer.experience.players import AgentPlayer, Players, SeatPlayer
from enn_trainer.experience.seated_players import AGENT
from enn_trainer.run.joining import check_equal_to_rank_0
from enn_trainer.runtime.start_folder import located
from enn_trainer.runtime.trust import bot_class
from enn_trainer.selfplay.league import (
    LEAGUE,
    PLAYERS,
    POOL_SUFFIX,
    SNAPSHOT,
    GameResult,
    League,
    Matchmaker,
    Member,
    add_games,
    members_in_open_rounds,
    unique_name,
)
from enn_trainer.selfplay.league_players import LeaguePlayers
from enn_trainer.selfplay.matchmaking import NAMED, draw_in_play
from enn_trainer.selfplay.seating import FinishedGame, PoolLineups, Table
from entity_env.named_world import is_bot_name
from entity_env.seeding import derive_seed
from entity_env.vec.vec_env import AddMetricsWrapper


class SelfPlay(Callback):
    """Opponent pool of a run: draws the opponents of each update, and counts results after it.

    Args:
        manager: state manager of the run, whose configuration has the section `selfplay`.
        envs: the environments of rollouts.
        agent: player of the learning agent.
        create_opponent: factory of named opponents.
        matchmaker: returns the weights of opponents; None for `selfplay.choose`.
        device: device of the networks.

    Attributes:
        league: members, results and ratings.
        players: the players in all environments.

    Raises:
        ConfigError: settings do not match the environments.
        CheckpointError: an opponent cannot be loaded.
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
            self._seating.select_columns(agent.shards.columns)
        names = {member.name for member in self.league.members}
        self._seating.recurrent_states.keep({AGENT, *names})
        for name in self.league.lost:
            manager.say(f"selfplay: {name} is removed, as its file is damaged in all checkpoints")
        self._update_named(manager)
        members = [(m.name, m.config, crc32(m.weights)) for m in self.league.members]
        check_equal_to_rank_0(self._group, {"opponents": members})
        if (every := self._settings.snapshot_every) > 0:
            # The setting may have decreased; at once if there is no snapshot, as after a loss.
            has_any = any(member.origin == SNAPSHOT for member in self.league.pool)
            soonest = (state.step // every + 1) * every if has_any else state.step
            self.league.next_snapshot = min(self.league.next_snapshot, soonest)
        seed, self._agent = derive_seed(config.seed, "selfplay"), agent
        self.players: Players = agent
        if self._table.num_pool:
            sides = self._settings.sides
            players = LeaguePlayers(agent, self._seating, self._player, sides, seed)
            players.members_need_identity = any(map(_remembers_entities, self.league.members))
            players.redraw(self.league.lost)
            envs.filter = players.counted
            self.players = players
        self._seed, self._in_play = seed, 0
        self._networks: dict[tuple[str, str], PPOAgent] = {}  # by configuration and spaces
        self._games: list[FinishedGame] = []
        self._results: list[list[GameResult] | None] = []

    def on_train_start(self, trainer: RunningTrainer) -> None:
        """Take the first snapshot, for an evaluation before the first update."""
        self._add_snapshot_if_due()

    def on_update_start(self, trainer: RunningTrainer) -> None:
        """Take the first snapshot, and draw the pool members of this update."""
        self._add_snapshot_if_due()
        if not isinstance(self.players, LeaguePlayers):
            return
        settings, step, pool = self._settings, self._state.step, self.league.pool
        weights = self.league.weights(settings, self._matchmaker, step)
        drawn = draw_in_play(weights, settings.in_play, self._seed, step)
        self._in_play = len(drawn)
        self.players.begin_update([pool[i].name for i in drawn], weights[drawn])

    def on_rollout_end(self, trainer: RunningTrainer, rollout: Rollout) -> None:
        """Store the results of games, which are counted after the update has succeeded."""
        self._games, self._results = [], []
        if isinstance(self.players, LeaguePlayers):
            self._games = self._ended_games(self.players, rollout.episodes)
            self._results = [None if game.is_lost else [] for game in self._games]
            if self._settings.result:
                self._results = results_of(
                    self._games, rollout.episodes, self._table, self._settings.result
                )

    def on_update_end(self, trainer: RunningTrainer, metrics: dict[str, float]) -> None:
        """Count the results of whole rounds, update ratings, take a snapshot, and add metrics."""
        league, settings, table = self.league, self._settings, self._table
        matches = np.array([game.match for game in self._games], np.int64)
        matches -= table.first_pool
        results, num_games = add_games(league.rounds, matches, table.num_pool, self._results)
        league.count(results, num_games, table.sides, settings.half_life)
        per_step = table.num_matches * table.sides - table.num_learnt
        league.opponent_frames += self._config.rollout.steps * per_step
        self._add_snapshot_if_due()
        league.forget(self._seating.playing_members() | members_in_open_rounds(league.rounds))
        with_results = [game_results for game_results in self._results if game_results is not None]
        scores = [result.score for game_results in with_results for result in game_results]
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

    def _ended_games(self, players: LeaguePlayers, episodes: Episodes) -> list[FinishedGame]:
        """Gather the games of all ranks in order, and the players of their matches."""
        if self._group.size == 1:
            return players.ended
        seating, local = self._seating, slice(players.pool.start, players.pool.stop)
        numbers, names = seating.games[local], seating.players[local]
        games = [*map(list, players.ended)]
        message = [games, [local.start, local.stop], numbers.tolist(), names]
        games_by_match: dict[int, list[FinishedGame]] = {}
        for ended, pool, numbers, names in self._group.gather(message, "collecting"):
            seating.set_games(range(pool[0], pool[1]), numbers, names)
            for game in ended:
                games_by_match.setdefault(game[0], []).append(FinishedGame._make(game))
        first_sides = episodes.environment[episodes.environment % self._table.sides == 0]
        matches = (first_sides // self._table.sides).tolist()
        return [games_by_match[match].pop(0) for match in matches if match in games_by_match]

    def _add_snapshot_if_due(self) -> None:
        """Add a snapshot of the agent to the pool if one is due."""
        state, settings, league = self._state, self._settings, self.league
        if settings.snapshot_every and state.step >= league.next_snapshot:
            if any(m.origin == SNAPSHOT and m.step == state.step for m in league.members):
                return
            snapshot = snapshot_of(state.agent, state.spaces, state.step)
            name = unique_name(snapshot.name, {member.name for member in league.members})
            snapshot = replace(snapshot, name=name)
            league.add_snapshot(snapshot, settings.capacity, settings.snapshot_every)

    def _update_named(self, manager: StateManager) -> None:
        """Add opponents that are new in the settings, and remove opponents that no longer are."""
        league, entries, say = self.league, self._settings.opponents, manager.say
        # Settings of the checkpoint may name opponents whose path no longer exists.
        is_of_save = manager.resumed_from is not None and not manager.sources.is_explicit(
            ("selfplay", "opponents")
        )
        gone = [m for m in league.pool if m.origin != SNAPSHOT and m.origin not in entries]
        if gone:
            league.remove([member.name for member in gone])
            names = ", ".join(member.name for member in gone)
            say(f"selfplay.opponents: removed {names}, which the settings no longer name")
        for i, entry in enumerate(entries):
            if any(member.origin == entry and member.is_in_pool for member in league.members):
                continue
            try:
                members = self._entry_members(entry)
            except CheckpointError as error:
                text = f"selfplay.opponents[{i}]: {error}"
                if not (is_of_save or entry in league.lost_entries):
                    raise CheckpointError(text) from None
                say(f"{text}; the run continues without it")
                continue
            for member in members:
                used_names = {one.name for one in league.members}
                league.add(replace(member, name=unique_name(member.name, used_names)))
        if not league.pool and not self._settings.snapshot_every:
            raise ConfigError("selfplay.opponents: expected a member, got none")

    def _entry_members(self, entry: str) -> list[Member]:
        """Load the members of an entry of `selfplay.opponents`.

        Raises:
            CheckpointError: there is no such checkpoint, or it is of another environment.
            ConfigError: there is no such bot.
        """
        state = self._state
        if entry == RANDOM:
            return [Member(RANDOM, NAMED, entry, "random")]
        create = self._create_opponent
        if not isinstance(create, NamedOpponents):
            create(entry, state.obs_space, state.action_space, self._device)  # raises if none
            return [Member(unique_name(Path(entry).name, ()), NAMED, entry, "custom")]
        if is_bot_name(entry):
            bot_class(entry, "selfplay.opponents", create.trust)  # raises if there is none
            return [Member(entry.rpartition(":")[2], NAMED, entry, "bot")]
        if entry.endswith(POOL_SUFFIX):
            members = [
                Member(m.name, NAMED, entry, m.kind, m.config, m.spaces, m.weights)
                for m in members_of(located(entry))
                if m.kind in ("network", "random")  # the user must name the code of bots
            ]
            for member in members:
                if member.kind == "network":
                    network_of(member, state.agent, state.spaces, CPU)  # raises if it does not fit
            return members
        saved = read_opponent(located(entry), state.agent, state.spaces)
        name = saved.member or f"{saved.path.parent.name}-{saved.step}"
        return [member_of_save(saved, name, entry)]

    def _player(self, name: str) -> SeatPlayer:
        """Create the player of a member for all its environments."""
        state, agent, member = self._state, self._agent, self.league.member(name)
        spaces, kind = state.spaces, (member.config, member.spaces)
        player: Opponent
        if member.config and kind in self._networks:  # a copy takes a tenth of the time
            player = copy_with_weights(self._networks[kind], member)
        else:
            player = make_opponent(member, state.agent, self._create_opponent, spaces, self._device)
            if member.config and not isinstance(player, type):
                self._networks[kind] = player
        if isinstance(player, type):
            first = agent.shards.columns.start
            return BotPlayer(player, self._seed, spaces.obs_space, spaces, self._table.sides, first)
        seed = derive_seed(self._seed, "opponents act")
        return AgentPlayer(player, seed, agent.threads, spans=agent.spans, shards=agent.shards)


CPU = torch.device("cpu")


def _remembers_entities(member: Member) -> bool:
    """Return True if the network of a member has memory of entities."""
    if not member.config:
        return False
    memory = load_config(TrainConfig, None, text=member.config).net.memory
    return memory is not None and memory.has_entity_states


def seat_players(config: TrainConfig, state: State, num_envs: int, sides: int) -> None:
    """Set the sizes of the environments in the state of a run with self-play.

    Raises:
        ConfigError: settings do not match the environments.
    """
    assert config.selfplay is not None
    table = table_of(config.selfplay, num_envs, sides)
    check_minibatches(config.optim.bs, config.rollout.steps, table)
    _, seating = league_of(state)
    seating.arrange(table)


def league_of(state: State) -> tuple[League, PoolLineups]:
    """Return the parts of a state for self-play.

    Raises:
        ConfigError: a custom `initial_state` did not create them.
    """
    league, seating = state.part(League), state.part(PoolLineups)
    if league is None or seating is None:
        raise ConfigError(
            f"selfplay: expected the parts {LEAGUE} and {PLAYERS} in State.parts, which "
            "init_train_state creates, got none; call it in initial_state"
        )
    return league, seating


def table_of(settings: SelfplayConfig, num_envs: int, sides: int) -> Table:
    """Return the assignment of matches of a run to self-play and the pool.

    Raises:
        ConfigError: settings do not match the environments.
    """
    if sides < 2:
        raise ConfigError(
            f"selfplay: expected an environment with several sides (a Match, or a VecEnv with "
            f"`sides`), got one with {sides}"
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
    """Raise if a minibatch is larger than the agent's frames of a rollout.

    Raises:
        ConfigError: it is larger.
    """
    frames = steps * table.num_learnt
    if bs > frames:
        raise ConfigError(
            f"optim.bs: expected at most the agent's {frames} frames of a rollout "
            f"({table.num_learnt} of {table.num_matches * table.sides} per step, as opponents play "
            f"the other ones), got {bs}"
        )


def results_of(
    games: Sequence[FinishedGame], episodes: Episodes, table: Table, metric: str
) -> list[list[GameResult] | None]:
    """Return the results of the agent against its opponents, by game; None for lost games.

    Args:
        games: games against the pool that ended in a rollout, in order.
        episodes: episodes that ended in the rollout.
        table: assignment of matches.
        metric: metric that is compared; the larger value wins.

    Raises:
        InvalidObservation: a side has no such metric at the end, or a value that is not finite.
    """
    first = table.first_pool * table.sides
    is_pool = episodes.environment >= first
    is_lost = np.repeat(np.array([game.is_lost for game in games], np.bool_), table.sides)
    counted = is_pool.copy()
    counted[is_pool] = ~is_lost
    values = episodes.results(metric, table.sides, "selfplay.result: ", counted)[is_pool]
    results: list[list[GameResult] | None] = []
    for game, side_values in zip(games, values.reshape(-1, table.sides), strict=True):
        seat = game.players.index(AGENT)
        game_results = [
            GameResult(name, seat, 0.5 + 0.5 * float(np.sign(side_values[seat] - value)))
            for name, value in zip(game.players, side_values, strict=True)
            if name != AGENT
        ]
        results.append(None if game.is_lost else game_results)
    return results
