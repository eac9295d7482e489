"""Untrusted recordings: bounded memory and time, and errors that name the byte."""

import copy
import re
import struct
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from entity_env import (
    CategoricalActionSpace,
    Entity,
    EnvList,
    GlobalCategoricalActionSpace,
    ObsSpace,
    Ragged,
    SelectEntityActionSpace,
    VecCategoricalActionMask,
    VecObs,
    VecSelectEntityActionMask,
)
from entity_env.recording.entity_gym_samples import open_entity_gym_samples
from entity_env.recording.read_recording import Recording
from entity_env.recording.record import RecordingVecEnv, end_before, recording_header
from entity_env.recording.recording_format import PREFIX, RecordingError, framed
from entity_env.serialization.messages import unpack
from tests.entity_env.builders import SAMPLES, Tiny, play

OBS = ObsSpace(entities={"A": Entity(["x"])})
ACTIONS = {
    "go": CategoricalActionSpace(["l", "r"]),
    "hit": SelectEntityActionSpace(),
    "all": GlobalCategoricalActionSpace(["y", "n"]),
}
HOSTILE: list[Any] = [
    *(None, True, -1, 2**62, 2**70, 0.5, "x", b"x", [], [1], [[]], {}, {"x": 1}, {1: 1, "x": 2}),
    *(np.array(1), np.zeros(0), np.zeros((1, 1)), np.array([0.5]), np.array([-1]), np.arange(9)),
    *(np.array([2**62]), np.array([True]), np.zeros((0, 9)), Ragged(np.zeros(1), np.array([1]))),
    *(Ragged(np.zeros((0, 3)), np.array([0])), Ragged(np.array([5]), np.array([1])), OBS),
    *({"go": Ragged(np.zeros(0), np.zeros(0, np.int64))}, {"A": None}, [{}] * 3),
]


def ints(*values: int) -> np.ndarray[Any, Any]:
    return np.array(values, dtype=np.int64)


def one(value: int) -> Ragged:
    return Ragged(ints(value), ints(1))


def frame() -> VecObs:
    return VecObs(
        features={
            "A": Ragged(np.zeros((2, 1), np.float32), ints(2)),
            "__global__": Ragged(np.zeros((1, 0), np.float32), ints(1)),
        },
        visible={"A": Ragged(np.ones(2, np.bool_), ints(2))},
        action_masks={
            "go": VecCategoricalActionMask(one(0), Ragged(np.ones((1, 2), np.bool_), ints(1))),
            "hit": VecSelectEntityActionMask(one(0), Ragged(ints(0, 1), ints(2))),
            "all": VecCategoricalActionMask(one(2), None),
        },
        reward=np.zeros(1, np.float32),
        done=np.zeros(1, np.bool_),
        metrics={},
    )


def step(number: int = 0) -> dict[str, Any]:
    """The payload of a step that is right."""
    return {
        "obs": frame(),
        "actions": {"go": one(1), "hit": one(0), "all": one(0)},
        "probs": {"go": Ragged(np.ones(1, np.float32), ints(1))},
        "logits": {"go": Ragged(np.ones((1, 2), np.float32), ints(1))},
        "values": np.zeros(1, np.float32),
        "kept": ints(0),
        "episode": ints(0),
        "step": ints(number),
        "reward": np.ones(1, np.float32),
        "terminated": np.array([False]),
        "truncated": np.array([False]),
        "final": None,
        "run_step": None,
    }


def write(path: Path, *steps: dict[str, Any], **header: Any) -> Path:
    """A recording with all checksums right, whatever is in it."""
    begin = {**recording_header(OBS, ACTIONS, 1), **header}
    path.write_bytes(PREFIX + b"".join(framed(payload) for payload in (begin, *steps)))
    return path


def read(path: Path) -> int:
    """Read all of a recording; how many episodes it has."""
    return len(list(Recording.open(path).episodes()))


