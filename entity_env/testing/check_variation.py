"""Check of arguments that vary, by playing episodes with values of each."""

import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from entity_env.environment import Environment
from entity_env.errors import short_repr
from entity_env.match import FreshPartial, Match, match_of, world_of
from entity_env.seeding import derive_seed
from entity_env.spaces import Spaces
from entity_env.testing.random_play import Player, Report, Stop, Trace, answer, differences
from entity_env.vec.samplers import Sampler
from entity_env.vec.validate import changed_spaces
from entity_env.vec.variation import Variation

_SHORT_STEPS = 20


class VariationCheck:
    """Player of episodes with arguments that vary, which reports all that is wrong with them.

    Args:
        create_env: makes an environment or match with the arguments that it is given.
        spaces: those without arguments.
        report: takes the problems.
        seed: of arguments, actions and episodes.
        max_steps: the number of steps after which an episode is broken off.
        made: takes all that is made, for the caller to close.
    """

    def __init__(
        self,
        create_env: Callable[..., Environment | Match],
        spaces: Spaces,
        report: Report,
        seed: int,
        max_steps: int,
        made: list[Match],
    ) -> None:
        self.create_env, self.spaces, self.report = create_env, spaces, report
        self.seed, self.max_steps, self.made = seed, max_steps, made
        # An instance that is told arguments, if it can be.
        self.told = self._create("create_env", {}, "")
        given = getattr(world_of(self.told), "set_parameters", None)
        self.set_parameters: Callable[..., None] | None = given if callable(given) else None

    def run(self, samplers: Mapping[str, Sampler], episodes: int) -> tuple[Match, Match]:
        """Play with each argument alone, then episodes with all of them.

        Args:
            samplers: by the name of the argument.
            episodes: the number of episodes with arguments drawn from all samplers.

        Returns:
            Two instances with the same arguments; the second one was told them, if it can be.

        Raises:
            Stop: something is wrong, and is in the report.
        """
        for name, sampler in samplers.items():
            self._try_values(name, sampler)
        variation = Variation((((1.0, samplers),),))
        for episode in range(episodes):
            anew, other = self._compare_both_ways(
                episode, variation.arguments(self.seed, 0, episode)
            )
        return anew, other

    def _try_values(self, name: str, sampler: Sampler) -> None:
        """Play with each value of an argument, or with those at the ends if there are many."""
        for value in sampler.possible_values() or sampler.extremes():
            with_value = f"with {name}={short_repr(value)}"
            match = self._create(f"vary.{name}", {name: value}, with_value)
            self._check_spaces(name, match, with_value)
            own = Report("")
            self._play(match, 0, own, _SHORT_STEPS)
            for problem in own.problems[:1]:
                where = f"{with_value}, {problem.where}"
                text = f"{problem.field}: {problem.text}"
                self.report.problem(f"vary.{name}", text, problem.fix, where)
                raise Stop
            if self.set_parameters is not None:
                tell = FreshPartial(self.set_parameters, **{name: value})
                answer(self.report, "set_parameters", with_value, tell)
                self._check_spaces(name, self.told, f"after set_parameters {with_value}")

    def _compare_both_ways(self, episode: int, arguments: dict[str, Any]) -> tuple[Match, Match]:
        """Compare an episode of a world made anew with that of the world that is told."""
        where = f"episode {episode} with {_listed(arguments)}"
        anew = self._create("vary", arguments, where)
        expected = self._play(anew, episode, self.report)
        if not self.report.ok:
            raise Stop
        if self.set_parameters is not None:
            field, how, other = "set_parameters", "after set_parameters", self.told
            fix = "let it set all that the constructor makes of these arguments"
            answer(self.report, field, where, FreshPartial(self.set_parameters, **arguments))
        else:
            field, how, other = "seed", "in a new one", self._create("vary", arguments, where)
            fix = "draw from self.rng, and set up everything in reset()"
        shown = self._play(other, episode, Report(""))
        if changed := _first_difference(expected, shown):
            text = f"expected the episode of a world made with these arguments, got {changed} {how}"
            self.report.problem(field, text, fix, where)
            raise Stop
        return anew, other

    def _create(self, field: str, arguments: dict[str, Any], where: str) -> Match:
        create = FreshPartial(self.create_env, **arguments)
        match = match_of(answer(self.report, field, where, create))
        self.made.append(match)
        return match

    def _check_spaces(self, name: str, match: Match, when: str) -> None:
        now = (
            answer(self.report, "obs_space", when, match.obs_space),
            answer(self.report, "action_space", when, match.action_space),
        )
        for field, text, _ in changed_spaces(self.spaces, now, when):
            fix = f"let {field}() not depend on {name}, or do not vary it"
            self.report.problem(f"vary.{name}", f"{field}: {text}", fix)
        if match.num_sides != (sides := self.told.num_sides):
            text = f"expected {sides} sides whatever its value, got {match.num_sides} {when}"
            fix = f"let the number of sides not depend on {name}, or do not vary it"
            self.report.problem(f"vary.{name}", text, fix)
        if not self.report.ok:
            raise Stop

    def _play(self, match: Match, episode: int, report: Report, most: int | None = None) -> Trace:
        seed = derive_seed(self.seed, "vary", episode)
        random.seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002 (for worlds that draw from it)
        player = Player(match, self.spaces, report, seed, most or self.max_steps)
        return player.play(1)


def _listed(arguments: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={short_repr(value)}" for name, value in arguments.items())


def _first_difference(expected: Trace, shown: Trace) -> str:
    for (where, a), (_, b) in zip(expected, shown, strict=False):
        if changed := differences(a, b):
            return f"other {', '.join(changed)} in {where.partition(', ')[2]}"
    return "" if len(expected) == len(shown) else f"{len(shown)} frames for {len(expected)}"
