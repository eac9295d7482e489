"""Messages round-trip; damaged ones are refused."""

import contextlib
import tracemalloc
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from entity_env import Ragged, batch_obs
from entity_env.serialization.messages import MessageError, pack, unpack
from tests.entity_env.builders import assert_same
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
        for got_item, expected_item in zip(got, expected, strict=True):
            assert_equal(got_item, expected_item)
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
def test_plain_data_round_trips(value: Any) -> None:
    assert_equal(unpack(pack(value)), value)


@pytest.mark.slow
@given(worlds(numbers=True))
def test_batches_and_spaces_round_trip(world: World) -> None:
    batch = batch_obs(world.frames, world.obs_space, world.action_space)
    got = unpack(pack([batch, world.obs_space, world.action_space]))
    assert_same(got[0], batch)
    assert got[1:] == [world.obs_space, world.action_space]


@given(st.data())
def test_damaged_bytes_raise_message_error(data: st.DataObject) -> None:
    whole = bytearray(pack(data.draw(st.sampled_from(SAMPLES))))
    for _ in range(data.draw(st.integers(1, 3))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    damaged = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    with contextlib.suppress(MessageError):
        unpack(damaged)


@given(st.binary(max_size=60))
def test_random_bytes_raise_message_error(noise: bytes) -> None:
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
def test_unsupported_values_are_refused(value: Any) -> None:
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
def test_unknown_types_and_excess_lengths_are_refused(code: int, body: list[Any]) -> None:
    message = msgpack.packb(msgpack.ExtType(code, msgpack.packb(body)))
    with pytest.raises(MessageError):
        unpack(message)


def test_deeply_nested_messages_are_refused() -> None:
    data = b""
    for _ in range(400):
        data = msgpack.packb(msgpack.ExtType(2, data))
    with pytest.raises(MessageError):
        unpack(data)
    with pytest.raises(MessageError):
        unpack(b"\x91" * 100_000)


def test_tuples_and_numpy_scalars_become_plain_data() -> None:
    value = unpack(pack((np.float32(0.5), np.int64(3), np.bool_(True))))
    assert value == [0.5, 3, True]
    assert [type(got_item) for got_item in value] == [float, int, bool]


@given(st.integers() | st.integers(2**63 - 2, 2**65) | st.integers(-(2**65), -(2**63) + 2))
def test_integers_of_any_size_round_trip(value: int) -> None:
    assert unpack(pack([value, {value: -value}], exact=True)) == [value, {value: -value}]


def test_exact_plain_data_round_trips_bit_for_bit() -> None:
    value = {None: b"\0", True: -0.0, 2.5: float("inf"), b"k": 2**200, "nan": float("nan")}
    came = unpack(pack(value, exact=True))
    assert list(came) == list(value)
    assert pack(came) == pack(value)
    array = np.arange(1 << 20, dtype=np.float64)
    assert_equal(unpack(pack(array, exact=True)), array)


@pytest.mark.parametrize("value", [(1, 2), np.float32(1.0), {"a": [(1,)]}, True + 0j])
def test_exact_packing_refuses_types_that_would_change(value: Any) -> None:
    with pytest.raises(MessageError):
        pack(value, exact=True)


HASH_MODULUS = 2**61 - 1  # integers that are equal modulo it share a hash


@pytest.mark.alone
def test_lists_longer_than_the_data_take_no_memory() -> None:
    """msgpack would allocate a thousand times the size of the message."""
    data = (b"\xdd" + (100_000).to_bytes(4, "big")) * 900 + bytes(100_000)
    tracemalloc.start()
    with pytest.raises(MessageError):
        unpack(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * len(data)


@pytest.mark.alone
def test_memory_is_at_most_100_times_the_bytes() -> None:
    for value in ([{}] * 10_000, [[]] * 10_000, [{"": 0}] * 10_000, [b""] * 10_000, [0.5] * 10_000):
        data = pack(value)
        tracemalloc.start()
        retained = unpack(data)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 100 * len(data) + 100_000, retained[0]


def test_keys_that_share_a_hash_are_refused() -> None:
    hostile = {HASH_MODULUS * i: 0 for i in range(1, 1000)}
    with pytest.raises(MessageError, match="expected keys with different hashes"):
        unpack(pack({"world": [hostile]}))


def test_dictionaries_with_large_integer_keys_round_trip() -> None:
    """Game positions are stored with such keys."""
    value = {(i + 1) * 2**80 + i * 2**64: i for i in range(5_000)}
    assert unpack(pack(value)) == value


@pytest.mark.parametrize(
    "items",
    [
        [(b"\xa1a", b"\x00"), (b"\xa1a", b"\x01")],
        [(b"\x01", b"\x00"), (b"\xcb\x3f\xf0" + bytes(6), b"\x01")],
        [(b"\xc7\x00\x09", b"\x00")],
        [(b"\x90", b"\x00")],
    ],
    ids=["twice", "equal numbers", "extension", "list"],
)
def test_unsupported_key_types_are_refused(items: list[tuple[bytes, bytes]]) -> None:
    data = bytes([0x80 + len(items)]) + b"".join(key + value for key, value in items)
    with pytest.raises(MessageError):
        unpack(data)


def test_timestamps_are_read_as_numbers() -> None:
    """msgpack timestamps as keys could share a hash."""
    assert unpack(b"\xd6\xff\x00\x00\x00\x07") == 7.0


def packed_as(name: str, **fields: Any) -> bytes:
    """Return the message of an object of a class, without validation."""
    body = pack([name, fields])
    return msgpack.packb(msgpack.ExtType(2, body))  # type: ignore[no-any-return]


LENGTHS = np.array([1, 1])


@pytest.mark.parametrize(
    ("values", "lengths"),
    [
        (np.zeros(0), np.array([2**62, -(2**62)])),
        (np.zeros(0), np.array([2**62] * 4)),
        (np.zeros(2), np.array([3, -1])),
        (np.zeros((2**40, 0)), np.array([2**40])),
        (np.zeros(2), np.array([0.5, 1.5])),
        (np.zeros(2), np.array([[1], [1]])),
        (np.array(1.0), np.array([1])),
        (2, np.array([2])),
        (np.zeros(2), [1, 1]),
    ],
)
def test_invalid_ragged_lengths_are_refused(values: Any, lengths: Any) -> None:
    with pytest.raises(MessageError, match=r"Ragged|axes of an empty array"):
        unpack(packed_as("Ragged", values=values, lengths=lengths))


def test_axes_of_empty_arrays_are_limited_by_the_bytes() -> None:
    with pytest.raises(MessageError, match="axes of an empty array"):
        unpack(pack({"x": np.zeros((0, 2**30), dtype=np.float32)}))
    few = np.zeros((0, 84, 84, 4), dtype=np.uint8)
    assert_equal(unpack(pack({"x": few})), {"x": few})


@pytest.mark.parametrize(
    ("name", "fields"),
    [
        ("ObsSpace", {"global_features": 3}),
        ("ObsSpace", {"global_features": [[1]]}),
        ("ObsSpace", {"global_features": [HASH_MODULUS * i for i in range(100)]}),
        ("ObsSpace", {"entities": {"a": 3}}),
        ("ObsSpace", {"other": []}),
        ("Entity", {}),
        ("Entity", {"features": "abc"}),
        ("CategoricalActionSpace", {"index_to_label": None}),
        ("GlobalCategoricalActionSpace", {"index_to_label": {}}),
        ("SelectEntityActionSpace", {"x": 1}),
        ("VecCategoricalActionMask", {"actors": [], "mask": None}),
        ("VecSelectEntityActionMask", {"actors": Ragged(np.zeros(2), LENGTHS), "actees": 1}),
        ("Metric", {"count": "many"}),
        ("VecObs", {"features": 1}),
        ("VecObs", {"features": {}, "visible": {}, "action_masks": {"a": 1}}),
        ("VecObs", {"features": {}, "visible": {}, "action_masks": {}, "metrics": {}}),
    ],
)
def test_fields_of_a_wrong_type_are_refused(name: str, fields: dict[str, Any]) -> None:
    with pytest.raises(MessageError, match=rf"{name}(\.\w+)?: expected"):
        unpack(packed_as(name, **fields))
