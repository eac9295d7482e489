from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_env.errors import did_you_mean, nearest_name, short_repr, truncate


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.5, "1.5"),
        ("a  b\n", r"'a  b\n'"),
        ([1, "a"], "[1, 'a']"),
        (np.array([[1], [2]]), "array([[1], [2]])"),
        ("x" * 100, f"'{'x' * 76}..."),
        ([0] * 30, f"a list of 30: [{'0, ' * 25}0..."),
        ({"key": "x" * 100}, f"a dict of 1: {{'key': '{'x' * 68}..."),
        ([0] * 1000, "a list of 1000"),
        (10**70, str(10**70)),
        (10**90, f"an integer of 299 bits: 1{'0' * 76}..."),
        pytest.param(10**5000, "an integer of 16610 bits", id="int"),
        pytest.param([10**5000], "a list of 1", id="int in a list"),
    ],
)
def test_short_repr_is_one_short_line(value: Any, text: str) -> None:
    assert short_repr(value) == text


def test_short_repr_of_deep_nesting_is_its_size() -> None:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    assert short_repr(value) == "a list of 1"


def test_short_repr_respects_max_length() -> None:
    assert short_repr("x" * 100, 200) == repr("x" * 100)
    assert short_repr([0] * 30, 200) == repr([0] * 30)


@given(st.text(), st.integers(3, 20))
def test_truncated_text_ends_with_dots(text: str, most: int) -> None:
    short = truncate(text, most)
    assert len(short) <= most
    assert short == text or short.endswith("...")


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("sede", "seed"),  # neighbours are swapped
        ("sed", "seed"),
        ("SEED", "seed"),
        ("trian", "train"),
        ("total-timestep", "total_timesteps"),
        ("totl_timestep", "total_timesteps"),
        ("algo", None),  # "lag" is two edits away
        ("test", None),  # so is "rest"
        ("tots_timestep", None),
        ("", None),
    ],
)
def test_nearest_name_is_one_edit_away_or_two_for_long_names(
    name: str, nearest: str | None
) -> None:
    names = ["seed", "train", "lag", "resets", "total_timesteps"]
    assert nearest_name(name, names) == nearest
    assert did_you_mean(name, names) == ("" if nearest is None else f", did you mean {nearest}?")


def test_nearest_of_several_names_has_the_fewest_edits() -> None:
    assert nearest_name("steps_", ["step", "stepss", "steps_"]) == "steps_"
    assert nearest_name("x" * 10_000, ["y" * 10_000]) is None


@given(st.text("abc_", min_size=6, max_size=12), st.integers(0, 5), st.sampled_from("xyz"))
def test_name_with_a_replaced_letter_is_near(name: str, place: int, letter: str) -> None:
    typed = name[:place] + letter + name[place + 1 :]
    assert nearest_name(typed, [name]) == name
