"""Frames of a seeded run, and their comparison."""

from collections.abc import Callable

import numpy as np

from entity_env import VecEnv, VecObs
from entity_env.vec.variation import Variation
from tests.entity_env.builders import assert_same, random_choices


def shown(
    envs: VecEnv,
    steps: int = 60,
    before: Callable[[int], None] = lambda step: None,
    variation: Variation | None = None,
    track: bool = False,
) -> list[VecObs]:
    """Frames of a seeded run with random choices; `before` is called before each step."""
    rng, space = np.random.default_rng(0), envs.obs_space()
    envs.seed(5)
    if variation is not None:
        envs.vary(variation)
    if track:
        envs.track()
    before(-1)
    frames = [envs.reset(space)]
    for step in range(steps):
        choices = random_choices(envs, frames[-1], rng)
        before(step)
        frames.append(envs.act(choices, space))
    return frames


def assert_same_frames(got: list[VecObs], expected: list[VecObs]) -> None:
    for actual, other in zip(got, expected, strict=True):
        assert_same(actual, other)
        assert not len(actual.lost)
