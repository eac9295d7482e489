"""`Lessons`: the arguments of the episodes of a run, as a part of its state."""

import math
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, fields
from typing import Any, TypeAlias

import numpy as np

from enn_trainer.base.errors import ConfigError, NotFiniteError
from enn_trainer.base.state_part import SpaceChange, StateDict, StatePart
from enn_trainer.config import TrainConfig
from enn_trainer.config.curriculum_config import (
    CurriculumConfig,
    Lesson,
    curriculum_path,
    renamed_tags,
)
from enn_trainer.curriculum.rounds import (
    Rounds,
    Tallies,
    metric_of,
    newest_rounds,
    tallies_of_plain,
    without_lessons,
)
from enn_trainer.experience.episodes import Episodes
from enn_trainer.experience.varied_envs import lesson_tag
from enn_trainer.stop_conditions import Bound
from entity_env.errors import InvalidSampler
from entity_env.vec.samplers import Sampler
from entity_env.vec.variation import read_samplers

Groups: TypeAlias = dict[str, list[tuple[float, Mapping[str, Sampler]]]]
"""Groups of a `Variation`, by the setting that each comes from."""

CURRICULUM = "curriculum"
"""Name of the part."""

MEAN = ".mean"
"""Ending of the tags of metrics of episodes, of which lessons take means of their own."""

_OTHER_MEANS = (
    *("eval/", "losses/", "policy/", "selfplay/", "memory/", "schedule/", "trace/", "charts/"),
    *("system/", "entity_count"),
)
_OF_STEPS = ("reward", "step")


