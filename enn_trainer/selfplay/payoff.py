"""Pay-off matrices of players: schedule of a round robin, scores, rings, unbeaten mixtures."""

import math
from itertools import combinations, count
from typing import NamedTuple

import numpy as np

from enn_trainer.evaluation.eval_metrics import t_quantile_975
from enn_trainer.selfplay.elo import FloatArray, compare_sides
from enn_trainer.selfplay.matchmaking import IntArray

_Z_975 = 1.959963984540054  # the 97.5% quantile of the normal distribution


class Results(NamedTuple):
    """Results of P players against each other.

    Attributes:
        scores: (P, P) float64, [i, j] is wins + draws / 2 of i against j. In a game with more than
            two sides each pair of a seat of i and a seat of j is one comparison.
        comparisons: (P, P) float64, symmetric, number of comparisons of i and j.
        games: (P, P) float64, symmetric, number of games in which i and j met.

    The diagonals are 0.
    """

    scores: FloatArray
    comparisons: FloatArray
    games: FloatArray


class Payoff(NamedTuple):
    """Matrix of means with 95% confidence intervals; NaN where it is not known.

    Attributes:
        mean: (P, P) float64, [i, j] is the mean of player i in games against player j.
        low: (P, P) float64, lower ends of the intervals.
        high: (P, P) float64, upper ends of the intervals.
    """

    mean: FloatArray
    low: FloatArray
    high: FloatArray


