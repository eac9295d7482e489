"""Concatenation and selection of frames against loops over frames."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from entity_env import (
    ActionSpace,
    CategoricalActionSpace,
    Ragged,
    SelectEntityActionSpace,
    VecSelectEntityActionMask,
    batch_obs,
)
from rogue_net import ActionBatch, EntityBatch, RaggedTensor
from tests.rogue_net.nets import rows_of
from tests.strategies import World, worlds


def split(rows: RaggedTensor) -> list[Any]:
    return [rows_of(rows, i).tolist() for i in range(len(rows.lengths))]


def indices(frames: Sequence[int]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return np.array(frames, dtype=np.int64)


@st.composite
def ragged_tensors(draw: st.DrawFn, columns: tuple[int, ...] = (2,)) -> RaggedTensor:
    lengths = indices(draw(st.lists(st.integers(0, 3), max_size=5)))
    shape = (int(lengths.sum()), *columns)
    return RaggedTensor(torch.arange(int(np.prod(shape))).reshape(shape), lengths)


def picks(num_frames: int) -> st.SearchStrategy[list[int]]:
    """Frames in any order, some twice, some never."""
    if num_frames == 0:
        return st.just([])
    return st.lists(st.integers(0, num_frames - 1), max_size=6)


def test_frame_of_row_is_the_frame_of_each_row() -> None:
    rows = RaggedTensor(torch.zeros(4, 1), indices([0, 1, 0, 3, 0]))
    assert rows.frame_of_row().tolist() == [1, 3, 3, 3]


@pytest.mark.parametrize("columns", [(), (0,), (2,)])
@given(data=st.data())
def test_take_selects_frames(columns: tuple[int, ...], data: st.DataObject) -> None:
    rows = data.draw(ragged_tensors(columns))
    frames = data.draw(picks(len(rows.lengths)))
    selected = rows.take(indices(frames))
    assert split(selected) == [split(rows)[i] for i in frames]
    assert selected.values.shape == (sum(selected.lengths), *columns)
    assert selected.values.dtype == rows.values.dtype
    assert selected.lengths.dtype == np.int64


@pytest.mark.parametrize("columns", [(), (0,), (2,)])
@given(num_rows=st.integers(0, 3), data=st.data())
def test_take_indexes_whole_frames_of_equal_length(
    columns: tuple[int, ...], num_rows: int, data: st.DataObject
) -> None:
    rows = RaggedTensor(
        torch.arange(5 * num_rows * int(np.prod(columns))).reshape(5 * num_rows, *columns),
        np.full(5, num_rows),
    )
    frames = data.draw(picks(5))
    selected = rows.take(indices(frames))
    assert split(selected) == [split(rows)[i] for i in frames]
    assert selected.values.shape == (num_rows * len(frames), *columns)


@given(rows=ragged_tensors(), data=st.data())
def test_consecutive_frames_are_views(rows: RaggedTensor, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(rows.lengths)))
    stop = data.draw(st.integers(start, len(rows.lengths)))
    some = rows.slice(slice(start, stop))
    assert split(some) == split(rows)[start:stop]
    if len(some.values):
        first = int(rows.lengths[:start].sum())
        assert some.values.data_ptr() == rows.values[first:].data_ptr(), "nothing is copied"


@given(st.lists(ragged_tensors(), min_size=1, max_size=4))
def test_cat_concatenates_frames(pieces: list[RaggedTensor]) -> None:
    whole = RaggedTensor.cat(pieces)
    assert split(whole) == [rows for piece in pieces for rows in split(piece)]


def described(batch: EntityBatch, action_space: Mapping[str, ActionSpace]) -> list[Any]:
    """Each frame as plain lists, in which a mask or visibility not given shows as all allowed."""
    for rows in [*batch.features.values(), *batch.visible.values()]:
        assert len(rows.lengths) == batch.num_frames
    return [
        {
            "features": {name: rows_of(rows, i).tolist() for name, rows in batch.features.items()},
            "visible": {
                name: rows_of(batch.visible[name], i).tolist()
                if name in batch.visible
                else [True] * rows.lengths[i]
                for name, rows in batch.features.items()
            },
            "actions": {
                name: legal(batch.actions[name], space, i) for name, space in action_space.items()
            },
        }
        for i in range(batch.num_frames)
    ]


def legal(action: ActionBatch, space: ActionSpace, i: int) -> list[tuple[int, list[int]]]:
    """Each actor of frame i with its legal choices."""
    actors = rows_of(action.actors, i).tolist()
    if isinstance(space, SelectEntityActionSpace):
        assert action.actees is not None
        choices = rows_of(action.actees, i).tolist()
    else:
        assert action.actees is None
        choices = list(range(len(space)))
    allowed = [[True] * len(choices)] * len(actors)
    if action.mask is not None:
        assert action.mask.values.dtype == torch.bool
        allowed = rows_of(action.mask, i).reshape(len(actors), len(choices)).tolist()
    return [
        (actor, [choice for choice, ok in zip(choices, row, strict=True) if ok])
        for actor, row in zip(actors, allowed, strict=True)
    ]


@pytest.mark.slow
@settings(max_examples=15)
@given(worlds(numbers=True), st.data())
def test_take_selects_all_data_of_frames(world: World, data: st.DataObject) -> None:
    batch = EntityBatch.of(batch_obs(world.frames, world.obs_space, world.action_space))
    frames = data.draw(picks(batch.num_frames))
    frames_before = described(batch, world.action_space)
    selected = batch.take(indices(frames))
    assert selected.num_frames == len(frames)
    assert described(selected, world.action_space) == [frames_before[i] for i in frames]
    assert described(batch, world.action_space) == frames_before
    start = data.draw(st.integers(0, batch.num_frames))
    stop = data.draw(st.integers(start, batch.num_frames))
    some = replace(batch, keys=np.arange(batch.num_frames)).slice(slice(start, stop))
    assert described(some, world.action_space) == frames_before[start:stop]
    assert some.keys is not None
    assert some.keys.tolist() == list(range(start, stop))


@settings(max_examples=15)
@given(worlds(numbers=True))
def test_cat_equals_the_batch_of_all_frames(world: World) -> None:
    """Single frames may omit masks and visibility, which the batch then fills in."""
    vec_obs = batch_obs(world.frames, world.obs_space, world.action_space)
    pieces = [
        EntityBatch.of(batch_obs([obs], world.obs_space, world.action_space))
        for obs in world.frames
    ]
    joined, whole = EntityBatch.cat(pieces), EntityBatch.of(vec_obs)
    assert joined.num_frames == len(world.frames)
    assert joined.visible.keys() == whole.visible.keys()
    for name, action in whole.actions.items():
        assert (joined.actions[name].mask is None) == (action.mask is None)
    apart = [frame for piece in pieces for frame in described(piece, world.action_space)]
    assert described(joined, world.action_space) == apart
    assert described(whole, world.action_space) == apart
    for i in range(len(pieces)):
        again = described(joined.take(indices([i])), world.action_space)
        assert again == described(pieces[i], world.action_space)


@settings(max_examples=15)
@given(worlds(numbers=True))
def test_batch_equals_the_vectorised_observation(world: World) -> None:
    vec_obs = batch_obs(world.frames, world.obs_space, world.action_space)
    batch = EntityBatch.of(vec_obs)
    assert batch.num_frames == len(vec_obs)
    pairs = [(batch.features, vec_obs.features), (batch.visible, vec_obs.visible)]
    for ours, theirs in pairs:
        assert ours.keys() == theirs.keys()
        for name, rows in theirs.items():
            assert_same_rows(ours[name], rows)
    assert batch.actions.keys() == vec_obs.action_masks.keys()
    for name, mask in vec_obs.action_masks.items():
        action = batch.actions[name]
        assert_same_rows(action.actors, mask.actors)
        assert_same_rows(action.mask, mask.mask)
        is_select = isinstance(mask, VecSelectEntityActionMask)
        assert_same_rows(action.actees, mask.actees if is_select else None)
    assert batch.num_entities() == sum(
        obs.num_entities(name) for obs in world.frames for name in world.obs_space.entities
    )


def assert_same_rows(ours: RaggedTensor | None, theirs: Any) -> None:
    assert (ours is None) == (theirs is None)
    if ours is not None:
        assert ours.values.numpy().dtype == theirs.values.dtype
        np.testing.assert_array_equal(ours.values.numpy(), theirs.values)
        np.testing.assert_array_equal(ours.lengths, theirs.lengths)


def test_cat_fills_missing_masks_with_true() -> None:
    """Also where a piece has frames, but no actors or no actees."""
    mask = RaggedTensor(torch.tensor([[True, False], [False, True]]), indices([2]))
    actors = RaggedTensor(torch.tensor([4, 7]), indices([2]))
    no_actors = RaggedTensor(torch.zeros(0, dtype=torch.int64), indices([0, 0]))
    joined = ActionBatch.cat(
        [
            ActionBatch(actors),
            ActionBatch(no_actors),
            ActionBatch(actors, mask),
            ActionBatch(no_actors),
        ]
    )
    space = CategoricalActionSpace(["a", "b"])
    everything, something = [(4, [0, 1]), (7, [0, 1])], [(4, [0]), (7, [1])]
    assert [legal(joined, space, i) for i in range(6)] == [everything, [], [], something, [], []]


def test_cat_fills_missing_pair_masks_with_true() -> None:
    actors = RaggedTensor(torch.tensor([0, 1]), indices([2]))
    actees = RaggedTensor(torch.tensor([3, 1, 2]), indices([3]))
    mask = RaggedTensor(torch.tensor([True, False, True, False, True, False]), indices([6]))
    no_actors = RaggedTensor(torch.zeros(0, dtype=torch.int64), indices([0]))
    joined = ActionBatch.cat(
        [
            ActionBatch(no_actors, None, actees),
            ActionBatch(actors, mask, actees),
            ActionBatch(actors, None, actees),
        ]
    )
    assert [legal(joined, SelectEntityActionSpace(), i) for i in range(3)] == [
        [],
        [(0, [3, 2]), (1, [1])],
        [(0, [3, 1, 2]), (1, [3, 1, 2])],
    ]
    assert ActionBatch.cat([ActionBatch(actors, None, actees)] * 2).mask is None


def test_cat_fills_missing_visibility_with_true() -> None:
    features = {"A": RaggedTensor(torch.zeros(2, 1), indices([2]))}
    hidden = {"A": RaggedTensor(torch.tensor([True, False]), indices([2]))}
    pieces = [EntityBatch(features, {}, {}, 1), EntityBatch(features, hidden, {}, 1)]
    assert split(EntityBatch.cat(pieces).visible["A"]) == [[True, True], [True, False]]
    assert EntityBatch.cat(pieces[:1] * 2).visible == {}


def test_batch_copies_the_observation_arrays() -> None:
    """Environments may write their next frames into the same memory."""
    values, lengths = np.ones((2, 1), dtype=np.float32), indices([2])
    rows = RaggedTensor.of(Ragged(values, lengths), torch.device("cpu"))
    values[:], lengths[:] = 0, 0
    assert split(rows) == [[[1.0], [1.0]]]
