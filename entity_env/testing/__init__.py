"""Conformance test of environments, and probe environments for trainers.

    >>> from entity_env.examples import Xor
    >>> from entity_env.testing import conformance
    >>> def test_my_env():
    ...     conformance(Xor)
    >>> test_my_env()

A probe environment tests one ability: a trainer that has it solves the probe in seconds.
"""

import contextlib
import time
from collections.abc import Generator, Mapping
from itertools import chain
from typing import Any

import numpy as np

from entity_env.actions import (
    Action,
    ActionMask,
    CategoricalActionMask,
    GlobalCategoricalActionMask,
    SelectEntityActionMask,
)
from entity_env.environment import Environment, Observation
from entity_env.match import CreateEnv, Match, match_of
from entity_env.plain_state import PlainState
from entity_env.seeding import derive_seed
from entity_env.spaces import (
    ActionName,
    ActionSpace,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
)
from entity_env.testing.check_env import check_env
from entity_env.testing.random_play import differences, fields_of, random_choices
from entity_env.vec.batching import (
    Outcomes,
    action_index_to_actions,
    batch_obs,
    batch_outcomes,
)
from entity_env.vec.serial import EnvList
from entity_env.vec.vec_obs import Choices, VecObs


def conformance(create_env: CreateEnv, steps: int = 50, seed: int = 0) -> None:
    """Assert that an environment passes `check_env`, and behaves the same in an `EnvList`.

    Args:
        create_env: creates the environment: its class, or a function.
        steps: number of steps for which an `EnvList` is compared with three single environments.
        seed: of actions and episodes.

    Raises:
        AssertionError: with the report of `check_env`, or the step and fields in which `EnvList`
            differs from the single environments.
    """
    report = check_env(create_env, seed=seed)
    if not report.ok:
        raise AssertionError(str(report))
    matches = [match_of(create_env()) for _ in range(3)]
    slow = _step_one_by_one(matches, seed)
    fast = EnvList(create_env, sum(match.num_sides for match in matches))
    fast.seed(seed)
    obs_space, action_space = fast.obs_space(), fast.action_space()
    batch, expected = fast.reset(obs_space), next(slow)
    rng = np.random.default_rng(seed)
    with contextlib.closing(slow), contextlib.closing(fast):
        for step in range(steps + 1):
            if changed := differences(fields_of(expected), fields_of(batch)):
                differing = f"EnvList differs from its environments in {', '.join(changed)}"
                raise AssertionError(f"step {step}: {differing}")
            choices = random_choices(batch, action_space, rng)
            batch, expected = fast.act(choices, obs_space), slow.send(choices)


def _step_one_by_one(matches: list[Match], seed: int) -> Generator[VecObs, Choices, None]:
    """Yield batches of the frames of matches that are stepped sequentially and batched singly.

    Send the choices for the last batch to the generator. It closes the matches at its end.
    """
    obs_space, action_space = matches[0].obs_space(), matches[0].action_space()
    episodes = [0] * len(matches)

    def begin(i: int) -> list[Observation]:
        matches[i].seed(derive_seed(seed, "episode", i, episodes[i]))
        episodes[i] += 1
        return matches[i].reset()

    def outcomes_of(side_frames: list[Observation]) -> list[Outcomes]:
        return [batch_outcomes([obs], obs_space, action_space) for obs in side_frames]

    frames = [begin(i) for i in range(len(matches))]
    outcomes = [outcomes_of(side_frames) for side_frames in frames]
    try:
        while True:
            pairs = zip(chain(*frames), chain(*outcomes), strict=True)
            pieces = [
                batch_obs([frame], obs_space, action_space, outcome) for frame, outcome in pairs
            ]
            choices = yield VecObs.cat(pieces)
            for i, match in enumerate(matches):
                actions = [
                    action_index_to_actions(
                        obs_space, action_space, choices, obs, i * match.num_sides + k
                    )
                    for k, obs in enumerate(frames[i])
                ]
                frames[i] = match.act(actions)
                outcomes[i] = outcomes_of(frames[i])  # before a reset may overwrite them
                if outcomes[i][0].done.any():
                    frames[i] = begin(i)
    finally:
        for match in matches:
            match.close()


class Identity(PlainState, Environment):
    """Identify the observed mark, one of two, in episodes of one step.

    The mean return of a random policy is 0.5, that of an optimal policy 1.
    """

    def obs_space(self) -> ObsSpace:
        """Return one mark, which is -1 or 1."""
        return ObsSpace(entities={"Mark": Entity(["kind"])})

    def action_space(self) -> Mapping[ActionName, ActionSpace]:
        """Say -1 or 1."""
        return {"say": CategoricalActionSpace(["minus", "plus"])}

    def reset(self) -> Observation:
        """Begin an episode with a new mark."""
        self.mark = self.rng.randrange(2)
        return self._observe()

    def act(self, actions: Mapping[ActionName, Action]) -> Observation:
        """Return reward 1 for the right word."""
        say: Any = actions["say"]
        return self._observe(reward=float(say.indices[0] == self.mark), done=True)

    def _observe(self, reward: float = 0.0, done: bool = False) -> Observation:
        return Observation(
            features={"Mark": [[2.0 * self.mark - 1]]},
            actions={"say": CategoricalActionMask()},
            reward=reward,
            done=done,
        )


