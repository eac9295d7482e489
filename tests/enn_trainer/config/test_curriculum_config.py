"""Ramps as lessons, and names of arguments."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer import TrainConfig
from enn_trainer.base.errors import ConfigError
from enn_trainer.config import LessonConfig
from enn_trainer.config.curriculum_config import renamed_arguments
from enn_trainer.config.load import dump_config, load_config

BOUNDS = st.tuples(st.integers(0, 50), st.integers(0, 50)).map(lambda pair: sorted(pair))


@given(BOUNDS, BOUNDS, st.integers(2, 60))
def test_ramps_interpolate_linearly(first: list[int], last: list[int], count: int) -> None:
    ends = [f"int {low} {high}" for low, high in (first, last)]
    config = LessonConfig("r", ramp={"x": ends}, count=count, until=["step >= 1"])
    lessons = config.lessons()
    assert [one.name for one in lessons] == [f"r {i + 1}" for i in range(count)]
    assert [lessons[0].texts()["x"], lessons[-1].texts()["x"]] == ends
    for i, lesson in enumerate(lessons):
        for number, a, b in zip(lesson.samplers["x"].numbers, first, last, strict=True):
            assert abs(number - (a + (b - a) * i / (count - 1))) <= 0.5 + 1e-9


def test_arguments_are_renamed_in_all_settings() -> None:
    text = (
        '(version: 6, env: (vary: {"size": "1"}), eval: (episodes: 2, suites: {"s": (env: (kwargs: '
        '{"n": 3}))}), curricula: {"c": (lessons: [(name: "r", ramp: {"n": ["1", "2"]}, count: 2, '
        'until: ["parameters/n.mean >= 1"], back: ["parameters/n/3 <= 0", "n.mean <= 2"])])}, '
        'stop: ["parameters/size.mean >= 5"])'
    )
    config = load_config(TrainConfig, None, text=text)
    renamed_arguments(config, {"n": "number", "size": "width"})
    (lesson,) = config.curricula["c"].lessons
    assert lesson.until == ["parameters/number.mean >= 1"]
    assert lesson.back == ["parameters/number/3 <= 0", "n.mean <= 2"]
    assert config.stop == ["parameters/width.mean >= 5"]
    assert config.env.vary == {"width": "1"}
    assert config.eval is not None
    assert config.eval.suites["s"].env is not None
    assert config.eval.suites["s"].env.kwargs == '{"number": 3}'
    assert config.curricula["c"].arguments() == ["number"]
    assert load_config(TrainConfig, None, text=dump_config(config)) == config
    config.env.vary = {"a": "1", "b": "2"}
    with pytest.raises(ConfigError, match="rename: expected distinct new names for a, b"):
        renamed_arguments(config, {"a": "b"})
