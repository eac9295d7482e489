"""`SeatedPlayers`: several players by name, assigned to the seats of matches by a lineup."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np
from torch import Tensor

from enn_trainer.base.policy import PPOAgent
from enn_trainer.experience.memories import Recurrence
from enn_trainer.experience.players import Decisions, Players, SeatPlayer
from entity_env.arrays import IntArray
from entity_env.vec.vec_env import VecObs
from rogue_net.ragged import EntityBatch

AGENT = ""
"""Name of the agent among the players of a match."""
Lineup: TypeAlias = Callable[[int, int], Sequence[str]]
"""(match, game) -> names of the players by seat; match counts over all ranks; both begin at 0."""


def against(opponent: str, sides: int) -> Lineup:
    """Return a lineup with the agent in environments of even index and an opponent in odd ones.

    Args:
        opponent: name of the opponent.
        sides: number of sides of a match.
    """

    def lineup(match: int, game: int) -> list[str]:
        return [opponent if (match * sides + side) % 2 else AGENT for side in range(sides)]

    return lineup


def against_pool(members: Sequence[str], sides: int) -> Lineup:
    """Return a lineup with the agent against one pool member in each match, in turn.

    The seat of the agent changes from match to match, also among matches against the same member.

    Args:
        members: names of the pool members.
        sides: number of sides of a match.
    """

    def lineup(match: int, game: int) -> list[str]:
        rounds, member = divmod(match, len(members))
        names = [members[member]] * sides
        names[(rounds + member) % sides] = AGENT
        return names

    return lineup


class SeatedPlayers(Players):
    """Several players, assigned to environments by a lineup as games begin.

    Args:
        players: players by name, the learner first.
        lineup: returns the names of the players of a game by seat.
        sides: number of sides of a match.
        first: index of the first environment of this process among all ranks.

    Attributes:
        games: (matches,) int64, number of the running game of each match.
        groups: by player, the agent first, the indices of its environments, (n,) int64, ascending.
    """

    def __init__(
        self, players: Mapping[str, SeatPlayer], lineup: Lineup, sides: int = 1, first: int = 0
    ) -> None:
        self.players, self.lineup, self.sides, self.first = {**players}, lineup, sides, first
        self.games: IntArray = np.zeros(0, np.int64)
        self.groups: dict[str, IntArray] = {}
        self._names: Sequence[str] = ()
        self._slices: dict[str, slice] = {}  # of the frames in the order of groups
        self._environments = np.arange(0)

    @property
    def learner(self) -> SeatPlayer:
        """The first player."""
        return next(iter(self.players.values()))

    @property
    def network(self) -> PPOAgent | None:
        """Network of the learner."""
        return self.learner.network

    @property
    def memory(self) -> Recurrence:
        """Recurrent state of the learner."""
        return self.learner.memory

    @property
    def needs_identity(self) -> bool:
        """True if a player has memory of entities."""
        return any(player.needs_identity for player in self.players.values())

    def begin(self, obs: VecObs, is_resumed: bool) -> None:
        """Begin the first game of each match, with a new recurrent state."""
        for player in self.players.values():
            player.reset_memory(obs.is_padding)
        self.games = np.zeros(len(obs) // self.sides, np.int64)
        self._names, self.groups = [AGENT] * len(obs), {}
        self.begin_games(np.arange(len(self.games)))

    def act(self, obs: VecObs, batch: EntityBatch, t: int) -> Decisions:
        """Choose the actions of each player in its frames; return decisions in frame order."""
        if not self._slices:
            self._order_frames()
        ordered = batch.take(self._environments)
        decisions = Decisions.cat(self._decide(obs, ordered, t))
        self._last = ordered, decisions, slice(0, len(self.groups.get(AGENT, ())))
        order = np.argsort(self._environments)
        return replace(decisions.take(order), players=self._names)

    def select_learnt(
        self, batch: EntityBatch, decisions: Decisions
    ) -> tuple[EntityBatch, Decisions]:
        """Return the agent's frames and decisions, which are the first group."""
        ordered, decided, learnt = self._last
        return ordered.slice(learnt), decided.slice(learnt)

    def values(self, batch: EntityBatch, environments: IntArray) -> Tensor:
        """Return the learner's values of frames."""
        return self.learner.values(batch, environments)

    def after_step(self, obs: VecObs) -> None:
        """Begin the next game of matches that ended."""
        for player in self.players.values():
            player.memory.after_step(obs)
        ended = np.flatnonzero(obs.done[:: self.sides])
        if len(ended):
            self.games[ended] += 1
            self.begin_games(ended)

    def begin_games(self, matches: IntArray) -> None:
        """Assign players to the games that begin in some matches of this process."""
        names, sides = [*self._names], self.sides
        for match in matches.tolist():
            lineup = self.lineup(match + self.first // sides, int(self.games[match]))
            names[match * sides : (match + 1) * sides] = lineup
        if not self.groups or names != self._names:
            self.seat(names)
        is_new = np.zeros(len(self.games), np.bool_)
        is_new[matches] = True
        games = self.game_of_match()
        for name, environments in self.groups.items():
            new = environments[is_new[environments // sides]]
            self.player(name).begin_games(new, games[new // sides])

    def game_of_match(self) -> IntArray:
        """Return the number that seeds the bots of each running game, (matches,) int64."""
        return self.games

    def seat(self, names: Sequence[str]) -> None:
        """Assign players to environments.

        Args:
            names: (B,), name of the player in each environment.
        """
        seats: dict[str, list[int]] = {AGENT: []} if AGENT in names else {}
        for environment, name in enumerate(names):
            seats.setdefault(name, []).append(environment)
        self.groups = {name: np.array(indices, np.int64) for name, indices in seats.items()}
        self.learnt = self.groups.get(AGENT)
        self._names, self._slices = names, {}

    def player(self, name: str) -> SeatPlayer:
        """Return the player of this name."""
        return self.players[name]

    def _decide(self, obs: VecObs, ordered: EntityBatch, t: int) -> list[Decisions]:
        """Choose the actions of each player in its frames.

        Args:
            obs: the frames of all environments.
            ordered: the same frames on the device, ordered by group.
            t: a number that differs in each step.
        """
        return [self._choose(name, obs, ordered, t) for name in self.groups]

    def _choose(self, name: str, obs: VecObs, ordered: EntityBatch, t: int) -> Decisions:
        """Choose the actions of one player in its frames."""
        frames = ordered.slice(self._slices[name])
        return self.player(name).act_in(obs, frames, self.groups[name], t)

    def _order_frames(self) -> None:
        """Compute the order of frames by group, and the slice of each group."""
        ends = np.cumsum([0, *map(len, self.groups.values())]).tolist()
        slices = (slice(start, stop) for start, stop in pairwise(ends))
        self._slices = dict(zip(self.groups, slices, strict=True))
        self._environments = np.concatenate([*self.groups.values()])
