"""Elo ratings of players with confidence intervals, from results that may be discounted."""

import math
from typing import NamedTuple

import numpy as np

from entity_env.arrays import BoolArray, FloatArray, IntArray

FIRST_ELO = 1200.0
"""Rating of the first member of a league, and mean of the ratings of a round robin."""
DEVIATION = 400.0
"""Standard deviation of the normal prior of a rating around its last value."""
ROUND_ROBIN_DEVIATION = 1000.0
"""Standard deviation of the normal prior around `FIRST_ELO` in a round robin."""

_PER_POINT = math.log(10) / 400  # logits per point of Elo
_Z_975 = 1.959963984540054  # the 97.5% quantile of the normal distribution
_SMALL_STEP = 1e-6  # points of Elo


class Ratings(NamedTuple):
    """Ratings of P players.

    Attributes:
        elo: (P,) float64, maximum a posteriori ratings.
        ci95: (P,) float64, half the widths of their 95% confidence intervals; 0 for fixed ratings.
    """

    elo: FloatArray
    ci95: FloatArray


def win_probability(difference: FloatArray | float) -> FloatArray:
    """Return the expected score of a player for a rating difference.

    Args:
        difference: (...) float, rating minus the opponent's rating, in points of Elo.

    Returns:
        (...) float64, 1 / (1 + 10^(-difference / 400)).

    Source: Elo, The Rating of Chessplayers, 1978, section 8.43 (logistic form).
    """
    # sigmoid(x) = (1 + tanh(x / 2)) / 2, which does not overflow
    return np.asarray((1 + np.tanh(_PER_POINT / 2 * np.asarray(difference))) / 2)


def expected_score(wins: FloatArray, draws: FloatArray, games: FloatArray) -> FloatArray:
    """Return the expected score of an agent against each member.

    One win and one loss are added, so that a new member has 1/2.

    Args:
        wins: (M,) float, discounted number of games that the agent won.
        draws: (M,) float, discounted number of draws.
        games: (M,) float, discounted number of games.

    Returns:
        (M,) float64 between 0 and 1.

    Source: Laplace's rule of succession.
    """
    return (wins + draws / 2 + 1) / (games + 2)


def age_factor(games: float, half_life: float) -> float:
    """Return the factor that discounts earlier results after further games.

    Args:
        games: number of further games.
        half_life: number of games after which a result counts half.
    """
    return float(0.5 ** (games / half_life))


def compare_sides(results: FloatArray) -> FloatArray:
    """Compare each pair of sides of each game: the larger result wins.

    Args:
        results: (..., S) float, the result of each side.

    Returns:
        (..., S, S) float64, [..., i, j]: 1 if i has a larger result than j, 1/2 if they are equal,
        and 0 if it has a smaller one.
    """
    row, column = results[..., :, None], results[..., None, :]
    return np.asarray((row > column) + 0.5 * (row == column))


def rate_agent(
    scores: FloatArray,
    games: FloatArray,
    last: float,
    members: FloatArray,
    fitted: BoolArray | None = None,
) -> tuple[Ratings, Ratings]:
    """Rate an agent, and members without a fixed rating, by the results of the agent.

    Snapshots, which keep the agent's rating at their time, and the first member of a league have
    fixed ratings. The agent and the members in `fitted` have normal priors of standard deviation
    `DEVIATION` around their last ratings.

    Args:
        scores: (M,) float, discounted wins + draws / 2 of the agent against each member.
        games: (M,) float, discounted number of games against each member.
        last: the agent's last rating.
        members: (M,) float, last ratings of the members.
        fitted: (M,) bool, the members to rate along with the agent; None for no member.

    Returns:
        The ratings of the agent, (1,), and of the members, (M,).
    """
    num_members = len(members)
    deviations = np.zeros(1 + num_members)
    deviations[0] = DEVIATION
    if fitted is not None:
        deviations[1:][fitted] = DEVIATION
    agent, opponents = np.zeros(num_members, dtype=np.int64), np.arange(1, 1 + num_members)
    prior = np.concatenate([[last], members])
    elo, covariance = _fit(agent, opponents, scores, games - scores, prior, deviations)
    ci95 = _Z_975 * np.sqrt(np.diag(covariance))
    return Ratings(elo[:1], ci95[:1]), Ratings(elo[1:], ci95[1:])