class DelayedIdentity(PlainState, Environment):
    """Identify the observed mark, one of two, with a delayed reward.

    The mark is visible only in the first step, when the policy acts. Later observations tell
    whether the answer was right, so that the value function can predict the reward.

    The mean return of a random policy is 0.5, that of an optimal policy 1.

    Args:
        delay: number of steps without actions between the action and the reward.
    """

    def __init__(self, delay: int = 3) -> None:
        self.delay = delay

    def obs_space(self) -> ObsSpace:
        """Return the remaining time, the mark, and whether the answer was right."""
        return ObsSpace(["left"], {"Mark": Entity(["kind"]), "Answer": Entity(["right"])})

    def action_space(self) -> Mapping[ActionName, ActionSpace]:
        """Say minus or plus."""
        return {"say": GlobalCategoricalActionSpace(["minus", "plus"])}

    def reset(self) -> Observation:
        """Begin an episode with a new mark."""
        self.mark, self.left = self.rng.randrange(2), self.delay + 1
        return Observation(
            features={"Mark": [[2.0 * self.mark - 1]]},
            global_features=[1.0],
            actions={"say": GlobalCategoricalActionMask()},
        )

    def act(self, actions: Mapping[ActionName, Action]) -> Observation:
        """Return reward 1 at the end if the first word was right."""
        say: Any = actions.get("say")
        if say is not None:
            self.right = float(say.index == self.mark)
        self.left -= 1
        return Observation(
            features={"Answer": [[self.right]]},
            global_features=[self.left / (self.delay + 1)],
            reward=self.right if self.left == 0 else 0.0,
            done=self.left == 0,
        )


class PickTheMarked(PlainState, Environment):
    """Select the marked entity among several, in episodes of one step.

    The mean return of a random policy is 1 / `num_items`, that of an optimal policy 1.

    Args:
        num_items: the number of items.
    """

    def __init__(self, num_items: int = 4) -> None:
        self.num_items = num_items

    def obs_space(self) -> ObsSpace:
        """Return a picker, and items with a flag for the marked one."""
        return ObsSpace(entities={"Picker": Entity([]), "Item": Entity(["marked"])})

    def action_space(self) -> Mapping[ActionName, ActionSpace]:
        """Pick an item."""
        return {"pick": SelectEntityActionSpace()}

    def reset(self) -> Observation:
        """Begin an episode with another marked item."""
        self.marked = self.rng.randrange(self.num_items)
        return self._observe()

    def act(self, actions: Mapping[ActionName, Action]) -> Observation:
        """Return reward 1 for the marked item."""
        pick: Any = actions["pick"]
        return self._observe(reward=float(pick.actees[0] == self.marked), done=True)

    def _observe(self, reward: float = 0.0, done: bool = False) -> Observation:
        items = [[float(i == self.marked)] for i in range(self.num_items)]
        return Observation(
            entities={"Picker": [[]], "Item": (items, range(self.num_items))},
            actions={"pick": SelectEntityActionMask(actor_types=["Picker"], actee_types=["Item"])},
            reward=reward,
            done=done,
        )


class CreditOneOfMany(PlainState, Environment):
    """Credit assignment: many actors choose, the choice of one is rewarded, in a single step.

    The mean return of a random policy is 0.5, that of an optimal policy 1.

    Args:
        num_actors: the number of actors.
    """

    def __init__(self, num_actors: int = 8) -> None:
        self.num_actors = num_actors

    def obs_space(self) -> ObsSpace:
        """Return actors with the target choice of each, and whether it is rewarded."""
        return ObsSpace(entities={"Actor": Entity(["wanted", "counts"])})

    def action_space(self) -> Mapping[ActionName, ActionSpace]:
        """Return a binary choice of every actor."""
        return {"choose": CategoricalActionSpace(["minus", "plus"])}

    def reset(self) -> Observation:
        """Begin an episode with random target choices and a random rewarded actor."""
        self.wanted = [self.rng.randrange(2) for _ in range(self.num_actors)]
        self.counts = self.rng.randrange(self.num_actors)
        return self._observe()

    def act(self, actions: Mapping[ActionName, Action]) -> Observation:
        """Return reward 1 if the rewarded actor made its target choice."""
        choose: Any = actions["choose"]
        right = choose.indices[self.counts] == self.wanted[self.counts]
        return self._observe(reward=float(right), done=True)

    def _observe(self, reward: float = 0.0, done: bool = False) -> Observation:
        actors = [[2.0 * w - 1, float(i == self.counts)] for i, w in enumerate(self.wanted)]
        return Observation(
            features={"Actor": actors},
            actions={"choose": CategoricalActionMask()},
            reward=reward,
            done=done,
        )


class Timing(PlainState, Environment):
    """Environment with a fixed duration per step, to measure overlap with other work.

    Args:
        step_s: seconds per step.
        spin: busy-wait, like a computation; otherwise sleep, like a request to a server.
    """

    def __init__(self, step_s: float = 0.001, spin: bool = False) -> None:
        self.step_s = step_s
        self.spin = spin

    def obs_space(self) -> ObsSpace:
        """Return one entity without features."""
        return ObsSpace(entities={"Clock": Entity([])})

    def action_space(self) -> Mapping[ActionName, ActionSpace]:
        """Return a choice without effect."""
        return {"wait": CategoricalActionSpace(["a", "b"])}

    def reset(self) -> Observation:
        """Begin an episode, without delay."""
        self.steps = 0
        return self._observe()

    def act(self, actions: Mapping[ActionName, Action]) -> Observation:
        """Take a step of `step_s` seconds."""
        if self.spin:
            end = time.perf_counter() + self.step_s
            while time.perf_counter() < end:
                pass
        else:
            time.sleep(self.step_s)
        self.steps += 1
        return self._observe()

    def _observe(self) -> Observation:
        wait: dict[ActionName, ActionMask] = {"wait": CategoricalActionMask()}
        return Observation(features={"Clock": [[]]}, actions=wait, done=self.steps == 10)
