"""`check_env`: check of an environment, with a report of all problems."""

import contextlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from entity_env.bot import Bot
from entity_env.environment import Environment
from entity_env.match import CreateEnv, Match, match_of, world_of
from entity_env.plain_state import UnsavableSharingError, non_plain_part
from entity_env.seeding import derive_seed
from entity_env.spaces import Spaces
from entity_env.testing.check_bot import check_bot
from entity_env.testing.check_variation import VariationCheck
from entity_env.testing.random_play import Player, Report, Stop, call, differences, frame_contents
from entity_env.vec.episode_state import names_in
from entity_env.vec.samplers import Sampler
from entity_env.vec.validate import changed_spaces, space_problems
from entity_env.vec.variation import read_samplers
from entity_env.view import view_problems

_STATE_STEPS = 20


def check_env(
    env: Environment | Match | CreateEnv,
    episodes: int = 3,
    max_steps: int = 1000,
    seed: int = 0,
    bot: type[Bot] | None = None,
    vary: Mapping[str, str] | None = None,
) -> Report:
    """Play episodes with random legal actions, and report all problems of an environment.

    Episodes are replayed, also by a new instance if `env` creates one, to check that they are a
    function of the seed. The global generators of `random` and `numpy` are restored afterwards.

    Args:
        env: an environment or match; preferably a class or function that creates it.
        episodes: number of episodes.
        max_steps: maximum number of steps per episode.
        seed: of actions and episodes.
        bot: the class of a bot to check on all sides, if the environment has no problems: its
            choices must be legal, and a function of its seed and state.
        vary: samplers by name of the argument, such as {"max_mines": "int 0 20"}. Checked last: the
            environment must accept their values with unchanged spaces, and `set_parameters`, if it
            exists, must be equivalent to a new environment.

    Returns:
        The report; problems raise no exceptions.

    Raises:
        InvalidSampler: a sampler of `vary` is invalid.
    """
    samplers = read_samplers(vary or {})
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (used by environments)
    try:
        with np.errstate(over="ignore"):  # float32 overflow is reported as an infinite number
            return _Check(env, seed, episodes, max_steps, bot, samplers).run()
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002


