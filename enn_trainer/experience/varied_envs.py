"""`VariedEnvs`: environments of a run with arguments that vary from episode to episode."""

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from enn_trainer.base.errors import ConfigError
from entity_env.arrays import BoolArray, IntArray
from entity_env.errors import EntityEnvError
from entity_env.ragged import Ragged
from entity_env.spaces import ObsSpace
from entity_env.vec.variation import RunningArguments, Variation
from entity_env.vec.vec_env import AddMetricsWrapper, VecEnv, VecObs

PREFIX = "parameters/"
"""Prefix of the tags of arguments."""

REVIEW = -1
"""Lesson number of episodes that review an earlier lesson."""

Arguments = Mapping[str, Any]


class VariedEnvs(AddMetricsWrapper):
    """Wrapper that adds drawn arguments to the metrics of episodes.

    The arguments of an episode are a function of seed, match and episode number, so that this
    wrapper draws the same ones as the worker that plays the episode. At its end an episode has
    `parameters/<name>` in `VecObs.env_metrics` for each numerical argument, and `lesson/<name>`
    for each curriculum, the number of the lesson in which it began, or -1 for the review of an
    earlier lesson.

    Args:
        env: the environments.

    Attributes:
        running: arguments of the running episodes.
    """

    def __init__(self, env: VecEnv) -> None:
        super().__init__(env)
        self.running = RunningArguments(len(env), env.sides)
        self._lessons: dict[str, int] = {}
        self._ended: list[Arguments] = []
        # By curriculum, the number of the lesson in which the episode of each match began.
        self._began_in: dict[str, IntArray] = {}

    def vary(self, variation: Variation, lessons: Mapping[str, int] | None = None) -> None:
        """Set the distribution of the arguments of episodes that begin after this call.

        Args:
            variation: distribution; its last groups belong to curricula, each with the current
                lesson first.
            lessons: number of the current lesson by curriculum, in the order of the groups.
        """
        super().vary(variation)
        self.running.variation = variation
        self._lessons = dict(lessons or {})
        no_lesson = np.full(len(self.running.episode), REVIEW)
        self._began_in = {
            name: self._began_in.get(name, no_lesson.copy()) for name in self._lessons
        }

    def pop_ended(self) -> list[Arguments]:
        """Return the arguments of counted episodes that ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def seed(self, seed: int) -> None:
        """Seed the environments."""
        super().seed(seed)
        self.running.seed(seed)

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Begin an episode in every environment."""
        obs = super().reset(obs_config)
        self._ended = []
        self._begin(np.arange(len(self.running.episode)))
        return obs

    def wait(self) -> VecObs:
        """Return the frames after a step, with the metrics."""
        counted = self.filter
        obs = super().wait()
        over = np.flatnonzero(obs.done[:: self.sides])
        if len(over):
            if self.running.variation is not None:
                self._end(obs, counted)
            self._begin(over)
        return obs

    def get_state(self) -> dict[str, Any] | None:
        """Return the state, with the lessons in which the running episodes began."""
        state = super().get_state()
        if state is None or not self._began_in:
            return state
        return {**state, "lessons": {name: began.copy() for name, began in self._began_in.items()}}

    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs | None:
        """Continue the running episodes of a state, with their arguments and lessons."""
        obs = super().set_state(state, obs_config)
        if obs is not None:
            self.running.set_state(state)
            self._ended = []
            for name, began in self._began_in.items():
                began[:] = state.get("lessons", {}).get(name, REVIEW)
        return obs

    def _begin(self, matches: IntArray) -> None:
        """Begin an episode in some matches, and store the current lessons."""
        self.running.begin(matches)
        if not self._lessons:
            return
        for match in matches.tolist():
            chosen = self.running.alternatives(match)[-len(self._lessons) :]
            for (name, number), alternative in zip(self._lessons.items(), chosen, strict=True):
                self._began_in[name][match] = REVIEW if alternative else number

    def _end(self, obs: VecObs, counted: BoolArray) -> None:
        """Store the arguments of finished episodes, and add numerical ones to their metrics."""
        ended = np.flatnonzero(obs.done)
        arguments = [self.running.arguments[i // self.sides] for i in ended.tolist()]
        self._ended += [a for a, counts in zip(arguments, counted[ended], strict=True) if counts]
        for name in dict.fromkeys(name for each in arguments for name in each):
            lengths = np.zeros(len(obs), dtype=np.int64)
            has_number = [is_number(each.get(name)) for each in arguments]
            lengths[ended[has_number]] = 1
            values = [each[name] for each, has in zip(arguments, has_number, strict=True) if has]
            obs.env_metrics[f"{PREFIX}{name}"] = Ragged(np.array(values, np.float64), lengths)
        for name, began in self._began_in.items():
            values = began[ended // self.sides].astype(np.float64)
            obs.env_metrics[lesson_tag(name)] = Ragged(values, obs.done.astype(np.int64))


def vary(envs: VecEnv, samplers: Mapping[str, str], field: str) -> Variation:
    """Set the samplers of the arguments of environments, and return their joint distribution.

    Args:
        envs: the environments.
        samplers: texts of samplers by argument.
        field: name of the setting, for messages.

    Raises:
        ConfigError: a text is invalid, or the environments do not accept an argument.
    """
    with named_as(field):
        variation = Variation.of(samplers)
        envs.vary(variation)
    return variation


@contextmanager
def named_as(field: str) -> Iterator[None]:
    """Return a context that adds a setting's name to errors of environments and samplers.

    Raises:
        ConfigError: instead of these errors.
    """
    try:
        yield
    except EntityEnvError as error:
        raise ConfigError(f"{field}: {str(error).removeprefix('vary: ')}") from None


def lesson_tag(name: str) -> str:
    """Return the name of the episode metric with the lesson number of a curriculum."""
    return f"lesson/{name}"


def is_number(value: object) -> bool:
    """Return True for int and float, but not for bool."""
    return type(value) in (int, float)


def parameter_scalars(ended: Sequence[Arguments], variation: Variation) -> dict[str, float]:
    """Return the metrics of drawn arguments by tag.

    Args:
        ended: arguments of finished episodes.
        variation: distribution of the arguments.

    Returns:
        `parameters/<name>.mean`, `.min` and `.max` of numbers; `parameters/<name>/<value>`, the
        share of each other value. Nothing for an argument that no episode had.
    """
    scalars = {}
    for name in variation.names():
        drawn = [each[name] for each in ended if name in each]
        numbers = [float(value) for value in drawn if is_number(value)]
        if numbers:
            tag = f"{PREFIX}{name}"
            scalars[f"{tag}.mean"] = math.fsum(numbers) / len(numbers)
            scalars |= {f"{tag}.min": min(numbers), f"{tag}.max": max(numbers)}
        if not drawn:
            continue
        # Possible values that were not drawn have a share of 0.
        counts = Counter(dict.fromkeys(_possible_texts(variation, name), 0))
        counts.update(_text(value) for value in drawn if not is_number(value))
        for text, count in counts.items():
            scalars[f"{PREFIX}{name}/{text}"] = count / len(drawn)
    return scalars


def _possible_texts(variation: Variation, name: str) -> list[str]:
    samplers = [part[name] for group in variation.groups for _, part in group if name in part]
    values = [value for sampler in samplers for value in sampler.possible_values() or ()]
    return [_text(value) for value in values if not is_number(value)]


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)
