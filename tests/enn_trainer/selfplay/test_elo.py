"""Elo ratings: by hand, against brute force, and their intervals in simulated leagues."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer.selfplay.elo import (
    DEVIATION,
    FIRST_ELO,
    ROUND_ROBIN_DEVIATION,
    age_factor,
    bradley_terry,
    compare_sides,
    expected_score,
    rate_agent,
    win_probability,
)

C = math.log(10) / 400


def test_400_points_are_odds_of_10_to_1() -> None:
    differences = np.array([0.0, 400.0, -400.0, 800.0, 1e6, -1e6])
    expected = [1 / 2, 10 / 11, 1 / 11, 100 / 101, 1.0, 0.0]
    np.testing.assert_allclose(win_probability(differences), expected, atol=1e-15)


def test_a_new_member_has_an_expected_score_of_one_half() -> None:
    wins, draws, games = (
        np.array([0.0, 3, 0, 1.5]),
        np.array([0.0, 1, 0, 0]),
        np.array([0.0, 4, 8, 2]),
    )
    # (0 + 0 + 1) / 2, (3 + .5 + 1) / 6, 1 / 10, (1.5 + 1) / 4
    np.testing.assert_allclose(expected_score(wins, draws, games), [0.5, 0.75, 0.1, 0.625])


def test_results_count_half_after_the_half_life() -> None:
    assert age_factor(1000, 1000) == 0.5
    assert age_factor(500, 1000) ** 2 == pytest.approx(0.5)
    assert age_factor(0, 7) == 1


def test_each_pair_of_three_sides_is_one_comparison() -> None:
    compared = compare_sides(np.array([[3.0, 1.0, 3.0], [0.0, 1.0, 2.0]]))
    assert compared[0].tolist() == [[0.5, 1, 0.5], [0, 0.5, 0], [0.5, 1, 0.5]]
    assert compared[1].tolist() == [[0.5, 0, 0], [1, 0.5, 0], [1, 1, 0.5]]


def test_without_games_the_agent_keeps_its_rating() -> None:
    agent, members = rate_agent(np.zeros(2), np.zeros(2), 1350.0, np.array([1200.0, 1300.0]))
    assert agent.elo.tolist() == [1350.0]
    assert agent.ci95[0] == pytest.approx(1.959964 * DEVIATION)
    assert members.elo.tolist() == [1200, 1300]
    assert members.ci95.tolist() == [0, 0]
    assert rate_agent(np.zeros(0), np.zeros(0), 1350.0, np.zeros(0))[0].elo.tolist() == [1350.0]


def test_the_rating_is_where_wins_equal_expected_wins() -> None:
    """With so many games that the prior is nothing: 10 / 11 of them are won by 400 points."""
    games = 1.1e9
    agent, _ = rate_agent(np.array([games / 1.1]), np.array([games]), 1200.0, np.array([1000.0]))
    assert agent.elo[0] == pytest.approx(1400, abs=1e-4)
    # 1 / sqrt(c^2 n p (1 - p))
    deviation = 1 / (C * math.sqrt(games * 10 / 121))
    assert agent.ci95[0] == pytest.approx(1.959964 * deviation, rel=1e-5)


def log_posterior(r: float, scores: list[float], games: list[float], elo: list[float]) -> float:
    """Return the logarithm of the posterior of a rating whose last value was 1200."""
    total = -((r - 1200) ** 2) / (2 * 400**2)
    for s, n, e in zip(scores, games, elo, strict=True):
        p = 1 / (1 + 10 ** ((e - r) / 400))
        total += s * math.log(p) + (n - s) * math.log(1 - p)
    return total


@pytest.mark.parametrize("scores", [[3.5, 1.0], [4.0, 2.0], [0.0, 0.0], [0.25, 1.9]])
def test_rating_and_interval_equal_a_grid_search_of_the_posterior(scores: list[float]) -> None:
    games, elo = [4.0, 2.0], [1100.0, 1500.0]
    agent, _ = rate_agent(np.array(scores), np.array(games), 1200.0, np.array(elo))
    best = max(np.arange(0.0, 3000.0, 0.5), key=lambda r: log_posterior(r, scores, games, elo))
    assert agent.elo[0] == pytest.approx(best, abs=0.5)
    # The curvature by finite differences at the maximum.
    r, h = agent.elo[0], 1.0
    below, at, above = (log_posterior(r + d, scores, games, elo) for d in (-h, 0, h))
    assert agent.ci95[0] == pytest.approx(
        1.959964 / math.sqrt((2 * at - below - above) / h**2), 1e-3
    )


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1e6), st.floats(-3000, 6000)), max_size=6),
    st.floats(-3000, 6000),
)
def test_the_gradient_vanishes_at_any_rating(
    rows: list[tuple[float, float, float]], last: float
) -> None:
    """All wins, all losses, few games and members far away included."""
    share, games, members = (
        (np.array(x) for x in zip(*rows, strict=True)) if rows else [np.zeros(0)] * 3
    )
    agent, _ = rate_agent(share * games, games, last, members)
    r = agent.elo[0]
    gradient = C * (games * (share - win_probability(r - members))).sum() - (r - last) / 400**2
    curvature = C**2 * (games * win_probability(r - members) * win_probability(members - r)).sum()
    assert abs(gradient) <= 1e-2 * (curvature + 1 / 400**2)  # off by at most 1e-2 points
    assert 0 < agent.ci95[0] <= 1.96 * DEVIATION


def test_intervals_contain_the_ratings_of_95_percent_of_simulated_leagues() -> None:
    rng = np.random.default_rng(0)
    num_inside = 0
    for _ in range(200):
        members = 1200 + 300 * rng.standard_normal(6)
        true = 1200 + DEVIATION * rng.standard_normal()
        games = rng.integers(5, 40, 6)
        wins = rng.binomial(games, win_probability(true - members))
        agent, _ = rate_agent(wins.astype(float), games.astype(float), 1200.0, members)
        num_inside += abs(agent.elo[0] - true) <= agent.ci95[0]
    assert 180 <= num_inside <= 198  # 190 are expected, with a standard deviation of 3.1


def test_intervals_contain_the_ratings_of_fitted_opponents() -> None:
    rng = np.random.default_rng(1)
    fitted = np.array([False, True, False, True])
    inside = np.zeros(3)
    for _ in range(200):
        last = np.full(4, 1200.0)
        true = last + DEVIATION * rng.standard_normal(4) * fitted
        agent_true = 1200 + DEVIATION * rng.standard_normal()
        wins = rng.binomial(30, win_probability(agent_true - true))
        agent, members = rate_agent(wins.astype(float), np.full(4, 30.0), 1200.0, last, fitted)
        assert members.elo[~fitted].tolist() == [1200, 1200]
        assert members.ci95[~fitted].tolist() == [0, 0]
        found = np.concatenate([agent.elo - agent_true, (members.elo - true)[fitted]])
        inside += np.abs(found) <= np.concatenate([agent.ci95, members.ci95[fitted]])
    assert (inside >= 180).all()
    assert (inside <= 198).all()


def test_fitted_opponent_is_rated_by_its_results() -> None:
    """The agent is as strong as the first member, and wins 10 of 11 games against the other."""
    games = np.array([1e6, 1.1e6])
    elo = np.array([1200.0, 1200.0])
    agent, members = rate_agent(np.array([5e5, 1e6]), games, 1200.0, elo, np.array([False, True]))
    assert agent.elo[0] == pytest.approx(1200, abs=0.1)
    assert members.elo == pytest.approx([1200, 800], abs=0.1)
    assert members.ci95[1] > agent.ci95[0]  # it depends on the agent's


def test_round_robin_of_known_odds() -> None:
    # A beats B by 10 to 1 and C by 100 to 1, and B beats C by 10 to 1: 400 points each.
    n = 1e7
    scores = n * np.array([[0, 10 / 11, 100 / 101], [1 / 11, 0, 10 / 11], [1 / 101, 1 / 11, 0]])
    rated = bradley_terry(scores)
    np.testing.assert_allclose(rated.elo, [1600, 1200, 800], atol=0.01)
    assert (rated.ci95 < 1).all()


def test_disconnected_round_robin_has_finite_ratings() -> None:
    scores = np.zeros((5, 5))
    scores[0, 1] = 200.0  # 0 beats 1 always; 2 and 3 draw; 4 never plays
    scores[2, 3] = scores[3, 2] = 50.0
    rated = bradley_terry(scores)
    assert rated.elo[0] - 1200 == pytest.approx(1200 - rated.elo[1])
    assert 1600 < rated.elo[0] < 1200 + 3 * ROUND_ROBIN_DEVIATION
    np.testing.assert_allclose(rated.elo[2:], FIRST_ELO, atol=1e-6)
    assert np.isfinite(rated.ci95).all()
    assert (rated.ci95 > 500).all()


def test_intervals_contain_the_ratings_of_a_round_robin() -> None:
    rng = np.random.default_rng(2)
    inside = []
    for _ in range(100):
        true = 200 * rng.standard_normal(5)
        true += FIRST_ELO - true.mean()
        p = win_probability(true[:, None] - true)
        upper = np.triu(rng.binomial(60, p).astype(float), 1)
        scores = upper + np.tril(60 - upper.T, -1)
        rated = bradley_terry(scores)
        assert rated.elo.mean() == pytest.approx(FIRST_ELO, abs=1e-3)
        inside.append(np.abs(rated.elo - true) <= rated.ci95)
    assert 0.92 <= np.mean(inside) <= 0.98


def test_intervals_of_a_round_robin_follow_effective_games() -> None:
    """Games of a deal depend on each other; ratings do not change by that."""
    scores, games = np.array([[0.0, 520, 600], [480, 0, 550], [400, 450, 0]]), np.full((3, 3), 1e3)
    plain, same = bradley_terry(scores), bradley_terry(scores, games)
    np.testing.assert_allclose(same.ci95, plain.ci95)
    quarter = bradley_terry(scores, games / 4)
    np.testing.assert_array_equal(quarter.elo, plain.elo)
    np.testing.assert_allclose(quarter.ci95, 2 * plain.ci95, rtol=0.01)  # but for the prior
    assert (bradley_terry(scores, games * np.inf).ci95 < 1).all()


def test_ratings_do_not_depend_on_the_order_of_players() -> None:
    rng = np.random.default_rng(3)
    scores, order = rng.uniform(0, 9, (6, 6)), rng.permutation(6)
    rated, permuted = bradley_terry(scores), bradley_terry(scores[np.ix_(order, order)])
    np.testing.assert_allclose(permuted.elo, rated.elo[order], atol=1e-4)
    np.testing.assert_allclose(permuted.ci95, rated.ci95[order], atol=1e-4)


def test_invalid_results_raise() -> None:
    with pytest.raises(ValueError, match="scores: expected finite numbers"):
        bradley_terry(np.array([[0, math.nan], [1, 0]]))
    with pytest.raises(ValueError, match=r"scores: expected numbers of at least 0, got -1\.0"):
        rate_agent(np.array([3.0]), np.array([2.0]), 1200.0, np.array([1200.0]))
    with pytest.raises(ValueError, match="ratings: expected finite numbers"):
        rate_agent(np.array([1.0]), np.array([2.0]), math.inf, np.array([1200.0]))