@dataclass
class LessonProgress:
    """Progress of a run in one curriculum, as plain data.

    Attributes:
        lesson: name of the present lesson.
        samplers: texts of its samplers by argument.
        number: changes of the lesson so far, by which episodes know the lesson they began in.
        step: frames of the run when the lesson began.
        episodes: number of episodes that began in it and have ended.
        rounds: rounds of these that are under way.
        complete: metrics in the newest complete rounds, by tag.
        newest: the newest values of other tags since it began.
        begun: for each lesson that was reached, frames of the run when it last began and why.
    """

    lesson: str
    samplers: dict[str, str]
    number: int = 0
    step: int = 0
    episodes: int = 0
    rounds: Rounds = field(default_factory=Rounds)
    complete: Tallies = field(default_factory=dict)
    newest: dict[str, float] = field(default_factory=dict)
    begun: dict[str, list[Any]] = field(default_factory=dict)

    @classmethod
    def of_plain(cls, data: Mapping[str, Any]) -> "LessonProgress":
        """Return the progress that `plain` made plain data of.

        Raises:
            ValueError: an entry cannot be used.
        """
        try:
            made = cls(**{name: data[name] for name in _PLAIN})
            made.rounds = Rounds.of_plain(data.get("rounds"))
            made.complete = tallies_of_plain(data.get("complete", {}))
            read_samplers(made.samplers, "samplers")
            numbers = [*made.newest.values()]
            counts = [made.number, made.step, made.episodes]
            counts += [step for step, _ in made.begun.values()]
            texts = [made.lesson, *(why for _, why in made.begun.values())]
            if not ({*map(type, numbers)} <= {float} and {*map(type, counts)} == {int}):
                raise TypeError("expected numbers")
            if {*map(type, [*texts, *made.begun, *made.newest])} != {str}:
                raise TypeError("expected names")
        except (InvalidSampler, LookupError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"curricula: {error!r}") from None
        # Containers of its own, as plain data may be shared.
        made.begun = {name: [*entry] for name, entry in made.begun.items()}
        made.samplers, made.newest = dict(made.samplers), dict(made.newest)
        return made

    def __eq__(self, other: object) -> bool:
        """Return True if the plain data are equal; arrays have no truth value."""
        return isinstance(other, LessonProgress) and self.plain() == other.plain()

    def plain(self) -> dict[str, Any]:
        """Return the progress as plain data."""
        complete = {tag: tally.tolist() for tag, tally in self.complete.items()}
        plain = {name: getattr(self, name) for name in _PLAIN}
        return {**deepcopy(plain), "rounds": self.rounds.plain(), "complete": complete}

    def begin(self, lesson: Lesson, step: int, why: str) -> None:
        """Begin a lesson, of which nothing is measured yet."""
        self.lesson, self.samplers, self.step = lesson.name, lesson.texts(), step
        self.number += 1
        self.episodes, self.newest = 0, {}
        self.rounds, self.complete = Rounds(), {}
        self.begun[lesson.name] = [step, why]

    def count(self, name: str, lesson: Lesson, episodes: Episodes, num_envs: int) -> None:
        """Count the episodes that began in the present lesson.

        Args:
            name: name of the curriculum.
            lesson: the present lesson.
            episodes: those that ended; their metric `lesson_tag` is the number of their lesson.
            num_envs: number of environments of the run.

        Raises:
            NotFiniteError: one of them has an infinite metric that is needed.
        """
        if (began_in := episodes.metrics.get(lesson_tag(name))) is None:
            return
        own = np.flatnonzero(began_in == self.number)
        counted = {metric: x[own] for metric, x in episodes.counted_metrics().items()}
        self.episodes += int((~np.isnan(counted[lesson_tag(name)])).sum())
        tags = {tag: tag.removesuffix(MEAN) for tag in filter(is_of_episodes, lesson.metrics())}
        for tag, metric in tags.items():
            values = counted.get(metric, np.zeros(0))
            _check_finite(values[~np.isnan(values)].tolist(), name, lesson.name, tag)
        rounds = self.rounds.add(episodes.environment[own], num_envs, without_lessons(counted))
        for tag, metric in tags.items():
            if metric in rounds:
                before = self.complete.get(tag, rounds[metric][:0])
                tally = np.concatenate([before, rounds[metric]])
                self.complete[tag] = newest_rounds(tally, lesson.episodes)

    def note(self, name: str, lesson: Lesson, metrics: Mapping[str, float]) -> None:
        """Keep the newest values of tags that the bounds of a lesson read.

        Raises:
            NotFiniteError: one is NaN or infinite.
        """
        for tag in lesson.metrics():
            if tag in metrics and not is_of_episodes(tag):
                _check_finite([metrics[tag]], name, lesson.name, tag)
                self.newest[tag] = float(metrics[tag])

    def measure(self, key: str, step: int) -> float | None:
        """Return the value of a metric of the lesson so far; None if there is none.

        Args:
            key: the metric, `step` or `lesson_step`.
            step: frames of the run.
        """
        if key == "step":
            return step
        if key == "lesson_step":
            return step - self.step
        if is_of_episodes(key):
            return metric_of(self.complete[key]).mean if self.num_episodes(key) else None
        return self.newest.get(key)

    def num_episodes(self, key: str) -> int:
        """Return the number of episodes over which a metric of episodes is a mean."""
        return metric_of(self.complete[key]).count if key in self.complete else 0

    def decision(self, lessons: Sequence[Lesson], step: int) -> tuple[Lesson, str] | None:
        """Return the lesson that is to begin and the reason as text; None if there is none.

        A lesson lasts for one update at least.

        Args:
            lessons: all lessons.
            step: frames of the run.
        """
        i = self.index(lessons)
        present = lessons[i]
        if step <= self.step:
            return None
        if present.until and all(self._holds(bound, present, step) for bound in present.until):
            return lessons[i + 1], self._in_words(present.until, step)
        if met := [bound for bound in present.back if self._holds(bound, present, step)]:
            return lessons[i - 1], self._in_words(met, step)
        return None

    def index(self, lessons: Sequence[Lesson]) -> int:
        """Return the place of the present lesson."""
        return [lesson.name for lesson in lessons].index(self.lesson)

    def lines(self, lesson: Lesson, step: int) -> list[str]:
        """Return what is known of the bounds of the present lesson, one line for each."""
        lines = []
        for kind, bounds in (("until", lesson.until), ("back", lesson.back)):
            for bound in bounds:
                value = self.measure(bound.key, step)
                known = "not measured" if value is None else f"{value:.6g}"
                if is_of_episodes(bound.key):
                    number = self.num_episodes(bound.key)
                    of = "" if number >= lesson.episodes else f" of {lesson.episodes}"
                    known += f" in {number}{of} episodes"
                lines.append(f"{kind} {bound}: {known}")
        return lines

    def _holds(self, bound: Bound, lesson: Lesson, step: int) -> bool:
        key = bound.key
        if is_of_episodes(key) and self.num_episodes(key) < lesson.episodes:
            return False
        value = self.measure(key, step)
        return value is not None and bound.holds(value)

    def _in_words(self, bounds: Sequence[Bound], step: int) -> str:
        """Return bounds that hold, with the numbers by which they do."""
        texts = []
        for bound in bounds:
            value = self.measure(bound.key, step)
            over = ""
            if is_of_episodes(bound.key):
                over = f" over {self.num_episodes(bound.key)} episodes"
            texts.append(f"{bound}: {value:.6g}{over}")
        return ", ".join(texts)


