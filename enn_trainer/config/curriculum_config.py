"""Settings of curricula: stages that set arguments of the environment during a run.

hyperstate's managers also read these classes and support only `Optional[int]`, not `int | None`: no
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
"""Largest number of stages of a curriculum, including the stages of ramps."""

STEPS = ("step", "lesson_step")
"""Names in bounds that are not metrics: frames of the run, and frames of the current stage."""


@dataclass
class LessonConfig(Section):
    """One curriculum stage, or several consecutive stages by a ramp.

    Attributes:
        name: Name of the stage; the stages of a ramp are "NAME 1", "NAME 2", and so on.
        vary: Arguments of the environment in this stage: samplers by name, as in env.vary.
        ramp: Samplers of the first and of the last of `count` stages, by name; the numbers of
            samplers are interpolated linearly between them.
        count: Number of stages of the ramp.
        until: Start the next stage once all of these hold, such as "episodic_reward.mean >= 0.8",
            "eval/episodic_reward.mean >= 0.9", "step >= 200000" or "lesson_step >= 50000".
        back: Restart the previous stage once one of these holds.
        episodes: Number of episodes to average episode metrics over: the newest complete rounds
            with at least this many; round k is the k-th episode of every environment in the stage.
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
            f"name: expected a printable name, got {short_repr(self.name)}",
        )
        got = "both" if self.vary else "neither"
        check.require(
            bool(self.vary) != bool(self.ramp), f"vary, ramp: expected one of them, got {got}"
        )
        check.only_with("count", bool(self.ramp), "a ramp")
        check.require(
            self.count is not None or not self.ramp,
            "count: expected the number of stages of the ramp, got none",
        )
        check_samplers(check, self.vary, "vary")
        for name, ends in self.ramp.items():
            path = f"ramp.{name}"
            if len(ends) != 2:
                expected = "two samplers, the first and the last"
                check.require(False, f"{path}: expected {expected}, got {short_repr(ends)}")
                continue
            num_before = len(check.messages)
            for text in ends:
                check_samplers(check, {name: text}, "ramp")
            if len(check.messages) == num_before and self.count is not None:
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
        """Return the stages of this section: one, or the stages of its ramp."""
        until, back = (
            tuple(read_bound(text, "bound") for text in texts) for texts in (self.until, self.back)
        )
        if self.count is None:
            samplers = {name: read_sampler(text) for name, text in self.vary.items()}
            return [Lesson(self.name, samplers, until, back, self.episodes)]
        ramp = [{name: self._sampler(name, i) for name in self.ramp} for i in range(self.count)]
        return [
            Lesson(f"{self.name} {i + 1}", samplers, until, back, self.episodes)
            for i, samplers in enumerate(ramp)
        ]

    def _sampler(self, name: str, i: int) -> Sampler:
        """Return the sampler of an argument in the i-th stage of a ramp."""
        assert self.count is not None
        first, last = map(read_sampler, self.ramp[name])
        return interpolate(first, last, i / (self.count - 1))


