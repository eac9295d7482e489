"""What a policy chose for an entity reaches that entity, in this process and in workers."""

import contextlib
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_env import (
    Action,
    ActionSpace,
    CategoricalAction,
    Environment,
    EnvList,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    Observation,
    ObsSpace,
    ParallelEnvList,
    SelectEntityActionSpace,
    VecEnv,
)
from entity_env.spaces import GLOBAL
from tests.entity_env.builders import allowed_by_frame, random_choices
from tests.strategies import World, entities_named, worlds

NUM_ENVS = 5


def digest(chosen: dict[str, list[tuple[Any, Any]]]) -> float:
    """A number that stands for what each entity was told to do, exact in float32."""
    return float(zlib.crc32(repr(sorted(chosen.items())).encode()) % 2**20)


class Replay(Environment):
    """Shows the frames of a world in turn and rewards with the digest of what it was told."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.turn = 0

    def obs_space(self) -> ObsSpace:
        return self.world.obs_space

    def action_space(self) -> dict[str, ActionSpace]:
        return self.world.action_space

    def seed(self, seed: int) -> None:
        self.turn = seed % 1000

    def reset(self) -> Observation:
        return self.show(-float(self.turn))

    def act(self, actions: Mapping[str, Action]) -> Observation:
        self.turn += 1
        return self.show(digest({name: pairs_of(action) for name, action in actions.items()}))

    def show(self, reward: float) -> Observation:
        frame = self.world.frames[self.turn % len(self.world.frames)]
        return Observation(
            features=frame.features,
            ids=frame.ids,
            global_features=frame.global_features,
            actions=frame.actions,
            visible=frame.visible,
            reward=reward,
        )


def pairs_of(action: Action) -> list[tuple[Any, Any]]:
    """Who was told what."""
    if isinstance(action, GlobalCategoricalAction):
        return [(GLOBAL, action.label)]
    told = action.labels if isinstance(action, CategoricalAction) else action.actees
    return list(zip(action.actors, told, strict=True))


def told(world: World, obs: Observation, chosen: Mapping[str, Any]) -> float:
    """The digest of what a policy chose for the actors of a frame, one entity at a time."""
    pairs = {}
    for name, space in world.action_space.items():
        mask = obs.actions.get(name)
        actors = [actor for actor, _ in allowed_by_frame(obs, world.obs_space, space, mask)]
        if mask is None or (isinstance(mask, GlobalCategoricalActionMask) and not actors):
            continue
        if isinstance(space, SelectEntityActionSpace):
            known = entities_named(obs, world.obs_space, mask.actee_ids, mask.actee_types)  # type: ignore[union-attr]
        else:
            known = space.index_to_label
        pairs[name] = [(a, known[c]) for a, c in zip(actors, chosen[name], strict=True)]
    return digest(pairs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "examples"),
    [
        (lambda create: EnvList(create, NUM_ENVS), 60),
        (lambda create: ParallelEnvList(create, NUM_ENVS, 2), 8),
    ],
    ids=["here", "workers"],
)
def test_what_was_chosen_for_an_entity_reaches_it_step_after_step(
    make: Callable[[Callable[[], Environment]], VecEnv], examples: int
) -> None:
    @settings(max_examples=examples)
    @given(worlds(), st.integers(0, 2**32 - 1))
    def check(world: World, seed: int) -> None:
        with contextlib.closing(make(lambda: Replay(world))) as envs:
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
