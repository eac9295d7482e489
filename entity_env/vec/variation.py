"""Arguments of environments that vary from episode to episode."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from entity_env.arrays import IntArray
from entity_env.errors import InvalidSampler, did_you_mean
from entity_env.seeding import key_of, mix_ints
from entity_env.vec.samplers import Sampler, read_sampler

_64_BITS = 2**64 - 1


@dataclass(frozen=True)
class Variation:
    """The samplers of the arguments of all following episodes.

    Groups are independent. In each, an episode selects an alternative by its share and draws all
    of its arguments.

    Attributes:
        groups: for each group its alternatives: share of episodes, samplers by argument.
    """

    groups: Sequence[Sequence[tuple[float, Mapping[str, Sampler]]]] = ()

    def alternatives(self, seed: int, match: int, episode: int) -> list[int]:
        """Return the index of the alternative of an episode in each group.

        It is a function of the seed, the match, the episode and the alphabetically first argument
        of the group.
        """
        chosen = []
        for group in self.groups:
            if len(group) == 1:
                chosen.append(0)
                continue
            first = min((name for _, samplers in group for name in samplers), default="")
            bits = _bits(seed, "alternative", match, episode, first)
            weights = tuple(share for share, _ in group)
            chosen.append(Sampler("choice", weights, tuple(map(str, range(len(group))))).draw(bits))
        return chosen

    def arguments(self, seed: int, match: int, episode: int) -> dict[str, Any]:
        """Return the arguments of an episode.

        Each is a function of the seed, the match, the index of the match's episode, its name and
        its sampler.
        """
        drawn = {}
        chosen = self.alternatives(seed, match, episode) if self.groups else []
        for group, i in zip(self.groups, chosen, strict=True):
            for name, sampler in group[i][1].items():
                drawn[name] = sampler.draw(_bits(seed, "argument", match, episode, name))
        return drawn

    def names(self) -> list[str]:
        """Return the names of the arguments, sorted."""
        return sorted({name for group in self.groups for _, part in group for name in part})

    def to_plain(self) -> list[Any]:
        """Return the groups as plain data, for messages and saves: [[[share, {name: text}]]]."""
        return [
            [[share, {name: s.text for name, s in part.items()}] for share, part in group]
            for group in self.groups
        ]

    @classmethod
    def from_plain(cls, groups: Sequence[Any]) -> "Variation":
        """Return the variation from the plain data of `to_plain`.

        Raises:
            InvalidSampler: a text cannot be read, or the data has another form.
        """
        try:
            return cls(
                tuple(
                    tuple((float(share), read_samplers(part)) for share, part in group)
                    for group in groups
                )
            )
        except (TypeError, ValueError, AttributeError) as error:
            if isinstance(error, InvalidSampler):
                raise
            expected = "groups of shares with samplers by name"
            raise InvalidSampler(f"variation: expected {expected}, got {error}") from None

    @classmethod
    def of(cls, samplers: Mapping[str, str]) -> "Variation":
        """Return the variation in which every episode draws from the same samplers.

        Args:
            samplers: texts by argument; empty for no variation.

        Raises:
            InvalidSampler: a text cannot be read.
        """
        return cls((((1.0, read_samplers(samplers)),),) if samplers else ())


class RunningArguments:
    """The arguments of the running episodes of some matches.

    As functions of seed, match and index of the episode, they are the same here and in the process
    that plays the episodes. A wrapper of environments calls these methods from its own.

    Args:
        num_envs: the number of environments; each side of a match counts.
        sides: the number of sides of a match.

    Attributes:
        sides: as in the arguments.
        first_match: index of the first of these matches among all of the run.
        variation: the samplers of all following episodes; None if nothing varies.
        arguments: for each match, the arguments of its running episode; {} if nothing varied.
        episode: (matches,) int64, the index of the running episode of each match.
    """

    def __init__(self, num_envs: int, sides: int = 1) -> None:
        num_matches = num_envs // sides
        self.variation: Variation | None = None
        self.arguments: list[Mapping[str, Any]] = [{}] * num_matches
        self.episode = np.full(num_matches, -1, dtype=np.int64)
        self.sides, self.first_match, self._seed = sides, 0, 0

    def seed(self, seed: int) -> None:
        """Set the seed, and count episodes from 0."""
        self._seed = seed
        self.episode[:] = -1

    def begin(self, matches: IntArray | None = None) -> None:
        """Begin an episode in some matches; in all of them by default."""
        matches = np.arange(len(self.episode)) if matches is None else matches
        self.episode[matches] += 1
        if self.variation is not None:
            for match in matches.tolist():
                self.arguments[match] = self.variation.arguments(*self._key(match))

    def alternatives(self, match: int) -> list[int]:
        """Return the index of the alternative of a running episode in each group."""
        assert self.variation is not None
        return self.variation.alternatives(*self._key(match))

    def _key(self, match: int) -> tuple[int, int, int]:
        """Return seed, index of the match in the run, and index of its episode."""
        return self._seed, self.first_match + match, int(self.episode[match])

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Continue with the running episodes of a state of `VecEnv.get_state`."""
        num_matches = len(self.episode)
        self._seed = state.get("seed") or 0
        counts = state.get("episodes", [1] * num_matches * self.sides)
        self.episode = np.array(counts, dtype=np.int64)[:: self.sides] - 1
        self.arguments = [*map(dict, state.get("arguments", [{}] * num_matches))]


def read_samplers(texts: Mapping[str, str], field: str = "vary") -> dict[str, Sampler]:
    """Return the samplers of texts by argument.

    Args:
        texts: by argument.
        field: the setting with the texts, for errors.

    Raises:
        InvalidSampler: a text cannot be read; with the field and the character.
    """
    return {name: read_sampler(text, f"{field}.{name}") for name, text in texts.items()}


def check_parameters(env: object, create_env: Callable[..., Any], variation: Variation) -> None:
    """Raise if neither `set_parameters` nor the factory of an environment has an argument.

    Args:
        env: the environment or match.
        create_env: its factory.
        variation: the samplers of the arguments.

    Raises:
        InvalidSampler: there is no such argument; with the closest name.
    """
    setter = getattr(env, "set_parameters", None)
    check_arguments(setter if callable(setter) else create_env, type(env), variation.names())


def check_arguments(function: Callable[..., Any], cls: type, names: Sequence[str]) -> None:
    """Raise if an environment does not accept an argument.

    Args:
        function: the factory of the environment, or its `set_parameters`.
        cls: its class, for the message.
        names: the arguments.

    Raises:
        InvalidSampler: there is no such argument; with the closest name.
    """
    signature = inspect.signature(function)
    for name in names:
        try:
            signature.bind_partial(**{name: None})
        except TypeError:
            by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
            parameters = [p.name for p in signature.parameters.values() if p.kind in by_name]
            listed = ", ".join(parameters) or "none"
            hint = did_you_mean(name, parameters)
            raise InvalidSampler(
                f"expected an argument of {cls.__name__}, which can vary {listed}, got "
                f"{name!r}{hint}"
            ) from None


def _bits(seed: int, purpose: str, match: int, episode: int, name: str) -> int:
    """Return 64 random bits for an argument in an episode."""
    return mix_ints(seed & _64_BITS, key_of(purpose), match, episode, key_of(name))