def round_robin(num_players: int, num_sides: int, games: int) -> IntArray:
    """Return the line-ups of a round robin.

    Each pair of players has the same line-ups: one of the two has one seat, each in turn, and the
    other one has all others; then the reverse. So each has every seat equally often, as have their
    pairs of seats.

    Args:
        num_players: number of players, P.
        num_sides: number of seats of a game, S, at least 2.
        games: games of each pair, rounded up to a multiple of the 2 line-ups of two sides, or of
            the 2 * S line-ups of more.

    Returns:
        (P * (P - 1) / 2 * games, S) int64, the player in each seat; by pair.

    Raises:
        ValueError: there is one side alone.
    """
    if num_sides < 2:
        raise ValueError(f"num_sides: expected at least 2, got {num_sides}")
    first_alone = np.ones((num_sides, num_sides), dtype=np.int64) - np.eye(
        num_sides, dtype=np.int64
    )
    lineups = first_alone  # [k, seat]: 0 is the first of the pair, 1 the second
    if num_sides > 2:
        lineups = np.concatenate([first_alone, 1 - first_alone])
    lineups = np.tile(lineups, (-(-games // len(lineups)), 1))
    pairs = np.array(list(combinations(range(num_players), 2)), dtype=np.int64).reshape(-1, 2)
    return pairs[:, lineups].reshape(-1, num_sides)


def count_results(lineups: IntArray, results: FloatArray, num_players: int) -> Results:
    """Count the results of games.

    Args:
        lineups: (G, S) int64, the player in each seat; seats of one player are not compared.
        results: (G, S) float, the result of each seat; the larger one wins.
        num_players: number of players, P.
    """
    shape = (num_players, num_players)
    scores, comparisons, games = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    num_games, num_sides = lineups.shape
    mine = np.repeat(lineups[:, :, None], num_sides, axis=2)
    theirs = mine.transpose(0, 2, 1)
    is_other = mine != theirs
    np.add.at(scores, (mine[is_other], theirs[is_other]), compare_sides(results)[is_other])
    np.add.at(comparisons, (mine[is_other], theirs[is_other]), 1.0)
    game = np.broadcast_to(np.arange(num_games)[:, None, None], mine.shape)
    met = np.unique(np.stack([game, mine, theirs], axis=-1)[is_other], axis=0)
    np.add.at(games, (met[:, 1], met[:, 2]), 1.0)
    return Results(scores, comparisons, games)


def score_payoff(results: Results) -> Payoff:
    """Return the mean scores of players against each other, with Wilson's intervals.

    Comparisons within a game are not independent, so the intervals count games. They treat scores
    as wins and losses, which is exact without draws, and wider than necessary with them.

    Source: Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953.
    """
    with np.errstate(invalid="ignore"):
        p, n = results.scores / results.comparisons, np.where(results.games > 0, results.games, 1)
    # (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
    z2 = _Z_975**2
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    width = _Z_975 * np.sqrt(p * (1 - p) / n + z2 / (4 * n**2)) / (1 + z2 / n)
    return Payoff(p, middle - width, middle + width)


def metric_payoff(
    rows: IntArray, columns: IntArray, values: FloatArray, num_players: int
) -> Payoff:
    """Return the mean of a metric of players in games against each other, with t intervals.

    Args:
        rows: (n,) int64, the player whose metric it is.
        columns: (n,) int64, the player in the other seats of the game.
        values: (n,) float, the metric, of one game each.
        num_players: number of players, P.

    Returns:
        The matrix; intervals of fewer than two games are NaN.
    """
    mean = np.full((num_players, num_players), math.nan)
    width = mean.copy()
    for i, j in np.unique(np.stack([rows, columns], axis=1), axis=0).tolist():
        found = values[(rows == i) & (columns == j)]
        mean[i, j] = found.mean()
        if (n := len(found)) > 1:
            width[i, j] = t_quantile_975(n - 1) * found.std(ddof=1) / math.sqrt(n)
    return Payoff(mean, mean - width, mean + width)


def find_rings(scores: Payoff) -> list[tuple[int, int, int]]:
    """Return the rings of three players: i beats j, j beats k, and k beats i.

    A player beats another one if the interval of its score lies above 1/2.

    Returns:
        Each ring once, beginning with its smallest number.
    """
    beats = scores.low > 0.5
    closed = beats[:, :, None] & beats[None, :, :] & beats.T[:, None, :]
    return [(i, j, k) for i, j, k in np.argwhere(closed).tolist() if i < min(j, k)]


def unbeaten_mixture(payoff: FloatArray, tolerance: float = 1e-3) -> FloatArray:
    """Return a mixture of players against which no player wins more than `tolerance`.

    This is an equilibrium of the symmetric zero-sum game in which each side picks a player. There
    may be several; the result is a function of the arguments.

    Args:
        payoff: (P, P) float, [i, j] is what player i wins against player j, such as
            scores - 1/2; antisymmetric.
        tolerance: above 0, in units of the pay-off.

    Returns:
        (P,) float64, probabilities.

    Raises:
        ValueError: the matrix is not finite, or is not antisymmetric.

    Source: regret matching, Hart and Mas-Colell 2000, https://doi.org/10.1111/1468-0262.00153; with
    regrets of at least 0 and iterates weighted by their number, Tammelin 2014, arXiv:1407.5042; and
    with a prediction of the next pay-offs, Farina et al. 2021, arXiv:2007.14358.
    """
    if not np.isfinite(payoff).all() or not np.allclose(payoff, -payoff.T):
        raise ValueError(
            "payoff: expected a finite matrix with payoff[i, j] = -payoff[j, i], got "
            f"{payoff.tolist()}"
        )
    num_players = len(payoff)
    regrets, total = np.zeros(num_players), np.zeros(num_players)
    mixture = np.full(num_players, 1 / num_players)
    for t in count(1):
        # R_i = max(R_i + (A x)_i - x A x, 0), where x A x = 0, as A is antisymmetric
        won = payoff @ mixture
        regrets = np.maximum(regrets + won, 0)
        total += t * mixture
        if t % 8 == 1 and (payoff @ total).max() <= tolerance * total.sum():
            break
        # x_i = R'_i / sum_j R'_j, where R' are the regrets if the same is won once more
        predicted = np.maximum(regrets + won, 0)
        if predicted.any():
            mixture = predicted / predicted.sum()
    return np.asarray(total / total.sum())
