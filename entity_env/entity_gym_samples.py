"""Reads the sample files that entity-gym 0.1.10 writes, as a `Recording`.

Such a file is the version (0 or 1), the length of the header, the header, and for each sample its
length and the sample; numbers are little-endian u64, the rest msgpack. Objects are dictionaries
with a class name, arrays are dictionaries in the manner of msgpack-numpy. The arrays of objects in
that manner are pickles: they are refused, and no class is looked up by name.

A sample holds the reward and end of the step before it, so the last sample of a file or before a
reset, whose outcome is not in the file, is left out. Files do not tell cut-off episodes from those
that ended by themselves: all count as terminated. A sub-sampled file holds no rewards and ends of
the frames left out, nor the environments of those kept: its `num_envs` is None, its rewards are
not numbers, and its steps are counted as in the file: from 1 in the first episodes, else from 0.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO

import msgpack
import numpy as np

from entity_env.ragged import Ragged
from entity_env.read_recording import Recording
from entity_env.record import EpisodeClock
from entity_env.recording_format import Decisions, RecordingError, Step
from entity_env.spaces import (
    GLOBAL,
    ActionSpace,
    CategoricalActionSpace,
    Entity,
    GlobalCategoricalActionSpace,
    ObsSpace,
    SelectEntityActionSpace,
    has_global_entity,
)
from entity_env.vec_env import (
    VecActionMask,
    VecCategoricalActionMask,
    VecObs,
    VecSelectEntityActionMask,
)

_VERSIONS = (0, 1)
_CLASSES: dict[str, Callable[..., Any]] = {
    "ObsSpace": ObsSpace,
    "Entity": Entity,
    "CategoricalActionSpace": CategoricalActionSpace,
    "GlobalCategoricalActionSpace": GlobalCategoricalActionSpace,
    "SelectEntityActionSpace": SelectEntityActionSpace,
    "VecCategoricalActionMask": VecCategoricalActionMask,
    "VecSelectEntityActionMask": VecSelectEntityActionMask,
    "VecObs": dict,  # several of its fields need the spaces to be read
    "Metric": dict,
}
_Spaces = tuple[ObsSpace, dict[str, ActionSpace]]


def open_entity_gym_samples(path: str | Path) -> Recording:
    """A file that entity-gym recorded.

    Raises:
        RecordingError: the file is no such recording or is damaged; the message says where.
    """
    path = Path(path)
    with path.open("rb") as file:
        header, *samples = _blocks(file, path)
        last = samples[-1] if samples else header
        contents = _unpack(file, path, header)
        complete = file.seek(0, 2) == last[1]
        try:
            spaces = contents["obs_space"], contents["act_space"]
            subsample = int(contents.get("subsample", 1))
            first = _unpack(file, path, samples[0]) if samples else {"episode": []}
            num_envs = len(first["episode"]) if subsample == 1 else None
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RecordingError(f"{path}: cannot read its spaces: {error!r}") from None
    where = path, spaces, last[1]
    read = (
        partial(_read_subsampled, *where)
        if num_envs is None
        else partial(_read_steps, *where, num_envs)
    )
    return Recording(*spaces, num_envs, subsample, complete, read)


def _blocks(file: BinaryIO, path: Path) -> Iterator[tuple[int, int]]:
    """Where the header and each complete sample begin and end."""
    size = file.seek(0, 2)
    file.seek(0)
    version = file.read(8)
    if len(version) < 8 or struct.unpack("<Q", version)[0] not in _VERSIONS:
        raise RecordingError(f"{path}: is no sample file of entity-gym")
    start = 8
    while start + 8 <= size:
        file.seek(start)
        end = start + 8 + int(struct.unpack("<Q", file.read(8))[0])
        if end > size:
            break
        yield start + 8, end
        start = end
    if start == 8:
        raise RecordingError(f"{path}: ends before its header does")


def _read_steps(path: Path, spaces: _Spaces, end: int, num_envs: int) -> Iterator[Step]:
    clock = EpisodeClock(num_envs)
    clock.restart()
    for (at, sample), (_, following) in pairwise(_samples(path, end)):
        try:
            reward, done = following["obs"]["reward"], following["obs"]["done"]
            counted = np.array(following["step"]) == np.array(sample["step"]) + 1
            if not (done | counted).all():  # a reset, without the outcome of this sample
                clock.restart()
                continue
            yield Step(
                _decisions(sample, spaces, num_envs),
                np.arange(num_envs),
                clock.episode,
                clock.step,
                reward,
                done,
                np.zeros(num_envs, dtype=np.bool_),
                None,
            )
            clock.advance(done)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RecordingError(f"{path}: sample at byte {at}: {error!r}") from None


def _read_subsampled(path: Path, spaces: _Spaces, end: int) -> Iterator[Step]:
    for at, sample in _samples(path, end):
        try:
            count = len(sample["episode"])
            yield Step(
                _decisions(sample, spaces, count),
                np.arange(count),
                np.array(sample["episode"], dtype=np.int64),
                np.array(sample["step"], dtype=np.int64),
                np.full(count, np.nan, dtype=np.float32),
                np.zeros(count, dtype=np.bool_),
                np.zeros(count, dtype=np.bool_),
                None,
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise RecordingError(f"{path}: sample at byte {at}: {error!r}") from None


def _samples(path: Path, end: int) -> Iterator[tuple[int, Any]]:
    """Where each sample begins, and the sample."""
    with path.open("rb") as file:
        for i, block in enumerate(_blocks(file, path)):
            if i > 0 and block[1] <= end:
                yield block[0], _unpack(file, path, block)


def _decisions(sample: Any, spaces: _Spaces, frames: int) -> Decisions:
    obs_space, action_space = spaces
    obs = sample["obs"]
    widths = {name: len(entity.features) for name, entity in obs_space.entities.items()}
    if has_global_entity(obs_space, action_space):
        widths[GLOBAL] = len(obs_space.global_features)
    if not obs["features"].keys() <= widths.keys():
        raise ValueError(f"features: expected {list(widths)}, got {list(obs['features'])}")
    return Decisions(
        VecObs(
            features={
                name: _features(obs["features"].get(name), name, width, frames)
                for name, width in widths.items()
            },
            visible={name: _flat(rows, frames) for name, rows in obs["visible"].items()},
            action_masks={name: _mask(obs["action_masks"][name], frames) for name in action_space},
            reward=np.zeros(frames, dtype=np.float32),
            done=np.zeros(frames, dtype=np.bool_),
            metrics={},
        ),
        {name: _flat(rows, frames) for name, rows in sample["actions"].items()},
        {name: _flat(rows, frames) for name, rows in (sample["probs"] or {}).items()},
        {name: _or_empty(rows, frames) for name, rows in (sample["logits"] or {}).items()},
    )


def _features(rows: Ragged | None, name: str, width: int, frames: int) -> Ragged:
    if rows is None:
        return Ragged.empty(np.zeros((0, width), dtype=np.float32), frames)
    if rows.items() and rows.values.shape[1:] != (width,):
        raise ValueError(f"features[{name!r}]: expected {width} columns, got {rows.size2()}")
    rows = Ragged(rows.values.reshape(rows.items(), width), rows.lengths)
    return _or_empty(rows, frames)


def _mask(mask: VecActionMask, frames: int) -> VecActionMask:
    actors = _flat(mask.actors, frames)
    if isinstance(mask, VecSelectEntityActionMask):
        return VecSelectEntityActionMask(actors, _flat(mask.actees, frames))
    given = mask.mask is not None and len(mask.mask) > 0  # no frames: no mask was given
    return VecCategoricalActionMask(actors, mask.mask if given else None)


def _flat(rows: Ragged, frames: int) -> Ragged:
    return _or_empty(Ragged(rows.values.reshape(-1), rows.lengths), frames)


def _or_empty(rows: Ragged, frames: int) -> Ragged:
    """Rows of so many frames; entity-gym leaves no frames at all where there was never a row."""
    return rows if len(rows) else Ragged.empty(rows.values, frames)


def _unpack(file: BinaryIO, path: Path, block: tuple[int, int]) -> Any:
    start, end = block
    file.seek(start)
    try:
        value = msgpack.unpackb(
            file.read(end - start), object_hook=_decode, strict_map_key=False, raw=False
        )
    except Exception as error:  # whatever damaged bytes lead to
        raise RecordingError(f"{path}: damaged at byte {start}: {error}") from None
    if not isinstance(value, dict):
        raise RecordingError(f"{path}: damaged at byte {start}")
    return value


def _decode(value: Mapping[Any, Any]) -> Any:
    if b"nd" in value:
        dtype = np.dtype(value[b"type"] if isinstance(value[b"type"], str) else "O")
        if dtype.kind not in "biuf" or value.get(b"kind"):
            raise RecordingError("expected an array of numbers")
        array = np.frombuffer(bytearray(value[b"data"]), dtype)
        return array.reshape(value[b"shape"]) if value[b"nd"] else array[0]
    if "__flattened__" in value:
        lengths = np.asarray(value["__lengths__"], dtype=np.int64).reshape(-1)
        if (lengths < 0).any():
            raise RecordingError(f"expected lengths, got {lengths}")
        return Ragged(value["__flattened__"], lengths)
    if "__classname__" in value:
        name = value["__classname__"]
        if name not in _CLASSES:
            raise RecordingError(f"expected one of {list(_CLASSES)}, got {name!r}")
        return _CLASSES[name](**value["data"])
    return value
