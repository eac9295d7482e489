"""Batches that are sent as one block of bytes: as pickling each array would have sent them."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as some

from entity_env import batch_obs
from entity_env.workers.channel import FlatArrays
from entity_env.workers.flat_obs import put_together, take_apart
from tests.entity_env.builders import assert_same
from tests.strategies import World, worlds


def sent(arrays: list[np.ndarray]) -> list[np.ndarray]:  # type: ignore[type-arg]
    """What arrives of arrays, whose bytes go in memory beside the pickle."""
    beside: list[pickle.PickleBuffer] = []
    words = pickle.dumps(FlatArrays(arrays), protocol=5, buffer_callback=beside.append)
    got: list[np.ndarray] = pickle.loads(  # type: ignore[type-arg]
        words, buffers=[bytearray(buffer.raw()) for buffer in beside]
    )
    return got


numbers = some.arrays(
    st.sampled_from(["?", "u1", "<i4", "<i8", ">i8", "<f4", "<f8", "O"]),
    some.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    elements=st.just(1),
)


@given(st.lists(numbers, max_size=5), st.booleans())
def test_arrays_arrive_whole(arrays: list[np.ndarray], transposed: bool) -> None:  # type: ignore[type-arg]
    given_ = [array.T for array in arrays] if transposed else arrays
    got = sent(given_)
    assert len(got) == len(given_)
    for one, other in zip(got, given_, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other, strict=True)


def test_arrays_that_arrived_can_be_written_and_lie_where_numbers_lie() -> None:
    got = sent([np.array([True]), np.arange(3.0), np.arange(3, dtype=np.int64)[::2]])
    assert all(array.flags.writeable and array.flags.aligned for array in got)
    assert [array.tolist() for array in got] == [[True], [0.0, 1.0, 2.0], [0, 2]]


@pytest.mark.slow
@settings(max_examples=50)
@given(worlds())
def test_a_batch_arrives_as_it_was(world: World) -> None:
    batch = batch_obs(world.frames, world.obs_space, world.action_space)
    names, arrays = take_apart(batch)
    got = put_together(pickle.loads(pickle.dumps(names)), sent(arrays))
    assert_same(got, batch)
    assert list(got.features) == list(batch.features)
