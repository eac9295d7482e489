"""Weights of members, draws of opponents, seats of the agent, and which snapshot leaves."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer.base.errors import ConfigError
from enn_trainer.selfplay.elo import expected_score
from enn_trainer.selfplay.matchmaking import (
    NAMED,
    Choose,
    agent_seats,
    draw_in_play,
    draw_opponents,
    member_weights,
    snapshot_to_evict,
    validated_weights,
)


@pytest.mark.parametrize(
    ("choose", "expected"),
    [
        ("uniform", [1, 1, 1, 1]),
        ("latest", [0, 0, 1, 0]),
        ("pfsp", [1 / 16, 1 / 4, 9 / 16, 1]),  # (1 - p)^2
        ("even", [3 / 16, 1 / 4, 3 / 16, 0]),  # p (1 - p)
    ],
)
def test_weights_by_hand(choose: Choose, expected: list[float]) -> None:
    p, steps = np.array([0.75, 0.5, 0.25, 0.0]), np.array([NAMED, 0, 900, 300])
    assert member_weights(choose, p, steps).tolist() == expected


def test_weights_of_a_new_member_are_moderate() -> None:
    """The agent beats one member in 98 of 98 games, loses 98 of 98, and has not met the third."""
    p = expected_score(np.array([98.0, 0, 0]), np.zeros(3), np.array([98.0, 98, 0]))
    steps = np.array([0, 1, 2])
    np.testing.assert_allclose(member_weights("pfsp", p, steps), [1e-4, 0.9801, 0.25])
    np.testing.assert_allclose(member_weights("even", p, steps), [0.0099, 0.0099, 0.25])


def test_without_snapshots_there_is_no_latest_one() -> None:
    assert member_weights("latest", np.full(2, 0.5), np.array([NAMED, NAMED])).tolist() == [0, 0]
    assert member_weights("latest", np.zeros(0), np.zeros(0, dtype=np.int64)).tolist() == []
    assert member_weights("latest", np.full(1, 0.5), np.array([0])).tolist() == [1]


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ([1.0], r"expected 2 weights, one for each member, got an array of shape \(1,\)"),
        (3.0, r"expected 2 weights, one for each member, got an array of shape \(\)"),
        (None, r"weight of 'random': expected a finite number of at least 0, got nan"),
        ("often", "expected 2 weights, one for each member, got 'often'"),
        ([1.0, -0.5], r"weight of 'step-128': expected a finite number of at least 0, got -0\.5"),
        ([math.nan, 1], "weight of 'random': expected a finite number of at least 0, got nan"),
        ([1, math.inf], "weight of 'step-128': expected a finite number of at least 0, got inf"),
        ([0, 0], "expected a weight above 0 for at least one member, all 2 are 0"),
    ],
)
def test_invalid_weights_raise(weights: object, problem: str) -> None:
    if weights is None:
        weights = [None, 1.0]
    with pytest.raises(ConfigError, match=f"^matchmaker at step 640: {problem}"):
        validated_weights(weights, ["random", "step-128"], 640)


def test_weights_may_be_any_sequence_of_numbers() -> None:
    weights = validated_weights((1, True), ["a", "b"], 0)
    assert weights.dtype == np.float64
    assert weights.tolist() == [1, 1]
    own = np.array([0.0, 2.0])
    assert validated_weights(own, ["a", "b"], 0) is not own  # the caller may change it later


WEIGHTS = st.lists(
    st.sampled_from([0.0, 1e-300, 1e-3, 1.0, 7.5, 1e300]), min_size=1, max_size=9
).map(np.array)


@given(WEIGHTS, st.integers(1, 10), st.integers(0, 2**31), st.integers(0, 2**40))
def test_members_in_play_are_distinct_with_positive_weights(
    weights: np.ndarray, count: int, seed: int, step: int
) -> None:
    drawn = draw_in_play(weights, count, seed, step)
    assert drawn.tolist() == sorted(set(drawn.tolist()))
    assert len(drawn) == min(count, np.count_nonzero(weights))
    assert (weights[drawn] > 0).all()
    assert drawn.tolist() == draw_in_play(weights, count, seed, step).tolist()


@pytest.mark.slow
def test_members_are_drawn_by_weight_without_replacement() -> None:
    weights = np.array([1.0, 2.0, 3.0])
    drawn = [tuple(draw_in_play(weights, 2, 0, step)) for step in range(20_000)]
    # P({0, 1}) = 1/6 * 2/5 + 2/6 * 1/4, P({0, 2}) = 1/6 * 3/5 + 3/6 * 1/3,
    # P({1, 2}) = 2/6 * 3/4 + 3/6 * 2/3
    for pair, p in {(0, 1): 9 / 60, (0, 2): 16 / 60, (1, 2): 35 / 60}.items():
        assert drawn.count(pair) / 20_000 == pytest.approx(p, abs=0.015)  # 4 deviations
    first = [int(draw_in_play(weights, 1, 0, step)[0]) for step in range(20_000)]
    for member, p in enumerate([1 / 6, 2 / 6, 3 / 6]):
        assert first.count(member) / 20_000 == pytest.approx(p, abs=0.015)


@given(
    WEIGHTS.filter(np.any),
    st.integers(0, 2**31),
    st.lists(st.tuples(*[st.integers(0, 2**20)] * 3), min_size=1, max_size=20),
)
def test_opponents_are_a_function_of_match_game_and_seat(
    weights: np.ndarray, seed: int, rows: list[tuple[int, int, int]]
) -> None:
    matches, games, seats = np.array(rows, dtype=np.int64).T
    drawn = draw_opponents(weights, seed, matches, games, seats)
    assert drawn.shape == (len(rows),)
    assert (weights[drawn] > 0).all()
    for i in range(len(rows)):
        alone = draw_opponents(weights, seed, matches[i:][:1], games[i:][:1], seats[i:][:1])
        assert alone.tolist() == [drawn[i]]


def test_opponents_are_drawn_independently_by_weight() -> None:
    weights, n = np.array([1.0, 0.0, 3.0]), 40_000
    matches, games = np.divmod(np.arange(n), 100)
    seats = [draw_opponents(weights, 5, matches, games, np.full(n, k)) for k in (1, 2)]
    for drawn in seats:
        assert np.bincount(drawn, minlength=3) / n == pytest.approx([0.25, 0, 0.75], abs=0.01)
    assert np.mean((seats[0] == 0) & (seats[1] == 0)) == pytest.approx(1 / 16, abs=0.006)
    other_seed = draw_opponents(weights, 6, matches, games, np.full(n, 1))
    assert np.mean((seats[0] == 0) & (other_seed == 0)) == pytest.approx(1 / 16, abs=0.006)


@given(
    st.lists(st.integers(0, 9), min_size=1, max_size=6, unique=True),
    st.integers(0, 50),
    st.integers(0, 1000),
    st.integers(1, 5),
)
def test_the_agent_takes_each_seat_equally_often(
    sides: list[int], match: int, begin: int, rounds: int
) -> None:
    games = np.arange(begin, begin + rounds * len(sides))
    seats = agent_seats(np.array(sides), np.full(len(games), match), games)
    assert sorted(seats.tolist()) == sorted(sides * rounds)
    if len(sides) > 1:
        assert (seats[1:] != seats[:-1]).all()  # another one in each game
    across = agent_seats(np.array(sides), games, np.full(len(games), match))
    assert sorted(across.tolist()) == sorted(sides * rounds)


@pytest.mark.parametrize(
    ("steps", "evicted"),
    [
        ([0, 100], 0),  # the newest never
        ([0, 100, 200], 1),
        ([0, 100, 200, 300, 400], 1),  # of equals the older one
        ([0, 10, 100, 110, 120, 400], 3),  # gaps of the inner ones: 100, 100, 20, 290
        ([0, 1, 2, 1000, 2000], 1),
        ([0, 100, 200, 201], 2),
    ],
)
def test_snapshot_with_the_closest_neighbours_is_evicted(steps: list[int], evicted: int) -> None:
    assert snapshot_to_evict(np.array(steps)) == evicted


@given(st.integers(2, 12), st.integers(20, 200))
def test_snapshots_stay_spread_over_the_whole_run(capacity: int, num_snapshots: int) -> None:
    pool: list[int] = []
    for step in range(num_snapshots):
        pool.append(step)
        if len(pool) > capacity:
            del pool[snapshot_to_evict(np.array(pool))]
    assert pool[-1] == num_snapshots - 1
    if capacity > 2:
        assert pool[0] == 0
        # No gap is larger than that of twice as few snapshots that are evenly spread.
        assert max(np.diff(pool)) <= 2 * num_snapshots / (capacity - 1)