_PLAIN = [one.name for one in fields(LessonProgress) if one.name not in ("rounds", "complete")]


class Lessons(StatePart):
    """Progress in curricula, and changes by `Trainer.set_parameters`, a part of a run's state.

    Attributes:
        parameters: samplers by the name of the argument, in place of those of `env.vary`.
        curricula: progress by the name of the curriculum.
        waiting: evaluations that the end of a run did not wait for: the step at which they count
            if it is extended, that of the weights, and the metrics.
    """

    is_restored = False

    def __init__(self) -> None:
        self.parameters: dict[str, str] = {}
        self.curricula: dict[str, LessonProgress] = {}
        self.waiting: list[list[Any]] = []

    def state_dict(self) -> dict[str, Any]:
        """Return plain data; nothing if nothing was changed and there are no curricula."""
        parameters = {"parameters": dict(self.parameters)} if self.parameters else {}
        if not self.curricula:
            return parameters
        waiting = {"waiting": [[*entry] for entry in self.waiting]} if self.waiting else {}
        curricula = {name: one.plain() for name, one in self.curricula.items()}
        return {**parameters, "curricula": curricula, **waiting}

    def load_state_dict(self, state: StateDict) -> None:
        """Replace the state.

        Raises:
            ValueError: an entry cannot be used; the message names it.
        """
        parameters, curricula = state.get("parameters", {}), state.get("curricula", {})
        try:
            read_samplers(parameters, "parameters")
            progress = {name: LessonProgress.of_plain(one) for name, one in curricula.items()}
            waiting = [
                [int(counts_at), int(measured), {tag: float(v) for tag, v in metrics.items()}]
                for counts_at, measured, metrics in state.get("waiting", [])
            ]
        except (InvalidSampler, AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"curriculum: {error}") from None
        self.parameters, self.curricula, self.waiting = dict(parameters), progress, waiting

    def evolve(self, state: StateDict, change: SpaceChange) -> StateDict:
        """Return the state with the new names of arguments, also in tags of their metrics."""

        def renamed(texts: Mapping[str, str]) -> dict[str, str]:
            return {change.parameter(name): text for name, text in texts.items()}

        def tagged(values: Mapping[str, Any]) -> dict[str, Any]:
            return {renamed_tags(tag, change.parameter): value for tag, value in values.items()}

        evolved = dict(state)
        if "parameters" in state:
            evolved["parameters"] = renamed(state["parameters"])
        if "curricula" in state:
            evolved["curricula"] = {
                name: one
                | {"samplers": renamed(one["samplers"]), "newest": tagged(one["newest"])}
                | _evolved_rounds(one, tagged)
                for name, one in state["curricula"].items()
            }
        if "waiting" in state:
            evolved["waiting"] = [[*steps, tagged(found)] for *steps, found in state["waiting"]]
        return evolved

    def names(self, config: TrainConfig) -> list[str]:
        """Return the arguments that vary, each once."""
        named = [name for one in config.curricula.values() for name in one.arguments()]
        return list(dict.fromkeys([*config.env.vary, *self.parameters, *named]))

    def groups(self, config: TrainConfig, lessons: Mapping[str, Sequence[Lesson]]) -> Groups:
        """Return what episodes that begin now draw from, by the setting that says so.

        Args:
            config: configuration of the run.
            lessons: all lessons by curriculum.
        """
        groups: Groups = {}
        if own := {**config.env.vary, **self.parameters}:
            groups["env.vary"] = [(1.0, read_samplers(own))]
        for name, of_curriculum in lessons.items():
            i = self.curricula[name].index(of_curriculum)
            review = config.curricula[name].review if i else 0.0
            earlier = [(review / i, one.samplers) for one in of_curriculum[:i]] if review else []
            present = 1.0 - review, of_curriculum[i].samplers
            groups[curriculum_path(name)] = [present, *earlier]
        return groups

    def arrange(self, curricula: Mapping[str, CurriculumConfig], step: int) -> list[str]:
        """Begin the lessons of curricula that are new, and find those of the others by name.

        Args:
            curricula: settings of curricula.
            step: frames of the run.

        Returns:
            Messages on what changed since the run was saved.

        Raises:
            ConfigError: the present lesson of a curriculum is gone.
        """
        messages = [
            f"curriculum {name}: it is not among the settings, its lessons are forgotten"
            for name in self.curricula
            if name not in curricula
        ]
        arranged = {}
        for name, curriculum in curricula.items():
            lessons = {lesson.name: lesson for lesson in curriculum.all_lessons()}
            progress = self.curricula.get(name)
            if progress is None:
                first = next(iter(lessons.values()))
                progress = LessonProgress(first.name, first.texts(), step=step)
                progress.begun[first.name] = [
                    step,
                    "the run began" if step == 0 else "it was added",
                ]
            elif progress.lesson not in lessons:
                raise ConfigError(
                    f"{curriculum_path(name)}.lessons: expected {progress.lesson!r} among them, "
                    f"the lesson that the run is in, got {', '.join(lessons)}"
                )
            present = lessons[progress.lesson]
            if progress.samplers != present.texts():
                messages.append(
                    f"curriculum {name}: lesson {present.name} has other samplers, and begins anew"
                )
                progress.begin(present, step, "its samplers were changed")
            # Of bounds that were left out for a time, nothing old counts should they come back.
            kept, known = present.metrics(), progress.complete.items()
            progress.complete = {
                key: newest_rounds(tally, present.episodes) for key, tally in known if key in kept
            }
            progress.newest = {key: x for key, x in progress.newest.items() if key in kept}
            arranged[name] = progress
        self.curricula = arranged
        return messages


def is_of_episodes(key: str) -> bool:
    """Return True for the mean of a metric of episodes, which a lesson takes of its own ones."""
    name = key.removesuffix(MEAN)
    return key.endswith(MEAN) and not key.startswith(_OTHER_MEANS) and name not in _OF_STEPS


def _evolved_rounds(
    progress: Mapping[str, Any], tagged: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Return the rounds of a saved progress with other names; nothing of a save without any."""
    if "rounds" not in progress:
        return {}
    rounds = progress["rounds"]
    tallies = {"tallies": tagged(rounds["tallies"])}
    return {"complete": tagged(progress["complete"]), "rounds": {**rounds, **tallies}}


def _check_finite(values: Sequence[float], curriculum: str, lesson: str, metric: str) -> None:
    wrong = [value for value in values if not math.isfinite(value)]
    if wrong:
        raise NotFiniteError(
            f"{curriculum_path(curriculum)}, lesson {lesson!r}: expected finite values of "
            f"{metric!r}, got {wrong[0]}"
        )