def bradley_terry(scores: FloatArray, effective_games: FloatArray | None = None) -> Ratings:
    """Rate the players of a round robin by maximum likelihood.

    The ratings have a normal prior of standard deviation `ROUND_ROBIN_DEVIATION` around
    `FIRST_ELO`, so that players with only wins or only losses get finite ratings. It also makes
    the mean of all ratings `FIRST_ELO`. Intervals are for differences from that mean, and are wide
    for players that are not connected by games.

    Args:
        scores: (P, P) float, [i, j] is wins + draws / 2 of player i in games against player j; the
            diagonal is ignored.
        effective_games: (P, P) float, the number of independent games with the same information as
            the games of i against j, which determines the intervals; None for the number of games.

    Source: Bradley and Terry 1952, https://doi.org/10.2307/2334029; Hunter 2004,
    https://doi.org/10.1214/aos/1079120141, on the conditions of a finite maximum.
    """
    num_players = len(scores)
    i, j = np.triu_indices(num_players, k=1)
    prior, deviations = np.full((2, num_players), [[FIRST_ELO], [ROUND_ROBIN_DEVIATION]])
    ratios = None
    if effective_games is not None:
        games = scores[i, j] + scores[j, i]
        ratios = games / np.where(games > 0, effective_games[i, j], 1)
    elo, covariance = _fit(i, j, scores[i, j], scores[j, i], prior, deviations, ratios)
    from_mean = np.eye(num_players) - 1 / num_players
    variances = np.diag(from_mean @ covariance @ from_mean)
    return Ratings(elo, _Z_975 * np.sqrt(np.maximum(variances, 0)))


def _fit(
    first: IntArray,
    second: IntArray,
    won: FloatArray,
    lost: FloatArray,
    prior: FloatArray,
    deviations: FloatArray,
    ratios: FloatArray | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Return the most probable ratings, and their covariance by the curvature at the maximum.

    Newton's method on a strictly concave function, with steps halved until they increase it,
    converges from any start.

    Args:
        first: (E,) int64, the first player of each pair that has met.
        second: (E,) int64, the second player.
        won: (E,) float, wins + draws / 2 of the first player.
        lost: (E,) float, wins + draws / 2 of the second player.
        prior: (P,) float, means of the normal priors.
        deviations: (P,) float, their standard deviations; 0 for a fixed rating.
        ratios: (E,) float, variance of the score of each pair, divided by the variance of
            independent games; None for 1.

    Returns:
        (P,) ratings and (P, P) covariance, which is 0 for fixed ratings.

    Raises:
        ValueError: a score or a rating is not finite, or a score is negative.
    """
    scores = np.concatenate([won, lost])
    for name, values in {"scores": scores, "ratings": prior}.items():
        if not np.isfinite(values).all():
            raise ValueError(f"{name}: expected finite numbers, got {values.tolist()}")
    if (scores < 0).any():
        raise ValueError(f"scores: expected numbers of at least 0, got {scores.min()}")

    # A: (E, F), 1 for the first and -1 for the second player of a pair, of F ratings to be fitted.
    free = np.flatnonzero(deviations > 0)
    pairs = (first[:, None] == free).astype(np.float64) - (second[:, None] == free)
    precision = 1 / np.square(deviations[free])
    games = won + lost

    def log_posterior(elo: FloatArray) -> float:
        # sum_ij s_ij log p_ij - sum_i (r_i - m_i)^2 / (2 sigma_i^2), log p = -log(1 + exp(-x))
        logits = _PER_POINT * (elo[first] - elo[second])
        fit = won @ np.logaddexp(0, -logits) + lost @ np.logaddexp(0, logits)
        return float(-fit - precision @ np.square((elo - prior)[free]) / 2)

    elo, value = prior.astype(np.float64), log_posterior(prior)
    while True:
        # gradient = c A^T (s - n p) - (r - m) / sigma^2,   c = log(10) / 400
        p = win_probability(elo[first] - elo[second])
        gradient = _PER_POINT * (won - games * p) @ pairs - precision * (elo - prior)[free]
        # -Hessian = c^2 A^T diag(n p (1 - p)) A + diag(1 / sigma^2)
        weights = _PER_POINT**2 * games * p * (1 - p)
        curvature = (pairs.T * weights) @ pairs + np.diag(precision)
        step = np.linalg.solve(curvature, gradient)

        # Halve the step until it increases the posterior; stop where rounding hides an increase.
        while np.abs(step).max(initial=0.0) > _SMALL_STEP:
            candidate = elo.copy()
            candidate[free] += step
            if (new := log_posterior(candidate)) > value:
                elo, value = candidate, new
                break
            step = step / 2
        else:
            covariance = np.zeros((len(prior), len(prior)))
            inverse = np.linalg.inv(curvature)
            if ratios is not None:  # the sandwich estimator, with the prior as an observation
                scatter = (pairs.T * (weights * ratios)) @ pairs + np.diag(precision)
                inverse = inverse @ scatter @ inverse
            covariance[np.ix_(free, free)] = inverse
            return elo, covariance