@dataclass(frozen=True)
class Lesson:
    """One stage of a curriculum.

    Attributes:
        name: Unique name in the curriculum.
        samplers: Samplers by argument.
        until: The next stage starts once all of these bounds hold; empty in the last stage.
        back: The previous stage starts once any of these bounds holds; empty in the first stage.
        episodes: Least number of episodes to average over.
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
        """Return the metrics in the bounds, without duplicates."""
        keys = [bound.key for bound in (*self.until, *self.back)]
        return [key for key in dict.fromkeys(keys) if key not in STEPS]


@dataclass
class CurriculumConfig(Section):
    """A sequence of stages that set arguments of the environment in training.

    Attributes:
        lessons: The stages, in order. All of them set the same arguments.
        review: Share of the episodes that are drawn from earlier stages, uniformly.
        restart: Truncate running episodes at the start of a stage; else they finish unchanged.
    """

    lessons: List[LessonConfig] = field(default_factory=list)
    review: float = limited(0.0, at_least=0, below=1)
    restart: bool = False

    def _check(self, check: Validator) -> None:
        count = sum(lesson.count or 1 for lesson in self.lessons)
        expected = f"lessons: expected 1 to {MAX_LESSONS} stages"
        check.require(1 <= count <= MAX_LESSONS, f"{expected}, got {count}")
        if check.messages:
            return
        names = [name for lesson in self.lessons for name in _names(lesson)]
        twice = next((name for name in names if names.count(name) > 1), None)
        check.require(
            twice is None, f"lessons: expected unique names, got {short_repr(twice)} twice"
        )
        first, last = self.lessons[0], self.lessons[-1]
        expected = ", ".join(sorted(_arguments(first)))
        for i, lesson in enumerate(self.lessons):
            got = ", ".join(sorted(_arguments(lesson)))
            check.require(
                got == expected,
                f"lessons[{i}]: expected the arguments of the first stage, {expected}, got {got}",
            )
            check.require(
                bool(lesson.until) or (lesson is last and lesson.count is None),
                f"lessons[{i}].until: expected conditions to start the next stage, got none",
            )
        check.require(
            not last.until or last.count is not None,
            f"lessons[{len(self.lessons) - 1}].until: expected none in the last stage, got "
            f"{short_repr(last.until)}",
        )
        check.require(
            not first.back or first.count is not None,
            f"lessons[0].back: expected none in the first stage, got {short_repr(first.back)}",
        )

    def arguments(self) -> list[str]:
        """Return the arguments that the stages set, sorted."""
        return sorted(_arguments(self.lessons[0]))

    def all_lessons(self) -> list[Lesson]:
        """Return all stages in order, with ramps expanded."""
        lessons = [lesson for one in self.lessons for lesson in one.lessons()]
        lessons[0] = replace(lessons[0], back=())
        lessons[-1] = replace(lessons[-1], until=())
        return lessons


def check_curricula(
    check: Validator, curricula: Mapping[str, CurriculumConfig], env: EnvConfig, evaluates: bool
) -> None:
    """Check curricula against other settings.

    Args:
        check: Collector of problems.
        curricula: Curricula by name.
        env: Environment of training.
        evaluates: True if the run has evaluations.
    """
    fixed, setters = json.loads(env.kwargs), dict.fromkeys(env.vary, "env.vary")
    for name, curriculum in curricula.items():
        path = curriculum_path(name)
        check.require(
            is_name(name) and "/" not in name,
            f"curricula: expected printable names without '/', got {short_repr(name)}",
        )
        for argument in curriculum.arguments():
            check.require(
                argument not in fixed,
                f"{path}: expected arguments that are not in env.kwargs, got {argument}",
            )
            check.require(
                argument not in setters,
                f"{path}: expected arguments that are set only once, got {argument}, also in "
                f"{setters.get(argument)}",
            )
            setters.setdefault(argument, path)
        for i, lesson in enumerate(curriculum.lessons):
            for field_name in ("until", "back"):
                for j, text in enumerate(getattr(lesson, field_name)):
                    check.require(
                        evaluates or not read_bound(text, "").key.startswith("eval/"),
                        f"{path}.lessons[{i}].{field_name}[{j}]: expected evaluations for "
                        f"{text!r}, got none; set eval.interval and a length, such as eval.steps",
                    )


def curriculum_path(name: str) -> str:
    """Return the path of a curriculum in the configuration, for messages."""
    return f"curricula[{name!r}]"


def is_name(text: str) -> bool:
    """Return True for printable text without leading and trailing spaces."""
    return text.isprintable() and text.strip() == text != ""


def metrics_of(curricula: Mapping[str, CurriculumConfig]) -> list[str]:
    """Return the metrics in the bounds of all stages, without duplicates."""
    lessons = [lesson for one in curricula.values() for lesson in one.all_lessons()]
    return list(dict.fromkeys(key for lesson in lessons for key in lesson.metrics()))


def renamed_arguments(config: Any, names: Mapping[str, str]) -> None:
    """Rename arguments of the environment in a configuration, including its bounds.

    Args:
        config: A `TrainConfig`, changed in place.
        names: New names by old name; other names stay.

    Raises:
        ConfigError: two names become the same.
    """

    def new_name(name: str) -> str:
        return names.get(name, name)

    def renamed_bounds(texts: list[str]) -> list[str]:
        return [renamed_tags(text, new_name) for text in texts]

    def renamed(values: dict[str, Any]) -> dict[str, Any]:
        new = {new_name(name): value for name, value in values.items()}
        if len(new) < len(values):
            raise ConfigError(f"rename: expected distinct new names for {', '.join(values)}")
        return new

    evaluation = config.eval
    suites = [] if evaluation is None else evaluation.suites.values()
    eval_envs = [] if evaluation is None else [evaluation.env, *(suite.env for suite in suites)]
    for env in [env for env in (config.env, *eval_envs) if env is not None]:
        env.vary = renamed(env.vary)
        env.kwargs = json.dumps(renamed(json.loads(env.kwargs)))
    for curriculum in config.curricula.values():
        for lesson in curriculum.lessons:
            lesson.vary, lesson.ramp = renamed(lesson.vary), renamed(lesson.ramp)
            lesson.until, lesson.back = map(renamed_bounds, (lesson.until, lesson.back))
    config.stop = renamed_bounds(config.stop)


def renamed_tags(text: str, new_name: Callable[[str], str]) -> str:
    """Rename the arguments in a tag or bound, as in `parameters/NAME`."""
    return re.sub(r"(?<=\bparameters/)\w+", lambda match: new_name(match[0]), text)


def lesson_changes(
    before: Mapping[str, CurriculumConfig], after: Mapping[str, CurriculumConfig]
) -> Iterator[str]:
    """Yield the differences of curricula as text."""
    for name in dict.fromkeys([*before, *after]):
        if name not in before or name not in after:
            yield f"{name} {'removed' if name in before else 'added'}"
            continue
        a, b = before[name], after[name]
        old, new = ({lesson.name: lesson for lesson in c.all_lessons()} for c in (a, b))
        common = [lesson for lesson in old if lesson in new]
        changed = [lesson for lesson in common if old[lesson] != new[lesson]]
        kinds = {
            "added": [lesson for lesson in new if lesson not in old],
            "removed": [lesson for lesson in old if lesson not in new],
            "changed": changed,
        }
        changes = [f"{kind} {', '.join(names)}" for kind, names in kinds.items() if names]
        if common != [lesson for lesson in new if lesson in old]:
            changes.append(f"order {', '.join(new)}")
        for setting in ("review", "restart"):
            pair = getattr(a, setting), getattr(b, setting)
            if pair[0] != pair[1]:
                changes.append(f"{setting} {pair[0]} -> {pair[1]}")
        if changes:
            yield f"{name}: {'; '.join(changes)}"


def _names(lesson: LessonConfig) -> list[str]:
    """Return the names of the stages of a section."""
    if lesson.count is None:
        return [lesson.name]
    return [f"{lesson.name} {i + 1}" for i in range(lesson.count)]


def _arguments(lesson: LessonConfig) -> set[str]:
    return {*lesson.vary, *lesson.ramp}
