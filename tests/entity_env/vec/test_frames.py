"""Positions of named entities: cached layouts match each frame."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given

from entity_env import (
    ActionSpace,
    CategoricalActionMask,
    CategoricalActionSpace,
    Entity,
    EnvList,
    InvalidObservation,
    Observation,
    ObsSpace,
    SelectEntityActionMask,
    SelectEntityActionSpace,
    batch_obs,
)
from entity_env.spaces import has_global_entity
from entity_env.testing.random_play import random_choices
from entity_env.vec import frames as located
from entity_env.vec.batching import batch_entities
from tests.entity_env.builders import assert_same
from tests.entity_env.worlds import Walk
from tests.strategies import World, worlds


@pytest.mark.slow
@given(worlds(numbers=True))
def test_located_positions_match_each_frame(world: World) -> None:
    """All frames together, by type or by id, compared with each frame on its own."""
    types, n = list(world.obs_space.entities), len(world.frames)

    def frames_of(frames: list[Observation]) -> located.Frames:
        with_globals = has_global_entity(world.obs_space, world.action_space)
        rows, visible, _ = batch_entities(frames, world.obs_space, with_globals)
        return located.Frames(frames, types, rows, visible)

    frames, alone = frames_of(world.frames), [frames_of([frame]) for frame in world.frames]
    for naming in (None, types, types[:1], types[::-1]):
        got = frames.locate([None] * n, [naming] * n, "who")
        each = [one.locate([None], [naming], "who").values for one in alone]
        np.testing.assert_array_equal(got.values, np.concatenate(each))
        assert got.lengths.tolist() == [len(rows) for rows in each]
    ids = [[who for name in types for who in frame.ids.get(name) or ()] for frame in world.frames]
    places = [frame.id_to_index(world.obs_space) for frame in world.frames]
    # All by id, and every second frame by type.
    for by_type in (range(0), range(0, n, 2)):
        given_ids = [None if i in by_type else ids[i] for i in range(n)]
        given_types = [types if i in by_type else None for i in range(n)]
        named = frames.locate(given_ids, given_types, "who")
        expected = [
            list(range(len(place))) if i in by_type else [place[who] for who in ids[i]]
            for i, place in enumerate(places)
        ]
        assert named.values.tolist() == [row for rows in expected for row in rows]
        assert named.lengths.tolist() == [len(rows) for rows in expected]
    # A single one by id.
    for k in range(3):
        single = [frame_ids[k : k + 1] for frame_ids in ids]
        positions = frames_of(world.frames).locate(single, [None] * n, "who")
        pairs = zip(places, single, strict=True)
        assert positions.values.tolist() == [place[who] for place, names in pairs for who in names]


@pytest.mark.slow
@given(worlds(numbers=True))
def test_modifying_a_batch_does_not_change_the_next_one(world: World) -> None:
    """Cached positions are copied into each batch."""
    first = batch_obs(world.frames, world.obs_space, world.action_space)
    for mask in first.action_masks.values():
        mask.actors.values[:] = -1
        mask.actors.lengths[:] = -1
    second = batch_obs(world.frames, world.obs_space, world.action_space)
    located._layout.cache_clear()
    assert_same(second, batch_obs(world.frames, world.obs_space, world.action_space))


def test_equal_counts_of_other_types_have_other_positions() -> None:
    """Two types with 1 and 2 entities differ from one type in two frames."""
    pair = ObsSpace(entities={"A": Entity([]), "B": Entity([])})
    single = ObsSpace(entities={"A": Entity([])})
    move = {"move": CategoricalActionSpace(["a", "b"])}

    def frame(*counts: int) -> Observation:
        entities = {name: [[]] * n for name, n in zip("AB", counts, strict=False)}
        return Observation(entities=entities, actions={"move": CategoricalActionMask()})

    assert batch_obs([frame(1, 2)], pair, move).action_masks["move"].actors.lengths.tolist() == [3]
    masks = batch_obs([frame(1), frame(2)], single, move).action_masks
    assert masks["move"].actors.lengths.tolist() == [1, 2]
    assert masks["move"].actors.values.tolist() == [0, 0, 1]


@pytest.mark.parametrize("types", [1, 2])
@pytest.mark.parametrize("give", [set, dict.keys, dict], ids=["set", "keys", "dictionary"])
def test_errors_for_unordered_ids_name_the_environment(give: Any, types: int) -> None:
    names = ["Unit", "Rock"][:types]

    class Units(Walk):
        def obs_space(self) -> ObsSpace:
            return ObsSpace(entities={name: Entity(["x"]) for name in names})

        def action_space(self) -> dict[str, ActionSpace]:
            return {"follow": SelectEntityActionSpace()}

        def reset(self) -> Observation:
            follow = SelectEntityActionMask(actor_types=names, actee_types=names)
            units = ([[0.0], [1.0]], give({"u7": 0, "u9": 1}))
            return Observation(entities={"Unit": units}, actions={"follow": follow})

    checked = EnvList(Units, 2, validate=True)
    with pytest.raises(
        InvalidObservation, match=r"environment 0, .*ids\['Unit'\]: expected a list"
    ):
        checked.reset(checked.obs_space())
    # Without checks of frames, as soon as an action names entities.
    envs = EnvList(Units, 2)
    obs = envs.reset(envs.obs_space())
    choices = random_choices(obs, envs.action_space(), np.random.default_rng(0))
    with pytest.raises(InvalidObservation, match="environment 0: ids: expected a list"):
        envs.act(choices, envs.obs_space())
