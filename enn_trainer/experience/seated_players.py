"""`SeatedPlayers`: players by name, each in the seats that a lineup has for it."""

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
"""(match, game) -> names of the players by seat; both begin at 0, matches over all ranks."""


def against(opponent: str, sides: int) -> Lineup:
    """Return the lineup of the agent in environments of even index, and of an opponent in odd ones.

    Args:
        opponent: its name.
        sides: number of sides of a match.
    """

    def lineup(match: int, game: int) -> list[str]:
        return [opponent if (match * sides + side) % 2 else AGENT for side in range(sides)]

    return lineup


def against_pool(members: Sequence[str], sides: int) -> Lineup:
    """Return the lineup of the agent against one member in each match, in turn.

    The agent takes another seat in each match, and in each match against the same member.

    Args:
        members: their names.
        sides: number of sides of a match.
    """

    def lineup(match: int, game: int) -> list[str]:
        rounds, member = divmod(match, len(members))
        names = [members[member]] * sides
        names[(rounds + member) % sides] = AGENT
        return names

    return lineup


class SeatedPlayers(Players):
    """Players by name, who are seated by a lineup as games begin.

    Args:
        players: by name, the learner first.
        lineup: names of the players of a game by seat.
        sides: number of sides of a match.
        first: number of the first environment of this process among those of all ranks.

    Attributes:
        games: (matches,) int64, the number of the running game of each match.
        groups: (n,) int64, ascending, the environments of each player by name, the agent first.
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
    def identifies(self) -> bool:
        """True if a player remembers entities."""
        return any(player.identifies for player in self.players.values())

    def begin(self, obs: VecObs, is_resumed: bool) -> None:
        """Begin the first game of each match, without memory."""
        for player in self.players.values():
            player.begin_memory(obs.is_padding)
        self.games = np.zeros(len(obs) // self.sides, np.int64)
        self._names, self.groups = [AGENT] * len(obs), {}
        self.begin_games(np.arange(len(self.games)))

    def act(self, obs: VecObs, batch: EntityBatch, t: int) -> Decisions:
        """Let each player choose in its frames, and put the decisions in the order of frames."""
        if not self._slices:
            self._plan()
        ordered = batch.take(self._environments)
        decisions = Decisions.cat(self._decide(obs, ordered, t))
        self._last = ordered, decisions, slice(0, len(self.groups.get(AGENT, ())))
        order = np.argsort(self._environments)
        return replace(decisions.take(order), players=self._names)

    def learnt_from(
        self, batch: EntityBatch, decisions: Decisions
    ) -> tuple[EntityBatch, Decisions]:
        """Return the agent's frames and decisions, which come first in the order of groups."""
        ordered, decided, own = self._last
        return ordered.slice(own), decided.slice(own)

    def values(self, batch: EntityBatch, environments: IntArray) -> Tensor:
        """Return the values of the learner."""
        return self.learner.values(batch, environments)

    def after_step(self, obs: VecObs) -> None:
        """Begin the next game where one has ended."""
        for player in self.players.values():
            player.memory.after_step(obs)
        ended = np.flatnonzero(obs.done[:: self.sides])
        if len(ended):
            self.games[ended] += 1
            self.begin_games(ended)

    def begin_games(self, matches: IntArray) -> None:
        """Seat the players of the games that begin in some matches of this process."""
        names, sides = [*self._names], self.sides
        for match in matches.tolist():
            of_match = self.lineup(match + self.first // sides, int(self.games[match]))
            names[match * sides : (match + 1) * sides] = of_match
        if not self.groups or names != self._names:
            self.seat(names)
        is_new = np.zeros(len(self.games), np.bool_)
        is_new[matches] = True
        games = self.game_of_match()
        for name, environments in self.groups.items():
            new = environments[is_new[environments // sides]]
            self.player(name).begin_games(new, games[new // sides])

    def game_of_match(self) -> IntArray:
        """Return (matches,) int64, each running game by the number of which bots have a seed."""
        return self.games

    def seat(self, names: Sequence[str]) -> None:
        """Seat players: (B,), the name of the player in each environment."""
        seats: dict[str, list[int]] = {AGENT: []} if AGENT in names else {}
        for environment, name in enumerate(names):
            seats.setdefault(name, []).append(environment)
        self.groups = {name: np.array(some, np.int64) for name, some in seats.items()}
        self.learnt = self.groups.get(AGENT)
        self._names, self._slices = names, {}

    def player(self, name: str) -> SeatPlayer:
        """Return the player of this name."""
        return self.players[name]

    def _decide(self, obs: VecObs, ordered: EntityBatch, t: int) -> list[Decisions]:
        """Let each player choose in its frames.

        Args:
            obs: the frames of all environments.
            ordered: the same on the device, those of each player together, in the order of groups.
            t: a number that earlier steps did not have.
        """
        return [self._choose(name, obs, ordered, t) for name in self.groups]

    def _choose(self, name: str, obs: VecObs, ordered: EntityBatch, t: int) -> Decisions:
        """Let one player choose in its frames."""
        frames = ordered.slice(self._slices[name])
        return self.player(name).act_in(obs, frames, self.groups[name], t)

    def _plan(self) -> None:
        """Find the order in which the frames of each player are together."""
        ends = np.cumsum([0, *map(len, self.groups.values())]).tolist()
        slices = (slice(start, stop) for start, stop in pairwise(ends))
        self._slices = dict(zip(self.groups, slices, strict=True))
        self._environments = np.concatenate([*self.groups.values()])
