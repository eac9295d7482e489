"""`LeaguePlayers`: the agent in its seats, and members of a league in all others."""

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from enn_trainer.errors import ConfigError
from enn_trainer.experience.bot_player import BotPlayer
from enn_trainer.experience.memories import Recurrence
from enn_trainer.experience.players import (
    AgentPlayer,
    Decisions,
    Environments,
    Players,
    can_choose_as_one,
    choose,
    choose_as_one,
)
from enn_trainer.policy import PPOAgent
from enn_trainer.selfplay.elo import FloatArray
from enn_trainer.selfplay.matchmaking import IntArray
from enn_trainer.selfplay.seating import AGENT, Game, Seating
from entity_env.errors import InvalidObservation
from entity_env.names import COMPUTED
from entity_env.seeding import derive_seeds
from entity_env.serialization.messages import pack, unpack
from entity_env.vec.vec_env import VecObs
from rogue_net.ragged import EntityBatch

MemberPlayer: TypeAlias = AgentPlayer | BotPlayer
"""Player of a member in all environments in which it is seated."""


class NamedPlayers(Players):
    """Players by name, each in the environments in which it is seated now.

    Networks that are alike choose in one pass, as most of the time of a small pass goes into its
    preparations; all others choose one after the other.

    Attributes:
        groups: (n,) int64, ascending, the environments of each player by name, the agent first.
        first: number of the first environment of this process among all of the run.
    """

    first = 0

    def __init__(self) -> None:
        self.groups: dict[str, Environments] = {}
        self._passes: list[list[str]] = []
        self._environments = self._order = np.arange(0)
        self._names: Sequence[str] = ()

    def act(self, obs: VecObs, batch: EntityBatch, t: int) -> Decisions:
        """Let each player choose in its frames, and put the decisions in the order of frames."""
        if not self._passes:
            self._passes = self._grouped()
            of_passes = [self.groups[name] for names in self._passes for name in names]
            self._environments = np.concatenate(of_passes)
            self._order = np.argsort(self._environments)
        ordered, start = batch.take(self._environments), 0
        pieces: list[Decisions] = []
        for names in self._passes:
            players: list[Any] = [self._player(name) for name in names]
            groups = [self.groups[name] for name in names]
            ends = np.cumsum([start, *(len(group) for group in groups)]).tolist()
            is_whole, start = len(self._passes) == 1, ends[-1]
            own = ordered if is_whole else ordered.slice(slice(ends[0], ends[-1]))
            if len(names) > 1 and (made := choose_as_one(players, own, groups, t)) is not None:
                pieces.append(made)
                continue
            for player, group, (first, end) in zip(players, groups, pairwise(ends), strict=True):
                pieces.append(choose(player, obs, ordered.slice(slice(first, end)), group, t))
        decisions = Decisions.cat(pieces)
        self._last = ordered, decisions, len(self.groups.get(AGENT, ()))
        return replace(decisions.take(self._order), players=self._names)

    def learnt_from(
        self, batch: EntityBatch, decisions: Decisions
    ) -> tuple[EntityBatch, Decisions]:
        """Return the agent's frames and decisions, which come first in the order of passes."""
        ordered, of_all, count = self._last
        return ordered.slice(slice(0, count)), of_all.slice(slice(0, count))

    def _grouped(self) -> list[list[str]]:
        """Return the names of the players in lists of those who choose in one pass."""
        passes: list[list[str]] = []
        for name in self.groups:
            player = self._player(name)
            for names in passes:
                if can_choose_as_one(player, self._player(names[0])):
                    names.append(name)
                    break
            else:
                passes.append([name])
        return passes

    @abstractmethod
    def _player(self, name: str) -> MemberPlayer:
        """Return the player of this name."""

    def _seed_bots(self, matches: IntArray, games: IntArray, sides: int, seed: int) -> None:
        """Begin the games of the bots that are seated in some matches.

        Args:
            matches: (n,) int64, those whose games begin.
            games: (matches,) int64, the number of the game of each match.
            sides: number of sides of a match.
            seed: the seeds of bots are a function of it, the environment and the game.
        """
        for name, environments in self.groups.items():
            player = self._player(name)
            if isinstance(player, BotPlayer):
                of_run = environments + self.first
                new = of_run[np.isin(of_run // sides, matches)]
                seeds = derive_seeds(seed, "bot", new, games[new // sides])
                player.begin_games(new - self.first, seeds)

    def _seat(self, names: Sequence[str]) -> None:
        """Seat players: (B,), the name of the player in each environment."""
        found: dict[str, list[int]] = {AGENT: []} if AGENT in names else {}
        for environment, name in enumerate(names):
            found.setdefault(name, []).append(environment)
        self.groups = {name: np.array(of_one, np.int64) for name, of_one in found.items()}
        self._passes = []
        self._names = names


class LeaguePlayers(NamedPlayers):
    """The agent in its seats, and members of a league in all others.

    The players of a game are drawn when it begins and stay to its end. Games that are to begin
    before the first update, or after an error, begin with the next update.

    Args:
        agent: plays, and learns.
        seating: who plays where; it is changed.
        create_player: makes the player of a member, by its name.
        sides: the seats that the agent takes in turn against the pool; all if empty.
        seed: seed of the run.

    Attributes:
        counted: (B,) bool, the environments of the agent in this step; always the same array.
        ended: games against the pool that have ended in this update, in order.
        members_identify: True if a member remembers entities.
        pool: positions of the matches of this process among those against the pool.
    """

    def __init__(
        self,
        agent: AgentPlayer,
        seating: Seating,
        create_player: Callable[[str], MemberPlayer],
        sides: Sequence[int],
        seed: int,
    ) -> None:
        super().__init__()
        assert seating.table is not None
        self.table = seating.table
        self.agent, self.seating, self._create_player = agent, seating, create_player
        self._sides = np.array(sides or range(self.table.sides), np.int64)
        self._seed = seed
        self._in_play: list[str] = []
        self._weights: FloatArray = np.zeros(0)
        self._players: dict[str, MemberPlayer] = {}
        self._to_begin = np.arange(0)
        num_sides, num_matches = self.table.sides, self.table.num_matches
        self._columns = seating.columns or range(num_matches * num_sides)
        self.first, first = self._columns.start, num_matches - self.table.num_pool
        bounds = (self._columns.start // num_sides, self._columns.stop // num_sides)
        self.pool = range(*(max(0, match - first) for match in bounds))
        self.counted = np.ones(len(self._columns), np.bool_)
        self._padding = np.zeros(len(self._columns), np.bool_)  # of the current frames
        self.ended: list[Game] = []
        self._is_checked = False
        self.members_identify = False
        seating.ask_bots, seating.forget_bots = self._states_of_bots, self._forget_bots
        seating.memories.ask = self._memories
        self._place()

    @property
    def network(self) -> PPOAgent | None:
        """Network of the agent."""
        return self.agent.network

    @property
    def memory(self) -> Recurrence:
        """Recurrent state of the agent."""
        return self.agent.memory

    @property
    def identifies(self) -> bool:
        """True if a player remembers entities."""
        return self.agent.identifies or self.members_identify

    def begin(self, obs: VecObs, is_resumed: bool) -> None:
        """Take the first frames; new games begin with the next update."""
        is_new = not (is_resumed and self.seating.players)
        self._padding = obs.is_padding
        if is_new:
            self.seating.memories.saved = {}
        for name in [AGENT, *self._players]:
            self._begin_memory(name, self._player(name))
        for name in self.seating.memories.names():  # also those that are in play without a seat
            self._player(name)
        if is_new:
            self._to_begin = np.array(self.pool, np.int64)
        self._place()
        if is_new:  # the first frames that input statistics know
            seats = self.seating.next_seats(self._sides) - self.first
            self.learnt = seats[(seats >= 0) & (seats < len(self._columns))]

    def begin_update(self, names: list[str], weights: FloatArray) -> None:
        """Set the members that games of this update draw from, and begin games that are to begin.

        Args:
            names: of the members in play.
            weights: (K,) float, by which they are drawn.
        """
        self._in_play, self._weights, self.ended = names, weights, []
        self._begin_games(self._to_begin)
        self._to_begin = self._to_begin[:0]
        self._keep({*names} | self.seating.seated())

    def redraw(self, names: Collection[str]) -> None:
        """Begin the games of some members anew with the next update, as they are lost."""
        seated = enumerate(self.seating.players)
        lost = [i for i, players in seated if i in self.pool and {*players} & {*names}]
        self._to_begin = np.union1d(self._to_begin, np.array(lost, np.int64))

    def values(self, batch: EntityBatch, environments: Environments) -> Tensor:
        """Return the values of the agent."""
        return self.agent.values(batch, environments)

    def after_step(self, obs: VecObs) -> None:
        """Note the games that have ended, and begin the next ones.

        Raises:
            InvalidObservation: sides of a match did not end together.
            ConfigError: metrics of the environments are not known by environment.
        """
        for player in (self.agent, *self._players.values()):
            if isinstance(player, AgentPlayer):  # games of bots begin by their numbers
                player.after_step(obs)
        self._padding = obs.is_padding
        if not self._is_checked or obs.done.any():  # metrics may be given at ends alone
            check_metrics_by_environment(obs)
            self._is_checked = True
        first = len(self._columns) // self.table.sides - len(self.pool)
        done = obs.done.reshape(-1, self.table.sides)[first:]
        if not done.any():
            return
        of_run = self.table.num_matches - self.table.num_pool + self.pool.start
        ended: IntArray = np.flatnonzero(done[:, 0])
        if (wrong := np.flatnonzero((done != done[:, :1]).any(axis=1))).size:
            raise InvalidObservation(
                f"match {of_run + wrong[0]}: done: expected all sides to end together, got "
                f"{done[wrong[0]].tolist()}"
            )
        lost = obs.lost if len(obs.lost) else np.zeros(len(obs), np.bool_)
        self.ended += [
            Game(
                of_run + i,
                self.seating.players[self.pool.start + i],
                bool(lost[(first + i) * self.table.sides]),
            )
            for i in ended.tolist()
        ]
        self._begin_games(self.pool.start + ended)

    def _begin_games(self, matches: IntArray) -> None:
        if not len(matches):
            return
        drawn = self._in_play, self._weights, self._sides, self._seed
        self.seating.begin_games(matches, *drawn)
        self._place()
        first = self.table.num_matches - self.table.num_pool
        games = np.concatenate([np.zeros(first, np.int64), self.seating.games])
        self._seed_bots(first + matches, games, self.table.sides, self._seed)

    def _place(self) -> None:
        """Seat the agent and the members, and note the frames of the agent."""
        self._seat(self.seating.names()[self._columns.start : self._columns.stop])
        self.learnt = self.groups[AGENT]
        self.counted[:] = False
        self.counted[self.learnt] = True

    def _player(self, name: str) -> MemberPlayer:
        """Return the agent, or the player of a member, which is made when it first plays."""
        if name == AGENT:
            return self.agent
        if name not in self._players:
            player = self._players[name] = self._create_player(name)
            self._begin_memory(name, player)
            if isinstance(player, BotPlayer) and name in self.seating.bots:
                player.set_state(unpack(self.seating.bots.pop(name)))
        return self._players[name]

    def _begin_memory(self, name: str, player: MemberPlayer) -> None:
        """Let a player remember nothing, or what the save remembers."""
        if isinstance(player, AgentPlayer):
            player.begin_memory(self._padding)
            self.seating.memories.begin(name, player.memory)

    def _memories(self) -> dict[str, Recurrence]:
        """Return the recurrent state of each player, by name."""
        players = {AGENT: self.agent, **self._players}
        return {name: player.memory for name, player in players.items()}

    def _states_of_bots(self) -> dict[str, bytes]:
        """Return the states of bots by the name of the member, also of those without a seat."""
        return {
            name: pack(player.get_state(), exact=True)
            for name, player in self._players.items()
            if isinstance(player, BotPlayer)
        }

    def _forget_bots(self) -> None:
        """Make bots anew, with the states in `Seating.bots`."""
        players = self._players.items()
        self._players = {name: p for name, p in players if not isinstance(p, BotPlayer)}

    def _keep(self, names: Collection[str]) -> None:
        """Forget the players of all other members."""
        self._players = {name: p for name, p in self._players.items() if name in names}
        bots = self.seating.bots
        self.seating.bots = {name: state for name, state in bots.items() if name in names}


def check_metrics_by_environment(obs: VecObs) -> None:
    """Raise if environments give metrics only as sums over all of them.

    Raises:
        ConfigError: they do; the message names the metrics.
    """
    known = {*obs.env_metrics, *COMPUTED}
    others = [m for m in obs.metrics if m not in known and not m.startswith("entity_count")]
    if others:
        raise ConfigError(
            f"selfplay: expected VecObs.env_metrics, the values by environment, of "
            f"{', '.join(others)}; got sums over all, from which those of opponents cannot be "
            "taken out"
        )
