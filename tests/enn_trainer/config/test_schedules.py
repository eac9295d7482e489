"""What a schedule says, how it is read, and how a setting carries it."""

import copy
import math
import pickle
import time
from dataclasses import asdict, replace
from itertools import pairwise
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer.base.errors import ConfigError
from enn_trainer.config import TrainConfig
from enn_trainer.config.load import load_config
from enn_trainer.config.ppo_config import OptimizerConfig
from enn_trainer.config.schedules import (
    Schedule,
    as_written,
    follow_schedules,
    parse_schedule,
    scheduled,
    scheduled_fields,
)

VALUES = st.floats(-1e6, 1e6).filter(lambda y: y == 0 or abs(y) > 1e-6)
POSITIVE = st.floats(1e-6, 1e6)
POSITIONS = st.lists(st.integers(-(10**9), 10**9), min_size=1, max_size=5, unique=True).map(sorted)
SHAPES = ["", "lin", "cos", "step", "quad", "poly(3)", "poly(0.5)"]


@st.composite
def texts(
    draw: st.DrawFn,
    shapes: list[str] = SHAPES,
    values: st.SearchStrategy[float] = VALUES,
    knots: int = 1,
) -> str:
    """A schedule with a least number of knots; a missing shape repeats the previous one."""
    positions = draw(POSITIONS.filter(lambda result: len(result) >= knots))
    words = [f"{draw(values)!r}@{positions[0]}"]
    for position in positions[1:]:
        words += [draw(st.sampled_from(shapes)), f"{draw(values)!r}@{position}"]
    return " ".join(["step:", *(word for word in words if word)])


# Values


@pytest.mark.slow
@given(texts() | texts(["exp"], POSITIVE) | texts(["exp"], POSITIVE.map(lambda y: -y)))
def test_schedule_is_exact_at_knots_and_constant_beyond_the_ends(text: str) -> None:
    schedule = parse_schedule(text)
    for knot in schedule.knots:
        assert schedule.value_at(knot.position) == knot.value
    first, last = schedule.knots[0], schedule.knots[-1]
    assert schedule.value_at(first.position - 1) == schedule.value_at(-1e12) == first.value
    assert schedule.value_at(last.position + 1) == schedule.value_at(1e12) == last.value


@given(texts() | texts(["exp"], POSITIVE), st.integers(-(10**9), 10**9), st.booleans())
def test_values_stay_between_adjacent_knots(text: str, x: int, repeats: bool) -> None:
    """Checks of a setting's range look at the knots alone."""
    schedule = replace(parse_schedule(text), repeats=repeats and "@" in text.split("@", 1)[1])
    values = [knot.value for knot in schedule.knots]
    assert min(values) <= schedule.value_at(x) <= max(values)
    for left, right in pairwise(schedule.knots):
        if left.position <= x <= right.position and not schedule.repeats:
            low, high = sorted((left.value, right.value))
            assert low <= schedule.value_at(x) <= high


@given(
    texts(["lin", "cos", "quad", "poly(3)", "poly(0.5)"], knots=2)
    | texts(["exp"], POSITIVE, knots=2),
    st.lists(st.floats(0, 1), min_size=2),
)
def test_values_are_monotonic_between_knots(text: str, parts: list[float]) -> None:
    """But for the last bits, which rounding decides."""
    schedule = parse_schedule(text)
    left, right = schedule.knots[:2]
    ways = [left.position + part * (right.position - left.position) for part in sorted(parts)]
    got = [schedule.value_at(min(x, right.position)) for x in ways]
    slack = 1e-14 * max(abs(left.value), abs(right.value))
    if left.value > right.value:
        got.reverse()
    assert all(a <= b + slack for a, b in pairwise(got))


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("0@0 8@100", {25: 2.0, 50: 4.0, 75: 6.0}),
        ("0@0 lin 8@100", {25: 2.0, 50: 4.0, 75: 6.0}),
        ("8@0 quad 0@100", {25: 8 * 0.75**2, 50: 2.0, 75: 0.5}),
        ("0@0 quad 8@100", {50: 6.0}),
        ("8@0 poly(3) 0@100", {50: 1.0, 75: 0.125}),
        ("8@0 poly(0.5) 0@100", {75: 4.0}),
        ("8@0 poly(1) 0@100", {25: 6.0}),
        ("8@0 cos 0@100", {50: 4.0, 25: 4 + 4 * math.sqrt(0.5), 75: 4 - 4 * math.sqrt(0.5)}),
        ("1@0 exp 1e-4@100", {25: 0.1, 50: 0.01, 75: 0.001}),
        ("-1@0 exp -100@100", {50: -10.0}),
        ("8@0 step 4@100 2@200", {0: 8, 99.9: 8, 100: 4, 199: 4, 200: 2}),
        ("0@0 cos 8@100 0@200", {150: 4.0, 125: 4 + 4 * math.sqrt(0.5)}),
        ("5@100", {0: 5.0, 1000: 5.0}),
        ("1@0 lin 0@100 repeat", {0: 1.0, 25: 0.75, 99: 0.01, 100: 1.0, 125: 0.75, 1050: 0.5}),
        ("1@10 lin 3@20 lin 1@30 repeat", {0: 1.0, 15: 2.0, 20: 3.0, 30: 1.0, 35: 2.0, 45: 2.0}),
    ],
)
def test_shapes_match_their_documentation(text: str, values: dict[float, float]) -> None:
    """By hand."""
    schedule = parse_schedule(f"step: {text}")
    assert {x: schedule.value_at(x) for x in values} == pytest.approx(values, rel=1e-12)


