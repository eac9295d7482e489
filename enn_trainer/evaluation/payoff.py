"""Payoff matrices of players: round-robin schedule, scores, cycles, equilibrium mixtures."""

import math
from itertools import combinations, count
from typing import NamedTuple

import numpy as np

from enn_trainer.evaluation.eval_metrics import mean_over_episodes
from enn_trainer.selfplay.elo import compare_sides
from entity_env.arrays import FloatArray, IntArray

_Z_975 = 1.959963984540054  # the 97.5% quantile of the normal distribution


class Results(NamedTuple):
    """Results of P players against each other.

    Games of one deal are correlated, and so are comparisons within a game; deals are independent.

    Attributes:
        scores: (P, P) float64, [i, j] is wins + draws / 2 of i against j. In games with more than
            two sides, each pair of a seat of i and a seat of j is one comparison.
        comparisons: (P, P) float64, symmetric, number of comparisons of i and j.
        deals: (P, P) float64, symmetric, number of deals in which i and j met.
        ci95: (P, P) float64, symmetric, half the width of the t interval over deals of the mean
            score; NaN with fewer than two deals.

    The diagonals are 0, that of `ci95` NaN.
    """

    scores: FloatArray
    comparisons: FloatArray
    deals: FloatArray
    ci95: FloatArray

    def effective_games(self) -> FloatArray:
        """Return the number of independent wins and losses with the same confidence interval.

        Returns:
            (P, P) float64, infinite where all deals have the same score between 0 and 1. Where one
            player won all games (the interval would be too narrow), or with fewer than two deals,
            it is the number of deals.

        Source: effective sample size, Korn and Graubard 1998, Survey Methodology 24(2), 193-201.
        """
        with np.errstate(invalid="ignore", divide="ignore"):
            p = self.scores / self.comparisons
            # ci95 = z sqrt(p (1 - p) / n)
            n = p * (1 - p) * np.square(_Z_975 / self.ci95)
        return np.where((p > 0) & (p < 1) & (self.deals > 1), n, self.deals)


class Payoff(NamedTuple):
    """Matrix of mean payoffs with 95% confidence intervals; NaN where unknown.

    Attributes:
        mean: (P, P) float64, [i, j] is the mean of player i in games against player j.
        low: (P, P) float64, lower ends of the intervals.
        high: (P, P) float64, upper ends of the intervals.
    """

    mean: FloatArray
    low: FloatArray
    high: FloatArray


