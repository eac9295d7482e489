"""`encode` is the inverse of `decode` for all action spaces; errors list the legal choices."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_env import (
    Action,
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    ContinuousAction,
    Entity,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    GlobalContinuousAction,
    InvalidAction,
    Observation,
    ObsSpace,
    SelectEntityAction,
    SelectEntityActionMask,
    SelectEntityActionSpace,
    batch_obs,
)
from entity_env.testing.random_play import random_choices
from entity_env.vec.batching import unbatch_actions
from tests.strategies import World, worlds


def shuffled(action: Action, rng: np.random.Generator) -> Action:
    """The same action with its actors and labels in another order."""
    if isinstance(action, GlobalCategoricalAction):
        return replace(action, index=-1)
    if isinstance(action, GlobalContinuousAction):
        return GlobalContinuousAction(action.values[::-1], action.names[::-1])
    if isinstance(action, ContinuousAction):
        order = rng.permutation(len(action.actors))
        actors = [action.actors[i] for i in order]
        return ContinuousAction(actors, action.values[order][:, ::-1], action.names[::-1])
    assert isinstance(action, CategoricalAction | SelectEntityAction)
    order = rng.permutation(len(action.actors))
    actors = [action.actors[i] for i in order]
    if isinstance(action, SelectEntityAction):
        return SelectEntityAction(actors, [action.actees[i] for i in order])
    labels = [*reversed(action.index_to_label)]
    return CategoricalAction(actors, len(labels) - 1 - action.indices[order], labels)


def plain(action: Action | None) -> Any:
    if action is None:
        return None
    named = vars(action) | {"chosen": [*action.chosen]}
    return type(action), {
        k: np.asarray(v).tolist() if k == "values" else [*v] if np.iterable(v) else v
        for k, v in named.items()
    }


@given(worlds(numbers=True), st.integers(0, 2**32 - 1))
def test_encode_inverts_decode_in_any_order_of_actors(world: World, seed: int) -> None:
    rng = np.random.default_rng(seed)
    batch = batch_obs(world.frames, world.obs_space, world.action_space)
    choices = random_choices(batch, world.action_space, rng)
    made = batch, world.frames, world.obs_space, world.action_space
    actions = unbatch_actions(choices, *made)
    again = {}
    for name, space in world.action_space.items():
        of_frames = [taken.get(name) for taken in actions]
        others = [None if action is None else shuffled(action, rng) for action in of_frames]
        for given_actions in (of_frames, others):
            again[name] = space.encode(
                name, given_actions, batch.action_masks[name], world.frames, world.obs_space
            )
            np.testing.assert_array_equal(again[name].values, choices[name].values)
            np.testing.assert_array_equal(again[name].lengths, choices[name].lengths)
            assert again[name].values.dtype == space.choice_dtype
    for taken, expected in zip(unbatch_actions(again, *made), actions, strict=True):
        assert {name: plain(action) for name, action in taken.items()} == {
            name: plain(action) for name, action in expected.items()
        }


SPACE = ObsSpace(entities={"Cat": Entity(["x"]), "Mat": Entity(["x"])})
ACTIONS = {
    "go": CategoricalActionSpace(["left", "right"]),
    "sit": SelectEntityActionSpace(),
    "meow": GlobalCategoricalActionSpace(["soft", "loud"]),
}
FRAME = Observation(
    entities={"Cat": ([[0.0], [1.0]], ["tom", "kit"]), "Mat": [[2.0]]},
    actions={
        "go": CategoricalActionMask(actor_types=["Cat"], mask=[[True, False], [True, True]]),
        "sit": SelectEntityActionMask(actor_ids=["kit"], actee_types=["Mat"]),
        "meow": GlobalCategoricalActionMask(mask=[False, True]),
    },
)


def go(actors: list[Any], indices: list[int]) -> CategoricalAction:
    return CategoricalAction(actors, np.array(indices, np.int64), ["left", "right"])


@pytest.mark.parametrize(
    ("name", "action", "message"),
    [
        (
            "go",
            go(["tom", "kit"], [1, 1]),
            "actions['go'], actor 'tom': expected one of a list of 1: ['left'], got 'right'",
        ),
        (
            "go",
            replace(go(["tom", "kit"], [0, 1]), index_to_label=["left", "up"]),
            "actor 'kit': expected one of ['left', 'right'], got 'up'",
        ),
        ("go", go(["tom"], [0]), "of the actors ['tom', 'kit'], got actors ['tom']"),
        ("go", go(["tom", "tom"], [0, 0]), "of the actors ['tom', 'kit'], got actors"),
        ("go", go(["tom", "kat"], [0, 0]), "of the actors ['tom', 'kit'], got actors"),
        ("go", go(["tom", "kit"], [0]), "a CategoricalAction of the actors"),
        ("go", go(["tom", "kit"], [0, 2]), "list index out of range"),
        ("go", go(["tom", []], [0, 1]), "unhashable"),
        ("go", None, "expected a CategoricalAction of the actors ['tom', 'kit'], got none"),
        ("go", GlobalCategoricalAction(0, "left"), "got GlobalCategoricalAction"),
        ("sit", SelectEntityAction(["kit"], ["tom"]), "expected one of [('Mat', 0)], got 'tom'"),
        ("meow", GlobalCategoricalAction(0, "soft"), "actions['meow']: expected one of ['loud']"),
        ("meow", None, "expected a GlobalCategoricalAction"),
    ],
)
def test_encode_of_an_illegal_action_raises(name: str, action: Action | None, message: str) -> None:
    nothing = Observation(entities={"Cat": ([[0.0]], ["tom"])})
    frames = [nothing, FRAME]
    mask = batch_obs(frames, SPACE, ACTIONS).action_masks[name]
    with pytest.raises(InvalidAction) as error:
        ACTIONS[name].encode(name, [None, action], mask, frames, SPACE)
    assert error.value.env_index == 1
    assert str(error.value).startswith(f"actions[{name!r}]")
    assert message.replace("a list of 1: ", "") in str(error.value)


def test_encode_of_an_action_without_actors_raises() -> None:
    frames = [Observation(entities={"Cat": ([[0.0]], ["tom"])})]
    for name, action in (("go", go(["tom"], [0])), ("meow", GlobalCategoricalAction(0, "soft"))):
        mask = batch_obs(frames, SPACE, ACTIONS).action_masks[name]
        with pytest.raises(InvalidAction, match="expected no action, as there are no actors"):
            ACTIONS[name].encode(name, [action], mask, frames, SPACE)
        assert len(ACTIONS[name].encode(name, [None], mask, frames, SPACE).values) == 0
