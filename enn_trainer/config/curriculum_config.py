"""Settings of curricula: lessons in which arguments of the environment change during a run.

hyperstate's managers read these classes too, and know `Optional[int]` and not `int | None`: no
`from __future__ import annotations` here. The `Attributes:` of each class are its help.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Dict, List, Optional

from enn_trainer.base.errors import ConfigError
from enn_trainer.config.eval_config import EnvConfig, check_samplers
from enn_trainer.config.validation import Section, Validator, limited
from enn_trainer.stop_conditions import Bound, read_bound
from entity_env.errors import InvalidSampler, short_repr
from entity_env.vec.samplers import Sampler, interpolate, read_sampler

MAX_LESSONS = 1000
"""Lessons of a curriculum, those of ramps included."""

STEPS = ("step", "lesson_step")
"""Names in bounds that are no metrics: frames of the run, and since the lesson began."""


@dataclass
class LessonConfig(Section):
    """One lesson, or several in a row by a ramp.

    Attributes:
        name: Name of the lesson; those of a ramp are "NAME 1", "NAME 2", and so on.
        vary: Arguments of the environment in this lesson: samplers by name, as in env.vary.
        ramp: Samplers of the first and of the last one of `count` lessons, by name; in those in
            between the numbers of the samplers go in equal steps.
        count: Number of lessons of the ramp.
        until: The next lesson begins once all of these hold, such as "episodic_reward.mean >= 0.8",
            "eval/episodic_reward.mean >= 0.9", "step >= 200000" or "lesson_step >= 50000".
        back: The lesson before begins anew once one of these holds.
        episodes: Means of metrics of episodes are over the newest whole rounds that have this many
            episodes; round k is the k-th episode of every environment that began in the lesson.
    """

    name: str
    vary: Dict[str, str] = field(default_factory=dict)
    ramp: Dict[str, List[str]] = field(default_factory=dict)
    count: Optional[int] = limited(None, at_least=2, at_most=MAX_LESSONS)
    until: List[str] = field(default_factory=list)
    back: List[str] = field(default_factory=list)
    episodes: int = limited(100, at_least=1, at_most=100_000)

    def _check(self, check: Validator) -> None:
        check.require(
            is_name(self.name),
            f"name: expected one that can be printed, got {short_repr(self.name)}",
        )
        got = "both" if self.vary else "neither"
        check.require(
            bool(self.vary) != bool(self.ramp), f"vary, ramp: expected one of them, got {got}"
        )
        check.only_with("count", bool(self.ramp), "a ramp")
        check.require(
            self.count is not None or not self.ramp,
            "count: expected the number of lessons of the ramp, got none",
        )
        check_samplers(check, self.vary, "vary")
        for name, ends in self.ramp.items():
            path = f"ramp.{name}"
            if len(ends) != 2:
                expected = "the first and the last sampler"
                check.require(False, f"{path}: expected {expected}, got {short_repr(ends)}")
                continue
            num_before = len(check.found)
            for text in ends:
                check_samplers(check, {name: text}, "ramp")
            if len(check.found) == num_before and self.count is not None:
                try:
                    for i in range(max(2, min(self.count, MAX_LESSONS))):
                        self._sampler(name, i)
                except InvalidSampler as error:
                    check.require(False, f"{path}: {error}")
        for bounds in ("until", "back"):
            for i, text in enumerate(getattr(self, bounds)):
                with check.collect():
                    read_bound(text, f"{bounds}[{i}]")

    def lessons(self) -> list["Lesson"]:
        """Return the lessons that this stands for."""
        until, back = (
            tuple(read_bound(text, "bound") for text in texts) for texts in (self.until, self.back)
        )
        if self.count is None:
            samplers = {name: read_sampler(text) for name, text in self.vary.items()}
            return [Lesson(self.name, samplers, until, back, self.episodes)]
        drawn = [{name: self._sampler(name, i) for name in self.ramp} for i in range(self.count)]
        return [
            Lesson(f"{self.name} {i + 1}", samplers, until, back, self.episodes)
            for i, samplers in enumerate(drawn)
        ]

    def _sampler(self, name: str, i: int) -> Sampler:
        """Return a sampler of the i-th lesson of a ramp."""
        assert self.count is not None
        first, last = map(read_sampler, self.ramp[name])
        return interpolate(first, last, i / (self.count - 1))


@dataclass(frozen=True)
class Lesson:
    """One lesson of a curriculum.

    Attributes:
        name: unique in its curriculum.
        samplers: by the name of the argument.
        until: bounds that all hold when the next lesson begins; none in the last one.
        back: bounds of which one holds when the lesson before begins; none in the first one.
        episodes: number of episodes in the rounds over which means are taken, at least.
    """

    name: str
    samplers: Mapping[str, Sampler]
    until: tuple[Bound, ...] = ()
    back: tuple[Bound, ...] = ()
    episodes: int = 100

    def texts(self) -> dict[str, str]:
        """Return the texts of the samplers."""
        return {name: sampler.text for name, sampler in self.samplers.items()}

    def metrics(self) -> list[str]:
        """Return the metrics that the bounds read, each once."""
        keys = [bound.key for bound in (*self.until, *self.back)]
        return [key for key in dict.fromkeys(keys) if key not in STEPS]


@dataclass
class CurriculumConfig(Section):
    """A row of lessons, which set arguments of the environment in training.

    Attributes:
        lessons: The lessons, in their order. All of them set the same arguments.
        review: Share of the episodes that are of earlier lessons, each of them as likely.
        restart: Cut off the running episodes when a lesson begins; else they end as they began.
    """

    lessons: List[LessonConfig] = field(default_factory=list)
    review: float = limited(0.0, at_least=0, below=1)
    restart: bool = False

    def _check(self, check: Validator) -> None:
        count = sum(one.count or 1 for one in self.lessons)
        expected = f"lessons: expected 1 to {MAX_LESSONS} lessons"
        check.require(1 <= count <= MAX_LESSONS, f"{expected}, got {count}")
        if check.found:
            return
        names = [name for one in self.lessons for name in _names(one)]
        twice = next((name for name in names if names.count(name) > 1), None)
        check.require(
            twice is None, f"lessons: expected each name once, got {short_repr(twice)} twice"
        )
        first, last = self.lessons[0], self.lessons[-1]
        expected = ", ".join(sorted(_arguments(first)))
        for i, one in enumerate(self.lessons):
            got = ", ".join(sorted(_arguments(one)))
            check.require(
                got == expected,
                f"lessons[{i}]: expected the arguments of the first lesson, {expected}, got {got}",
            )
            check.require(
                bool(one.until) or (one is last and one.count is None),
                f"lessons[{i}].until: expected bounds at which the next lesson begins, got none",
            )
        check.require(
            not last.until or last.count is not None,
            f"lessons[{len(self.lessons) - 1}].until: expected none in the last lesson, as no "
            f"other follows, got {short_repr(last.until)}",
        )
        check.require(
            not first.back or first.count is not None,
            f"lessons[0].back: expected none in the first lesson, as no other comes before, got "
            f"{short_repr(first.back)}",
        )

    def arguments(self) -> list[str]:
        """Return the arguments that the lessons set, sorted."""
        return sorted(_arguments(self.lessons[0]))

    def all_lessons(self) -> list[Lesson]:
        """Return all lessons in their order, those of ramps one by one."""
        lessons = [lesson for one in self.lessons for lesson in one.lessons()]
        lessons[0] = replace(lessons[0], back=())
        lessons[-1] = replace(lessons[-1], until=())
        return lessons


def check_curricula(
    check: Validator, curricula: Mapping[str, CurriculumConfig], env: EnvConfig, evaluates: bool
) -> None:
    """Collect the problems of curricula with other settings.

    Args:
        check: collects the problems.
        curricula: by name.
        env: the environment of training.
        evaluates: True if there are evaluations.
    """
    fixed, setters = json.loads(env.kwargs), dict.fromkeys(env.vary, "env.vary")
    for name, curriculum in curricula.items():
        path = curriculum_path(name)
        check.require(
            is_name(name) and "/" not in name,
            f"curricula: expected names that can be printed, without '/', got {short_repr(name)}",
        )
        for argument in curriculum.arguments():
            check.require(
                argument not in fixed,
                f"{path}: expected arguments that are not in env.kwargs, got {argument}",
            )
            check.require(
                argument not in setters,
                f"{path}: expected arguments that nothing else sets, got {argument}, as in "
                f"{setters.get(argument)}",
            )
            setters.setdefault(argument, path)
        for i, lesson in enumerate(curriculum.lessons):
            for field_name in ("until", "back"):
                for j, text in enumerate(getattr(lesson, field_name)):
                    check.require(
                        evaluates or not read_bound(text, "").key.startswith("eval/"),
                        f"{path}.lessons[{i}].{field_name}[{j}]: expected evaluations for "
                        f"{text!r}, there are none; set eval.interval and what to play, such as "
                        "eval.steps",
                    )


def curriculum_path(name: str) -> str:
    """Return the path of a curriculum in the configuration, for messages."""
    return f"curricula[{name!r}]"


def is_name(text: str) -> bool:
    """Return True for text that can be printed, without spaces around it."""
    return text.isprintable() and text.strip() == text != ""


def metrics_of(curricula: Mapping[str, CurriculumConfig]) -> list[str]:
    """Return the metrics by which lessons change, each once."""
    lessons = [lesson for one in curricula.values() for lesson in one.all_lessons()]
    return list(dict.fromkeys(key for lesson in lessons for key in lesson.metrics()))


def renamed_arguments(config: Any, names: Mapping[str, str]) -> None:
    """Rename arguments of the environment in a configuration, also in bounds on them.

    Args:
        config: a `TrainConfig`, which is changed.
        names: new names by the old ones; others stay.

    Raises:
        ConfigError: two names become one.
    """

    def new_name(name: str) -> str:
        return names.get(name, name)

    def renamed_bounds(texts: list[str]) -> list[str]:
        return [renamed_tags(text, new_name) for text in texts]

    def renamed(values: dict[str, Any]) -> dict[str, Any]:
        new = {new_name(name): value for name, value in values.items()}
        if len(new) < len(values):
            raise ConfigError(f"rename: two arguments become one, of {', '.join(values)}")
        return new

    evaluation = config.eval
    suites = [] if evaluation is None else evaluation.suites.values()
    others = [] if evaluation is None else [evaluation.env, *(suite.env for suite in suites)]
    for env in [env for env in (config.env, *others) if env is not None]:
        env.vary = renamed(env.vary)
        env.kwargs = json.dumps(renamed(json.loads(env.kwargs)))
    for curriculum in config.curricula.values():
        for one in curriculum.lessons:
            one.vary, one.ramp = renamed(one.vary), renamed(one.ramp)
            one.until, one.back = map(renamed_bounds, (one.until, one.back))
    config.stop = renamed_bounds(config.stop)


def renamed_tags(text: str, new_name: Callable[[str], str]) -> str:
    """Return a tag, or a bound, with new names of the arguments in `parameters/NAME`."""
    return re.sub(r"(?<=\bparameters/)\w+", lambda found: new_name(found[0]), text)


def lesson_changes(
    before: Mapping[str, CurriculumConfig], after: Mapping[str, CurriculumConfig]
) -> Iterator[str]:
    """Yield the differences of curricula as text."""
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            yield f"{name} {'left' if name in before else 'came'}"
            continue
        one, other = before[name], after[name]
        was, now = ({lesson.name: lesson for lesson in c.all_lessons()} for c in (one, other))
        both = [lesson for lesson in was if lesson in now]
        changed = [lesson for lesson in both if was[lesson] != now[lesson]]
        kinds = {
            "added": [lesson for lesson in now if lesson not in was],
            "left out": [lesson for lesson in was if lesson not in now],
            "changed": changed,
        }
        found = [f"{kind} {', '.join(names)}" for kind, names in kinds.items() if names]
        if both != [lesson for lesson in now if lesson in was]:
            found.append(f"order {', '.join(now)}")
        for setting in ("review", "restart"):
            pair = getattr(one, setting), getattr(other, setting)
            if pair[0] != pair[1]:
                found.append(f"{setting} {pair[0]} -> {pair[1]}")
        if found:
            yield f"{name}: {'; '.join(found)}"


def _names(lesson: LessonConfig) -> list[str]:
    """Return the names of the lessons that a section stands for."""
    if lesson.count is None:
        return [lesson.name]
    return [f"{lesson.name} {i + 1}" for i in range(lesson.count)]


def _arguments(lesson: LessonConfig) -> set[str]:
    return {*lesson.vary, *lesson.ramp}