def round_robin(num_players: int, num_sides: int, games: int) -> IntArray:
    """Return the lineups of the deals of a round robin.

    Each deal of a pair of players is played with the same L lineups: one of the two has one seat,
    each in turn, and the other one has the remaining seats; with more than two sides also the
    reverse. So each player has every seat equally often, and so has each pair of seats.

    Args:
        num_players: number of players, P.
        num_sides: number of seats of a game, S, at least 2.
        games: games per pair, rounded up to whole deals: to a multiple of L, which is 2 for two
            sides, and 2 * S for more.

    Returns:
        (P * (P - 1) / 2 * games / L, L, S) int64, the player in each seat; by pair.

    Raises:
        ValueError: a game has only one side.
    """
    if num_sides < 2:
        raise ValueError(f"num_sides: expected at least 2, got {num_sides}")
    first_alone = np.ones((num_sides, num_sides), dtype=np.int64) - np.eye(
        num_sides, dtype=np.int64
    )
    lineups = first_alone  # [k, seat]: 0 is the first of the pair, 1 the second
    if num_sides > 2:
        lineups = np.concatenate([first_alone, 1 - first_alone])
    num_deals = -(-games // len(lineups))
    pairs = np.array(list(combinations(range(num_players), 2)), dtype=np.int64).reshape(-1, 2)
    return np.repeat(pairs[:, lineups], num_deals, axis=0)


def count_results(lineups: IntArray, results: FloatArray, num_players: int) -> Results:
    """Count the results of deals.

    Args:
        lineups: (D, L, S) int64, the player in each seat; seats of one player are not compared.
        results: (D, L, S) float, the result of each seat; the larger one wins.
        num_players: number of players, P.
    """
    num_deals, _, num_sides = lineups.shape
    row = np.repeat(lineups[..., None], num_sides, axis=-1)  # (D, L, S, S) player of each seat
    column = row.swapaxes(-1, -2)  # opponent in each seat
    is_other = row != column
    deal = np.broadcast_to(np.arange(num_deals)[:, None, None, None], row.shape)
    pairs = np.stack([row, column, deal], axis=-1)[is_other]
    met, inverse = np.unique(pairs, axis=0, return_inverse=True)
    sums, counts = np.zeros((2, len(met)))
    np.add.at(sums, inverse.ravel(), compare_sides(results)[is_other])
    np.add.at(counts, inverse.ravel(), 1.0)

    # Sums over deals and confidence intervals, pair by pair.
    shape = num_players, num_players
    scores, comparisons, deals = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    ci95 = np.full(shape, math.nan)
    players, starts = np.unique(met[:, :2], axis=0, return_index=True)
    for (i, j), scores_of_pair, num in zip(
        players.tolist(), np.split(sums, starts[1:]), np.split(counts, starts[1:]), strict=True
    ):
        scores[i, j], comparisons[i, j], deals[i, j] = scores_of_pair.sum(), num.sum(), len(num)
        width = mean_over_episodes(scores_of_pair, num)[1]
        ci95[i, j] = math.nan if width is None else width
    return Results(scores, comparisons, deals, ci95)


def score_payoff(results: Results) -> Payoff:
    """Return the mean scores of players against each other, with Wilson score intervals.

    The intervals are over deals, because the number of games is `Results.effective_games`: their
    width is 0 where all deals have the same score, such as 1/2 in a game that the deal decides.

    Source: Wilson 1927, https://doi.org/10.1080/01621459.1927.10502953.
    """
    games = results.effective_games()
    with np.errstate(invalid="ignore"):
        p, n = results.scores / results.comparisons, np.where(games > 0, games, 1)
    # (p + z^2 / 2n +- z sqrt(p (1 - p) / n + z^2 / 4n^2)) / (1 + z^2 / n)
    z2 = _Z_975**2
    middle = (p + z2 / (2 * n)) / (1 + z2 / n)
    width = _Z_975 * np.sqrt(p * (1 - p) / n + z2 / (4 * n**2)) / (1 + z2 / n)
    return Payoff(p, middle - width, middle + width)


def metric_payoff(
    rows: IntArray, columns: IntArray, values: FloatArray, num_players: int
) -> Payoff:
    """Return the mean of a metric of each player against each other player, with t intervals.

    Args:
        rows: (n,) int64, the player that is measured.
        columns: (n,) int64, the player in the other seats of the game.
        values: (n,) float, the metric, averaged over the games of one deal.
        num_players: number of players, P.

    Returns:
        The matrix; intervals are NaN with fewer than two deals.
    """
    mean = np.full((num_players, num_players), math.nan)
    width = mean.copy()
    for i, j in np.unique(np.stack([rows, columns], axis=1), axis=0).tolist():
        pair_values = values[(rows == i) & (columns == j)]
        mean[i, j], ci95 = mean_over_episodes(pair_values, np.ones(len(pair_values)))
        width[i, j] = math.nan if ci95 is None else ci95
    return Payoff(mean, mean - width, mean + width)


def find_rings(scores: Payoff) -> list[tuple[int, int, int]]:
    """Return the cycles of three players: i beats j, j beats k, and k beats i.

    A player beats another one if the confidence interval of its score lies above 1/2.

    Returns:
        Each cycle once, starting with its smallest index.
    """
    beats = scores.low > 0.5
    closed = beats[:, :, None] & beats[None, :, :] & beats.T[:, None, :]
    return [(i, j, k) for i, j, k in np.argwhere(closed).tolist() if i < min(j, k)]


def unbeaten_mixture(payoff: FloatArray, tolerance: float = 1e-3) -> FloatArray:
    """Return a mixture of players against which no player wins more than `tolerance`.

    This is a Nash equilibrium of the symmetric zero-sum game in which each side picks a player.
    There may be several; the result is a function of the arguments.

    Args:
        payoff: (P, P) float, [i, j] is the payoff of player i against player j, such as scores -
            1/2; antisymmetric.
        tolerance: above 0, in units of the payoff.

    Returns:
        (P,) float64, probabilities.

    Raises:
        ValueError: the matrix is not finite, or not antisymmetric.

    Source: regret matching, Hart and Mas-Colell 2000, https://doi.org/10.1111/1468-0262.00153; with
    regrets of at least 0 and iterates weighted by their number, Tammelin 2014, arXiv:1407.5042; and
    with a prediction of the next payoffs, Farina et al. 2021, arXiv:2007.14358.
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
        # x_i = R'_i / sum_j R'_j, where R' predicts the regrets after another round like this one
        predicted = np.maximum(regrets + won, 0)
        if predicted.any():
            mixture = predicted / predicted.sum()
    return np.asarray(total / total.sum())
