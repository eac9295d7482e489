"""`LeaguePlayers`: the agent in its seats, and members of a league in all others."""

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
    pieces_of,
)
from enn_trainer.experience.seated_players import AGENT, SeatedPlayers
from enn_trainer.selfplay.seating import Game, Seating
from entity_env.arrays import FloatArray, IntArray
from entity_env.errors import InvalidObservation
from entity_env.names import COMPUTED
from entity_env.serialization.messages import pack, unpack
from entity_env.vec.vec_env import VecObs
from rogue_net.ragged import EntityBatch
from rogue_net.several import are_alike, choose_together


class JointPlayers(SeatedPlayers):
    """Seated players that choose in one forward pass where their networks are alike.

    Most of the time of a small pass goes into its preparations. One pass rounds otherwise than
    several.
    """

    _passes: list[list[str]]

    def _plan(self) -> None:
        """Plan the passes, and the order of frames."""
        self._passes = []
        for name in self.groups:
            player = self.player(name)
            for names in self._passes:
                if can_choose_as_one(player, self.player(names[0])):
                    names.append(name)
                    break
            else:
                self._passes.append([name])
        self.groups = {name: self.groups[name] for names in self._passes for name in names}
        super()._plan()

    def _decide(self, obs: VecObs, ordered: EntityBatch, t: int) -> list[Decisions]:
        """Let the players of each pass choose together if possible, else one after the other."""
        pieces: list[Decisions] = []
        for names in self._passes:
            joint = self._choose_as_one(names, ordered, t) if len(names) > 1 else None
            one_by_one = (self._choose(name, obs, ordered, t) for name in names)
            pieces += one_by_one if joint is None else [joint]
        return pieces

    def _choose_as_one(
        self, names: Sequence[str], ordered: EntityBatch, t: int
    ) -> Decisions | None:
        """Let several players choose in one forward pass; None if it is not possible."""
        players: list[Any] = [self.player(name) for name in names]
        groups = [self.groups[name] for name in names]
        own = slice(self._slices[names[0]].start, self._slices[names[-1]].stop)
        frames = ordered if len(self._passes) == 1 else ordered.slice(own)
        return choose_as_one(players, frames, groups, t)


def can_choose_as_one(one: SeatPlayer, other: SeatPlayer) -> bool:
    """Return whether two players may choose in one pass: agents whose networks are alike."""
    return (
        isinstance(one, AgentPlayer)
        and isinstance(other, AgentPlayer)
        and (one.seed is None) == (other.seed is None)
        and are_alike(one.agent, other.agent)
    )


def choose_as_one(
    players: Sequence[AgentPlayer], batch: EntityBatch, groups: Sequence[IntArray], t: int
) -> Decisions | None:
    """Let several agents choose in one pass, each in frames of its own.

    Args:
        players: those who can, the learner first.
        batch: the frames of all, in the order of `groups`.
        groups: the environments of each.
        t: a number that earlier steps did not have.

    Returns:
        None if one pass would be too large, or is not possible.
    """
    first, environments = players[0], np.concatenate(groups)
    if first.shards.count > 1:
        return None
    check_frame_memory(first.agent, batch, environments, learning=first.learning)
    if len(pieces_of(first.agent, batch)) > 1:
        return None
    # Random numbers: those of the agent, then those of members, who have one seed.
    draws: dict[str, Tensor] | None = None
    if first.seed is not None:
        keys = environments if first.draw_keys is None else first.draw_keys[environments]
        drawn, start = [], 0
        for seed, pairs in groupby(zip(players, groups, strict=True), lambda pair: pair[0].seed):
            stop = start + sum(len(group) for _, group in pairs)
            some = slice(start, stop)
            actions = {name: action.slice(some) for name, action in batch.actions.items()}
            drawn.append(draw_uniforms(actions, cast(int, seed), keys[start:stop], t))
            start = stop
        draws = {name: torch.cat([one[name] for one in drawn]) for name in drawn[0]}
    agents: list[Any] = [player.agent for player in players]
    out = choose_together(agents, [len(group) for group in groups], batch, draws)
    return None if out is None else Decisions.of(out, batch)