@given(texts(["", "lin", "cos"], knots=2), st.integers(-(10**9), 10**9))
def test_lin_and_cos_match_hyperstate(text: str, x: int) -> None:
    """To the last bit of the larger knot, where its own formula leaves the range."""
    slack = 1e-15 * max(abs(knot.value) for knot in parse_schedule(text).knots)
    reference = pytest.importorskip("hyperstate.schedule")
    published = reference._parse_schedule(text).get_value(x)
    assert parse_schedule(text).value_at(x) == pytest.approx(published, rel=0, abs=2 * slack)


def test_values_of_any_magnitude_are_exact() -> None:
    """Neither powers of `exp` nor shares of lines overflow."""
    for text in ("step: 1e-300@0 exp 1e300@8", "step: -1.7e308@0 lin 1.7e308@8"):
        assert all(math.isfinite(parse_schedule(text).value_at(x)) for x in range(9))
    assert parse_schedule("step: 1e-300@0 exp 1e300@8").value_at(4) == pytest.approx(1)


# Reading


@given(texts() | texts(["exp"], POSITIVE))
def test_schedule_round_trips(text: str) -> None:
    schedule = parse_schedule(text)
    assert parse_schedule(schedule.text) == schedule
    read_again = " ".join(
        f"{knot.shape if i else ''} {knot.value!r}@{knot.position!r}"
        for i, knot in enumerate(schedule.knots)
    )
    assert parse_schedule(f"step: {read_again}").knots == schedule.knots


def test_numbers_accept_common_notations() -> None:
    schedule = parse_schedule(" time_used:  -1e-3@-5\tlin +.5@1_000 \n 2.@15e7 ")
    assert schedule.clock == "time_used"
    assert [(k.value, k.position) for k in schedule.knots] == [(-1e-3, -5), (0.5, 1000), (2, 15e7)]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "character 1: expected a clock, step: or time_used:, got the end"),
        ("0.1@0 lin 0@1", "character 1: expected a clock, step: or time_used:, got '0.1@0'"),
        ("restart: 0.1@0", "character 1: expected a clock, .* got 'restart:'"),
        ("step:", "character 6: expected value@position, such as 0.1@0 .*quotes.*, got the end"),
        ("step: lin 0@1", "character 7: expected value@position, .* got 'lin'"),
        ("step: 1@0 wave 0@9", r"character 11: .* shape \(lin, cos, .*\), got 'wave'"),
        ("step: 1@0 lin", "character 14: expected value@position, got the end"),
        ("step: 1@0 lin cos 0@9", "character 15: expected value@position, .* got 'cos'"),
        ("step: 1@0 poly(0) 0@9", "character 11: .*, got 'poly\\(0\\)'"),
        ("step: 1@0 poly(-1) 0@9", "character 11: .*, got 'poly\\(-1\\)'"),
        ("step: 1@0 poly(x) 0@9", "character 11: .*, got 'poly\\(x\\)'"),
        ("step: 1@0 poly 0@9", "character 11: .*, got 'poly'"),
        ("step: 1@0 lin 0@x", "character 15: expected two finite numbers .* got '0@x'"),
        ("step: @0", "character 7: expected two finite numbers .* got '@0'"),
        ("step: nan@0", "character 7: expected two finite numbers"),
        ("step: 1@inf", "character 7: expected two finite numbers"),
        ("step: 1e999@0", "character 7: expected two finite numbers"),
        ("step: 0.3@step=0 lin 0@1", "character 7: expected two finite numbers"),
        ("step: 1@5 0@5", "character 11: expected a position above 5, got '0@5'"),
        ("step: 1@12345678 0@5", "character 18: expected a position above 12345678, got"),
        ("step: 1@0 exp 0@9", "character 15: expected exp between values on one side of 0, the fi"),
        ("step: 0@0 exp 1@9", "character 15: expected exp .* the first being 0, got '1@9'"),
        ("step: 1@0 exp -1@9", "character 15: expected exp"),
        ("step: 1@0 repeat", "character 11: expected a second value@position before repeat"),
        ("step: 1@0 0@9 repeat 1@18", "character 22: expected nothing after repeat, got '1@18'"),
    ],
)
def test_invalid_schedule_is_rejected_with_its_position(text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=f"^{problem}"):
        parse_schedule(text)


