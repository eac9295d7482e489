"""`LeaguePlayers`: the agent and its opponents from a league, by seat."""

from collections.abc import Callable, Collection, Sequence
from itertools import groupby
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from enn_trainer.base.errors import ConfigError
from enn_trainer.experience.bot_player import BotPlayer
from enn_trainer.experience.frame_limits import check_frame_memory
from enn_trainer.experience.memories import Recurrence
from enn_trainer.experience.players import (
    AgentPlayer,
    Decisions,
    SeatPlayer,
    draw_uniforms,
    microbatch_slices,
)
from enn_trainer.experience.seated_players import AGENT, SeatedPlayers
from enn_trainer.selfplay.seating import FinishedGame, PoolLineups
from entity_env.arrays import FloatArray, IntArray
from entity_env.errors import InvalidObservation
from entity_env.names import COMPUTED
from entity_env.serialization.messages import pack, unpack
from entity_env.vec.vec_env import VecObs
from rogue_net.ragged import EntityBatch
from rogue_net.several import act_batched, can_batch


class JointPlayers(SeatedPlayers):
    """Seated players that share forward passes if their networks have the same architecture.

    Small passes are dominated by overhead. A joint pass rounds differently from separate ones.
    """

    _passes: list[list[str]]

    def _order_frames(self) -> None:
        """Group the players by pass, and compute the order of frames."""
        self._passes = []
        for name in self.groups:
            player = self.player(name)
            for names in self._passes:
                if can_act_jointly(player, self.player(names[0])):
                    names.append(name)
                    break
            else:
                self._passes.append([name])
        self.groups = {name: self.groups[name] for names in self._passes for name in names}
        super()._order_frames()

    def _decide(self, obs: VecObs, ordered: EntityBatch, t: int) -> list[Decisions]:
        """Choose the actions of the players of each pass jointly if possible, else separately."""
        decisions: list[Decisions] = []
        for names in self._passes:
            joint = self._act_jointly(names, ordered, t) if len(names) > 1 else None
            one_by_one = (self._choose(name, obs, ordered, t) for name in names)
            decisions += one_by_one if joint is None else [joint]
        return decisions

    def _act_jointly(self, names: Sequence[str], ordered: EntityBatch, t: int) -> Decisions | None:
        """Choose the actions of several players in one forward pass; None if not possible."""
        players: list[Any] = [self.player(name) for name in names]
        groups = [self.groups[name] for name in names]
        span = slice(self._slices[names[0]].start, self._slices[names[-1]].stop)
        frames = ordered if len(self._passes) == 1 else ordered.slice(span)
        return act_jointly(players, frames, groups, t)


def can_act_jointly(first: SeatPlayer, second: SeatPlayer) -> bool:
    """Return True if two players are agents with networks of the same architecture."""
    return (
        isinstance(first, AgentPlayer)
        and isinstance(second, AgentPlayer)
        and (first.seed is None) == (second.seed is None)
        and can_batch(first.agent, second.agent)
    )


def act_jointly(
    players: Sequence[AgentPlayer], batch: EntityBatch, groups: Sequence[IntArray], t: int
) -> Decisions | None:
    """Choose the actions of several agents in one forward pass, each in separate frames.

    Args:
        players: players with compatible networks, the learner first.
        batch: the frames of all players, in the order of `groups`.
        groups: environments of each player.
        t: a number that differs in each step.

    Returns:
        The decisions; None if a joint pass would be too large or is not possible.
    """
    first, environments = players[0], np.concatenate(groups)
    if first.shards.count > 1:
        return None
    check_frame_memory(first.agent, batch, environments, learning=first.learning)
    if len(microbatch_slices(first.agent, batch)) > 1:
        return None
    # Random numbers of the agent, then of the members, which share one seed.
    draws: dict[str, Tensor] | None = None
    if first.seed is not None:
        keys = environments if first.draw_keys is None else first.draw_keys[environments]
        drawn, start = [], 0
        for seed, pairs in groupby(zip(players, groups, strict=True), lambda pair: pair[0].seed):
            stop = start + sum(len(group) for _, group in pairs)
            frames = slice(start, stop)
            actions = {name: action.slice(frames) for name, action in batch.actions.items()}
            drawn.append(draw_uniforms(actions, cast(int, seed), keys[start:stop], t))
            start = stop
        draws = {name: torch.cat([part[name] for part in drawn]) for name in drawn[0]}
    agents: list[Any] = [player.agent for player in players]
    out = act_batched(agents, [len(group) for group in groups], batch, draws)
    return None if out is None else Decisions.of(out, batch)