class LeaguePlayers(JointPlayers):
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
        create_player: Callable[[str], SeatPlayer],
        sides: Sequence[int],
        seed: int,
    ) -> None:
        table = seating.table
        assert table is not None
        columns = seating.columns or range(table.num_matches * table.sides)
        super().__init__({AGENT: agent}, seating.lineup, table.sides, columns.start)
        self.seating, self._create_player, self._columns = seating, create_player, columns
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
        self.ended: list[Game] = []
        self._is_checked = False
        self.members_identify = False
        seating.ask_bots, seating.forget_bots = self._states_of_bots, self._forget_bots
        seating.memories.ask = self._memories
        self._place()

    @property
    def identifies(self) -> bool:
        """True if a player remembers entities."""
        return self.members_identify or super().identifies

    def begin(self, obs: VecObs, is_resumed: bool) -> None:
        """Take the first frames; new games begin with the next update."""
        is_new = not (is_resumed and self.seating.players)
        self._padding = obs.is_padding
        if is_new:
            self.seating.memories.saved = {}
        for name, player in self.players.items():
            self._begin_memory(name, player)
        for name in self.seating.memories.names():  # also those that are in play without a seat
            self.player(name)
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
        self._keep({AGENT, *names} | self.seating.seated())

    def redraw(self, names: Collection[str]) -> None:
        """Begin the games of some members anew with the next update, as they are lost."""
        seated = enumerate(self.seating.players)
        lost = [i for i, players in seated if i in self.pool and {*players} & {*names}]
        self._to_begin = np.union1d(self._to_begin, np.array(lost, np.int64))

    def after_step(self, obs: VecObs) -> None:
        """Note the games that have ended, and begin the next ones.

        Raises:
            InvalidObservation: sides of a match did not end together.
            ConfigError: metrics of the environments are not known by environment.
        """
        for player in self.players.values():
            player.memory.after_step(obs)
        self._padding = obs.is_padding
        if not self._is_checked or obs.done.any():  # metrics may be given at ends alone
            check_metrics_by_environment(obs)
            self._is_checked = True
        first = len(self.games) - len(self.pool)
        done = obs.done.reshape(-1, self.sides)[first:]
        if not done.any():
            return
        of_run = first + self.first // self.sides
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
                bool(lost[(first + i) * self.sides]),
            )
            for i in ended.tolist()
        ]
        self._begin_games(self.pool.start + ended)

    def _begin_games(self, matches: IntArray) -> None:
        """Draw and seat the players of games that begin in matches against the pool."""
        if len(matches):
            self.seating.begin_games(matches, self._in_play, self._weights, self._sides, self._seed)
            local = matches - self.pool.start + len(self.games) - len(self.pool)
            self.games[local] = self.seating.games[matches]
            self.begin_games(local)

    def _place(self) -> None:
        """Seat the players of the running games."""
        self.seat(self.seating.names()[self._columns.start : self._columns.stop])

    def seat(self, names: Sequence[str]) -> None:
        """Seat players, and note the frames of the agent."""
        super().seat(names)
        self.counted[:] = False
        self.counted[self.groups[AGENT]] = True

    def player(self, name: str) -> SeatPlayer:
        """Return the agent, or the player of a member, which is made when it first plays."""
        if name not in self.players:
            player = self.players[name] = self._create_player(name)
            self._begin_memory(name, player)
            if isinstance(player, BotPlayer) and name in self.seating.bots:
                player.set_state(unpack(self.seating.bots.pop(name)))
        return self.players[name]

    def _begin_memory(self, name: str, player: SeatPlayer) -> None:
        """Let a player remember nothing, or what the save remembers."""
        player.begin_memory(self._padding)
        self.seating.memories.begin(name, player.memory)

    def _memories(self) -> dict[str, Recurrence]:
        """Return the recurrent state of each player, by name."""
        return {name: player.memory for name, player in self.players.items()}

    def _states_of_bots(self) -> dict[str, bytes]:
        """Return the states of bots by the name of the member, also of those without a seat."""
        return {
            name: pack(player.get_state(), exact=True)
            for name, player in self.players.items()
            if isinstance(player, BotPlayer)
        }

    def _forget_bots(self) -> None:
        """Make bots anew, with the states in `Seating.bots`."""
        players = self.players.items()
        self.players = {name: p for name, p in players if not isinstance(p, BotPlayer)}

    def _keep(self, names: Collection[str]) -> None:
        """Forget the players of all other members."""
        self.players = {name: p for name, p in self.players.items() if name in names}
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
