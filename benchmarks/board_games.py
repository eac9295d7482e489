"""Board games of PettingZoo as matches, with bots as reference opponents.

    enn train --config configs/tic_tac_toe.ron
    enn eval RUN --opponent benchmarks/board_games.py:Perfect

The cells of a board are entities; their features `own` and `other` mark pieces of the observing and
of the opposing side. A move selects a cell in tic-tac-toe, and a column in connect four.
"""

import functools
import warnings
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from entity_env import Action, Bot, GlobalCategoricalAction, Observation, SelectEntityAction
from entity_env.adapters.from_pettingzoo_turns import FromPettingZooTurns
from entity_env.adapters.mapping import Choice, FieldMap, Rows, Select

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from pettingzoo.classic import connect_four_v3, tictactoe_v3

_COLUMNS = list("abcdefg")


def _cells(columns: str, rows: int) -> dict[str, Rows]:
    """Return the mapping of a board; the name of each cell is a categorical feature."""
    names = [f"{column}{row}" for row in range(rows, 0, -1) for column in columns]
    layout = ["row", "column", "own", "other"]
    features = ["own", "other"]
    kinds = {"number": names}
    return {"cell": Rows("observation", layout, features, numbered=True, kinds=kinds)}


TicTacToe = FromPettingZooTurns.of(
    tictactoe_v3.env, FieldMap(_cells("abc", 3), actions={"mark": Select("", actees="cell")})
)
ConnectFour = FromPettingZooTurns.of(
    connect_four_v3.env, FieldMap(_cells("abcdefg", 6), actions={"drop": Choice(labels=_COLUMNS)})
)

Board = npt.NDArray[np.int64]
"""(cells,): 1 for pieces of the side to move, -1 for the other side's, 0 for empty cells."""
_THREE = np.array(
    [[0, 1, 2], [3, 4, 5], [6, 7, 8], [0, 3, 6], [1, 4, 7], [2, 5, 8], [0, 4, 8], [2, 4, 6]]
)


def board_of(observation: Observation) -> Board:
    """Return the pieces on a board, (cells,)."""
    cells = np.asarray(observation.features["cell"])
    own, other = cells[:, 0], cells[:, 1]
    board: Board = (own - other).astype(np.int64)
    return board


@functools.cache
def value_of(board: tuple[int, ...]) -> int:
    """Return the tic-tac-toe value for the side to move under perfect play: 1, 0 or -1."""
    if (np.array(board)[_THREE].sum(axis=1) == -3).any():
        return -1
    moves = [i for i, piece in enumerate(board) if piece == 0]
    return max((-value_of(_after(board, move)) for move in moves), default=0)


def _after(board: tuple[int, ...], move: int) -> tuple[int, ...]:
    """Return the board after a move, from the perspective of the other side."""
    return tuple(-piece for piece in (*board[:move], 1, *board[move + 1 :]))


class Perfect(Bot):
    """Tic-tac-toe bot that samples among the best moves."""

    def act(self, observation: Observation) -> Mapping[str, Action]:
        """Return one of the best moves."""
        if not observation.actions:
            return {}
        board = tuple(board_of(observation).tolist())
        values = {i: -value_of(_after(board, i)) for i, piece in enumerate(board) if piece == 0}
        best = [move for move, value in values.items() if value == max(values.values())]
        return {"mark": SelectEntityAction([("agent", 0)], [("cell", self.rng.choice(best))])}


class WinOrBlock(Bot):
    """Connect-four bot: wins if possible, else blocks, else moves at random."""

    def act(self, observation: Observation) -> Mapping[str, Action]:
        """Return a column."""
        if not observation.actions:
            return {}
        board = board_of(observation).reshape(6, 7)
        columns = np.flatnonzero(board[0] == 0).tolist()
        fours = [c for side in (1, -1) for c in columns if makes_four(board, c, side)]
        column = fours[0] if fours else int(self.rng.choice(columns))
        return {"drop": GlobalCategoricalAction(column, _COLUMNS[column])}


def makes_four(board: Board, column: int, side: int) -> bool:
    """Return True if a piece in a column completes four in a row.

    Args:
        board: (6, 7), the top row first.
        column: a column that is not full.
        side: 1 for an own piece, -1 for one of the other side.
    """
    row = int(np.flatnonzero(board[:, column] == 0)[-1])

    def length(down: int, right: int) -> int:
        """Return the number of pieces of the side from the cell on, without it."""
        count, i, j = 0, row + down, column + right
        while 0 <= i < 6 and 0 <= j < 7 and board[i, j] == side:
            count, i, j = count + 1, i + down, j + right
        return count

    lines = ((0, 1), (1, 0), (1, 1), (1, -1))
    return any(1 + length(*line) + length(-line[0], -line[1]) >= 4 for line in lines)
