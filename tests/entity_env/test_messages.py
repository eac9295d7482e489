"""Plain data as bytes: exact when whole, refused when damaged."""

import contextlib
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from entity_env import Ragged, batch_obs
from entity_env.messages import MessageError, pack, unpack
from tests.entity_env.test_batch import assert_same
from tests.strategies import World, worlds

ARRAYS = st.sampled_from([np.bool_, np.int8, np.int64, np.uint64, np.float32, np.float64]).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(),
    st.binary(),
    ARRAYS,
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=3),
    ),
    max_leaves=8,
)


def assert_equal(got: Any, expected: Any) -> None:
    if isinstance(expected, list):
        assert len(got) == len(expected)
        for one, other in zip(got, expected, strict=True):
            assert_equal(one, other)
    elif isinstance(expected, dict):
        assert list(got) == list(expected)
        for key in expected:
            assert_equal(got[key], expected[key])
    elif isinstance(expected, np.ndarray):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        assert got.tobytes() == expected.tobytes()
        assert got.flags.writeable
    else:
        assert type(got) is type(expected)
        assert got == expected


@given(VALUES)
def test_what_is_packed_comes_back(value: Any) -> None:
    assert_equal(unpack(pack(value)), value)


@settings(max_examples=50)
@given(worlds())
def test_batches_and_spaces_come_back(world: World) -> None:
    batch = batch_obs(world.frames, world.obs_space, world.action_space)
    got = unpack(pack([batch, world.obs_space, world.action_space]))
    assert_same(got[0], batch)
    assert got[1:] == [world.obs_space, world.action_space]


@given(st.data())
def test_damaged_bytes_only_ever_raise_a_message_error(data: st.DataObject) -> None:
    whole = bytearray(pack(data.draw(st.sampled_from(SAMPLES))))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with contextlib.suppress(MessageError):
        unpack(damaged)


@given(st.binary(max_size=60))
def test_noise_only_ever_raises_a_message_error(noise: bytes) -> None:
    with contextlib.suppress(MessageError):
        unpack(noise)


SAMPLES = [
    Ragged(np.arange(4.0, dtype=np.float32).reshape(2, 2), np.array([0, 2])),
    {"a": [1, 2.5, None, "text"], "b": np.zeros((2, 0), dtype=np.bool_)},
    ["ok", [{"x": Ragged(np.zeros(3, dtype=np.int64), np.array([3]))}]],
]


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, np.array(["text"]), np.array([object()]), 1j, Exception("no")],
    ids=lambda value: type(value).__name__,
)
def test_what_cannot_be_sent_is_refused(value: Any) -> None:
    with pytest.raises(MessageError):
        pack([value])


@pytest.mark.parametrize(
    ("code", "body"),
    [
        (1, ["|O", [1]]),
        (1, ["<f8", [10**12]]),
        (1, ["<f8", [-1]]),
        (2, ["Popen", {}]),
        (2, ["Ragged", {"values": 1}]),
        (4, [[0], 1]),
        (4, [[1], []]),
        (9, []),
    ],
)
def test_what_names_another_type_or_more_bytes_than_there_are_is_refused(
    code: int, body: list[Any]
) -> None:
    message = msgpack.packb(msgpack.ExtType(code, msgpack.packb(body)))
    with pytest.raises(MessageError):
        unpack(message)


def test_messages_nested_without_end_are_refused() -> None:
    data = b""
    for _ in range(400):
        data = msgpack.packb(msgpack.ExtType(2, data))
    with pytest.raises(MessageError):
        unpack(data)
    with pytest.raises(MessageError):
        unpack(b"\x91" * 100_000)


def test_tuples_and_numpy_scalars_travel_as_plain_data() -> None:
    value = unpack(pack((np.float32(0.5), np.int64(3), np.bool_(True))))
    assert value == [0.5, 3, True]
    assert [type(one) for one in value] == [float, int, bool]


@given(st.integers() | st.integers(2**63 - 2, 2**65) | st.integers(-(2**65), -(2**63) + 2))
def test_integers_of_any_size_come_back(value: int) -> None:
    assert unpack(pack([value, {value: -value}], exact=True)) == [value, {value: -value}]


def test_plain_data_come_back_bit_for_bit() -> None:
    value = {None: b"\0", True: -0.0, 2.5: float("inf"), b"k": 2**200, "nan": float("nan")}
    came = unpack(pack(value, exact=True))
    assert list(came) == list(value)
    assert pack(came) == pack(value)
    array = np.arange(1 << 20, dtype=np.float64)
    assert_equal(unpack(pack(array, exact=True)), array)


@pytest.mark.parametrize("value", [(1, 2), np.float32(1.0), {"a": [(1,)]}, True + 0j])
def test_what_would_change_its_type_is_refused_where_that_matters(value: Any) -> None:
    with pytest.raises(MessageError):
        pack(value, exact=True)
