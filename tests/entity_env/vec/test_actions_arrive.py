"""Choices of a policy reach their entities, in this process and in workers."""

import contextlib
import functools
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_env import (
    Environment,
    EnvList,
    GlobalCategoricalActionMask,
    Observation,
    ParallelEnvList,
    SelectEntityActionSpace,
    VecEnv,
)
from tests.entity_env.builders import allowed_by_frame, random_choices
from tests.entity_env.worker_worlds import Replay, digest
from tests.strategies import World, entities_named, worlds

NUM_ENVS = 5


def told(world: World, obs: Observation, chosen: Mapping[str, Any]) -> float:
    """The digest of what a policy chose for the actors of a frame, one entity at a time."""
    pairs = {}
    for name, space in world.action_space.items():
        mask = obs.actions.get(name)
        actors = [actor for actor, _ in allowed_by_frame(obs, world.obs_space, space, mask)]
        if mask is None or (isinstance(mask, GlobalCategoricalActionMask) and not actors):
            continue
        if isinstance(space, SelectEntityActionSpace):
            candidates = entities_named(obs, world.obs_space, mask.actee_ids, mask.actee_types)  # type: ignore[union-attr]
        else:
            candidates = space.index_to_label
        pairs[name] = [(a, candidates[c]) for a, c in zip(actors, chosen[name], strict=True)]
    return digest(pairs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "examples"),
    [
        (lambda create: EnvList(create, NUM_ENVS), None),
        (lambda create: ParallelEnvList(create, NUM_ENVS, 2), 4),
    ],
    ids=["here", "workers"],
)
def test_choices_reach_their_entities_in_every_step(
    make: Callable[[Callable[[], Environment]], VecEnv], examples: int | None
) -> None:
    @settings(max_examples=examples or settings.default.max_examples)
    @given(worlds(), st.integers(0, 2**32 - 1))
    def check(world: World, seed: int) -> None:
        with contextlib.closing(make(functools.partial(Replay, *vars(world).values()))) as envs:
            envs.seed(seed)
            obs = envs.reset(world.obs_space)
            turns = -obs.reward.astype(int)
            rng = np.random.default_rng(seed)
            for step in range(3):
                choices = random_choices(envs, obs, rng)
                frames = [world.frames[(turn + step) % len(world.frames)] for turn in turns]
                expected = [
                    told(world, frame, {name: rows[i].values for name, rows in choices.items()})
                    for i, frame in enumerate(frames)
                ]
                obs = envs.act(choices, world.obs_space)
                assert obs.reward.tolist() == expected

    check()