@given(st.text(st.sampled_from("step:time_used 01.e-@()linexpolyrepeatnacs\n"), max_size=40))
def test_any_text_is_parsed_or_rejected(text: str) -> None:
    for start in ("", "step: 1@0 "):
        try:
            schedule = parse_schedule(start + text)
        except ConfigError:
            continue
        assert math.isfinite(schedule.value_at(1.5))


# Settings


def optimizer(text: str = "step: 1@0 lin 0@100") -> OptimizerConfig:
    schedule = parse_schedule(text)
    return OptimizerConfig(
        lr=scheduled(schedule, float, 0),  # type: ignore[arg-type]
        bs=scheduled(Schedule("", "time_used", parse_schedule("step: 9@0 1@8").knots), int, 0),  # type: ignore[arg-type]
    )


def test_scheduled_setting_equals_its_current_value() -> None:
    config = optimizer()
    follow_schedules(config, SimpleNamespace(step=25, time_used=3.0))
    assert (config.lr, config.bs) == (0.75, 6)
    assert isinstance(config.lr, float)
    assert isinstance(config.bs, int)
    assert f"{config.lr} {config.lr:.3f} {config.bs:03d}" == "0.75 0.750 006"
    assert config.lr * 2 == 1.5
    follow_schedules(config, SimpleNamespace(step=200, time_used=99.0))
    assert (config.lr, config.bs) == (0.0, 1)


def test_int_schedules_round_half_to_even() -> None:
    schedule = parse_schedule("step: 1@0 lin 5@40")
    rounded = [scheduled(schedule, int, x) for x in (4, 5, 6, 15, 16, 25, 35)]
    assert rounded == [1, 2, 2, 2, 3, 4, 4]


def test_a_copy_keeps_its_schedules() -> None:
    """Configurations are copied for sweeps, sent to processes and changed by `replace`."""
    config = optimizer()
    for other in (
        copy.deepcopy(config),
        pickle.loads(pickle.dumps(config)),
        replace(config, weight_decay=0.5),
    ):
        assert scheduled_fields(other).keys() == {"lr", "bs"}
        follow_schedules(other, SimpleNamespace(step=50, time_used=0))
        assert (other.lr, config.lr) == (0.5, 1.0)
    assert asdict(config)["lr"] == 1.0


def test_assigning_a_number_ends_a_schedule() -> None:
    config = optimizer()
    config.lr = 0.5
    follow_schedules(config, SimpleNamespace(step=50, time_used=0))
    assert config.lr == 0.5


def test_printed_settings_show_their_schedules() -> None:
    assert "lr=1.0 by 'step: 1@0 lin 0@100'" in repr(optimizer())
    assert as_written(optimizer().lr) == "step: 1@0 lin 0@100"
    assert as_written(0.5) == 0.5


@pytest.mark.alone
def test_schedule_with_many_knots_is_validated_in_time() -> None:
    """Each knot is validated, but only changed sections are built again."""
    points = " ".join(f"0.1@{i}" for i in range(8000))
    start = time.process_time()
    config = load_config(TrainConfig, None, [f"optim.lr=step: {points}"])
    assert time.process_time() - start < 4
    assert len(scheduled_fields(config)["optim.lr"].schedule.knots) == 8000


def test_number_of_knots_is_bounded_depending_on_lists() -> None:
    points = " ".join(f"0.1@{i}" for i in range(20_001))
    with pytest.raises(ConfigError, match=r"optim\.lr: expected schedules with at most 20000 pos"):
        load_config(TrainConfig, None, [f"optim.lr=step: {points}"])
    targets = ", ".join(f'"a{i}": 0.5' for i in range(20_000))
    points = " ".join(f"0.1@{i}" for i in range(1_001))
    with pytest.raises(
        ConfigError, match=r"optim\.lr: expected schedules with at most (1000|99\d) pos"
    ):
        load_config(
            TrainConfig, None, [f"optim.lr=step: {points}", f"ppo.ent_targets={{{targets}}}"]
        )


def test_problems_at_a_knot_are_reported_once_with_their_section() -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(
            TrainConfig,
            None,
            ["optim.lr=step: 0.1@0 -1@5 -1@7", "optim.update_epochs=step: 1@0 0@5"],
        )
    assert len(caught.value.problems) == 2
    for problem, name in zip(caught.value.problems, ("lr", "update_epochs"), strict=True):
        assert problem.startswith(f"optim.{name}: expected")
        assert problem.endswith("(where step is 5)")
