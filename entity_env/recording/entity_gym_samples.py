"""Reader of the sample files of entity-gym 0.1.10, as a `Recording`.

A file is the version (0 or 1), the length of the header, the header, and for each sample its
length and the sample; numbers are little-endian u64, the rest msgpack. Objects are dictionaries
with a class name, arrays are dictionaries in the format of msgpack-numpy. Arrays of objects in that
format are pickles: they are an error, and no class is looked up by name.

A sample has the reward and end of the step before it, so the last sample of a file or before a
reset is left out: its outcome is not in the file. Files do not distinguish truncated episodes
from terminated ones: all count as terminated. A sub-sampled file has no rewards and ends of the
frames that are left out, and no index of the environment of a frame: its `num_envs` is None, its
rewards are NaN, and its steps are counted as in the file: from 1 in the first episodes, then
from 0.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from entity_env import spaces
from entity_env.errors import short_repr
from entity_env.ragged import Ragged
from entity_env.recording.read_recording import Recording
from entity_env.recording.record import EpisodeClock
from entity_env.recording.recording_format import (
    Header,
    RecordedFrames,
    RecordedStep,
    RecordingError,
    check_header,
    check_step,
)
from entity_env.serialization.bounds import Allowance, dict_of, number_array, unpack_bounded
from entity_env.serialization.messages import rebuilt
from entity_env.vec.row_checks import expect
from entity_env.vec.vec_obs import (
    VecActionMask,
    VecCategoricalActionMask,
    VecObs,
    VecSelectEntityActionMask,
)

_VERSIONS = (0, 1)
_CATEGORICAL = spaces.CategoricalActionSpace, spaces.GlobalCategoricalActionSpace
_SPACES = spaces.ObsSpace, spaces.Entity, *_CATEGORICAL, spaces.SelectEntityActionSpace
_MASKS = VecCategoricalActionMask, VecSelectEntityActionMask
_CLASSES: dict[str, type[Any]] = {
    **{cls.__name__: cls for cls in (*_SPACES, *_MASKS)},
    **dict.fromkeys(("VecObs", "Metric"), dict),  # dictionaries of fields, decoded with the spaces
}


class _Sample(NamedTuple):
    """Fields of a sample and of its frames, and its first and last byte in the file."""

    start: int
    end: int
    fields: dict[str, Any]


def is_entity_gym(begin: bytes) -> bool:
    """Return whether the first bytes of a file are the version of an entity-gym recording."""
    return begin[1:8] == bytes(7) and begin[0] in _VERSIONS


def open_entity_gym_samples(path: str | Path) -> Recording:
    """Open a recording of entity-gym.

    Raises:
        RecordingError: the file is not such a recording, or is damaged; the message has the place.
    """
    path = Path(path)
    with path.open("rb") as file:
        blocks = _blocks(file, path)
        header = next(blocks)
        last = (deque(blocks, maxlen=1) or [header])[0]  # a list of all blocks could be long
        contents = _unpack(file, path, header)
        complete = file.seek(0, 2) == last[1]
    first = next(_samples(path, last[1]), None)
    # A sub-sampled file does not have the number of environments.
    subsample = contents.get("subsample", 1)
    obs_space: Any = contents.get("obs_space")
    actions: Any = contents.get("act_space")
    is_whole = type(subsample) is int and subsample == 1
    num_envs = 0 if first is None else len(first.fields["episode"])
    recorded = Header(obs_space, actions, num_envs if is_whole else None, subsample)
    try:
        check_header(recorded)
        dependent = [name for name, space in actions.items() if space.after is not None]
        expect(not dependent, "action_space", "no dependent actions", str(dependent))
    except ValueError as error:
        raise RecordingError(f"{path}: cannot read its spaces: {error}") from None
    read = _read_steps if is_whole else _read_subsampled
    steps = partial(read, path, recorded, last[1])
    return Recording(**recorded._asdict(), complete=complete, path=path, _read=steps)


def _blocks(file: BinaryIO, path: Path) -> Iterator[tuple[int, int]]:
    """Yield the first and last byte of the header and of each complete sample."""
    size = file.seek(0, 2)
    file.seek(0)
    version = file.read(8)
    if len(version) < 8 or struct.unpack("<Q", version)[0] not in _VERSIONS:
        raise RecordingError(f"{path}: is not a sample file of entity-gym")
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


def _read_steps(path: Path, header: Header, end: int) -> Iterator[RecordedStep]:
    num_envs = header.num_envs or 0
    clock = EpisodeClock(num_envs)
    clock.restart()
    for sample, next_sample in pairwise(_samples(path, end)):
        with _located_errors(path, sample):
            reward, done = (_numbers(next_sample, name, num_envs) for name in ("reward", "done"))
            counted = _numbers(next_sample, "step", num_envs)
            done = done.astype(np.bool_)
            if not (done | (counted == _numbers(sample, "step", num_envs) + 1)).all():
                clock.restart()  # a reset, without the outcome of this sample
                continue
            step = _step(sample, header, clock.episode, clock.step, reward, done)
        yield step
        clock.advance(done, np.zeros_like(done))


def _read_subsampled(path: Path, header: Header, end: int) -> Iterator[RecordedStep]:
    for sample in _samples(path, end):
        with _located_errors(path, sample):
            count = len(sample.fields["episode"])
            episode, number = (_numbers(sample, name, count) for name in ("episode", "step"))
            reward, done = np.full(count, np.nan, np.float32), np.zeros(count, np.bool_)
            step = _step(sample, header, episode, number, reward, done)
        yield step


def _step(
    sample: _Sample, header: Header, episode: Any, step: Any, reward: Any, done: Any
) -> RecordedStep:
    """Return a step of B environments, from fields of (B,) numbers."""
    decisions = _decisions(sample.fields, header, len(reward))
    envs, truncated = np.arange(len(reward)), np.zeros(len(reward), dtype=np.bool_)
    recorded = RecordedStep(decisions, envs, episode, step, reward, done, truncated, None)
    check_step(recorded, header, sample.end - sample.start)
    return recorded


@contextmanager
def _located_errors(path: Path, sample: _Sample) -> Iterator[None]:
    """Add the file and the byte to errors about a sample."""
    try:
        yield
    except (ValueError, OverflowError) as error:
        raise RecordingError(f"{path}: sample at byte {sample.start}: {error}") from None


def _numbers(sample: _Sample, name: str, count: int) -> npt.NDArray[Any]:
    """Return a field of a sample, or of its observation, with a number for each frame."""
    value, is_float = sample.fields[name], name in ("reward", "done")
    numbers: npt.NDArray[Any] = np.asarray(value) if isinstance(value, list) else value
    fits = isinstance(numbers, np.ndarray) and numbers.shape == (count,)
    expect(fits, name, f"{count} numbers", value)
    are_numbers = not count or numbers.dtype.kind in ("biuf" if is_float else "iu")
    expect(are_numbers, name, "numbers", value)
    return numbers if is_float else numbers.astype(np.int64)


def _samples(path: Path, end: int) -> Iterator[_Sample]:
    """Yield the samples up to a byte of a file, with valid types of fields.

    Raises:
        RecordingError: a sample is damaged.
    """
    with path.open("rb") as file:
        for start, sample_end in islice(_blocks(file, path), 1, None):
            if sample_end > end:
                return
            fields = _unpack(file, path, (start, sample_end))
            obs = fields.get("obs")
            fields |= obs if isinstance(obs, dict) else {}
            sample = _Sample(start, sample_end, fields)
            with _located_errors(path, sample):
                _check_fields(sample.fields)
            yield sample


def _check_fields(fields: Mapping[str, Any]) -> None:
    for name, is_valid in _FIELDS.items():
        expect(name in fields, name, "this field", "none")
        if not is_valid(value := fields[name]):
            raise ValueError(f"{name}: cannot be {type(value).__name__} {short_repr(value)}")


def _is_per_frame(value: Any) -> bool:
    return isinstance(value, list) or (isinstance(value, np.ndarray) and value.ndim == 1)


def _is_rows_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(rows, Ragged) for rows in value.values())


_FIELDS: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("episode", "step", "reward", "done"), _is_per_frame),
    **dict.fromkeys(("actions", "features", "visible"), _is_rows_by_name),
    **dict.fromkeys(("probs", "logits"), lambda v: v is None or _is_rows_by_name(v)),
    "action_masks": lambda value: isinstance(value, dict),
}


def _decisions(sample: Any, header: Header, frames: int) -> RecordedFrames:
    # Masks and features that contradict the spaces.
    masks, features = sample["action_masks"], sample["features"]
    for name in header.action_space:
        mask = masks.get(name)
        is_mask = isinstance(mask, VecActionMask)
        expect(is_mask, f"action_masks[{name!r}]", "a mask", short_repr(mask))
    widths = spaces.num_columns(header.obs_space, header.action_space)
    expect(features.keys() <= widths.keys(), "features", str([*widths]), str([*features]))

    # In the order of the spaces, with empty rows where the file has none.
    obs = VecObs(
        {name: _features(features.get(name), name, n, frames) for name, n in widths.items()},
        {name: _flat(rows, frames) for name, rows in sample["visible"].items()},
        {name: _mask(masks[name], frames) for name in header.action_space},
        reward=np.zeros(frames, dtype=np.float32),
        done=np.zeros(frames, dtype=np.bool_),
        metrics={},
    )
    return RecordedFrames(
        obs,
        {name: _flat(rows, frames) for name, rows in sample["actions"].items()},
        {name: _flat(rows, frames) for name, rows in (sample["probs"] or {}).items()},
        {name: _or_empty(rows, frames) for name, rows in (sample["logits"] or {}).items()},
    )


def _features(rows: Ragged | None, name: str, width: int, frames: int) -> Ragged:
    if rows is None:
        return Ragged.empty(np.zeros((0, width), dtype=np.float32), frames)
    fits = not rows.items() or rows.values.shape[1:] == (width,)
    expect(fits, f"features[{name!r}]", f"{width} columns", str(rows.size2()))
    return _or_empty(Ragged(rows.values.reshape(rows.items(), width), rows.lengths), frames)


def _mask(mask: VecActionMask, frames: int) -> VecActionMask:
    actors = _flat(mask.actors, frames)
    if mask.actees is not None:
        return VecSelectEntityActionMask(actors, _flat(mask.actees, frames))
    has_mask = mask.mask is not None and len(mask.mask) > 0  # without a mask there are no frames
    return VecCategoricalActionMask(actors, mask.mask if has_mask else None)


def _flat(rows: Ragged, frames: int) -> Ragged:
    return _or_empty(Ragged(rows.values.reshape(-1), rows.lengths), frames)


def _or_empty(rows: Ragged, frames: int) -> Ragged:
    """Return rows of all frames; a file has no frames if none of them has rows."""
    return rows if len(rows) else Ragged.empty(rows.values, frames)


def _unpack(file: BinaryIO, path: Path, block: tuple[int, int]) -> dict[str, Any]:
    start, end = block
    file.seek(start)
    data = file.read(end - start)
    allowance = Allowance(len(data))
    try:
        value = unpack_bounded(data, _raise_for_extension, lambda pairs: _decode(pairs, allowance))
    except Exception as error:  # damaged bytes can raise any error
        raise RecordingError(f"{path}: damaged at byte {start}: {error}") from None
    if not isinstance(value, dict):
        raise RecordingError(f"{path}: damaged at byte {start}")
    return value


def _raise_for_extension(code: int, _data: bytes) -> Any:
    raise RecordingError(f"expected no extension types, got {code}")


def _decode(pairs: Sequence[tuple[Any, Any]], allowance: Allowance) -> Any:
    value = dict_of(pairs)
    if b"nd" in value:
        if value.get(b"kind"):
            raise RecordingError("expected an array of numbers")
        shape = value[b"shape"] if value[b"nd"] else [1]
        array = number_array(value[b"type"], shape, value[b"data"], allowance)
        return array if value[b"nd"] else array[0]
    if "__flattened__" in value:
        lengths = np.asarray(value["__lengths__"], dtype=np.int64).reshape(-1)
        fields = {"values": value["__flattened__"], "lengths": lengths}
        return rebuilt(Ragged, fields, allowance)
    if "__classname__" in value:
        name = value["__classname__"]
        if not isinstance(name, str) or name not in _CLASSES:
            raise RecordingError(f"expected one of {list(_CLASSES)}, got {short_repr(name)}")
        kind = _CLASSES[name]
        return value["data"] if kind is dict else rebuilt(kind, value["data"], allowance)
    return value
