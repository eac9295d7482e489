"""Round robins, pay-off matrices, rings, and mixtures that no player beats."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer.evaluation.payoff import (
    Payoff,
    Results,
    count_results,
    find_rings,
    metric_payoff,
    round_robin,
    score_payoff,
    unbeaten_mixture,
)
from enn_trainer.selfplay.elo import bradley_terry


@given(st.integers(1, 5), st.integers(2, 5), st.integers(1, 25))
def test_round_robin_balances_seats_of_each_pair(
    num_players: int, num_sides: int, games: int
) -> None:
    lineups = round_robin(num_players, num_sides, games)
    pairs = num_players * (num_players - 1) // 2
    multiple = 2 if num_sides == 2 else 2 * num_sides
    per_pair = -(-games // multiple) * multiple
    assert lineups.shape == (pairs * per_pair // multiple, multiple, num_sides)
    lineups = lineups.reshape(-1, num_sides)
    for i in range(num_players):
        for j in range(i + 1, num_players):
            of_pair = lineups[[set(row) == {i, j} for row in lineups.tolist()]]
            assert len(of_pair) == per_pair
            assert ((of_pair == i).sum(0) == per_pair // 2).all()
            both = [
                int(((of_pair[:, a] == i) & (of_pair[:, b] == j)).sum())
                for a in range(num_sides)
                for b in range(num_sides)
                if a != b
            ]
            assert len(set(both)) == 1  # each pair of seats as often as any other


def test_round_robin_lineups_of_two_and_three_sides() -> None:
    by_pair = [[[0, 1], [1, 0]], [[0, 2], [2, 0]], [[1, 2], [2, 1]]]
    assert round_robin(3, 2, 2).tolist() == by_pair
    of_three = [[0, 1, 1], [1, 0, 1], [1, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert round_robin(2, 3, 7).tolist() == [of_three, of_three]
    with pytest.raises(ValueError, match="num_sides: expected at least 2, got 1"):
        round_robin(2, 1, 10)


def test_count_results_by_pair() -> None:
    lineups = np.array([[[0, 1], [1, 0]], [[0, 1], [1, 0]], [[2, 1], [1, 2]]])
    results = np.array([[[1.0, 0], [2.0, 2.0]], [[0, 5], [7, 6]], [[1, -1], [3, 4]]])
    counted = count_results(lineups, results, 3)
    # 0 against 1: a win, a draw, two losses; 2 beats 1 twice; 0 and 2 do not meet
    assert counted.scores.tolist() == [[0, 1.5, 0], [2.5, 0, 0], [0, 2, 0]]
    assert counted.comparisons.tolist() == [[0, 4, 0], [4, 0, 2], [0, 2, 0]]
    assert counted.deals.tolist() == [[0, 2, 0], [2, 0, 1], [0, 1, 0]]
    # Deals of 0 against 1: 1.5 and 0 of 2; their means .75 and 0 have the standard error .375; t of
    # 1 degree of freedom is 12.706.
    assert counted.ci95[0, 1] == counted.ci95[1, 0] == pytest.approx(12.7062 * 0.375, rel=1e-5)
    assert np.isnan(counted.ci95[1, 2])


def test_three_sides_are_compared_pairwise() -> None:
    # 0 beats one seat of 1 and draws with the other; seats of 1 are not compared
    counted = count_results(np.array([[[0, 1, 1]]]), np.array([[[2.0, 1.0, 2.0]]]), 2)
    assert counted.scores.tolist() == [[0, 1.5], [0.5, 0]]
    assert counted.comparisons.tolist() == [[0, 2], [2, 0]]
    assert counted.deals.tolist() == [[0, 1], [1, 0]]
    # Three players: three comparisons, of a deal each
    counted = count_results(np.array([[[2, 0, 1]]]), np.array([[[3.0, 2.0, 1.0]]]), 3)
    assert counted.scores.tolist() == [[0, 1, 0], [0, 0, 0], [1, 1, 0]]
    assert counted.deals.tolist() == (1 - np.eye(3)).tolist()


def results_of(scores: list[list[float]], games: float) -> Results:
    """Return results of independent wins and losses."""
    p, each = np.array(scores), games * (1 - np.eye(len(scores)))
    ci95 = np.sqrt(p * (1 - p) / games) * 1.959963984540054
    return Results(games * p * (each > 0), each, each, ci95)


def test_wilson_intervals_equal_published_values() -> None:
    """81 of 263, and 0 of 20: Newcombe 1998, table I, method 3."""
    payoff = score_payoff(results_of([[0, 81 / 263], [182 / 263, 0]], 263))
    assert payoff.mean[0, 1] == pytest.approx(81 / 263)
    assert [payoff.low[0, 1], payoff.high[0, 1]] == pytest.approx([0.2553, 0.3662], abs=5e-5)
    assert payoff.low[1, 0] == pytest.approx(1 - payoff.high[0, 1])
    none = score_payoff(results_of([[0, 0], [1, 0]], 20))
    assert [none.low[0, 1], none.high[0, 1]] == pytest.approx([0, 0.1611], abs=5e-5)
    assert np.isnan(none.mean).tolist() == [[True, False], [False, True]]


def mirrored(results: Sequence[Sequence[float]]) -> Results:
    """Return the results of two players, of whom the first wins or loses the games of deals."""
    won = np.array(results)
    lineups = np.broadcast_to([[0, 1], [1, 0]], (len(won), 2, 2))
    return count_results(lineups, np.where(lineups == 0, won[..., None], -won[..., None]), 2)


def test_deals_that_decide_the_winner_have_a_zero_interval() -> None:
    for results in mirrored([[1, -1], [-1, 1], [-1, 1]]), mirrored([[0, 0], [1, -1]]):
        assert [x[0, 1] for x in score_payoff(results)] == [0.5, 0.5, 0.5]
        assert results.effective_games()[0, 1] == np.inf


def test_intervals_of_scores_are_over_deals() -> None:
    """If one player wins both games of a deal, the deal counts as one independent game."""
    both = mirrored([[1, 1], [-1, -1]] * 50)
    assert both.comparisons[0, 1] == 200
    assert both.effective_games()[0, 1] == pytest.approx(100, rel=0.04)
    payoff = score_payoff(both)
    # 1.96 sqrt(.25 / 100) = .098, with t for z and Wilson's correction
    assert (payoff.high - payoff.low)[0, 1] / 2 == pytest.approx(0.098, abs=0.001)


def test_interval_of_a_perfect_score_uses_the_number_of_deals() -> None:
    """The deals have no variance then, but the next one may."""
    payoff = score_payoff(mirrored([[1, 1]] * 20))
    # 20 of 20: Newcombe 1998, table I, method 3
    assert [payoff.low[0, 1], payoff.high[0, 1]] == pytest.approx([1 - 0.1611, 1], abs=5e-5)
    assert (
        score_payoff(mirrored([[1, 1]])).low[0, 1]
        < 0.5
        < score_payoff(mirrored([[1, 1]])).mean[0, 1]
    )


@pytest.mark.parametrize("luck", [0.0, 1.0, 3.0])
def test_intervals_cover_95_percent_of_simulated_scores_and_ratings(
    luck: float,
) -> None:
    """The luck of a deal is that of a seat; the players are equally strong."""
    rng, covered, rated, widths = np.random.default_rng(5), 0, 0, list[float]()
    for _ in range(600):
        of_deals = luck * rng.normal(size=(40, 1)) * [1, -1]
        results = mirrored(np.sign(of_deals + rng.normal(size=(40, 2))).tolist())
        payoff = score_payoff(results)
        ratings = bradley_terry(results.scores, results.effective_games())
        covered += payoff.low[0, 1] <= 0.5 <= payoff.high[0, 1]
        rated += abs(ratings.elo[0] - 1200) <= ratings.ci95[0]
        widths.append(payoff.high[0, 1] - payoff.low[0, 1])
    # 95% of 600, and four deviations of the share
    assert min(covered, rated) / 600 > 0.95 - 0.036
    # Of 80 independent games it would be .21. Luck makes the games of a deal opposite.
    assert np.mean(widths) == pytest.approx({0.0: 0.22, 1.0: 0.18, 3.0: 0.13}[luck], abs=0.02)


def test_pairs_without_games_have_nan_scores() -> None:
    payoff = score_payoff(Results(*[np.zeros((2, 2))] * 4))
    assert all(np.isnan(x).all() for x in payoff)


def test_means_of_a_metric_have_t_intervals() -> None:
    rows, columns = np.array([0, 0, 0, 1]), np.array([1, 1, 1, 0])
    payoff = metric_payoff(rows, columns, np.array([1.0, 2.0, 6.0, 5.0]), 2)
    # mean 3, standard deviation sqrt(7); t of 2 degrees of freedom is 4.3027
    width = 4.302652729749 * math.sqrt(7 / 3)
    assert payoff.mean[0, 1] == 3
    assert [payoff.low[0, 1], payoff.high[0, 1]] == pytest.approx([3 - width, 3 + width])
    assert payoff.mean[1, 0] == 5
    assert math.isnan(payoff.low[1, 0])
    assert np.isnan(payoff.mean).tolist() == [[True, False], [False, True]]


def payoff_of(low: list[list[float]]) -> Payoff:
    return Payoff(np.array(low) + 0.1, np.array(low), np.array(low) + 0.2)


def test_each_ring_is_returned_once() -> None:
    # 0 beats 1, 1 beats 2, 2 beats 0; 3 loses to all
    low = [[0, 0.6, 0.1, 0.9], [0.1, 0, 0.6, 0.9], [0.7, 0.1, 0, 0.9], [0.0, 0.0, 0.0, 0]]
    assert find_rings(payoff_of(low)) == [(0, 1, 2)]
    assert find_rings(payoff_of(np.array(low).T.tolist())) == [(0, 2, 1)]


def test_rings_need_intervals_that_exclude_one_half() -> None:
    scores = [[0, 0.6, 0.4], [0.4, 0, 0.6], [0.6, 0.4, 0]]
    assert find_rings(score_payoff(results_of(scores, 10))) == []
    assert find_rings(score_payoff(results_of(scores, 1000))) == [(0, 1, 2)]
    assert find_rings(score_payoff(Results(*[np.zeros((3, 3))] * 4))) == []


ROCK_PAPER_SCISSORS = np.array([[0.0, -1, 1], [1, 0, -1], [-1, 1, 0]])
UNEVEN = np.array([[0.0, -5, 1], [5, 0, -2], [-1, 2, 0]])


def test_mixture_of_rock_paper_scissors_is_even() -> None:
    np.testing.assert_allclose(unbeaten_mixture(ROCK_PAPER_SCISSORS), 1 / 3)
    # With a fourth player that loses to all
    four = np.zeros((4, 4))
    four[:3, :3], four[:3, 3], four[3, :3] = ROCK_PAPER_SCISSORS, 1, -1
    np.testing.assert_allclose(unbeaten_mixture(four), [1 / 3, 1 / 3, 1 / 3, 0], atol=1e-3)


def test_mixture_of_uneven_throws_is_the_known_equilibrium() -> None:
    """A win by rock pays 1, by scissors 2, by paper 5."""
    mixture = unbeaten_mixture(UNEVEN, 1e-5)
    np.testing.assert_allclose(mixture, [1 / 4, 1 / 8, 5 / 8], atol=1e-4)
    np.testing.assert_allclose(unbeaten_mixture(UNEVEN), [1 / 4, 1 / 8, 5 / 8], atol=2e-3)


def test_mixture_of_a_transitive_game_is_the_strongest_player() -> None:
    ladder = np.sign(np.arange(5)[:, None] - np.arange(5)) / 2
    np.testing.assert_allclose(unbeaten_mixture(ladder), [0, 0, 0, 0, 1], atol=2e-3)
    assert unbeaten_mixture(np.zeros((1, 1))).tolist() == [1]


@given(st.integers(1, 8), st.integers(0, 2**20), st.sampled_from([0.5, 5.0]))
def test_mixture_is_unbeaten_within_tolerance(num_players: int, seed: int, scale: float) -> None:
    random = np.random.default_rng(seed).uniform(-scale, scale, (num_players, num_players))
    payoff = (random - random.T) / 2
    mixture = unbeaten_mixture(payoff)
    assert (payoff @ mixture).max() <= 1e-3 + 1e-12
    assert mixture.min() >= 0
    assert mixture.sum() == pytest.approx(1)


def test_unbeaten_mixture_rejects_invalid_matrices() -> None:
    for payoff in ([[0, 1.0], [1.0, 0]], [[0, math.nan], [math.nan, 0]], [[1.0]]):
        with pytest.raises(ValueError, match="payoff: expected a finite matrix with"):
            unbeaten_mixture(np.array(payoff))
