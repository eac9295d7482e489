"""Plain worlds that draw the numbers of vectorised ones, and are stepped one by one."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from entity_env import Environment, Observation, VecObs, action_index_to_actions, batch_obs
from entity_env.examples import MultiSnake
from entity_env.examples.array_envs import ArrayEnvs
from entity_env.ragged import Ragged
from entity_env.seeding import key_of, mix, uniforms_f64


class Numbers(random.Random):
    """Random numbers of one episode, in the order in which a plain environment draws them.

    Args:
        world: the plain environment; the numbers depend on its step.
        key: seed, environment and episode.
    """

    def __init__(self, world: Any, *key: int) -> None:
        super().__init__(0)
        self.world = world
        self.key = mix(key[0], key_of("episode"), *key[1:])
        self.step = self.count = 0
        self.rows: list[int] = []

    def random(self) -> float:
        step = getattr(self.world, "step", 0)
        self.count = self.count + 1 if step == self.step else 1
        self.step = step
        return float(uniforms_f64(mix(self.key, step, self.count - 1)))

    def sample(self, population: Sequence[Any], k: int, **_: Any) -> list[Any]:  # type: ignore[override]
        chosen: list[Any] = []
        for _i in range(k):
            free = [item for item in population if item not in chosen]
            chosen.append(free[int(self.random() * len(free))])
        return chosen

    def randrange(self, size: int) -> int:  # type: ignore[override]
        """The column of a free cell, then its row; which is what trying until one is free gives."""
        if self.rows:
            return self.rows.pop()
        occupied = {cell[:2] for cells in (self.world.food, *self.world.snakes) for cell in cells}
        free = [cell for i in range(size**2) if (cell := divmod(i, size)) not in occupied]
        column, row = free[int(self.random() * len(free))]
        self.rows.append(row)
        return column


class OneByOne:
    """Plain environments in the state of `envs`, or at the start of an episode.

    Args:
        envs: vectorised environments with the same arguments, seed and episodes.
        go_on: in the state that `envs` are in.
    """

    def __init__(self, envs: ArrayEnvs, go_on: bool) -> None:
        self.envs = envs
        state = envs.get_state()
        self.seed, self.episodes = state["seed"], state["episodes"].tolist()
        self.worlds: list[Environment] = []
        self.frames: list[Observation] = []
        self.outcomes: list[Observation] = []
        for i in range(len(envs)):
            self.worlds.append(self._drawing(envs.world(i), i))
            self.frames.append(_now(self.worlds[i]) if go_on else self._begin(i))

    def act(self, choices: Ragged) -> VecObs:
        obs_space, action_space = self.envs.obs_space(), self.envs.action_space()
        self.outcomes = []
        for i, world in enumerate(self.worlds):
            actions = action_index_to_actions(
                obs_space, action_space, {"move": choices[i]}, self.frames[i]
            )
            self.outcomes.append(world.act(actions))
            self.frames[i] = self.outcomes[i]
            if self.outcomes[i].done:
                self.episodes[i] += 1
                self.frames[i] = self._begin(i)
        return self.shown()

    def shown(self) -> VecObs:
        spaces = self.envs.obs_space(), self.envs.action_space()
        return batch_obs(self.frames, *spaces, self.outcomes or None)

    def _begin(self, i: int) -> Observation:
        world: Any = self._drawing(self.envs.world(i), i)
        del world.step  # numbers are drawn before there is one
        self.worlds[i] = world
        frame: Observation = world.reset()
        return frame

    def _drawing(self, world: Environment, i: int) -> Environment:
        vars(world)["rng"] = Numbers(world, self.seed, i, self.episodes[i])
        return world


def _now(world: Any) -> Observation:
    """What a world shows in the middle of an episode, without an outcome."""
    frame: Observation
    if isinstance(world, MultiSnake):
        frame = world._observe(False, 0.0)
    else:
        frame = world._observe()
        frame.reward, frame.done = 0.0, False
    return frame


def assert_shown(got: VecObs, expected: VecObs) -> None:
    """Equal; features but for what sines of two libraries differ by."""
    assert list(got.features) == list(expected.features)
    for name, rows in expected.features.items():
        assert got.features[name].values.dtype == np.float32
        np.testing.assert_array_equal(got.features[name].lengths, rows.lengths)
        np.testing.assert_allclose(got.features[name].values, rows.values, rtol=1e-5, atol=1e-5)
    for part in ("reward", "done", "truncated"):
        ours, reference = getattr(got, part), getattr(expected, part)
        assert ours.dtype == reference.dtype
        np.testing.assert_array_equal(ours, reference, err_msg=part)
    assert (got.final, got.metrics, got.visible) == (None, {}, {})
    mask: Any = got.action_masks["move"]
    wanted: Any = expected.action_masks["move"]
    assert mask.mask is None
    assert wanted.mask is None
    np.testing.assert_array_equal(mask.actors.values, wanted.actors.values)
    np.testing.assert_array_equal(mask.actors.lengths, wanted.actors.lengths)
