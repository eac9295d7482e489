"""Scores, pruning, the race of seeds, and fresh seeds, by hand."""

import random

import pytest

from enn_trainer.tuning.judge import (
    Score,
    best_trials,
    has_next_seed,
    is_better,
    is_pruned,
    score_of_run,
)


def test_the_score_of_a_run_is_the_mean_of_the_last_fifth() -> None:
    assert score_of_run({100 * i: float(i) for i in range(10)}) == 8.5  # of 8 and 9
    assert score_of_run({100 * i: float(i) for i in range(11)}) == 9.0  # of 8, 9 and 10
    assert score_of_run({0: 1.0, 100: 3.0}) == 3.0


def test_scores_have_the_standard_error_of_the_mean() -> None:
    score = Score.of([1.0, 2.0, 3.0])
    assert score.mean == 2.0
    assert score.error == pytest.approx(1 / 3**0.5)
    # Student's t with two degrees of freedom: 4.303
    assert score.interval == pytest.approx((2 - 4.302653 / 3**0.5, 2 + 4.302653 / 3**0.5))
    assert Score.of([2.0]).error is None


@pytest.mark.parametrize(("value", "pruned"), [(2.0, True), (3.0, False), (4.0, False)])
def test_a_run_below_the_median_of_five_is_pruned(value: float, pruned: bool) -> None:
    completed = [{100: float(i)} for i in range(1, 6)]
    assert is_pruned(100, {100: value}, completed) == pruned


def test_only_completed_runs_with_a_value_by_then_count() -> None:
    completed = [{100: float(i), 200: 9.0} for i in range(1, 6)]
    assert not is_pruned(100, {100: 0.0}, completed[:4])
    assert not is_pruned(50, {50: 0.0}, completed)
    assert is_pruned(150, {50: 2.0, 150: 0.0}, completed)  # its best of 2 against 3, the median
    assert not is_pruned(150, {50: 3.0, 150: 0.0}, completed)


def test_a_further_seed_needs_a_place_in_the_better_half() -> None:
    completed = [[1.0], [2.0, 5.0], [3.0, 1.0]]
    assert has_next_seed([2.0], completed, most=3)
    assert not has_next_seed([1.9], completed, most=3)
    # Of the trials with two seeds, the means are 3.5 and 2.0.
    assert has_next_seed([2.0, 3.5], completed, most=3)
    assert not has_next_seed([2.0, 3.4], completed, most=3)
    assert not has_next_seed([9.0, 9.0, 9.0], completed, most=3)
    assert has_next_seed([0.0], [], most=2)


def test_the_best_of_many_equal_settings_is_not_better_on_fresh_seeds() -> None:
    rng = random.Random(1)
    lucky = {number: Score.of([rng.gauss(0, 1)]) for number in range(40)}
    best = best_trials(lucky)
    assert lucky[best[0]].mean > 1.5
    fresh = {number: Score.of([rng.gauss(0, 1) for _ in range(3)]) for number in [0, *best]}
    assert not any(is_better(fresh[number], fresh[0]) for number in best)
    assert is_better(Score.of([1.0, 1.1, 1.2]), Score.of([0.0, 0.1, 0.2]))


def test_equal_trials_are_ranked_by_number() -> None:
    assert best_trials({i: Score(float(i % 2), None, 1) for i in range(6)}) == [1, 3, 5]
