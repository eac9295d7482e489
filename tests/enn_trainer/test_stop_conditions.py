"""When conditions are met, and what they remember."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer import ConfigError
from enn_trainer.stop_conditions import (
    AtLeast,
    AtMost,
    Condition,
    Memory,
    NotFinite,
    Now,
    Plateaus,
    Seconds,
    Steps,
    StopsFalling,
    StopsRising,
    any_of,
    read_bound,
)

VALUES = st.lists(st.floats(allow_nan=True, width=32), max_size=20)


_numbers = itertools.count()


def now(value: float) -> Now:
    return Now(0, 0.0, {"x": value}, frozenset(["x"]), next(_numbers))


def first_met(condition: Condition, values: list[float], memory: Memory | None = None) -> int:
    """After how many values it is met; more than there are if never."""
    memory = {} if memory is None else memory
    for i, value in enumerate(values):
        if condition.is_met(now(value), memory):
            return i + 1
    return len(values) + 1


def test_bounds_are_met_at_the_bound() -> None:
    assert first_met(AtLeast("x", 0.5), [0.1, 0.5]) == 2
    assert first_met(AtMost("x", 0.5), [0.6, 0.5]) == 2
    assert first_met(AtLeast("y", 0.5), [1.0]) == 2, "nothing is known of y"
    assert first_met(NotFinite("x"), [1.0, math.inf]) == 2
    assert first_met(NotFinite("x"), [1.0, math.nan]) == 2


def test_steps_and_seconds_count_from_the_beginning_of_the_run() -> None:
    assert not Steps(10).is_met(Now(9, 0.0, {}, frozenset(), 0), {})
    assert Steps(10).is_met(Now(10, 0.0, {}, frozenset(), 0), {})
    assert Seconds(1.5).is_met(Now(0, 1.5, {}, frozenset(), 0), {})


def test_plateau_is_patience_values_near_the_reference() -> None:
    values = [1.0, 2.0, 2.001, 1.999, 3.0, 3.0, 3.0, 3.001]
    assert first_met(Plateaus("x", patience=3), values) == 8
    assert first_met(Plateaus("x", patience=2), values) == 4


def test_rise_stops_when_there_is_no_new_maximum() -> None:
    values = [1.0, 2.0, 1.0, 2.0, 3.0, 2.9, 2.9, 2.9]
    assert first_met(StopsRising("x", patience=3), values) == 8
    assert first_met(StopsFalling("x", patience=3), [-v for v in values]) == 8


def test_values_that_are_not_new_do_not_count() -> None:
    """Evaluations are rarer than updates, after each of which conditions are asked."""
    condition, memory = StopsRising("x", patience=1), {}
    assert not condition.is_met(now(1.0), memory)
    for _ in range(5):
        assert not condition.is_met(Now(0, 0.0, {"x": 1.0}, frozenset(), next(_numbers)), memory)
    assert condition.is_met(now(1.0), memory)


@given(VALUES, VALUES, st.integers(1, 4))
def test_combined_conditions_are_met_when_their_parts_are(
    first: list[float], second: list[float], patience: int
) -> None:
    """Each part sees every value, whatever the other one says."""
    one, other = StopsRising("x", patience), StopsFalling("x", patience + 1)
    values = first + second
    ones: Memory = {}
    others: Memory = {}
    together: Memory = {}
    for value in values:
        news = now(value)
        parts = one.is_met(news, ones), other.is_met(news, others)
        assert (one | other).is_met(news, together) is any(parts)
    again: Memory = {}
    ones, others = {}, {}
    for value in values:
        news = now(value)
        parts = one.is_met(news, ones), other.is_met(news, others)
        assert (one & other).is_met(news, again) is all(parts)


@given(VALUES, st.integers(1, 4))
def test_condition_that_is_part_of_another_one_twice_counts_once(
    values: list[float], patience: int
) -> None:
    condition = Plateaus("x", patience)
    assert first_met((Steps(1) & condition) | condition, values) == first_met(condition, values)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_restart_the_count(bad: float) -> None:
    for kind in (Plateaus, StopsRising, StopsFalling):
        condition = kind("x", patience=3)
        assert first_met(condition, [1.0, bad, bad, bad, bad]) == 6
        assert first_met(condition, [bad, 1.0, 1.0, 1.0, 1.0]) == 5
        assert first_met(condition, [1.0, 1.0, 1.0, bad, 1.0, 1.0, 1.0, 1.0]) == 8


def test_no_conditions_combine_to_none() -> None:
    assert any_of([]) is None
    assert any_of([Steps(1), Steps(2)]) == Steps(1) | Steps(2)
    assert str(any_of([Steps(i) for i in range(3)])) == "step >= 0 or step >= 1 or step >= 2"
    assert str(Steps(1) | AtLeast("a/b", 2.0)) == "step >= 1 or a/b >= 2"
    assert list((Steps(1) | AtLeast("a/b", 2.0)).keys()) == ["a/b"]


def test_any_number_of_conditions_can_be_combined() -> None:
    condition = any_of([AtLeast(f"x{i}", 1.0) for i in range(10_000)])
    assert condition is not None
    assert list(condition.keys()) == [f"x{i}" for i in range(10_000)]
    assert len(str(condition).split(" or ")) == 10_000
    assert not condition.is_met(now(1.0), {})
    assert condition.is_met(Now(0, 0.0, {"x9999": 1.0}, frozenset(), 0), {})


def test_bounds_are_read_from_text() -> None:
    assert read_bound("eval/episodic_reward.mean >= 0.99", "stop[0]") == AtLeast(
        "eval/episodic_reward.mean", 0.99
    )
    assert read_bound("losses/entropy<=1e-3", "stop[0]") == AtMost("losses/entropy", 1e-3)


@pytest.mark.parametrize(
    "text", ["", "x", "x > 1", "x >= ", ">= 1", "x >= nan", "x >= one", "a b >= 1"]
)
def test_invalid_bounds_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"stop\[2\]: expected a metric and a bound"):
        read_bound(text, "stop[2]")


def test_patience_is_at_least_one() -> None:
    with pytest.raises(ValueError, match="patience: expected at least 1, got 0"):
        Plateaus("x", patience=0)