def error_of(path: Path, samples: bool = False) -> str:
    """The error that a recording is refused with, or nothing."""
    try:
        list((open_entity_gym_samples if samples else Recording.open)(path).episodes())
    except RecordingError as error:
        return str(error)
    return ""


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where something else could stand, at any depth."""
    yield path
    inner = value if isinstance(value, dict) else getattr(value, "__dict__", {})
    for name, item in inner.items():
        yield from places(item, (*path, name))


def changed(value: Any, path: tuple[Any, ...], other: Any) -> Any:
    if not path:
        return other
    name, *rest = path
    value = copy.copy(value)
    fields = value if isinstance(value, dict) else vars(value)
    fields[name] = changed(fields[name], tuple(rest), other)
    return value


def test_valid_steps_are_read(tmp_path: Path) -> None:
    assert read(write(tmp_path / "file", step(), step(1))) == 1


@pytest.mark.slow
def test_errors_for_invalid_fields_name_the_byte(tmp_path: Path) -> None:
    errors = []
    for i, place in enumerate(places(step())):
        for value in HOSTILE[i % 4 :: 4]:
            payload = changed(step(1), place, value) if place else {"obs": value}
            path = write(tmp_path / "file", step(), payload)
            errors.append(error_of(path))
    refused = [error for error in errors if error]
    assert len(refused) > 0.8 * len(errors)
    for error in refused:
        assert re.match(rf"{path}: (record at byte \d+|episode \d+, step \d+: logits)", error)


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"player": ints(0)}, "players: expected names, got None"),
        ({"players": ["a"]}, "player: expected a whole number for each frame, got None"),
        ({"player": ints(0), "players": "a"}, "players: expected names, got 'a'"),
        ({"player": ints(0), "players": [b"a"]}, "players: expected names"),
        ({"player": ["a"], "players": ["a"]}, "player: expected a whole number for each frame"),
        ({"player": np.zeros(1), "players": ["a"]}, "player: expected a whole number"),
        (
            {"player": np.zeros((1, 1), np.int8), "players": ["a"]},
            "player: expected a whole number",
        ),
        ({"player": np.array([True]), "players": ["a"]}, "player: expected a whole number"),
        ({"player": ints(1), "players": ["a"]}, r"player: expected positions in 1 names, got .*1"),
        ({"player": ints(-1), "players": ["a"]}, "player: expected positions in 1 names"),
        ({"player": np.array([2**64 - 1], np.uint64), "players": ["a"]}, "player: expected posi"),
        ({"player": ints(0), "players": []}, "player: expected positions in 0 names"),
        ({"player": ints(0, 0), "players": ["a"]}, "player: expected 1 frames, got 2"),
        ({"player": ints(), "players": ["a"]}, "player: expected 1 frames, got 0"),
    ],
)
def test_invalid_players_are_rejected(tmp_path: Path, values: dict[str, Any], error: str) -> None:
    path = write(tmp_path / "file", {**step(), "player": np.uint8([0]), "players": ["a"]})
    assert [one.decisions.player.tolist() for one in Recording.open(path).steps()] == [["a"]]
    path = write(tmp_path / "file", {**step(), **values})
    with pytest.raises(RecordingError, match=rf"record at byte \d+ is not a step: {error}"):
        list(Recording.open(path).steps())


@pytest.mark.parametrize(
    ("parameters", "error"),
    [
        ([[0, {}]], "arguments by environment"),
        ({0: 3}, "arguments by environment"),
        ({"0": {}}, "one of 1 environments, got '0'"),
        ({1: {}}, "one of 1 environments, got 1"),
        ({True: {}}, "one of 1 environments, got True"),
        ({0: {"size": ints(1)}}, "values as JSON has them"),
        ({0: {1: 1}}, "values as JSON has them"),
        ({0: {"size": [b"a"]}}, "values as JSON has them"),
    ],
)
def test_invalid_arguments_are_rejected(tmp_path: Path, parameters: Any, error: str) -> None:
    drawn = {"size": 3, "names": ["a", None], "deep": {"x": 0.5}}
    path = write(tmp_path / "file", {**step(), "parameters": {0: drawn}})
    assert [one.parameters for one in Recording.open(path).steps()] == [{0: drawn}]
    path = write(tmp_path / "file", {**step(), "parameters": parameters})
    expected = rf"record at byte \d+ is not a step: parameters: expected {error}"
    with pytest.raises(RecordingError, match=expected):
        list(Recording.open(path).steps())


@pytest.mark.parametrize(
    ("numbers", "error"),
    [
        (ints(3, 3), "each number once in a frame"),
        (ints(0, -1), "numbers from 0"),
        (ints(0), "one for each entity, or none"),
        (np.zeros(2), ""),
    ],
)
def test_invalid_identity_is_rejected(
    tmp_path: Path, numbers: np.ndarray[Any, Any], error: str
) -> None:
    """Memory identifies entities by it."""
    payload = step()
    payload["obs"].identity = {"A": Ragged(numbers, ints(len(numbers)))}
    expected = rf"record at byte \d+ is not a step: .*identity\['A'\]: expected .*{error}"
    with pytest.raises(RecordingError, match=expected):
        list(Recording.open(write(tmp_path / "file", payload)).steps())


def test_errors_for_invalid_headers_name_the_field(tmp_path: Path) -> None:
    path = tmp_path / "file"
    for i, place in enumerate(places(recording_header(OBS, ACTIONS, 1))):
        for value in HOSTILE[i % 2 :: 2]:
            if not place or place == ("seed",):
                continue
            payload = changed(recording_header(OBS, ACTIONS, 1), place, value)
            error = error_of(write(path, step(), **payload))
            assert not error or error.startswith(f"{path}: ")
    for missing in ("obs_space", "action_space", "num_envs", "subsample"):
        header = recording_header(OBS, ACTIONS, 1)
        del header[missing]
        path.write_bytes(PREFIX + framed(header))
        with pytest.raises(RecordingError, match=f"expected {missing} in the header"):
            Recording.open(path)


@pytest.mark.parametrize(
    "values", [{"episode": ints(2**62)}, {"episode": ints()}, {"reward": 1}, {"run_step": "x"}]
)
def test_a_damaged_last_step_is_not_continued(tmp_path: Path, values: dict[str, Any]) -> None:
    path = tmp_path / "file"
    header = recording_header(Tiny().obs_space(), Tiny().action_space(), 1)
    path.write_bytes(PREFIX + framed(header) + framed({**step(), **values}))
    with pytest.raises(RecordingError, match="at byte"):
        play(RecordingVecEnv(EnvList(Tiny, 1), path), 1)
    with pytest.raises(RecordingError, match="at byte"):
        end_before(path, header, 0)


@pytest.mark.parametrize(
    "values",
    [
        {"obs_space": 1},
        {"action_space": {1: 2, "x": 3}},
        {"num_envs": None},
        {"seed": {1: 2, "x": 3}},
        {"other": {None: 1, "x": 3}},
    ],
)
def test_a_recording_with_a_damaged_header_is_not_continued(
    tmp_path: Path, values: dict[str, Any]
) -> None:
    path = tmp_path / "file"
    header = recording_header(Tiny().obs_space(), Tiny().action_space(), 1)
    path.write_bytes(PREFIX + framed({**header, **values}))
    with pytest.raises(RecordingError, match=f"{path}: "):
        play(RecordingVecEnv(EnvList(Tiny, 1), path), 1)


def test_steps_after_the_end_of_an_episode_are_rejected(tmp_path: Path) -> None:
    ended = {**step(), "terminated": np.array([True])}
    path = write(tmp_path / "file", ended, step(1))
    assert len(list(Recording.open(path).steps())) == 2
    with pytest.raises(RecordingError, match=f"{path}: episode 0: expected no step after its end"):
        list(Recording.open(path).episodes())


def wide_masks(columns: int) -> list[dict[str, Any]]:
    """Return steps with masks of `columns` choices; without a mask everything is allowed."""
    few, many = step(), step(1)
    none = Ragged(np.zeros((0, columns), np.bool_), ints(0))
    few["obs"].action_masks["go"] = VecCategoricalActionMask(Ragged(ints(), ints(0)), none)
    few["actions"] = few["probs"] = few["logits"] = {}
    many["obs"].action_masks["go"] = VecCategoricalActionMask(one(0), None)
    return [few, many]


def all_pairs(count: int) -> list[dict[str, Any]]:
    """Return steps with `count` entities that may all select each other, without a mask."""
    few, many = step(), step(1)
    pair = VecSelectEntityActionMask(one(0), one(0), Ragged(np.ones(1, np.bool_), ints(1)))
    few["obs"].action_masks["hit"] = pair
    everyone = Ragged(np.arange(count), ints(count))
    many["obs"].features["A"] = Ragged(np.zeros((count, 1), np.float32), ints(count))
    many["obs"].visible = {}
    many["obs"].action_masks["hit"] = VecSelectEntityActionMask(everyone, everyone)
    many["obs"].action_masks["all"] = VecCategoricalActionMask(one(count), None)
    return [few, many]


def shapes_with_zeros(rows: int) -> list[dict[str, Any]]:
    """Return a step with many entities of a type without features."""
    many = step()
    many["obs"].features["__global__"] = Ragged(np.zeros((rows, 0), np.float32), ints(rows))
    return [many]


def cancelling_lengths(rows: int) -> list[dict[str, Any]]:
    damaged = step()
    rows_of = one(0)
    rows_of.lengths = ints(rows, 1 - rows)
    damaged["actions"] = {"go": rows_of}
    return [damaged]


@pytest.mark.alone
@pytest.mark.parametrize(
    ("steps", "count"),
    [
        (wide_masks, 2**27),
        (all_pairs, 20_000),
        (shapes_with_zeros, 2**25),
        (cancelling_lengths, 2**60),
    ],
)
def test_a_small_file_takes_little_memory(tmp_path: Path, steps: Any, count: int) -> None:
    path = write(tmp_path / "file", *steps(count))
    tracemalloc.start()
    with pytest.raises(RecordingError, match="record at byte"):
        read(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * path.stat().st_size + 1_000_000


def test_frames_with_all_pairs_selectable_are_read(tmp_path: Path) -> None:
    assert read(write(tmp_path / "file", *all_pairs(1_000))) == 1


def test_time_does_not_grow_with_episodes_times_types(tmp_path: Path) -> None:
    num_envs, types = 2_000, [f"t{i}" for i in range(200)]
    no_entities = Ragged(np.zeros((0, 1), np.float32), ints())
    blank = np.zeros(0, np.float32), np.zeros(0, np.bool_)
    payload = {
        **step(),
        "obs": VecObs(dict.fromkeys(types, no_entities), {}, {}, *blank, {}),
        **{name: {} for name in ("actions", "probs", "logits")},
        "values": blank[0],
        "kept": ints(),
        "episode": np.arange(num_envs),
        "step": np.zeros(num_envs, np.int64),
        "reward": np.zeros(num_envs, np.float32),
        "terminated": np.ones(num_envs, np.bool_),
        "truncated": np.zeros(num_envs, np.bool_),
    }
    spaces = ObsSpace(entities={name: Entity(["x"]) for name in types})
    path = tmp_path / "file"
    header = recording_header(spaces, {}, num_envs)
    path.write_bytes(PREFIX + framed(header) + framed(payload))
    calls = 0

    def count(frame: object, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    episodes = list(Recording.open(path).episodes())
    sys.setprofile(None)
    assert len(episodes) == num_envs
    assert calls < 60 * (num_envs + len(types)), calls


# Samples of entity-gym


def blocks(data: bytes) -> list[Any]:
    chunks, start = [], 8
    while start < len(data):
        (length,) = struct.unpack("<Q", data[start : start + 8])
        chunks.append(msgpack.unpackb(data[start + 8 : start + 8 + length], strict_map_key=False))
        start += 8 + length
    return chunks


def write_samples(path: Path, contents: list[Any]) -> Path:
    packed = [msgpack.packb(block) for block in contents]
    path.write_bytes(
        struct.pack("<Q", 1) + b"".join(struct.pack("<Q", len(data)) + data for data in packed)
    )
    return path


PLAIN = [v for v in HOSTILE if v is not OBS and not isinstance(v, np.ndarray | Ragged)][:13]
MSGPACK = [v for v in PLAIN if v != 2**70]
ARRAY = {b"nd": True, b"type": "<i8", b"kind": b"", b"shape": [0, 2**40], b"data": b""}
SAMPLE_VALUES = [
    *MSGPACK,
    ARRAY,
    {**ARRAY, b"shape": [3], b"data": bytes(24)},
    {**ARRAY, b"nd": False, b"shape": []},
    {**ARRAY, b"type": "U9"},
    {"__flattened__": {**ARRAY, b"shape": [0]}, "__lengths__": [2**62, -(2**62)]},
    {"__flattened__": ARRAY, "__lengths__": []},
    {"__flattened__": 3, "__lengths__": 4},
    {"__classname__": ["x"], "data": {}},
    {"__classname__": "Entity", "data": {}},
    {"__classname__": "VecObs", "data": 3},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "damaged", "share"),
    [
        ("full", [0, 1], 4),
        ("subsampled", [0, 2], 4),
        pytest.param("full", [0, 1, 2], 1, marks=pytest.mark.soak),
        pytest.param("subsampled", [0, 1, 2], 1, marks=pytest.mark.soak),
    ],
)
def test_errors_for_damaged_samples_name_the_byte(
    tmp_path: Path, name: str, damaged: list[int], share: int
) -> None:
    """Each place by some of the values: fewer at depth, all of them in `make soak`."""
    whole = blocks((SAMPLES / f"{name}.bin").read_bytes())[:3]
    path, errors = tmp_path / "file", []
    for i in damaged:
        for k, place in enumerate(places(whole[i])):
            step = share if len(place) < 3 else 3 * share
            for value in SAMPLE_VALUES[k % step :: step]:
                contents = [*whole]
                contents[i] = changed(whole[i], place, value)
                errors.append(error_of(write_samples(path, contents), samples=True))
    refused = [error for error in errors if error]
    assert len(refused) > 0.5 * len(errors)
    assert all(error.startswith(f"{path}: ") for error in refused)


def test_extension_types_in_samples_are_rejected(tmp_path: Path) -> None:
    """One of them is the timestamp; many timestamps have the same hash."""
    for value in (msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 1)):
        path = write_samples(tmp_path / "file", [{"act_space": {"x": value}}])
        with pytest.raises(RecordingError, match=r"no extension types|spaces"):
            open_entity_gym_samples(path)


def test_records_have_the_fields_of_their_payload() -> None:
    payload = unpack(framed(step())[12:])
    assert payload.keys() == step().keys()
