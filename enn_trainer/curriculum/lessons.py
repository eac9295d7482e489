"""`Lessons`: progress in curricula and the distribution of arguments, as a part of the state."""

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
    tallies_from_plain,
    without_lessons,
)
from enn_trainer.experience.episodes import Episodes
from enn_trainer.experience.varied_envs import lesson_tag
from enn_trainer.stop_conditions import Bound
from entity_env.errors import InvalidSampler
from entity_env.vec.samplers import Sampler
from entity_env.vec.variation import read_samplers

Groups: TypeAlias = dict[str, list[tuple[float, Mapping[str, Sampler]]]]
"""Groups of a `Variation`, by the setting that defines each."""

CURRICULUM = "curriculum"
"""Name of the part."""

MEAN = ".mean"
"""Suffix of the tags of episode metrics, which each curriculum stage averages separately."""

_OTHER_MEANS = (
    *("eval/", "losses/", "policy/", "selfplay/", "memory/", "schedule/", "trace/", "charts/"),
    *("system/", "entity_count"),
)
_STEP_METRICS = ("reward", "step")


@dataclass
class LessonProgress:
    """Progress of a run in one curriculum.

    Attributes:
        lesson: name of the current stage.
        samplers: texts of its samplers by argument.
        number: number of stage changes so far, which identifies the stage that an episode began in.
        step: frames of the run at the start of the stage.
        episodes: number of finished episodes that began in the stage.
        rounds: incomplete rounds of these episodes.
        complete: metrics of the newest complete rounds, by tag.
        newest: newest values of other tags since the start of the stage.
        begun: for each stage reached, frames of the run at its last start, and the reason.
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
    def from_plain(cls, data: Mapping[str, Any]) -> "LessonProgress":
        """Create the progress from the result of `plain`.

        Raises:
            ValueError: an entry is invalid.
        """
        try:
            progress = cls(**{name: data[name] for name in _PLAIN})
            progress.rounds = Rounds.from_plain(data.get("rounds"))
            progress.complete = tallies_from_plain(data.get("complete", {}))
            read_samplers(progress.samplers, "samplers")
            numbers = [*progress.newest.values()]
            counts = [progress.number, progress.step, progress.episodes]
            counts += [step for step, _ in progress.begun.values()]
            texts = [progress.lesson, *(why for _, why in progress.begun.values())]
            if not ({*map(type, numbers)} <= {float} and {*map(type, counts)} == {int}):
                raise TypeError("expected numbers")
            if {*map(type, [*texts, *progress.begun, *progress.newest])} != {str}:
                raise TypeError("expected names")
        except (InvalidSampler, LookupError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"curricula: {error!r}") from None
        # Copy the containers, as plain data may be shared.
        progress.begun = {name: [*entry] for name, entry in progress.begun.items()}
        progress.samplers, progress.newest = dict(progress.samplers), dict(progress.newest)
        return progress

    def __eq__(self, other: object) -> bool:
        """Return True if the plain data are equal; arrays have no truth value."""
        return isinstance(other, LessonProgress) and self.plain() == other.plain()

    def plain(self) -> dict[str, Any]:
        """Return the progress as plain data."""
        complete = {tag: tally.tolist() for tag, tally in self.complete.items()}
        data = {name: getattr(self, name) for name in _PLAIN}
        return {**deepcopy(data), "rounds": self.rounds.plain(), "complete": complete}

    def begin(self, lesson: Lesson, step: int, why: str) -> None:
        """Begin a stage, and reset its measurements."""
        self.lesson, self.samplers, self.step = lesson.name, lesson.texts(), step
        self.number += 1
        self.episodes, self.newest = 0, {}
        self.rounds, self.complete = Rounds(), {}
        self.begun[lesson.name] = [step, why]

    def count(self, name: str, lesson: Lesson, episodes: Episodes, num_envs: int) -> None:
        """Count the finished episodes that began in the current stage.

        Args:
            name: name of the curriculum.
            lesson: the current stage.
            episodes: finished episodes; their metric `lesson_tag` is the number of their stage.
            num_envs: number of environments of the run.

        Raises:
            NotFiniteError: a metric that a bound reads is infinite.
        """
        if (began_in := episodes.metrics.get(lesson_tag(name))) is None:
            return
        indices = np.flatnonzero(began_in == self.number)
        counted = {metric: x[indices] for metric, x in episodes.counted_metrics().items()}
        self.episodes += int((~np.isnan(counted[lesson_tag(name)])).sum())
        tags = {tag: tag.removesuffix(MEAN) for tag in filter(is_episode_metric, lesson.metrics())}
        for tag, metric in tags.items():
            values = counted.get(metric, np.zeros(0))
            _check_finite(values[~np.isnan(values)].tolist(), name, lesson.name, tag)
        rounds = self.rounds.add(episodes.environment[indices], num_envs, without_lessons(counted))
        for tag, metric in tags.items():
            if metric in rounds:
                before = self.complete.get(tag, rounds[metric][:0])
                tally = np.concatenate([before, rounds[metric]])
                self.complete[tag] = newest_rounds(tally, lesson.episodes)

    def note(self, name: str, lesson: Lesson, metrics: Mapping[str, float]) -> None:
        """Store the newest values of tags that the bounds of a stage read.

        Raises:
            NotFiniteError: a value is NaN or infinite.
        """
        for tag in lesson.metrics():
            if tag in metrics and not is_episode_metric(tag):
                _check_finite([metrics[tag]], name, lesson.name, tag)
                self.newest[tag] = float(metrics[tag])

    def measure(self, key: str, step: int) -> float | None:
        """Return the value of a metric in the current stage; None without one.

        Args:
            key: a metric, `step` or `lesson_step`.
            step: frames of the run.
        """
        if key == "step":
            return step
        if key == "lesson_step":
            return step - self.step
        if is_episode_metric(key):
            return metric_of(self.complete[key]).mean if self.num_episodes(key) else None
        return self.newest.get(key)

    def num_episodes(self, key: str) -> int:
        """Return the number of episodes in the mean of an episode metric."""
        return metric_of(self.complete[key]).count if key in self.complete else 0

    def decision(self, lessons: Sequence[Lesson], step: int) -> tuple[Lesson, str] | None:
        """Return the next stage and the reason as text; None to continue the current stage.

        A stage lasts for at least one update.

        Args:
            lessons: all stages.
            step: frames of the run.
        """
        i = self.index(lessons)
        current = lessons[i]
        if step <= self.step:
            return None
        if current.until and all(self._is_met(bound, current, step) for bound in current.until):
            return lessons[i + 1], self._describe(current.until, step)
        if met := [bound for bound in current.back if self._is_met(bound, current, step)]:
            return lessons[i - 1], self._describe(met, step)
        return None

    def index(self, lessons: Sequence[Lesson]) -> int:
        """Return the index of the current stage."""
        return [lesson.name for lesson in lessons].index(self.lesson)

    def lines(self, lesson: Lesson, step: int) -> list[str]:
        """Return a line with the current value of each bound of the current stage."""
        lines = []
        for kind, bounds in (("until", lesson.until), ("back", lesson.back)):
            for bound in bounds:
                value = self.measure(bound.key, step)
                text = "not measured" if value is None else f"{value:.6g}"
                if is_episode_metric(bound.key):
                    number = self.num_episodes(bound.key)
                    total = "" if number >= lesson.episodes else f" of {lesson.episodes}"
                    text += f" in {number}{total} episodes"
                lines.append(f"{kind} {bound}: {text}")
        return lines

    def _is_met(self, bound: Bound, lesson: Lesson, step: int) -> bool:
        key = bound.key
        if is_episode_metric(key) and self.num_episodes(key) < lesson.episodes:
            return False
        value = self.measure(key, step)
        return value is not None and bound.holds(value)

    def _describe(self, bounds: Sequence[Bound], step: int) -> str:
        """Return a text of bounds that are met, with the measured values."""
        texts = []
        for bound in bounds:
            value = self.measure(bound.key, step)
            over = ""
            if is_episode_metric(bound.key):
                over = f" over {self.num_episodes(bound.key)} episodes"
            texts.append(f"{bound}: {value:.6g}{over}")
        return ", ".join(texts)


_PLAIN = [one.name for one in fields(LessonProgress) if one.name not in ("rounds", "complete")]


class Lessons(StatePart):
    """Progress in curricula, and samplers set by `Trainer.set_parameters`, a part of the state.

    Attributes:
        parameters: samplers by argument, which override `env.vary`.
        curricula: progress by curriculum.
        waiting: results of evaluations that finished after the end of the run: the step at which
            they apply if the run is extended, the step of the weights, and the metrics.
    """

    is_restored = False

    def __init__(self) -> None:
        self.parameters: dict[str, str] = {}
        self.curricula: dict[str, LessonProgress] = {}
        self.waiting: list[list[Any]] = []

    def state_dict(self) -> dict[str, Any]:
        """Return plain data; empty without changed samplers and curricula."""
        parameters = {"parameters": dict(self.parameters)} if self.parameters else {}
        if not self.curricula:
            return parameters
        waiting = {"waiting": [[*entry] for entry in self.waiting]} if self.waiting else {}
        curricula = {name: one.plain() for name, one in self.curricula.items()}
        return {**parameters, "curricula": curricula, **waiting}

    def load_state_dict(self, state: StateDict) -> None:
        """Replace the state.

        Raises:
            ValueError: an entry is invalid; the message names it.
        """
        parameters, curricula = state.get("parameters", {}), state.get("curricula", {})
        try:
            read_samplers(parameters, "parameters")
            progress = {name: LessonProgress.from_plain(one) for name, one in curricula.items()}
            waiting = [
                [int(counts_at), int(measured), {tag: float(v) for tag, v in metrics.items()}]
                for counts_at, measured, metrics in state.get("waiting", [])
            ]
        except (InvalidSampler, AttributeError, TypeError, ValueError) as error:
            raise ValueError(f"curriculum: {error}") from None
        self.parameters, self.curricula, self.waiting = dict(parameters), progress, waiting

    def evolve(self, state: StateDict, change: SpaceChange) -> StateDict:
        """Return the state with renamed arguments, also in the tags of their metrics."""

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
            evolved["waiting"] = [[*steps, tagged(metrics)] for *steps, metrics in state["waiting"]]
        return evolved

    def names(self, config: TrainConfig) -> list[str]:
        """Return the names of varied arguments, without duplicates."""
        drawn = [name for one in config.curricula.values() for name in one.arguments()]
        return list(dict.fromkeys([*config.env.vary, *self.parameters, *drawn]))

    def groups(self, config: TrainConfig, lessons: Mapping[str, Sequence[Lesson]]) -> Groups:
        """Return the distribution of the arguments of new episodes, by setting.

        Args:
            config: configuration of the run.
            lessons: all stages by curriculum.
        """
        groups: Groups = {}
        if samplers := {**config.env.vary, **self.parameters}:
            groups["env.vary"] = [(1.0, read_samplers(samplers))]
        for name, stages in lessons.items():
            i = self.curricula[name].index(stages)
            review = config.curricula[name].review if i else 0.0
            earlier = [(review / i, one.samplers) for one in stages[:i]] if review else []
            current = 1.0 - review, stages[i].samplers
            groups[curriculum_path(name)] = [current, *earlier]
        return groups

    def arrange(self, curricula: Mapping[str, CurriculumConfig], step: int) -> list[str]:
        """Start new curricula, and match the progress in the others with their settings by name.

        Args:
            curricula: settings of curricula.
            step: frames of the run.

        Returns:
            Messages about changes since the run was saved.

        Raises:
            ConfigError: the current lesson of a curriculum is missing in its settings.
        """
        messages = [
            f"curriculum {name}: removed from the settings, its progress is dropped"
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
                    f"{curriculum_path(name)}.lessons: expected {progress.lesson!r}, the current "
                    f"lesson of the run, among them, got {', '.join(lessons)}"
                )
            current = lessons[progress.lesson]
            if progress.samplers != current.texts():
                messages.append(
                    f"curriculum {name}: lesson {current.name} restarts, as its samplers changed"
                )
                progress.begin(current, step, "its samplers were changed")
            # Drop measurements of removed bounds, so that re-added ones start without them.
            tags, tallies = current.metrics(), progress.complete.items()
            progress.complete = {
                key: newest_rounds(tally, current.episodes) for key, tally in tallies if key in tags
            }
            progress.newest = {key: x for key, x in progress.newest.items() if key in tags}
            arranged[name] = progress
        self.curricula = arranged
        return messages


def is_episode_metric(key: str) -> bool:
    """Return True for the mean of an episode metric, which each stage averages separately."""
    name = key.removesuffix(MEAN)
    return key.endswith(MEAN) and not key.startswith(_OTHER_MEANS) and name not in _STEP_METRICS


def _evolved_rounds(
    progress: Mapping[str, Any], tagged: Callable[[Mapping[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Return the saved rounds of a curriculum with renamed metrics; empty if it has none."""
    if "rounds" not in progress:
        return {}
    rounds = progress["rounds"]
    tallies = {"tallies": tagged(rounds["tallies"])}
    return {"complete": tagged(progress["complete"]), "rounds": {**rounds, **tallies}}


def _check_finite(values: Sequence[float], curriculum: str, lesson: str, metric: str) -> None:
    invalid = [value for value in values if not math.isfinite(value)]
    if invalid:
        raise NotFiniteError(
            f"{curriculum_path(curriculum)}, lesson {lesson!r}: expected finite values of "
            f"{metric!r}, got {invalid[0]}"
        )
