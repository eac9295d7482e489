"""Decisions on lessons, from episodes and other metrics."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from enn_trainer import ConfigError
from enn_trainer.base.errors import NotFiniteError
from enn_trainer.config import CurriculumConfig, LessonConfig, TrainConfig
from enn_trainer.config.curriculum_config import Lesson
from enn_trainer.curriculum.lessons import LessonProgress, Lessons
from enn_trainer.experience.episodes import Episodes
from enn_trainer.testing import check_state_part
from entity_env.vec.variation import Variation

SOME = {"length": "int 1 3"}


def lesson(name: str, until: Sequence[str] = (), back: Sequence[str] = (), n: int = 2) -> Lesson:
    config = LessonConfig(name, vary=SOME, until=[*until], back=[*back], episodes=n)
    return config.lessons()[0]


def ended(began_in: Sequence[int], **metrics: Sequence[float]) -> Episodes:
    """Episodes of the curriculum c that ended, with the numbers of their lessons."""
    numbers = {name: np.array(values, np.float64) for name, values in metrics.items()}
    began = np.array(began_in, np.float64)
    return Episodes(np.arange(len(began)), {"lesson/c": began, **numbers})


def started(lessons: Sequence[Lesson], at: int = 0) -> LessonProgress:
    return LessonProgress(lessons[at].name, lessons[at].texts())


def count(progress: LessonProgress, present: Lesson, episodes: Episodes, num_envs: int = 0) -> None:
    """Count episodes; of `num_envs` environments in turn, or one of each."""
    num_envs = num_envs or len(episodes.environment)
    environment = episodes.environment % num_envs
    progress.count("c", present, replace(episodes, environment=environment), num_envs)


UP = [lesson("a", ["win.mean >= 0.5"]), lesson("b", back=["win.mean <= 0.1", "step >= 900"])]


def test_means_are_over_the_last_episodes_of_the_stage() -> None:
    progress = started(UP)
    progress.number = 3
    count(progress, UP[0], ended([2, 3, -1, 2], win=[1, 0, 1, 1]), num_envs=1)
    assert progress.episodes == 1
    assert progress.decision(UP, 10) is None  # one of two
    count(progress, UP[0], ended([3, 3, -1], win=[1, 0, 1]), num_envs=1)
    assert progress.measure("win.mean", 10) == 0.5  # of the last two
    decided = progress.decision(UP, 10)
    assert decided is not None
    assert decided == (UP[1], "win.mean >= 0.5: 0.5 over 2 episodes")
    progress.begin(*decided[:1], 10, decided[1])
    assert (progress.lesson, progress.number, progress.episodes) == ("b", 4, 0)
    count(progress, UP[1], ended([3, 3], win=[0, 0]))  # began before
    assert progress.decision(UP, 20) is None


def test_stage_goes_back_when_one_bound_of_back_holds() -> None:
    progress = started(UP, at=1)
    count(progress, UP[1], ended([0, 0], win=[1, 1]))
    assert progress.decision(UP, 899) is None
    assert progress.decision(UP, 900) == (UP[0], "step >= 900: 900")
    count(progress, UP[1], ended([0, 0], win=[0, 0]))
    assert progress.decision(UP, 1) == (UP[0], "win.mean <= 0.1: 0 over 2 episodes")


def test_stage_advances_when_all_bounds_of_until_hold() -> None:
    lessons = [lesson("a", ["win.mean >= 0.5", "lesson_step >= 50", "eval/x >= 1"]), lesson("b")]
    progress = started(lessons)
    progress.step = 100
    count(progress, lessons[0], ended([0, 0], win=[1, 1]))
    assert progress.decision(lessons, 160) is None
    progress.note("c", lessons[0], {"eval/x": 1.0})
    assert progress.decision(lessons, 149) is None
    assert progress.decision(lessons, 150) is not None
    progress.note("c", lessons[0], {"eval/x": 0.0})  # the newest value counts
    assert progress.decision(lessons, 160) is None


def test_other_metrics_are_reset_in_each_stage() -> None:
    lessons = [lesson(name, ["eval/x >= 1"]) for name in "ab"] + [lesson("z")]
    progress = started(lessons)
    progress.note("c", lessons[0], {"eval/x": 2.0, "eval/y": 3.0})
    assert progress.newest == {"eval/x": 2.0}
    progress.begin(lessons[1], 10, "")
    assert progress.decision(lessons, 20) is None


def test_no_stage_is_skipped() -> None:
    """Each lasts for one update at least, however many bounds hold at once."""
    lessons = [lesson(name, ["step >= 5"]) for name in "abc"] + [lesson("z")]
    progress, seen = started(lessons), []
    for step in (0, 10, 10, 20, 20, 30, 40):
        if (decided := progress.decision(lessons, step)) is not None:
            progress.begin(*decided[:1], step, decided[1])
        seen.append(progress.lesson)
    assert seen == ["a", "b", "b", "c", "c", "z", "z"]


def test_episodes_without_the_metric_are_excluded_from_its_mean() -> None:
    progress = started(UP)
    count(progress, UP[0], ended([0, 0, 0], win=[1, math.nan, math.nan]), num_envs=1)
    assert (progress.episodes, progress.num_episodes("win.mean")) == (3, 1)
    count(progress, UP[0], ended([0, 0]), num_envs=1)
    assert progress.decision(UP, 10) is None
    count(progress, UP[0], ended([0], win=[0]), num_envs=1)
    assert progress.decision(UP, 10) is not None


def test_means_are_over_whole_rounds_of_all_environments() -> None:
    """The episodes that have ended at some time are the short ones."""
    progress = started(UP)
    short, late = ended([0] * 5, win=[1] * 5), ended([0, 0], win=[0, 0])
    fast = replace(short, environment=np.array([0, 0, 1, 1, 1]))
    progress.count("c", UP[0], fast, 3)
    assert (progress.episodes, progress.measure("win.mean", 10)) == (5, None)
    assert progress.decision(UP, 10) is None
    progress.count("c", UP[0], replace(late, environment=np.array([2, 2])), 3)
    assert progress.measure("win.mean", 10) == 2 / 3  # of the newest round, which has three
    assert progress.decision(UP, 10) == (UP[1], "win.mean >= 0.5: 0.666667 over 3 episodes")


def test_rounds_of_a_save_of_an_older_version_begin_after_its_running_episodes() -> None:
    part = Lessons()
    part.arrange({"c": curriculum("a", "b")}, 0)
    state = part.state_dict()
    for name in ("rounds", "complete"):
        del state["curricula"]["c"][name]
    state["curricula"]["c"]["values"] = {"win.mean": [1.0, 1.0]}
    part.load_state_dict(state)
    progress = part.curricula["c"]
    count(progress, UP[0], ended([0, 0], win=[1, 1]))
    assert progress.measure("win.mean", 10) is None
    count(progress, UP[0], ended([0, 0], win=[0, 0]))
    assert progress.measure("win.mean", 10) == 0


def test_infinite_metrics_raise() -> None:
    progress = started(UP)
    with pytest.raises(
        NotFiniteError, match=r"curricula\['c'\], lesson 'a': .*'win.mean', got inf"
    ):
        count(progress, UP[0], ended([0], win=[math.inf]))
    other = [lesson("a", ["losses/entropy <= 1"]), lesson("b")]
    with pytest.raises(NotFiniteError, match="finite values of 'losses/entropy', got nan"):
        started(other).note("c", other[0], {"losses/entropy": math.nan})


def curriculum(*names: str, **vary: str) -> CurriculumConfig:
    *some, last = names
    until = ["step >= 9"]
    lessons = [LessonConfig(name, vary={**SOME, **vary}, until=until) for name in some]
    return CurriculumConfig([*lessons, LessonConfig(last, vary={**SOME, **vary})])


def test_stages_are_matched_by_name_on_resume() -> None:
    part = Lessons()
    assert part.arrange({"c": curriculum("a", "b")}, 0) == []
    progress = part.curricula["c"]
    progress.begin(lesson("b"), 30, "")
    progress.complete["win.mean"] = np.ones((500, 4))
    progress.newest = {"x": 1.0}
    bounds = CurriculumConfig(
        [
            LessonConfig("b", vary=SOME, until=["win.mean >= 2", "x >= 2"]),
            LessonConfig("a", vary=SOME),
        ]
    )
    assert part.arrange({"c": bounds}, 40) == []
    assert (progress.num_episodes("win.mean"), progress.newest) == (100, {"x": 1.0})
    assert part.arrange({"c": curriculum("new", "b", "a")}, 40) == []
    assert (progress.lesson, progress.step) == ("b", 30)
    assert (progress.complete, progress.newest) == ({}, {})  # of bounds that it has no more
    (message,) = part.arrange({"c": curriculum("new", "b", "a", length="7")}, 50)
    assert message == "curriculum c: lesson b restarts, as its samplers changed"
    assert (progress.step, progress.complete, progress.number) == (50, {}, 2)
    with pytest.raises(ConfigError, match=r"curricula\['c'\].lessons: expected 'b'.*got new, a"):
        part.arrange({"c": curriculum("new", "a")}, 50)
    (message,) = part.arrange({"other": curriculum("x", "y")}, 60)
    assert "curriculum c: removed from the settings" in message
    assert part.curricula["other"].begun == {"x": [60, "it was added"]}


def test_lessons_are_a_part_of_the_state() -> None:
    part = Lessons()
    part.parameters = {"keys": "3"}
    part.arrange({"c": curriculum("a", "b")}, 0)
    progress = part.curricula["c"]
    count(progress, lesson("a", ["win.mean >= 1"]), ended([0, 0, 0], win=[0.1, 1, 1]), num_envs=2)
    assert progress.complete.keys() == {"win.mean"}
    assert progress.rounds.tallies.keys() == {"win"}
    progress.newest = {"eval/x": 2.0}
    check_state_part(part, Lessons())


@pytest.mark.parametrize(
    "change",
    [
        {"lesson": 3},
        {"number": 1.5},
        {"complete": {"win.mean": ["1"]}},
        {"rounds": {"first": 0, "ended": [0.5], "tallies": {}}},
        {"newest": [1.0]},
        {"begun": {"a": [1]}},
        {"samplers": {"length": "int 9 1"}},
        {"step": True},
    ],
)
def test_damaged_state_raises(change: dict[str, object]) -> None:
    part = Lessons()
    part.arrange({"c": curriculum("a", "b")}, 0)
    state = part.state_dict()
    state["curricula"]["c"] |= change
    with pytest.raises(ValueError, match="curriculum: curricula: "):
        Lessons().load_state_dict(state)
    del state["curricula"]["c"]["lesson"]
    with pytest.raises(ValueError, match="curriculum: curricula: "):
        Lessons().load_state_dict(state)


@given(st.integers(0, 2**32), st.integers(2, 5), st.sampled_from([0.0, 0.1, 0.5, 0.9]))
def test_review_samples_earlier_stages_equally(seed: int, present: int, review: float) -> None:
    until = ["step >= 1"]
    lessons = [LessonConfig(str(i), vary={"x": str(i)}, until=until) for i in range(5)]
    lessons.append(LessonConfig("5", vary={"x": "5"}))
    config = TrainConfig(curricula={"c": CurriculumConfig(lessons, review)})
    part, all_lessons = Lessons(), {"c": config.curricula["c"].all_lessons()}
    part.arrange(config.curricula, 0)
    part.curricula["c"].lesson = str(present)
    (group,) = part.groups(config, all_lessons).values()
    shares = [share for share, _ in group]
    assert shares[0] == 1 - review
    assert sum(shares) == pytest.approx(1)
    variation = Variation((group,))
    count = 400
    drawn = Counter(variation.arguments(seed, 0, episode)["x"] for episode in range(count))
    assert {*drawn} <= ({*range(present + 1)} if review else {present})
    assert abs(drawn[present] / count - (1 - review)) < 5.5 * (0.25 / count) ** 0.5
