"""Check of varied arguments, by playing episodes with sampled values."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from entity_env.environment import Environment
from entity_env.errors import short_repr
from entity_env.match import FreshPartial, Match, match_of, world_of
from entity_env.seeding import derive_seed
from entity_env.spaces import Spaces
from entity_env.testing.random_play import Player, Report, Stop, Trace, call, differences
from entity_env.vec.samplers import Sampler
from entity_env.vec.validate import changed_spaces
from entity_env.vec.variation import Variation

_SHORT_STEPS = 20


class VariationCheck:
    """Check of varied arguments of an environment.

    Args:
        create_env: creates an environment or match, with keyword arguments.
        spaces: of the environment without arguments.
        report: collects problems.
        seed: of arguments, actions and episodes.
        max_steps: maximum number of steps per episode.
        created: collects all created environments, for the caller to close.
    """

    def __init__(
        self,
        create_env: Callable[..., Environment | Match],
        spaces: Spaces,
        report: Report,
        seed: int,
        max_steps: int,
        created: list[Match],
    ) -> None:
        self.create_env, self.spaces, self.report = create_env, spaces, report
        self.seed, self.max_steps, self.created = seed, max_steps, created
        # The instance that gets arguments by `set_parameters`, if it has this method.
        self.updated = self._create("create_env", {}, "")
        method = getattr(world_of(self.updated), "set_parameters", None)
        self.set_parameters: Callable[..., None] | None = method if callable(method) else None

    def run(self, samplers: Mapping[str, Sampler], episodes: int) -> tuple[Match, Match]:
        """Play with values of each argument, then episodes with samples of all arguments.

        Args:
            samplers: by name of the argument.
            episodes: number of episodes with samples of all arguments.

        Returns:
            Two instances with the same arguments; the second one got them by `set_parameters`, if
            it has this method.

        Raises:
            Stop: the report has a problem.
        """
        for name, sampler in samplers.items():
            self._check_values(name, sampler)
        variation = Variation((((1.0, samplers),),))
        for episode in range(episodes):
            new, replayed = self._compare_episodes(
                episode, variation.arguments(self.seed, 0, episode)
            )
        return new, replayed

    def _check_values(self, name: str, sampler: Sampler) -> None:
        """Play with each value of an argument, or only the extremes if there are many."""
        for value in sampler.possible_values() or sampler.extremes():
            with_value = f"with {name}={short_repr(value)}"
            match = self._create(f"vary.{name}", {name: value}, with_value)
            self._check_spaces(name, match, with_value)
            value_report = Report("")
            self._play(match, 0, value_report, _SHORT_STEPS)
            for problem in value_report.problems[:1]:
                where = f"{with_value}, {problem.where}"
                text = f"{problem.field}: {problem.text}"
                self.report.problem(f"vary.{name}", text, problem.fix, where)
                raise Stop
            if self.set_parameters is not None:
                set_value = FreshPartial(self.set_parameters, **{name: value})
                call(self.report, "set_parameters", with_value, set_value)
                self._check_spaces(name, self.updated, f"after set_parameters {with_value}")

    def _compare_episodes(self, episode: int, arguments: dict[str, Any]) -> tuple[Match, Match]:
        """Compare an episode of a new environment with one after `set_parameters`."""
        where = f"episode {episode} with {_format_arguments(arguments)}"
        new = self._create("vary", arguments, where)
        expected = self._play(new, episode, self.report)
        if not self.report.ok:
            raise Stop
        if self.set_parameters is not None:
            field, how, replayed = "set_parameters", "after set_parameters", self.updated
            fix = "set all attributes that the constructor derives from these arguments"
            call(self.report, field, where, FreshPartial(self.set_parameters, **arguments))
        else:
            field, how, replayed = "seed", "in a new one", self._create("vary", arguments, where)
            fix = "draw from self.rng, and initialise all state in reset()"
        trace = self._play(replayed, episode, Report(""))
        if changed := _first_difference(expected, trace):
            text = f"expected the episode of a new environment, got {changed} {how}"
            self.report.problem(field, text, fix, where)
            raise Stop
        return new, replayed

    def _create(self, field: str, arguments: dict[str, Any], where: str) -> Match:
        create = FreshPartial(self.create_env, **arguments)
        match = match_of(call(self.report, field, where, create))
        self.created.append(match)
        return match

    def _check_spaces(self, name: str, match: Match, when: str) -> None:
        now = (
            call(self.report, "obs_space", when, match.obs_space),
            call(self.report, "action_space", when, match.action_space),
        )
        for field, text, _ in changed_spaces(self.spaces, now, when):
            fix = f"make {field}() independent of {name}, or do not vary it"
            self.report.problem(f"vary.{name}", f"{field}: {text}", fix)
        if match.num_sides != (sides := self.updated.num_sides):
            text = f"expected {sides} sides for all values, got {match.num_sides} {when}"
            fix = f"make the number of sides independent of {name}, or do not vary it"
            self.report.problem(f"vary.{name}", text, fix)
        if not self.report.ok:
            raise Stop

    def _play(self, match: Match, episode: int, report: Report, limit: int | None = None) -> Trace:
        seed = derive_seed(self.seed, "vary", episode)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 (used by environments)
        player = Player(match, self.spaces, report, seed, limit or self.max_steps)
        return player.play(1)


def _format_arguments(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={short_repr(value)}" for name, value in arguments.items())


def _first_difference(expected: Trace, got: Trace) -> str:
    for (where, a), (_, b) in zip(expected, got, strict=False):
        if changed := differences(a, b):
            return f"other {', '.join(changed)} in {where.partition(', ')[2]}"
    return "" if len(expected) == len(got) else f"{len(got)} frames for {len(expected)}"
