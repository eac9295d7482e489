"""Batching, compared with a slow reference for one entity at a time."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from entity_env import (
    CategoricalAction,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    EntityEnvError,
    GlobalCategoricalAction,
    GlobalCategoricalActionMask,
    GlobalCategoricalActionSpace,
    InvalidAction,
    InvalidObservation,
    Observation,
    ObsSpace,
    Ragged,
    SelectEntityAction,
    SelectEntityActionMask,
    SelectEntityActionSpace,
    VecActionMask,
    VecObs,
    VecSelectEntityActionMask,
    action_index_to_actions,
    batch_obs,
)
from entity_env.spaces import GLOBAL, has_global_entity
from entity_env.vec.batching import unbatch_actions
from tests.entity_env.builders import allowed_by_frame, assert_same
from tests.strategies import World, entities_of, worlds


@pytest.mark.slow
@given(worlds(numbers=True))
def test_features_rewards_flags_and_metrics_match_each_frame(world: World) -> None:
    batch = batch_obs(world.frames, world.obs_space, world.action_space)
    for i, obs in enumerate(world.frames):
        for name, entity in world.obs_space.entities.items():
            expected = np.array(obs.features.get(name, []), dtype=np.float32)
            got = batch.features[name][i].values
            assert got.dtype == np.float32
            np.testing.assert_array_equal(
                got, expected.reshape(obs.num_entities(name), len(entity.features))
            )
        if has_global_entity(world.obs_space, world.action_space):
            np.testing.assert_array_equal(
                batch.features[GLOBAL][i].values, np.array([obs.global_features], dtype=np.float32)
            )
        else:
            assert GLOBAL not in batch.features
        assert batch.reward[i] == np.float32(obs.reward)
        assert (batch.done[i], batch.truncated[i]) == (obs.done, obs.truncated)
        assert batch.terminated[i] == obs.terminated
        for name, values in batch.env_metrics.items():
            assert values[i].values.tolist() == [obs.metrics[n] for n in [name] if n in obs.metrics]
    assert batch.env_metrics.keys() == {name for obs in world.frames for name in obs.metrics}


@pytest.mark.slow
@given(worlds())
def test_visibility_matches_each_frame(world: World) -> None:
    batch = batch_obs(world.frames, world.obs_space, world.action_space)
    for name in world.obs_space.entities:
        assert (name in batch.visible) == any(name in obs.visible for obs in world.frames)
        if name in batch.visible:
            for i, obs in enumerate(world.frames):
                flags = [True] * obs.num_entities(name)
                assert batch.visible[name][i].values.tolist() == list(obs.visible.get(name, flags))


@pytest.mark.slow
@given(worlds())
def test_masks_match_each_frame(world: World) -> None:
    batch = batch_obs(world.frames, world.obs_space, world.action_space)
    assert batch.action_masks.keys() == world.action_space.keys()
    for name, space in world.action_space.items():
        mask = batch.action_masks[name]
        has_mask = any(getattr(o.actions.get(name), "mask", None) is not None for o in world.frames)
        assert (mask.mask is None) == (not has_mask)
        for i, obs in enumerate(world.frames):
            assert allowed_pairs(mask, i, space, obs, world.obs_space) == allowed_by_frame(
                obs, world.obs_space, space, obs.actions.get(name)
            )


def allowed_pairs(
    mask: VecActionMask, i: int, space: Any, obs: Observation, obs_space: ObsSpace
) -> list[tuple[Any, list[Any]]]:
    """What the batch says: each actor with its allowed choices, in terms of names and labels."""
    in_frame = [*entities_of(obs, obs_space.entities), GLOBAL]
    actors = [in_frame[k] for k in mask.actors[i].values]
    if isinstance(mask, VecSelectEntityActionMask):
        choices = [in_frame[k] for k in mask.actees[i].values]
    else:
        choices = space.index_to_label
    rows = [[True] * len(choices)] * len(actors)
    if mask.mask is not None:
        rows = mask.mask[i].values.reshape(len(actors), len(choices)).tolist()
    return [
        (actor, [choice for choice, ok in zip(choices, row, strict=True) if ok])
        for actor, row in zip(actors, rows, strict=True)
    ]


@pytest.mark.slow
@given(worlds(), st.integers(0, 2**32 - 1))
def test_unbatched_actions_match_the_choices_of_each_entity(world: World, seed: int) -> None:
    batch = batch_obs(world.frames, world.obs_space, world.action_space)
    wanted = [
        {
            name: [
                (actor, legal[(seed + k) % len(legal)])
                for k, (actor, legal) in enumerate(
                    allowed_by_frame(obs, world.obs_space, space, obs.actions.get(name))
                )
            ]
            for name, space in world.action_space.items()
        }
        for obs in world.frames
    ]
    choices = {
        name: choices_for([w[name] for w in wanted], batch, name, space, world)
        for name, space in world.action_space.items()
    }
    actions = unbatch_actions(choices, batch, world.frames, world.obs_space, world.action_space)
    for i, obs in enumerate(world.frames):
        for name, space in world.action_space.items():
            action = actions[i].get(name)
            if name not in obs.actions:
                assert action is None
            elif isinstance(space, GlobalCategoricalActionSpace):
                got = [] if action is None else [(GLOBAL, action.label)]  # type: ignore[union-attr]
                assert got == wanted[i][name]
            elif isinstance(action, CategoricalAction):
                assert list(zip(action.actors, action.labels, strict=True)) == wanted[i][name]
            else:
                assert isinstance(action, SelectEntityAction)
                assert list(zip(action.actors, action.actees, strict=True)) == wanted[i][name]


def choices_for(
    wanted: list[list[tuple[Any, Any]]], batch: VecObs, name: str, space: Any, world: World
) -> Ragged:
    """Names and labels as the indices that a policy would give."""
    mask = batch.action_masks[name]
    indices = []
    for i, pairs in enumerate(wanted):
        if isinstance(mask, VecSelectEntityActionMask):
            in_frame = entities_of(world.frames[i], world.obs_space.entities)
            candidates = [in_frame[k] for k in mask.actees[i].values]
        else:
            candidates = space.index_to_label
        indices += [candidates.index(choice) for _, choice in pairs]
    lengths = np.array([len(pairs) for pairs in wanted], dtype=np.int64)
    return Ragged(np.array(indices, dtype=np.int64), lengths)


@pytest.mark.slow
@given(worlds(numbers=True))
def test_concatenated_batches_equal_one_batch(world: World) -> None:
    """Each worker process makes a batch of its environments."""
    whole = batch_obs(world.frames, world.obs_space, world.action_space)
    pieces = [batch_obs([obs], world.obs_space, world.action_space) for obs in world.frames]
    assert_same(VecObs.cat(pieces), whole)


OBS_SPACE = ObsSpace(entities={"A": Entity(["x"])})
MOVE = {"move": CategoricalActionSpace(["left", "right"])}
TWO_ACTORS = Observation(
    features={"A": [[1.0], [2.0]]},
    actions={"move": CategoricalActionMask(mask=[[True, True], [False, True]])},
)


def test_actors_without_actees_are_left_out() -> None:
    """Also where there is no mask; the second frame has an actor and nothing to select."""
    space = ObsSpace(entities={"Unit": Entity(["x"]), "Aim": Entity(["x"])})
    actions = {"shoot": SelectEntityActionSpace()}
    mask = SelectEntityActionMask(actor_types=["Unit"], actee_types=["Aim"])
    frames = [
        Observation(features={"Unit": [[0.0]], "Aim": aims}, actions={"shoot": mask})
        for aims in ([[0.0], [1.0]], [])
    ]
    batch = batch_obs(frames, space, actions).action_masks["shoot"]
    assert batch.actors.lengths.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({}, "expected .'move'."),
        ({"move": Ragged(np.array([0]), np.array([1]))}, r"expected \[2\] choices"),
        ({"move": Ragged(np.array([0, 2]), np.array([2]))}, "choice 2 in environment 0"),
        ({"move": Ragged(np.array([-1, 1]), np.array([2]))}, "choice -1 in environment 0"),
        ({"move": Ragged(np.array([1, 0]), np.array([2]))}, "position 1, is not allowed"),
    ],
)
def test_choices_that_the_batch_does_not_allow_are_refused(
    choices: dict[str, Ragged], message: str
) -> None:
    batch = batch_obs([TWO_ACTORS], OBS_SPACE, MOVE)
    with pytest.raises(InvalidAction, match=message):
        unbatch_actions(choices, batch, [TWO_ACTORS], OBS_SPACE, MOVE)


def test_actions_of_one_frame_have_its_probabilities() -> None:
    choices = {"move": Ragged(np.array([0, 1, 1, 0, 1]), np.array([3, 2]))}
    probs = {"move": np.array([[0.9, 0.1], [0.0, 1.0]], dtype=np.float32)}
    actions = action_index_to_actions(OBS_SPACE, MOVE, choices, TWO_ACTORS, 1, probs)
    action = actions["move"]
    assert isinstance(action, CategoricalAction)
    assert action.labels == ["left", "right"]
    assert action.actors == [("A", 0), ("A", 1)]
    assert action.probs is probs["move"]


def test_ragged_buffers_are_accepted_as_choices() -> None:
    ragged_buffer = pytest.importorskip("ragged_buffer")
    chosen = ragged_buffer.RaggedBufferI64.from_flattened(
        np.array([[0], [1]]), np.array([2], dtype=np.int64)
    )
    actions = action_index_to_actions(OBS_SPACE, MOVE, {"move": chosen}, TWO_ACTORS)
    assert actions["move"].labels == ["left", "right"]  # type: ignore[union-attr]


def test_errors_name_the_first_invalid_frame() -> None:
    good = Observation(features={"A": [[1.0]]})
    bad = Observation(features={"A": [[1.0, 2.0]]})
    with pytest.raises(InvalidObservation, match="environment 2: features of 'A'") as caught:
        batch_obs([good, good, bad], OBS_SPACE, MOVE)
    assert caught.value.env_index == 2
    assert isinstance(caught.value, EntityEnvError)


def test_global_actions_have_label_and_index() -> None:
    space = {"plan": GlobalCategoricalActionSpace(["wait", "go"])}
    obs = Observation(actions={"plan": GlobalCategoricalActionMask()})
    chosen = {"plan": Ragged(np.array([1]), np.array([1]))}
    assert action_index_to_actions(ObsSpace(), space, chosen, obs) == {
        "plan": GlobalCategoricalAction(1, "go")
    }


@pytest.mark.parametrize("hidden", range(3))
def test_hidden_actors_are_rejected(hidden: int) -> None:
    """Positions are relative to the type and the frame."""
    space = ObsSpace(entities={name: Entity([]) for name in "ABC"})
    entities = {"A": [[], []], "C": [[]], "B": [[]]}
    everyone = {"move": CategoricalActionMask()}
    frames = [
        Observation(
            features=entities,
            actions=everyone,
            visible={"B": [i != hidden], "A": [True, True]},
        )
        for i in range(3)
    ]
    with pytest.raises(InvalidObservation, match="entity 2 of the frame") as caught:
        batch_obs(frames, space, MOVE)
    assert caught.value.env_index == hidden
