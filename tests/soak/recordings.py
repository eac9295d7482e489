"""Damaged recordings with right sums: each is read, or refused with an error that names the file.

A recording of ours and two of entity-gym are small; damage is done to the values in their records,
to the bytes of these, and to the order of the records.
"""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import msgpack
import torch

from enn_trainer.experience.demonstrations import open_recording
from enn_trainer.experience.read_demonstrations import RecordingReader
from entity_env import EnvList
from entity_env.recording.record import RecordingVecEnv
from entity_env.recording.recording_format import PREFIX, records
from tests.enn_trainer.worlds import Pasture
from tests.entity_env.builders import play
from tests.soak import mutations
from tests.soak.damage import Summary, _summed_up
from tests.soak.message_mutations import edited, messages

SAMPLES = Path(__file__).parents[1] / "golden" / "entity_gym_samples"
_ONE_HASH = {(2**61 - 1) * i: 0 for i in range(2000)}
_BOMBS = [
    b"\xdd\x7f\xff\xff\xff" * 500,
    b"\xdf\x00\xff\xff\xff" * 500,
    b"\xdd\x00\x00\x10\x00" * 1000 + bytes(4096),
    b"\x91" * 1000 + b"\xc0",
    b"\xde\xff\xff" + b"\xd6\xff\x00\x00\x00\x01\x00" * 65535,
    mutations.pack({"x": _ONE_HASH}),
    mutations.pack([{}] * 30_000),
]


def recordings(folder: Path, seed: int, count: int) -> Summary:
    """Change recordings, make the sums right again, and read what came of it.

    Args:
        folder: To work in.
        seed: Of all choices.
        count: How many damaged recordings.
    """
    rng = Random(seed)
    whole = {"own": _own_records(folder / "whole")}
    whole |= {name: _samples(SAMPLES / f"{name}.bin") for name in ("full", "subsampled")}

    def damages() -> Iterator[tuple[Path, str]]:
        for _ in range(count):
            name = rng.choice([*whole])
            data = _joined(name, _damaged(rng, name, whole[name]))
            path = folder / f"{name}.rec"
            path.write_bytes(data)
            yield path, path.name

    return _summed_up(damages(), must_refuse=False, loaders=[_read_steps, _learn])


def _read_steps(path: Path) -> None:
    recording = open_recording(path)
    for step in recording.steps():
        assert len(step.decisions) == len(step.kept)
    parts = recording.split(0.5, 1)
    assert sum(len(list(part.episodes())) for part in parts) >= 0


def _learn(path: Path) -> None:
    recording = open_recording(path)
    RecordingReader(recording.obs_space, 0.9, torch.device("cpu")).read({path: recording})


def _own_records(path: Path) -> list[bytes]:
    envs = RecordingVecEnv(EnvList(Pasture, 2), path)
    play(envs, 5)
    envs.close()
    with path.open("rb") as file:
        found = list(records(file, path))
    data = path.read_bytes()
    return [data[record.start : record.end] for record in found]


def _samples(path: Path) -> list[bytes]:
    """The header and the first samples of a file of entity-gym."""
    data, start, found = path.read_bytes(), 8, []
    while start < len(data) and len(found) < 6:
        (length,) = struct.unpack("<Q", data[start : start + 8])
        found.append(data[start + 8 : start + 8 + length])
        start += 8 + length
    return found


def _joined(name: str, contents: list[bytes]) -> bytes:
    if name != "own":
        begin = struct.pack("<Q", 1)
        return begin + b"".join(struct.pack("<Q", len(data)) + data for data in contents)
    heads = [struct.pack("<II", len(data), zlib.crc32(data)) for data in contents]
    return PREFIX + b"".join(
        head + struct.pack("<I", zlib.crc32(head)) + data
        for head, data in zip(heads, contents, strict=True)
    )


def _damaged(rng: Random, name: str, contents: list[bytes]) -> list[bytes]:
    contents = [*contents]
    at = rng.randrange(len(contents))
    edit = rng.random()
    if edit < 0.8:
        of_values = messages if name == "own" else _plain
        contents[at] = of_values(rng, contents[at], _of_bytes)
        if rng.random() < 0.2:
            contents[at] = of_values(rng, contents[at], _of_bytes)
    elif edit < 0.87:
        contents[at] = _of_bytes(rng, contents[at])
    elif edit < 0.92:
        bomb = rng.choice(_BOMBS)
        cut = rng.randrange(len(contents[at]) + 1)
        contents[at] = rng.choice((bomb, contents[at][:cut] + bomb + contents[at][cut:]))
    else:
        other = rng.randrange(len(contents))
        contents[at], contents[other] = contents[other], contents[at]
        contents += rng.choice(([], contents[1:], [contents[at]]))
    return contents


def _of_bytes(rng: Random, data: bytes) -> bytes:
    return rng.choice((mutations.noise, mutations.cut))(rng, data)


def _plain(rng: Random, data: bytes, _: Any) -> bytes:
    """Other values in msgpack without types of ours."""
    try:
        value = msgpack.unpackb(data, strict_map_key=False)
        changed: bytes = msgpack.packb(edited(rng, value, _of_bytes))
    except (ValueError, TypeError, OverflowError, msgpack.UnpackException):
        return _of_bytes(rng, data)
    return changed