class LeaguePlayers(JointPlayers):
    """The agent in its seats, and members of a league in all other seats.

    The players of a game are drawn at its start and remain to its end. Games that are due before
    the first update, or after an error, begin with the next update.

    Args:
        agent: the learner.
        lineups: lineups of the matches against the pool, which are modified.
        create_player: creates the player of a member, by name.
        sides: seats between which the agent rotates in matches against the pool; all if empty.
        seed: seed of the run.

    Attributes:
        counted: (B,) bool, True for environments of the agent in this step; modified in place.
        ended: games against the pool that ended in this update, in order.
        members_need_identity: True if a member has memory of entities.
        pool: indices of the matches of this process among the matches against the pool.
    """

    def __init__(
        self,
        agent: AgentPlayer,
        lineups: PoolLineups,
        create_player: Callable[[str], SeatPlayer],
        sides: Sequence[int],
        seed: int,
    ) -> None:
        table = lineups.table
        assert table is not None
        columns = lineups.columns or range(table.num_matches * table.sides)
        super().__init__({AGENT: agent}, lineups.lineup, table.sides, columns.start)
        self.lineups, self._create_player, self._columns = lineups, create_player, columns
        self._sides = np.array(sides or range(table.sides), np.int64)
        self._seed = seed
        self._in_play: list[str] = []
        self._weights: FloatArray = np.zeros(0)
        self._to_begin = np.arange(0)
        self.games = np.zeros(len(columns) // table.sides, np.int64)
        bounds = (columns.start // table.sides, columns.stop // table.sides)
        self.pool = range(*(max(0, match - table.first_pool) for match in bounds))
        self.counted = np.ones(len(columns), np.bool_)
        self._padding = np.zeros(len(columns), np.bool_)  # of the current frames
        self.ended: list[FinishedGame] = []
        self._is_checked = False
        self.members_need_identity = False
        lineups.bot_source, lineups.reset_bots = self._states_of_bots, self._reset_bots
        lineups.recurrent_states.source = self._memories
        self._seat_running_games()

    @property
    def needs_identity(self) -> bool:
        """True if a player has memory of entities."""
        return self.members_need_identity or super().needs_identity

    def begin(self, obs: VecObs, is_resumed: bool) -> None:
        """Start in the first frames; new games begin with the next update."""
        is_new = not (is_resumed and self.lineups.players)
        self._padding = obs.is_padding
        if is_new:
            self.lineups.recurrent_states.saved = {}
        for name, player in self.players.items():
            self._begin_memory(name, player)
        # Also create the players of members that are in play without a seat.
        for name in self.lineups.recurrent_states.names():
            self.player(name)
        if is_new:
            self._to_begin = np.array(self.pool, np.int64)
        self._seat_running_games()
        if is_new:  # the first frames of the input statistics
            seats = self.lineups.next_seats(self._sides) - self.first
            self.learnt = seats[(seats >= 0) & (seats < len(self._columns))]

    def begin_update(self, names: list[str], weights: FloatArray) -> None:
        """Set the members in play, and begin games that are due.

        Args:
            names: names of the members in play.
            weights: (K,) float, their sampling weights.
        """
        self._in_play, self._weights, self.ended = names, weights, []
        self._begin_games(self._to_begin)
        self._to_begin = self._to_begin[:0]
        self._keep_players({AGENT, *names} | self.lineups.playing_members())

    def redraw(self, names: Collection[str]) -> None:
        """Restart the games of some members with the next update, as the members are lost."""
        seated = enumerate(self.lineups.players)
        lost = [i for i, players in seated if i in self.pool and {*players} & {*names}]
        self._to_begin = np.union1d(self._to_begin, np.array(lost, np.int64))

    def after_step(self, obs: VecObs) -> None:
        """Record the games that ended, and begin the next ones.

        Raises:
            InvalidObservation: sides of a match did not end together.
            ConfigError: metrics are not available by environment.
        """
        for player in self.players.values():
            player.memory.after_step(obs)
        self._padding = obs.is_padding
        if not self._is_checked or obs.done.any():  # metrics may be given at episode ends only
            check_metrics_by_environment(obs)
            self._is_checked = True
        first = len(self.games) - len(self.pool)
        done = obs.done.reshape(-1, self.sides)[first:]
        if not done.any():
            return
        first_match = first + self.first // self.sides
        ended: IntArray = np.flatnonzero(done[:, 0])
        if (wrong := np.flatnonzero((done != done[:, :1]).any(axis=1))).size:
            raise InvalidObservation(
                f"match {first_match + wrong[0]}: done: expected all sides to end together, got "
                f"{done[wrong[0]].tolist()}"
            )
        lost = obs.lost if len(obs.lost) else np.zeros(len(obs), np.bool_)
        self.ended += [
            FinishedGame(
                first_match + i,
                self.lineups.players[self.pool.start + i],
                bool(lost[(first + i) * self.sides]),
            )
            for i in ended.tolist()
        ]
        self._begin_games(self.pool.start + ended)

    def _begin_games(self, matches: IntArray) -> None:
        """Draw the lineups of new games in matches against the pool."""
        if len(matches):
            self.lineups.begin_games(matches, self._in_play, self._weights, self._sides, self._seed)
            local = matches - self.pool.start + len(self.games) - len(self.pool)
            self.games[local] = self.lineups.games[matches]
            self.begin_games(local)

    def _seat_running_games(self) -> None:
        """Assign players to the environments of running games."""
        self.seat(self.lineups.names()[self._columns.start : self._columns.stop])

    def seat(self, names: Sequence[str]) -> None:
        """Assign players to environments, and record the environments of the agent."""
        super().seat(names)
        self.counted[:] = False
        self.counted[self.groups[AGENT]] = True

    def player(self, name: str) -> SeatPlayer:
        """Return the agent, or the player of a member, which is created at its first use."""
        if name not in self.players:
            player = self.players[name] = self._create_player(name)
            self._begin_memory(name, player)
            if isinstance(player, BotPlayer) and name in self.lineups.bots:
                player.set_state(unpack(self.lineups.bots.pop(name)))
        return self.players[name]

    def _begin_memory(self, name: str, player: SeatPlayer) -> None:
        """Reset the recurrent state of a player, or restore it from a save."""
        player.reset_memory(self._padding)
        self.lineups.recurrent_states.begin(name, player.memory)

    def _memories(self) -> dict[str, Recurrence]:
        """Return the recurrent state of each player, by name."""
        return {name: player.memory for name, player in self.players.items()}

    def _states_of_bots(self) -> dict[str, bytes]:
        """Return the states of bots by member, including bots without a seat."""
        return {
            name: pack(player.get_state(), exact=True)
            for name, player in self.players.items()
            if isinstance(player, BotPlayer)
        }

    def _reset_bots(self) -> None:
        """Delete all bots, which are then recreated from `PoolLineups.bots`."""
        players = self.players.items()
        self.players = {name: p for name, p in players if not isinstance(p, BotPlayer)}

    def _keep_players(self, names: Collection[str]) -> None:
        """Delete the players of all other members."""
        self.players = {name: p for name, p in self.players.items() if name in names}
        bots = self.lineups.bots
        self.lineups.bots = {name: state for name, state in bots.items() if name in names}


def check_metrics_by_environment(obs: VecObs) -> None:
    """Raise if metrics are only available as sums over all environments.

    Raises:
        ConfigError: a metric has no values by environment; the message names all such metrics.
    """
    available = {*obs.env_metrics, *COMPUTED}
    summed = [m for m in obs.metrics if m not in available and not m.startswith("entity_count")]
    if summed:
        raise ConfigError(
            f"selfplay: expected VecObs.env_metrics, the values by environment, of "
            f"{', '.join(summed)}; got sums over all environments, which include opponents"
        )
