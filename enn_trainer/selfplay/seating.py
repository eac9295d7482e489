"""`PoolLineups`: the lineup of each match against the pool, as a part of the state of a run."""

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
from enn_trainer.experience.env_states import gather_bots, select_bots
from enn_trainer.experience.run_memories import RecurrentStates
from enn_trainer.experience.seated_players import AGENT
from enn_trainer.selfplay.matchmaking import agent_seats, draw_opponents
from entity_env.arrays import FloatArray, IntArray

MEMORY = "memory"
"""Prefix of the recurrent states of players."""


class Table(NamedTuple):
    """Numbers of matches of a run, and of those against the pool, which come last.

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
        """Return the numbers for a share of matches against the pool, rounded."""
        num_matches = num_envs // sides
        return Table(num_matches, sides, int(share * num_matches + 0.5))

    @property
    def first_pool(self) -> int:
        """The first match against the pool."""
        return self.num_matches - self.num_pool

    @property
    def num_learnt(self) -> int:
        """Number of frames of each step that are trained on, which excludes opponents."""
        return self.num_matches * self.sides - self.num_pool * (self.sides - 1)

    def learnt_before(self, environment: int) -> int:
        """Return the number of frames to train on before the first one of a match, in each step."""
        match = environment // self.sides
        against_pool = max(0, match - self.first_pool)
        return environment - against_pool * (self.sides - 1)


class FinishedGame(NamedTuple):
    """Finished game against the pool.

    Attributes:
        match: index of the match.
        players: the players by seat, with one `AGENT`.
        is_lost: True if the loss of a worker process ended the game, which has no result then.
    """

    match: int
    players: list[str]
    is_lost: bool = False


class PoolLineups(StatePart):
    """Lineups of the matches against the pool; the part `PLAYERS` of a state.

    Attributes:
        table: numbers of matches; None before the environments are created.
        games: (P,) int64, number of games that each match against the pool has begun.
        players: the players of these matches by seat, with one `AGENT` each; empty before the first
            games begin.
        bots: saved states of bots that have not acted since, by member.
        bot_source: returns the states of the active bots; None before the first step.
        reset_bots: recreates the active bots from `bots`; None before the first step.
        recurrent_states: recurrent states of the players.
        columns: the environments of this process in a run of several; None for all.
    """

    columns: range | None = None
    _joined_bots: dict[str, bytes] | None = None
    bot_source: Callable[[], dict[str, bytes]] | None = None
    reset_bots: Callable[[], None] | None = None

    def __init__(self) -> None:
        self.table: Table | None = None
        self.games: IntArray = np.zeros(0, np.int64)
        self.players: list[list[str]] = []
        self.bots: dict[str, bytes] = {}
        self.recurrent_states = RecurrentStates()

    def arrange(self, table: Table) -> None:
        """Set the numbers of matches; if they change, all running games are dropped."""
        if table != self.table:
            self.table, self.games = table, np.resize(self.games, table.num_pool)
            self.players, self.bots = [], {}
            self.recurrent_states.saved = {}

    def begin_games(
        self, matches: IntArray, names: list[str], weights: FloatArray, sides: IntArray, seed: int
    ) -> None:
        """Draw the lineups of new games; the result depends on the arguments and `games` only.

        Args:
            matches: (n,) int64, distinct indices among the matches against the pool.
            names: names of the members in play.
            weights: (K,) float, their sampling weights.
            sides: seats between which the agent rotates.
            seed: seed of the run.
        """
        assert self.table is not None
        num_sides = self.table.sides
        if not self.players:
            self.players = [[AGENT] * num_sides for _ in range(self.table.num_pool)]
        all_matches = matches + self.table.first_pool
        games = self.games[matches]
        agent = agent_seats(sides, all_matches, games)
        seats = np.tile(np.arange(num_sides), len(matches))
        drawn = draw_opponents(
            weights, seed, np.repeat(all_matches, num_sides), np.repeat(games, num_sides), seats
        ).reshape(-1, num_sides)
        for match, seat, row in zip(matches.tolist(), agent.tolist(), drawn.tolist(), strict=True):
            self.players[match] = [names[i] for i in row]
            self.players[match][seat] = AGENT
        self.games[matches] += 1

    def next_seats(self, sides: IntArray) -> IntArray:
        """Return the environments of the agent if all matches began a new game, ascending."""
        assert self.table is not None
        first, num_sides = self.table.first_pool, self.table.sides
        matches: IntArray = np.arange(first, self.table.num_matches)
        agent = matches * num_sides + agent_seats(sides, matches, self.games)
        return np.concatenate([np.arange(first * num_sides), agent])

    def lineup(self, match: int, game: int) -> list[str]:
        """Return the lineup of the running game of a match."""
        assert self.table is not None
        if match < self.table.first_pool:
            return [AGENT] * self.table.sides
        return self.players[match - self.table.first_pool]

    def names(self) -> list[str]:
        """Return the player of each environment; the agent in matches not against the pool."""
        assert self.table is not None
        seated = [name for players in self.players for name in players]
        return [AGENT] * (self.table.num_matches * self.table.sides - len(seated)) + seated

    def playing_members(self) -> set[str]:
        """Return the names of the members in running games."""
        return {name for players in self.players for name in players} - {AGENT}

    def state_dict(self) -> StateDict:
        """Return numbers of matches and games, lineups, and the states of bots and players."""
        if self.table is None:
            return {}
        players: list[Any] = [[*names] for names in self.players]
        table, games = dict(self.table._asdict()), self.games.tolist()
        bots = self.states_of_bots() if self._joined_bots is None else self._joined_bots
        plain = {"table": table, "games": games, "players": players, "bots": bots}
        return {**plain, **with_prefix(MEMORY, self.recurrent_states.state_dict())}

    def select_columns(self, columns: range) -> None:
        """Restrict saved states to the environments of this process."""
        self.columns = self.recurrent_states.columns = columns
        self.bots = {name: select_bots(state, columns) for name, state in self.bots.items()}

    def set_games(self, pool: range, games: Sequence[int], players: list[list[str]]) -> None:
        """Set the numbers of games and lineups of the matches of another process."""
        self.games[pool.start : pool.stop] = games
        self.players[pool.start : pool.stop] = players

    def join(self, group: Group) -> None:
        """Gather the states of bots and recurrent states of all ranks, for a save."""
        self._joined_bots = None
        if self.columns is not None and group.size > 1:
            self._joined_bots = gather_bots(self.states_of_bots(), group, self.columns)
        self.recurrent_states.join(group)

    def evolve(self, state: StateDict, change: SpaceChange) -> StateDict:
        """Drop recurrent states if the environment changed, as running games end then."""
        if change.is_same_world:
            return dict(state)
        return {name: x for name, x in state.items() if not name.startswith(f"{MEMORY}/")}

    def snapshot(self) -> StateDict:
        """Return numbers of games, lineups and states of bots."""
        bots = self.states_of_bots()
        return {"games": self.games, "players": self.players, "bots": bots}

    def restore(self, snapshot: StateDict) -> None:
        """Restore the lineups before an update."""
        self.games, self.players, self.bots = (snapshot[k] for k in ("games", "players", "bots"))
        if self.reset_bots is not None:
            self.reset_bots()

    def states_of_bots(self) -> dict[str, bytes]:
        """Return the states of bots, both saved and active ones."""
        return {**self.bots, **(self.bot_source() if self.bot_source is not None else {})}

    def load_state_dict(self, state: StateDict) -> None:
        """Restore the players of running games.

        Raises:
            ValueError: an entry is missing or invalid; the message names it.
        """
        if all(isinstance(x, Tensor) for x in state.values()):  # saved by a run without a league
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
            raise ValueError(f"players: expected {table.num_pool} matches")
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
        self.recurrent_states.load_state_dict(without_prefix(MEMORY, state))


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**62
