"""Samplers of arguments: distributions, bounds, syntax and errors."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from entity_env.errors import InvalidSampler
from entity_env.seeding import mix
from entity_env.vec.samplers import Sampler, interpolate, read_sampler
from entity_env.vec.variation import Variation

BITS = st.integers(0, 2**64 - 1)
NUMBERS = st.one_of(
    st.integers(-(2**63) + 1, 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False)
)
VALUES = st.one_of(st.booleans(), st.text(max_size=5), st.integers(-9, 9), st.none())


def draws(text: str, count: int = 20_000) -> list[Any]:
    """Return independent draws of a sampler."""
    sampler = read_sampler(text)
    return [sampler.draw(bits) for bits in mix(3, np.arange(count)).tolist()]


def ordered(draw: st.DrawFn, numbers: st.SearchStrategy[Any]) -> tuple[Any, Any]:
    """Draw two numbers in their order."""
    low, high = sorted([draw(numbers), draw(numbers)])
    return low, high


@st.composite
def samplers(draw: st.DrawFn) -> Sampler:
    """Draw a sampler of any kind."""
    kind = draw(st.sampled_from(["value", "uniform", "normal", "ranges", "int", "choice"]))
    small = st.floats(-100, 100)
    if kind == "value":
        return Sampler("value", (draw(NUMBERS),))
    if kind == "choice":
        names = tuple(draw(st.lists(st.sampled_from(["1", '"a b"', "null", "[1]"]), min_size=1)))
        weights = st.lists(st.floats(0.1, 9), min_size=len(names), max_size=len(names))
        return Sampler("choice", tuple(draw(st.one_of(st.just([]), weights))), names)
    if kind == "uniform":
        return Sampler(kind, ordered(draw, NUMBERS))
    if kind == "normal":
        mean, deviation = draw(small), draw(st.floats(0, 10))
        bounds = (mean - draw(st.floats(0, 9)), mean + draw(st.floats(0, 9)))
        return Sampler(kind, (mean, deviation, *(bounds if draw(st.booleans()) else ())))
    numbers = st.integers(-50, 50) if kind == "int" else small
    pairs = [ordered(draw, numbers) for _ in range(draw(st.integers(1, 3)))]
    return Sampler(kind, tuple(number for pair in pairs for number in pair))


@given(samplers())
def test_sampler_text_round_trips(sampler: Sampler) -> None:
    assert read_sampler(sampler.text) == sampler


@given(samplers(), BITS)
@example(Sampler("normal", (0.0, 1.0)), 0)
@example(Sampler("normal", (0.0, 1.0)), 2**64 - 1)
def test_draws_are_deterministic_and_within_bounds(sampler: Sampler, bits: int) -> None:
    drawn = sampler.draw(bits)
    assert drawn == sampler.draw(bits)
    # Numbers that are drawn are float64, as their bounds are then.
    numbers = sampler.numbers if sampler.kind == "int" else [*map(float, sampler.numbers)]
    if sampler.kind in ("uniform", "ranges", "int"):
        assert any(
            low <= drawn <= high for low, high in zip(numbers[::2], numbers[1::2], strict=True)
        )
    if sampler.kind == "normal" and len(numbers) > 2:
        assert numbers[2] <= drawn <= numbers[3]
    assert sampler.kind != "int" or type(drawn) is int


@given(st.integers(-5, 5), st.integers(0, 9))
def test_integers_include_both_bounds(low: int, more: int) -> None:
    sampler = read_sampler(f"int {low} {low + more}")
    assert sampler.draw(0) == low
    assert sampler.draw(2**64 - 1) == low + more
    assert sampler.possible_values() == [*range(low, low + more + 1)]


@pytest.mark.parametrize(
    ("text", "mean", "std"),
    [
        ("uniform 2 4", 3, 2 / math.sqrt(12)),
        ("normal 5 2", 5, 2),
        ("ranges 0..1 3..6", (0.5 + 3 * 4.5) / 4, 1.893),
        ("int 1..3 8..9", 23 / 5, 3.262),
        ("choice 4 8", 6, 2),
        ("choice 4:3 8:1", 5, math.sqrt(3)),
        ("7", 7, 0),
    ],
)
def test_means_and_deviations_match_the_distribution(text: str, mean: float, std: float) -> None:
    drawn = np.array(draws(text), dtype=np.float64)
    assert drawn.mean() == pytest.approx(mean, abs=0.05)
    assert drawn.std() == pytest.approx(std, abs=0.05)


def test_loguniform_is_uniform_in_the_logarithm() -> None:
    logs = np.log10(draws("loguniform 0.01 1"))
    assert np.histogram(logs, bins=4, range=(-2, 0))[0] == pytest.approx([5000] * 4, abs=250)


@pytest.mark.parametrize("bounds", [(0, 10), (8, 12), (-9, 1), (30, 40)])
def test_bounded_normal_is_truncated_at_its_bounds(bounds: tuple[float, float]) -> None:
    low, high = bounds
    drawn = np.sort(draws(f"normal 5 2 in {low} {high}", 4000))
    above = [math.erfc((x - 5) / 2 / math.sqrt(2)) for x in (low, high, *drawn)]
    shares = [(above[0] - share) / (above[0] - above[1]) for share in above[2:]]
    assert np.abs(np.array(shares) - (np.arange(4000) + 0.5) / 4000).max() < 0.03


@given(VALUES)
def test_constants_are_parsed_as_json(value: Any) -> None:
    import json

    assert read_sampler(json.dumps(value)).draw(0) == value
    assert read_sampler(f"choice {json.dumps(value)}").draw(7) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "character 1: expected a value or a sampler"),
        ("unifrom 0 1", "character 1: .*did you mean uniform?"),
        ("maze", r'text is written as "maze", in the quotes of a setting as "\\"maze\\""'),
        ("uniform 0", "character 10: expected uniform LOW HIGH, got nothing more"),
        ("uniform 0 x", "character 11: expected a number, got 'x'"),
        ("uniform 0 1 2", "character 13: expected uniform LOW HIGH, got '2'"),
        ("uniform 2 1", "character 11: expected a bound of at least 2, got 1"),
        ("loguniform 0 1", "character 12: expected a number above 0, got 0"),
        ("int 1 2.5", "character 7: expected a whole number, got '2.5'"),
        ("int 1..3 9..8", "character 13: expected a bound of at least 9, got 8"),
        ("ranges 0..1 3", "character 13: expected a range, as in 0..1, got '3'"),
        ("normal 0 -1", "a standard deviation of at least 0, got -1"),
        ("normal 0 1 on 0 1", "character 12: expected in LOW HIGH, got 'on'"),
        ("normal 0 1 in 50 60", "bounds around some of the distribution"),
        ("choice", "character 7: expected choice VALUE"),
        ("choice open", "character 8: expected a value"),
        ("choice 4:1 8", "a weight for every value or for none"),
        ("choice 4:-1", "character 10: expected a weight of at least 0, got -1"),
        ("choice 4:0 8:0", "weights that are all 0"),
        ("choice 4:", "character 10: expected a number, got nothing"),
        ("NaN", "expected a value as JSON has it"),
        ("1e999", "a number of 64 bits"),
        ("[1e999]", "character 1: expected numbers of 64 bits, got inf"),
        ("choice 4 1e999", "character 10: expected numbers of 64 bits, got inf"),
        ('choice {"a": 9223372036854775808}', "numbers of 64 bits, got 9223372036854775808"),
        ('choice "\\ud800"', "character 8: expected text without unpaired surrogates"),
        ("True", "did you mean true?"),
        ("  7 8", "character 5: expected a value as JSON has it .*got '8'"),
        ("ranges 0...5", "character 8: expected a range, as in 0..1, got '0...5'"),
    ],
)
def test_syntax_errors_name_field_and_character(text: str, message: str) -> None:
    with pytest.raises(InvalidSampler, match=f"^env.vary.width: .*{message}"):
        read_sampler(text, "env.vary.width")


@pytest.mark.parametrize(
    "text",
    [
        "ranges -1e308..1e308 0..1",
        "normal 0 1e308",
        "choice 4:1e308 8:1e308",
        "uniform -1e308 1e308",
    ],
)
def test_largest_floats_do_not_overflow(text: str) -> None:
    drawn = draws(text, 1000)
    assert np.isfinite(drawn).all()
    assert len({*drawn}) > 1
    share_above = np.mean(np.array(drawn) > np.median([min(drawn), max(drawn)]))
    assert share_above == pytest.approx(0.5, abs=0.1)


def test_ranges_of_single_numbers_are_equally_likely() -> None:
    drawn = draws("ranges 1..1 2..2 5..5", 3000)
    assert {*drawn} == {1.0, 2.0, 5.0}
    assert np.mean(np.array(drawn) == 2) == pytest.approx(1 / 3, abs=0.05)


def test_interpolation_is_linear() -> None:
    first, last = read_sampler("int 1 1"), read_sampler("int 0 40")
    texts = [interpolate(first, last, i / 4).text for i in range(5)]
    assert texts == ["int 1 1", "int 1 11", "int 1 21", "int 0 30", "int 0 40"]
    assert interpolate(read_sampler("1"), read_sampler("4"), 1 / 3).text == "2"
    largest = read_sampler("uniform -1e308 1e308"), read_sampler("uniform 1e308 1.1e308")
    assert interpolate(*largest, 0.5).text == "uniform 0.0 1.05e+308"
    with pytest.raises(InvalidSampler, match="same kind"):
        interpolate(first, read_sampler("uniform 0 1"), 0.5)


@given(st.integers(0, 2**63 - 1), st.integers(0, 999), st.integers(0, 999))
def test_draws_do_not_depend_on_other_arguments(seed: int, match: int, episode: int) -> None:
    some = {"width": "uniform 0 1", "mines": "int 0 20"}
    more = {"a": "normal 0 1", **some, "z": 'choice "x" "y"'}
    drawn = Variation.of(some).arguments(seed, match, episode)
    assert drawn.items() <= Variation.of(more).arguments(seed, match, episode).items()
    assert Variation().arguments(seed, match, episode) == {}


@given(st.lists(samplers(), min_size=1, max_size=3), st.integers(0, 99))
def test_variation_round_trips_through_plain_data(parts: list[Sampler], episode: int) -> None:
    variation = Variation((tuple((1.0 + i, {"a": part}) for i, part in enumerate(parts)),))
    assert Variation.from_plain(variation.to_plain()) == variation
    again = Variation.from_plain(variation.to_plain())
    assert again.arguments(1, 2, episode) == variation.arguments(1, 2, episode)


def test_alternatives_are_drawn_in_proportion_to_their_shares() -> None:
    now, before = (Variation.of({"a": text}).groups[0][0][1] for text in ("1", "0"))
    group = ((0.9, now), (0.1, before))
    ones = [Variation((group,)).arguments(5, 0, i)["a"] for i in range(4000)]
    assert np.mean(ones) == pytest.approx(0.9, abs=0.02)
