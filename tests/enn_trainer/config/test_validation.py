"""Validation of settings: limits of numbers, and all problems in one error."""

import math
from typing import Any

import pytest

from enn_trainer.base.errors import ConfigError
from enn_trainer.config.validation import Problems, Validator


def problems_of(value: Any, **limits: Any) -> list[str]:
    check = Validator(None)
    check.number("x", value, **limits)
    return check.messages


@pytest.mark.parametrize(
    ("limits", "valid", "invalid", "expected"),
    [
        ({}, [-1e300, 10**400, None], [math.inf, math.nan], "a finite number"),
        ({"at_least": 1}, [1], [0, math.inf, math.nan], "a finite number of at least 1"),
        ({"above": 1}, [1.5], [1, math.inf], "a finite number above 1"),
        ({"above": 0, "finite": False}, [math.inf, None], [0, math.nan], "a number above 0"),
        ({"at_least": 0, "at_most": 1}, [0, 1], [-0.1, 1.1], "a number from 0 to 1"),
        ({"above": 0, "below": 1}, [0.5], [0, 1], "a number between 0 and 1"),
        ({"above": 0, "at_most": 1}, [1], [0, 2], "a number above 0 and up to 1"),
        ({"at_least": 0, "below": 1}, [0], [-1, 1], "a number of at least 0 and below 1"),
    ],
)
def test_number_beyond_its_limits_is_rejected_with_the_limits(
    limits: dict[str, Any], valid: list[Any], invalid: list[Any], expected: str
) -> None:
    for value in valid:
        assert problems_of(value, **limits) == []
    for value in invalid:
        assert problems_of(value, **limits) == [f"x: expected {expected}, got {value}"]


def test_all_problems_are_raised_as_one_error_at_the_end() -> None:
    def validate() -> None:
        with Problems() as problems:
            problems.require(False, "a: first")
            problems.require(True, "b: none")
            with problems.collect("section."):
                raise ConfigError("c: second", "d: third")
            problems.require(False, "e: last")

    with pytest.raises(ConfigError) as caught:
        validate()
    assert caught.value.problems == ("a: first", "section.c: second", "section.d: third", "e: last")


def test_other_errors_are_not_suppressed() -> None:
    def validate() -> None:
        with Problems() as problems:
            problems.require(False, "a: first")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        validate()
