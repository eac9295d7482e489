"""`VariedEnvs`: environments of a run whose arguments vary from episode to episode."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from enn_trainer.errors import ConfigError
from entity_env.errors import EntityEnvError
from entity_env.ragged import Ragged
from entity_env.spaces import ObsSpace
from entity_env.vec.variation import Variation
from entity_env.vec.vec_env import AddMetricsWrapper, VecEnv, VecObs

PREFIX = "parameters/"
"""Prefix of the tags of arguments."""

Arguments = Mapping[str, Any]


class VariedEnvs(AddMetricsWrapper):
    """Environments with metrics of their episodes, of which drawn arguments are a part.

    The arguments of an episode are a function of seed, match and number of the episode, so that
    they are drawn here as well as where the episode is played. Episodes that end have
    `parameters/<name>` in `VecObs.env_metrics`, for arguments that are numbers.

    Args:
        env: the environments.

    Attributes:
        is_part: True for those of one of several ranks, whose arguments cannot vary.
    """

    is_part = False

    def __init__(self, env: VecEnv) -> None:
        super().__init__(env)
        self._variation: Variation | None = None
        num_matches = len(env) // env.sides
        # Of each match: the number of episodes that it began, and the arguments of the running one.
        self._seed = 0
        self._num_begun = np.zeros(num_matches, dtype=np.int64)
        self._arguments: list[Arguments] = [{}] * num_matches
        self._ended: list[Arguments] = []

    def vary(self, variation: Variation) -> None:
        """Draw the arguments of episodes that begin from now on."""
        if self.is_part:
            raise EntityEnvError("vary: expected one process, as ranks do not vary arguments yet")
        super().vary(variation)
        self._variation = variation

    def take_ended(self) -> list[Arguments]:
        """Return the arguments of the episodes that ended since the last call, if they count."""
        ended, self._ended = self._ended, []
        return ended

    def seed(self, seed: int) -> None:
        """Seed the environments."""
        super().seed(seed)
        self._seed = seed
        self._num_begun[:] = 0

    def reset(self, obs_config: ObsSpace) -> VecObs:
        """Begin an episode everywhere."""
        obs = super().reset(obs_config)
        self._ended = []
        self._begin(np.arange(len(self._num_begun)))
        return obs

    def wait(self) -> VecObs:
        """Return the frames after a step, with the metrics."""
        counted = self.filter
        obs = super().wait()
        over = np.flatnonzero(obs.done[:: self.sides])
        if len(over):
            if self._variation is not None:
                self._end(obs, counted)
            self._begin(over)
        return obs

    def set_state(self, state: Mapping[str, Any], obs_config: ObsSpace) -> VecObs | None:
        """Continue the running episodes of a state, with their arguments."""
        obs = super().set_state(state, obs_config)
        if obs is not None:
            num_matches = len(self._num_begun)
            self._seed = state.get("seed") or 0
            self._num_begun = np.array(state.get("episodes", [1] * len(obs)))[:: self.sides]
            self._arguments = [*map(dict, state.get("arguments", [{}] * num_matches))]
            self._ended = []
        return obs

    def _begin(self, matches: npt.NDArray[np.int64]) -> None:
        """Draw the arguments of episodes that begin in some matches."""
        if self._variation is not None:
            for match, episode in zip(
                matches.tolist(), self._num_begun[matches].tolist(), strict=True
            ):
                self._arguments[match] = self._variation.arguments(self._seed, match, episode)
        self._num_begun[matches] += 1

    def _end(self, obs: VecObs, counted: npt.NDArray[np.bool_]) -> None:
        """Keep the arguments of episodes that ended, and add those that are numbers as metrics."""
        ended = np.flatnonzero(obs.done)
        arguments = [self._arguments[i // self.sides] for i in ended.tolist()]
        self._ended += [a for a, counts in zip(arguments, counted[ended], strict=True) if counts]
        for name in dict.fromkeys(name for each in arguments for name in each):
            lengths = np.zeros(len(obs), dtype=np.int64)
            has_number = [is_number(each.get(name)) for each in arguments]
            lengths[ended[has_number]] = 1
            values = [each[name] for each, has in zip(arguments, has_number, strict=True) if has]
            obs.env_metrics[f"{PREFIX}{name}"] = Ragged(np.array(values, np.float64), lengths)


def vary(envs: VecEnv, samplers: Mapping[str, str], field: str) -> Variation:
    """Let environments draw their arguments, and return what they are drawn from.

    Args:
        envs: the environments.
        samplers: texts of samplers by the name of the argument.
        field: the setting that has them, for messages.

    Raises:
        ConfigError: a text cannot be read, or the environments do not take an argument.
    """
    try:
        variation = Variation.of(samplers)
        envs.vary(variation)
    except EntityEnvError as error:
        raise ConfigError(f"{field}: {str(error).removeprefix('vary: ')}") from None
    return variation


def is_number(value: object) -> bool:
    """Return True for int and float, but not for bool."""
    return type(value) in (int, float)


def parameter_scalars(ended: Sequence[Arguments], variation: Variation) -> dict[str, float]:
    """Return the metrics of drawn arguments by tag.

    Args:
        ended: arguments of episodes.
        variation: its arguments are those that have tags.

    Returns:
        `parameters/<name>.mean`, `.min` and `.max` of numbers; `parameters/<name>/<value>`, the
        share of each other value. Nothing of an argument that no episode had.
    """
    scalars = {}
    for name in variation.names():
        drawn = [each[name] for each in ended if name in each]
        numbers = [float(value) for value in drawn if is_number(value)]
        if numbers:
            tag = f"{PREFIX}{name}"
            scalars[f"{tag}.mean"] = float(np.mean(numbers))
            scalars |= {f"{tag}.min": min(numbers), f"{tag}.max": max(numbers)}
        if not drawn:
            continue
        # Values that can be drawn and were not have a share of 0.
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
