"""Messages between processes: batches and arrays round-trip, and all memory is freed."""

import contextlib
import errno
import os
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as some

from entity_env import (
    EnvList,
    ParallelEnvList,
    Ragged,
    batch_obs,
)
from entity_env.vec.transport import Channel, ChannelClosedError, SharedMemory
from tests.entity_env.builders import assert_same
from tests.entity_env.worker_worlds import Doubles, KeepsActions
from tests.entity_env.worlds import SPACE, Walk
from tests.strategies import World, worlds


def none_chosen(num_envs: int) -> dict[str, Ragged]:
    no_choices = Ragged(np.zeros(0, dtype=np.int64), np.zeros(num_envs, dtype=np.int64))
    return {"move": no_choices, "pick": no_choices}


@pytest.mark.slow
def test_shared_memory_grows_with_larger_frames() -> None:
    with (
        contextlib.closing(ParallelEnvList(Doubles, 3, 2)) as workers,
        contextlib.closing(EnvList(Doubles, 3)) as alone,
    ):
        assert_same(workers.reset(SPACE), alone.reset(SPACE))
        for _ in range(16):
            assert_same(
                workers.act(none_chosen(3), SPACE),
                alone.act(none_chosen(3), SPACE),
            )


def test_returned_frames_do_not_change_in_later_steps() -> None:
    with contextlib.closing(ParallelEnvList(Doubles, 1, 1)) as workers:
        frames = [workers.reset(SPACE)]
        frames += [workers.act(none_chosen(1), SPACE) for _ in range(5)]
    sizes = [obs.features["Thing"].items() for obs in frames]
    assert sizes == [0, 2, 4, 8, 16, 32]
    assert [obs.features["__global__"].values[0, 0] for obs in frames] == [0, 1, 2, 3, 4, 5]


@pytest.mark.slow
def test_environments_may_store_their_actions() -> None:
    with contextlib.closing(ParallelEnvList(KeepsActions, 1, 1)) as workers:
        workers.reset(SPACE)
        pick = none_chosen(1)["pick"]
        for choice in (0, 1, 2):
            move = Ragged(np.full(2, choice), np.array([2]))
            assert workers.act({"move": move, "pick": pick}, SPACE).reward.tolist() == [1.0]


@pytest.mark.alone
@pytest.mark.slow
def test_close_frees_all_memory_including_lost_workers() -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    workers = ParallelEnvList(Walk, 4, 2)
    obs = workers.reset(SPACE)
    workers._workers[0].process.kill()
    chosen = {
        name: Ragged(np.zeros(mask.actors.items(), dtype=np.int64), mask.actors.lengths)
        for name, mask in obs.action_masks.items()
    }
    if obs.action_masks["pick"].mask is not None:
        chosen["pick"] = Ragged(np.ones_like(chosen["pick"].values), chosen["pick"].lengths)
    with contextlib.suppress(Exception):
        workers.act(chosen, SPACE)
    workers.close()
    assert open_files() == before


def channels() -> tuple[Channel, Channel]:
    end_a, end_b = Pipe()
    first, second = SharedMemory(), SharedMemory()
    return (
        Channel(end_a, first, second),  # type: ignore[arg-type]
        Channel(end_b, SharedMemory(os.dup(second.file)), SharedMemory(os.dup(first.file))),  # type: ignore[arg-type]
    )


def test_arrays_of_all_dtypes_round_trip_through_a_channel() -> None:
    sender, receiver = channels()
    value = {
        "rows": Ragged(np.arange(6.0).reshape(3, 2), np.array([1, 2])),
        "flags": np.array([True, False]),
        "none": np.zeros((0, 4), dtype=np.float32),
        "scalar": np.array(3),
        "every second": np.arange(10)[::2],
        "columns first": np.asfortranarray(np.arange(6).reshape(2, 3)),
        "large": np.arange(10**6),
    }
    for _ in range(2):
        sender.send(value)
        assert receiver.wait(10)
        got = receiver.receive()
        assert list(got) == list(value)
        assert_same(got.pop("rows"), value["rows"])
        for name, array in got.items():
            assert array.dtype == value[name].dtype  # type: ignore[union-attr]
            assert np.array_equal(array, value[name])
        receiver.send("answer")
        assert sender.receive() == "answer"
    sender.close()
    receiver.close()


numbers = some.arrays(
    st.sampled_from(["?", "u1", "<i4", "<i8", ">i8", "<f4", "<f8", "O"]),
    some.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    elements=st.just(1),
)


def sent(value: Any) -> Any:
    """What arrives of a value."""
    sender, receiver = channels()
    with contextlib.closing(sender), contextlib.closing(receiver):
        sender.send(value)
        return receiver.receive()


@given(st.lists(numbers, max_size=5), st.booleans())
def test_arrays_round_trip(arrays: list[np.ndarray], transposed: bool) -> None:  # type: ignore[type-arg]
    given_ = [array.T for array in arrays] if transposed else arrays
    got = sent(given_)
    assert len(got) == len(given_)
    for actual, other in zip(got, given_, strict=True):
        assert actual.dtype == other.dtype
        np.testing.assert_array_equal(actual, other, strict=True)


def test_received_arrays_are_writable_and_aligned() -> None:
    got = sent([np.array([True]), np.arange(3.0), np.arange(3, dtype=np.int64)[::2]])
    assert all(array.flags.writeable and array.flags.aligned for array in got)
    assert [array.tolist() for array in got] == [[True], [0.0, 1.0, 2.0], [0, 2]]


@pytest.mark.slow
@given(worlds(numbers=True))
def test_batches_round_trip(world: World) -> None:
    batch = batch_obs(world.frames, world.obs_space, world.action_space)
    got = sent(batch)
    assert_same(got, batch)
    assert list(got.features) == list(batch.features)


def test_channels_time_out_and_detect_a_closed_end() -> None:
    sender, receiver = channels()
    assert not sender.wait(0.01)
    receiver.close()
    assert sender.wait(10)
    with pytest.raises(ChannelClosedError):
        sender.receive()
    with pytest.raises(ChannelClosedError):
        sender.send("anybody there?")
    sender.close()


def test_insufficient_memory_raises_instead_of_crashing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int, start: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    memory = SharedMemory()
    with pytest.raises(OSError, match="No space left"):
        memory.write(b"some bytes")
    memory.close()