@dataclass
class _Check:
    """One run of `check_env`."""

    env: Environment | Match | CreateEnv
    seed: int
    episodes: int
    max_steps: int
    bot: type[Bot] | None
    samplers: Mapping[str, Sampler]

    def run(self) -> Report:
        self.report = Report(getattr(self.env, "__name__", type(self.env).__name__))
        self.made: list[Match] = []
        with contextlib.suppress(Stop):
            # Play the episodes.
            self._seed_global_generators("first")
            states = self._global_states()
            match = self._create()
            self.report.name = type(world_of(match)).__name__
            spaces = self._spaces(match)
            self._check_view(match, spaces)
            player = Player(match, spaces, self.report, self.seed, self.max_steps)
            self.trace = player.play(self.episodes)
            drawn_from = " and ".join(differences(states, self._global_states()))
            # Play them again, also by a new instance.
            self._report_changed_spaces(match, spaces, "after the episodes")
            differs = self._find_difference(match, spaces, "when seeded again")
            fresh = match
            if self.made:
                fresh = self._create()
                how = "in a new instance"
                self._report_changed_spaces(fresh, spaces, how)
                differs = differs or self._find_difference(fresh, spaces, how)
            if differs:
                cause = f"; it draws from the global generator {drawn_from}" if drawn_from else ""
                self.report.problem(
                    "seed",
                    f"expected episodes that are a function of the seed, got {differs}{cause}",
                    "draw from self.rng, seed other generators in seed(), and initialise all state "
                    "in reset(); otherwise runs are only reproducible with a fixed number of "
                    "processes",
                )
            elif drawn_from:
                text = "expected an unused global generator, got one that was seeded or drawn from"
                fix = "draw from self.rng, or create a generator for the environment"
                self.report.problem(drawn_from, text, fix)
            if self.report.ok and fresh is not match:
                self._check_independence(match, fresh, spaces)
            if self.report.ok:
                self._check_state(match, fresh, spaces)
            if self.report.ok and self.samplers:
                self._check_variation(spaces)
            if self.report.ok and self.bot is not None:
                check_bot(
                    self.bot, fresh, spaces, self.report, self.seed, self.episodes, self.max_steps
                )
        for match in self.made:
            with contextlib.suppress(Stop):
                call(self.report, "close", "", match.close)
        return self.report

    def _create(self) -> Match:
        env = self.env
        if not isinstance(env, Environment | Match):
            env = call(self.report, "create_env", "", env)
        if isinstance(env, Environment | Match):
            match = match_of(env)
            self.made += [match] if env is not self.env else []
            return match
        text = f"expected an Environment or a Match, got {type(env).__name__}"
        self.report.problem("create_env", text, "derive its class from entity_env.Environment")
        raise Stop

    def _spaces(self, match: Match) -> Spaces:
        obs_space = call(self.report, "obs_space", "", match.obs_space)
        action_space = call(self.report, "action_space", "", match.action_space)
        if problems := space_problems(obs_space, action_space):
            for field, text, fix in problems:
                self.report.problem(field, text, fix)
            raise Stop
        return Spaces(obs_space, action_space)

    def _check_view(self, match: Match, spaces: Spaces) -> None:
        with contextlib.suppress(Stop):
            view = call(self.report, "view", "", match.view)
            problems = [] if view is None else view_problems(view, spaces.obs_space)
            for field, text in problems:
                self.report.problem(field, text, "see the docstrings of View and EntityView")

    def _report_changed_spaces(self, match: Match, spaces: Spaces, when: str) -> None:
        with contextlib.suppress(Stop):
            for field, text, fix in changed_spaces(spaces, self._spaces(match), when):
                self.report.problem(field, text, fix)

    def _find_difference(self, match: Match, spaces: Spaces, how: str) -> str:
        """Replay the episodes and describe the first difference, "" if there is none."""
        self._seed_global_generators(how)
        replay = Player(match, spaces, Report(""), self.seed, self.max_steps).play(self.episodes)
        for (where, a), (_, b) in zip(self.trace, replay, strict=False):
            if changed := differences(a, b):
                return f"other {', '.join(changed)} in {where} {how}"
        before, now = len(self.trace), len(replay)
        return "" if before == now else f"{now} frames for {before} {how}"

    def _check_state(self, match: Match, fresh: Match, spaces: Spaces) -> None:
        """Report episodes that continue differently after `set_state`."""
        world: Any = world_of(match)
        other: Any = world_of(fresh)
        if not (hasattr(world, "get_state") and hasattr(other, "set_state")):
            return

        # Ids must be plain data, as they are saved with the state.
        try:
            for frame in call(self.report, "reset", "", match.reset):
                names_in(frame, spaces.action_space)
        except TypeError as error:
            fix = "use numbers, text or tuples of them as ids, or remove get_state"
            self.report.problem("get_state", str(error), fix)
            return

        # Save in the middle of an episode, and play it to the end.
        player = Player(match, spaces, Report(""), self.seed, _STATE_STEPS)
        for steps_before in (0, 1, 4):
            state: Any = None

            def save(step: int, at: int = steps_before) -> None:
                nonlocal state
                if step == at:
                    state = call(self.report, "get_state", f"step {step}", self._state_of, world)

            trace = player.play(1, before_act=save)
            if state is None:
                continue
            if culprit := non_plain_part(state, "state"):
                text = f"expected plain data, got {culprit}"
                self.report.problem("get_state", text, "return lists and numbers")
                return

            # Repeat the actions from the saved state, and compare what follows.
            future = player.actions[steps_before:]
            call(self.report, "set_state", "", other.set_state, state)
            for (where, expected), actions in zip(trace[steps_before + 1 :], future, strict=False):
                frames = call(self.report, "act", "after set_state", fresh.act, actions)
                if changed := differences(expected, frame_contents(frames, spaces)):
                    text = f"expected the same continuation, got other {', '.join(changed)}"
                    fix = "save copies of all state that affects later steps, also the generator"
                    at = f"{where}, saved at step {steps_before}"
                    self.report.problem("set_state", text, fix, at)
                    return

    def _state_of(self, world: Any) -> Any:
        """Return the state of an environment, None with a remark if it cannot be saved."""
        try:
            return world.get_state()
        except UnsavableSharingError as error:
            fix = "until this is fixed, resumed runs restart its episodes"
            self.report.remark("get_state", str(error), fix)
            return None

    def _check_independence(self, match: Match, fresh: Match, spaces: Spaces) -> None:
        """Remark on observations that change when another instance plays."""
        frames = call(self.report, "reset", "", match.reset)
        before = frame_contents(frames, spaces)
        seed = derive_seed(self.seed, "another instance")
        Player(fresh, spaces, Report(""), seed, _STATE_STEPS).play(1)
        if changed := differences(before, frame_contents(frames, spaces)):
            text = "got an observation that changed afterwards, when another instance played"
            fix = "store arrays, lists and dictionaries in self, not in the class or the module"
            self.report.remark(changed[0], text, fix)

    def _check_variation(self, spaces: Spaces) -> None:
        """Report arguments that cannot be varied, and states that do not save them."""
        if isinstance(self.env, Environment | Match):
            text = f"expected a class or function that takes arguments, got {self.env!r}"
            self.report.problem("vary", text, "pass the class or a factory function")
            return
        check = VariationCheck(self.env, spaces, self.report, self.seed, self.max_steps, self.made)
        fresh, updated = check.run(self.samplers, self.episodes)
        self._check_state(fresh, updated, spaces)

    def _seed_global_generators(self, purpose: str) -> None:
        random.seed(derive_seed(self.seed, purpose))
        np.random.seed(derive_seed(self.seed, purpose) % 2**32)  # noqa: NPY002

    def _global_states(self) -> dict[str, bytes]:
        state: Any = np.random.get_state()  # noqa: NPY002
        python, numpy = repr(random.getstate()), repr((state[1].tolist(), state[2:]))
        return {"random": python.encode(), "numpy.random": numpy.encode()}
