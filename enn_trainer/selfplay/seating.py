"""`Seating`: the players of each match against the pool, as a part of the state of a run."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from enn_trainer.base.group import Group
from enn_trainer.base.state_part import (
    SpaceChange,
    StateDict,
    StatePart,
    with_prefix,
    without_prefix,
)
from enn_trainer.experience.env_states import bots_of_ranks, part_of_bot
from enn_trainer.experience.run_memories import RunMemories
from enn_trainer.experience.seated_players import AGENT
from enn_trainer.selfplay.matchmaking import agent_seats, draw_opponents
from entity_env.arrays import FloatArray, IntArray

MEMORY = "memory"
"""Prefix of what players remember."""


class Table(NamedTuple):
    """Sizes of the environments of a run with matches against the pool.

    The matches against the pool are those with the highest indices.

    Attributes:
        num_matches: number of matches.
        sides: S, the number of sides of a match.
        num_pool: P, the number of matches against the pool.
    """

    num_matches: int
    sides: int
    num_pool: int

    @staticmethod
    def of(num_envs: int, sides: int, share: float) -> "Table":
        """Return the sizes for a share of the matches, rounded."""
        num_matches = num_envs // sides
        return Table(num_matches, sides, int(share * num_matches + 0.5))

    @property
    def first_pool(self) -> int:
        """The first match against the pool."""
        return self.num_matches - self.num_pool

    @property
    def num_learnt(self) -> int:
        """Number of frames of each step that are learnt from: all but those of opponents."""
        return self.num_matches * self.sides - self.num_pool * (self.sides - 1)

    def learnt_before(self, environment: int) -> int:
        """Return the frames of a step that are learnt from before the first one of a match."""
        match = environment // self.sides
        against_pool = max(0, match - self.first_pool)
        return environment - against_pool * (self.sides - 1)


class Game(NamedTuple):
    """Game against the pool that has ended.

    Attributes:
        match: its match.
        players: the players by seat, with one `AGENT`.
        is_lost: True if a lost worker process ended it, so that it has no result.
    """

    match: int
    players: list[str]
    is_lost: bool = False


class Seating(StatePart):
    """Players of each match against the pool by seat; the part `PLAYERS` of a state.

    Attributes:
        table: sizes of the environments; None before a run has any.
        games: (P,) int64, number of games that each match against the pool has begun.
        players: the players of these matches by seat, with one `AGENT` each; empty before the first
            games begin.
        bots: states of bots of a save that have not chosen since, by the name of the member.
        ask_bots: returns the states of bots that are playing, for a save; None if nobody plays yet.
        forget_bots: lets these be made anew, with the states in `bots`; likewise.
        memories: states that players remember.
        columns: the environments of this process in a run of several; None for all.
    """

    columns: range | None = None
    _joined_bots: dict[str, bytes] | None = None
    ask_bots: Callable[[], dict[str, bytes]] | None = None
    forget_bots: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.table: Table | None = None
        self.games: IntArray = np.zeros(0, np.int64)
        self.players: list[list[str]] = []
        self.bots: dict[str, bytes] = {}
        self.memories = RunMemories()

    def arrange(self, table: Table) -> None:
        """Take the sizes of the environments; with other ones nobody is seated any more."""
        if table != self.table:
            self.table, self.games = table, np.resize(self.games, table.num_pool)
            self.players, self.bots = [], {}
            self.memories.saved = {}

    def begin_games(
        self, matches: IntArray, names: list[str], weights: FloatArray, sides: IntArray, seed: int
    ) -> None:
        """Draw the players of games that begin; a function of the arguments and of `games`.

        Args:
            matches: (n,) int64, positions among the matches against the pool, without repetition.
            names: of the members in play.
            weights: (K,) float, by which they are drawn.
            sides: the seats that the agent takes in turn.
            seed: seed of the run.
        """
        assert self.table is not None
        num_sides = self.table.sides
        if not self.players:
            self.players = [[AGENT] * num_sides for _ in range(self.table.num_pool)]
        of_all = matches + self.table.first_pool
        games = self.games[matches]
        own = agent_seats(sides, of_all, games)
        seats = np.tile(np.arange(num_sides), len(matches))
        drawn = draw_opponents(
            weights, seed, np.repeat(of_all, num_sides), np.repeat(games, num_sides), seats
        ).reshape(-1, num_sides)
        for match, seat, row in zip(matches.tolist(), own.tolist(), drawn.tolist(), strict=True):
            self.players[match] = [names[i] for i in row]
            self.players[match][seat] = AGENT
        self.games[matches] += 1

    def next_seats(self, sides: IntArray) -> IntArray:
        """Return the environments of the agent if a game begins in all matches, ascending."""
        assert self.table is not None
        first, num_sides = self.table.first_pool, self.table.sides
        matches: IntArray = np.arange(first, self.table.num_matches)
        own = matches * num_sides + agent_seats(sides, matches, self.games)
        return np.concatenate([np.arange(first * num_sides), own])

    def lineup(self, match: int, game: int) -> list[str]:
        """Return the players of the running game of a match by seat."""
        assert self.table is not None
        if match < self.table.first_pool:
            return [AGENT] * self.table.sides
        return self.players[match - self.table.first_pool]

    def names(self) -> list[str]:
        """Return the player of each environment; in matches not against the pool the agent."""
        assert self.table is not None
        seated = [name for players in self.players for name in players]
        return [AGENT] * (self.table.num_matches * self.table.sides - len(seated)) + seated

    def seated(self) -> set[str]:
        """Return the names of the members that are playing."""
        return {name for players in self.players for name in players} - {AGENT}

    def state_dict(self) -> StateDict:
        """Return sizes, numbers of games, players, states of bots, and what players remember."""
        if self.table is None:
            return {}
        players: list[Any] = [[*names] for names in self.players]
        table, games = dict(self.table._asdict()), self.games.tolist()
        bots = self.states_of_bots() if self._joined_bots is None else self._joined_bots
        plain = {"table": table, "games": games, "players": players, "bots": bots}
        return {**plain, **with_prefix(MEMORY, self.memories.state_dict())}

    def take_columns(self, columns: range) -> None:
        """Take the states of a save that are of the environments of this process."""
        self.columns = self.memories.columns = columns
        self.bots = {name: part_of_bot(state, columns) for name, state in self.bots.items()}

    def take_games(self, pool: range, games: Sequence[int], players: list[list[str]]) -> None:
        """Take numbers of games and players of the matches of another process."""
        self.games[pool.start : pool.stop] = games
        self.players[pool.start : pool.stop] = players

    def join(self, group: Group) -> None:
        """Take the states of bots and memories of all ranks, for a save."""
        self._joined_bots = None
        if self.columns is not None and group.size > 1:
            self._joined_bots = bots_of_ranks(self.states_of_bots(), group, self.columns)
        self.memories.join(group)

    def evolve(self, state: StateDict, change: SpaceChange) -> StateDict:
        """Return the state without memories, as running games end where the world changes."""
        if change.is_same_world:
            return dict(state)
        return {name: x for name, x in state.items() if not name.startswith(f"{MEMORY}/")}

    def snapshot(self) -> StateDict:
        """Return numbers of games, players, and states of bots."""
        bots = self.states_of_bots()
        return {"games": self.games, "players": self.players, "bots": bots}

    def restore(self, snapshot: StateDict) -> None:
        """Go back to the seats before an update."""
        self.games, self.players, self.bots = (snapshot[k] for k in ("games", "players", "bots"))
        if self.forget_bots is not None:
            self.forget_bots()

    def states_of_bots(self) -> dict[str, bytes]:
        """Return the states of bots, as those of a save have them."""
        return {**self.bots, **(self.ask_bots() if self.ask_bots is not None else {})}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the players of running games.

        Raises:
            ValueError: an entry is missing or is not what was saved; the message names it.
        """
        if all(isinstance(x, Tensor) for x in state.values()):  # of a run without a league
            return
        sizes = state.get("table", {})
        is_table = isinstance(sizes, dict) and sizes.keys() == {*Table._fields}
        if not is_table or not all(_is_count(v) for v in sizes.values()):
            raise ValueError(f"table: expected {', '.join(Table._fields)}")
        table = Table(**sizes)
        games, players = state.get("games"), state.get("players")
        fits = isinstance(games, list) and len(games) == table.num_pool
        if not (isinstance(games, list) and fits and all(map(_is_count, games))):
            raise ValueError(f"games: expected {table.num_pool} numbers of games")
        if not isinstance(players, list) or len(players) not in (0, table.num_pool):
            raise ValueError(f"players: expected those of {table.num_pool} matches")
        for names in players:
            is_match = isinstance(names, list) and len(names) == table.sides
            if not is_match or not all(type(name) is str for name in names):
                raise ValueError(f"players: expected {table.sides} names for each match")
            if names.count(AGENT) != 1:
                raise ValueError("players: expected one seat of the agent in each match")
        bots = state.get("bots")
        if not isinstance(bots, dict) or not all(type(b) is bytes for b in bots.values()):
            raise ValueError("bots: expected states by name")
        self.table, self.games = table, np.array(games, np.int64)
        self.players, self.bots = players, bots
        self.memories.load_state_dict(without_prefix(MEMORY, state))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**62
