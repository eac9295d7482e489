"""Rounds of games against a pool, over which members are rated.

Of the games that have ended at some time the short ones are too many, and who wins those may be
another one. A round has one game of each match against the pool.
"""

from collections.abc import Sequence

import numpy as np

from enn_trainer.experience.rounds import Rounds
from enn_trainer.selfplay.elo import FloatArray
from enn_trainer.selfplay.league import GameResult
from enn_trainer.selfplay.matchmaking import IntArray

_GAMES = "games"


def add_games(
    rounds: Rounds,
    matches: IntArray,
    num_matches: int,
    results: Sequence[Sequence[GameResult] | None],
) -> tuple[list[GameResult], int]:
    """Add games that ended, and take out the results of the rounds that they complete.

    Args:
        rounds: rounds under way, which are changed.
        matches: (G,) int64, positions among the matches against the pool, in the order of ends.
        num_matches: number of these matches.
        results: of each game; None of one that has no result, as a lost worker process ended it.

    Returns:
        The results of the complete rounds, and the number of their games that have results.
    """
    # Numbers of equal results by game, as metrics of it.
    counts: dict[str, FloatArray] = {}
    for i, of_game in enumerate(results):
        names = [] if of_game is None else [_GAMES, *map(_name, of_game)]
        for name in names:
            counts.setdefault(name, np.zeros(len(results)))[i] += 1
    metrics = {name: np.where(found > 0, found, np.nan) for name, found in counts.items()}
    complete = rounds.add(matches, num_matches, metrics)
    totals = {name: int(tally[:, 1].sum()) for name, tally in complete.items()}
    num_games = totals.pop(_GAMES, 0)
    return [one for name, total in totals.items() for one in [_result(name)] * total], num_games


def members_under_way(rounds: Rounds) -> set[str]:
    """Return the members with results in rounds under way."""
    return {_result(name).member for name in rounds.tallies if name != _GAMES}


def _name(result: GameResult) -> str:
    return f"{result.seat}/{result.score}/{result.member}"


def _result(name: str) -> GameResult:
    seat, score, member = name.split("/", 2)
    return GameResult(member, int(seat), float(score))
