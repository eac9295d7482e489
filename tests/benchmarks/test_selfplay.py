"""Board games, their bots, and the table of `benchmarks/selfplay.py`."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from enn_trainer.run.tournament import play_league
from entity_env import check_env


@pytest.fixture
def games(benchmark: Any) -> Any:
    return benchmark("board_games")


def lines(board: Any) -> Iterator[Any]:
    """All four cells in a row of a board."""
    for i in range(6):
        for j in range(7):
            for down, right in ((0, 1), (1, 0), (1, 1), (1, -1)):
                cells = [(i + k * down, j + k * right) for k in range(4)]
                if all(0 <= a < 6 and 0 <= b < 7 for a, b in cells):
                    yield [board[cell] for cell in cells]


def test_perfect_tic_tac_toe_draws_or_wins(games: Any) -> None:
    assert games.value_of((0,) * 9) == 0
    assert games.value_of((1, 1, 0, -1, -1, 0, 0, 0, 0)) == 1
    assert games.value_of((-1, -1, -1, 1, 1, 0, 0, 0, 0)) == -1
    # The other side has two ways to win, of which one move takes one.
    assert games.value_of((-1, 0, -1, 0, 1, 0, -1, 0, 1)) == -1


@pytest.mark.slow
def test_the_perfect_player_never_loses(games: Any) -> None:
    played = play_league(["random", games.Perfect], games.TicTacToe, 60, metric="episodic_reward")
    assert played.payoff.mean[1, 0] > 0.7
    against_itself = play_league([games.Perfect, games.Perfect], games.TicTacToe, 20)
    assert against_itself.payoff.mean[0, 1] == 0.5


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), moves=st.integers(0, 30))
def test_makes_four_detects_winning_moves(games: Any, seed: int, moves: int) -> None:
    rng = np.random.default_rng(seed)
    board = np.zeros((6, 7), np.int64)
    for i in range(moves):
        column = int(rng.integers(7))
        if board[0, column] == 0:
            row = np.flatnonzero(board[:, column] == 0)[-1]
            board[row, column] = 1 if i % 2 else -1
    before = sum(abs(sum(line)) == 4 for line in lines(board))
    for column in np.flatnonzero(board[0] == 0).tolist():
        for side in (1, -1):
            after = board.copy()
            after[np.flatnonzero(board[:, column] == 0)[-1], column] = side
            made = sum(abs(sum(line)) == 4 for line in lines(after)) > before
            assert games.makes_four(board, column, side) == made


@pytest.mark.slow
@pytest.mark.parametrize("name", ["TicTacToe", "ConnectFour"])
def test_board_games_and_bots_satisfy_the_environment_contract(games: Any, name: str) -> None:
    bot = {"TicTacToe": games.Perfect, "ConnectFour": games.WinOrBlock}[name]
    report = check_env(getattr(games, name), episodes=2, bot=bot)
    assert report.ok, str(report)


def test_table_contains_targets(benchmark: Any) -> None:
    selfplay = benchmark("selfplay")
    names = [row.name for row in selfplay.ROWS]
    assert len({*names}) == len(names)
    magnet = next(row for row in selfplay.ROWS if row.name == "KuhnPoker magnet")
    results = [
        {
            "row": magnet.name,
            "seed": seed,
            "frames": 2_000_000,
            "values": {selfplay.LAST: 0.01 * seed},
            "seconds": 60.0,
            "curve": [[1000, 0.4], [2000, 0.01 * seed]],
            "commit": "0123456",
        }
        for seed in (1, 2, 3)
    ]
    table = selfplay.table(results)
    assert (
        "| KuhnPoker | magnet | 2,000,000 | last policy | at most 0.05 | "
        "1: 0.010, 2: 0.020, 3: 0.030 | 60, 60, 60 | 0123456 |"
    ) in table
    assert selfplay.picture(results).startswith("<svg")
