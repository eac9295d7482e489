r"""Format of recordings: frames, choices, rewards and ends of episodes in one growing file.

A file is 8 bytes `enn-rec\0`, the format version as u32, and records; numbers are little-endian.
A record is

    u32 length    of the payload
    u32 checksum  CRC-32 of the payload
    u32 checksum  CRC-32 of the eight bytes before: a damaged length is no torn tail
    payload       a dictionary, packed by `messages.pack`

The first record is the header: `obs_space` (as shown), `action_space`, `num_envs`, `subsample`,
`seed`, and `run`, the name of the run that recorded it, if one did. Every other record is one step
of B environments, with K of its frames:

    obs                     VecObs of K frames, the choice was made in these; reward and done blank
    actions                 action -> int64 (actors,) per frame, the choices
    probs                   action -> (actors,) per frame, their probabilities; {} if not given
    logits                  action -> (actors, choices), or (actors * actees,) row by row, per
                            frame, logits or log-probabilities of all choices; {} if not given
    values                  (K,) float32, the expected return; NaN if not given
    kept                    (K,) int64, the environments of these frames, ascending
    episode, step           (B,) int64, episode of the frame and its step in it, from 0. No two
                            episodes of a file have the same number
    reward                  (B,) float32, the reward of the choice: it belongs to `episode`
    terminated, truncated   (B,) bool, whether `episode` ended with this choice
    final                   VecObs of the last observations of the truncated ones, or None
    run_step                number of earlier frames of the run; None outside of runs

A record is handed to the operating system as a whole once its step is done, so a killed process
leaves at most one torn record, at the end. To continue a file is to cut that off and append.
"""

import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from entity_env.errors import EntityEnvError
from entity_env.ragged import Ragged
from entity_env.serialization.messages import MessageError, pack, unpack
from entity_env.spaces import ActionName
from entity_env.vec.vec_env import VecObs

_MAGIC = b"enn-rec\0"
_VERSION = struct.pack("<I", 1)
PREFIX = _MAGIC + _VERSION
_HEAD = struct.Struct("<III")


class RecordingError(EntityEnvError, ValueError):
    """Error of a file that is no recording, is damaged, or has another content."""


@dataclass
class Decisions:
    """K frames, and the choices that were made in them.

    Attributes:
        obs: the K frames. Their reward and done are blank.
        actions: int64 (actors,) per frame, the choices.
        probs: (actors,) per frame, the probability of each choice; empty if not recorded.
        logits: (actors, choices) per frame, or (actors * actees,) row by row, logits or
            log-probabilities of all choices; empty where they were not recorded.
        values: (K,) float32, the expected return of each frame; NaN if not recorded.

    Raises:
        ValueError: one of them is not of K frames.
    """

    obs: VecObs
    actions: dict[ActionName, Ragged]
    probs: dict[ActionName, Ragged] = field(default_factory=dict)
    logits: dict[ActionName, Ragged] = field(default_factory=dict)
    values: npt.NDArray[np.float32] = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        if self.values is None:
            self.values = np.full(len(self.obs), np.nan, dtype=np.float32)
        if self.values.shape != (len(self.obs),):
            raise ValueError(f"values: expected {len(self.obs)} frames, got {len(self.values)}")
        per_frame = {
            "features": self.obs.features,
            "visible": self.obs.visible,
            **{f"action_masks[{n!r}]": vars(mask) for n, mask in self.obs.action_masks.items()},
            "actions": self.actions,
            "probs": self.probs,
            "logits": self.logits,
        }
        for what, named in per_frame.items():
            for name, rows in named.items():
                if rows is not None and len(rows) != len(self.obs):
                    raise ValueError(
                        f"{what}[{name!r}]: expected {len(self.obs)} frames, got {len(rows)}"
                    )

    def __len__(self) -> int:
        return len(self.obs)

    @property
    def logprobs(self) -> dict[ActionName, Ragged]:
        """The logarithms of `probs`."""
        return {name: Ragged(np.log(p.values), p.lengths) for name, p in self.probs.items()}

    def take(self, frames: npt.NDArray[np.int64]) -> "Decisions":
        """Return the given frames, in the given order, as a copy."""
        return Decisions(
            take_obs(self.obs, frames),
            _take_all(self.actions, frames),
            _take_all(self.probs, frames),
            _take_all(self.logits, frames),
            self.values[frames],
        )

    @staticmethod
    def cat(pieces: Sequence["Decisions"]) -> "Decisions":
        """Concatenate the frames of several pieces."""
        frames = [len(piece) for piece in pieces]
        return Decisions(
            VecObs.cat([piece.obs for piece in pieces]),
            _cat_all([piece.actions for piece in pieces], frames),
            _cat_all([piece.probs for piece in pieces], frames),
            _cat_all([piece.logits for piece in pieces], frames),
            np.concatenate([piece.values for piece in pieces]),
        )


def take_obs(obs: VecObs, frames: npt.NDArray[np.int64]) -> VecObs:
    """Return a copy of the given frames, in order; reward, done and metrics are blank."""
    return VecObs(
        features=_take_all(obs.features, frames),
        visible=_take_all(obs.visible, frames),
        action_masks={name: mask.take(frames) for name, mask in obs.action_masks.items()},
        reward=np.zeros(len(frames), dtype=np.float32),
        done=np.zeros(len(frames), dtype=np.bool_),
        metrics={},
    )


def _take_all(named: Mapping[str, Ragged], frames: npt.NDArray[np.int64]) -> dict[str, Ragged]:
    return {name: rows.take(frames) for name, rows in named.items()}


def _cat_all(pieces: Sequence[Mapping[str, Ragged]], frames: Sequence[int]) -> dict[str, Ragged]:
    """Concatenate rows by name; a name that some pieces lack has no rows there."""
    like = {name: rows.values for piece in pieces for name, rows in piece.items()}
    return {
        name: Ragged.cat(
            [p.get(name, Ragged.empty(values, n)) for p, n in zip(pieces, frames, strict=True)]
        )
        for name, values in like.items()
    }


@dataclass
class Step:
    """One step of B environments, with K of its frames and the choices in them.

    Attributes:
        decisions: the K frames and the choices in them.
        kept: (K,) int64, their environments among the B.
        episode: (B,) int64, the number of the episode that the step is of.
        step: (B,) int64, the number of earlier steps of that episode.
        reward: (B,) float32, the reward in that episode for this step.
        terminated: (B,) bool, it ended by itself with this step.
        truncated: (B,) bool, it was cut off after this step.
        final: the last observations of the truncated ones; None when there are none.
        run_step: the number of earlier frames of the run that recorded it; None outside of runs.

    Raises:
        ValueError: the sizes contradict each other.
    """

    decisions: Decisions
    kept: npt.NDArray[np.int64]
    episode: npt.NDArray[np.int64]
    step: npt.NDArray[np.int64]
    reward: npt.NDArray[np.float32]
    terminated: npt.NDArray[np.bool_]
    truncated: npt.NDArray[np.bool_]
    final: VecObs | None
    run_step: int | None = None

    def __post_init__(self) -> None:
        for name in ("episode", "step", "reward", "terminated", "truncated"):
            if (shape := getattr(self, name).shape) != (len(self.reward),):
                raise ValueError(f"{name}: expected shape {(len(self.reward),)}, got {shape}")
        if (
            self.kept.shape != (len(self.decisions),)
            or not np.isin(self.kept, np.arange(len(self.reward))).all()
        ):
            raise ValueError(
                f"kept: expected {len(self.decisions)} of {len(self.reward)} environments, "
                f"got {self.kept}"
            )
        if self.final is not None and len(self.final) != self.truncated.sum():
            raise ValueError(
                f"final: expected {self.truncated.sum()} frames, got {len(self.final)}"
            )


def framed(payload: dict[str, Any]) -> bytes:
    """Return a record with this payload."""
    data = pack(payload)
    head = _HEAD.pack(len(data), zlib.crc32(data), 0)[:8]
    return head + struct.pack("<I", zlib.crc32(head)) + data


class Record(NamedTuple):
    """Position of a payload in a file, and its checksum."""

    start: int
    end: int
    checksum: int


def records(file: BinaryIO, path: Path) -> Iterator[Record]:
    """Yield the complete records of a file, the header first; a torn end is left out.

    Raises:
        RecordingError: the file is no recording, has no complete header, or is damaged.
    """
    size = file.seek(0, 2)
    file.seek(0)
    begin = file.read(len(PREFIX))
    if begin[: len(_MAGIC)] != _MAGIC[: len(begin)]:
        raise RecordingError(f"{path}: is not a recording")
    if len(begin) == len(PREFIX) and begin[len(_MAGIC) :] != _VERSION:
        version = struct.unpack("<I", begin[len(_MAGIC) :])[0]
        raise RecordingError(f"{path}: expected format version 1, got {version}")
    start = len(PREFIX)
    while start + _HEAD.size <= size:
        file.seek(start)
        head = file.read(_HEAD.size)
        length, checksum, head_checksum = _HEAD.unpack(head)
        if zlib.crc32(head[:8]) != head_checksum:
            raise RecordingError(f"{path}: damaged record at byte {start}")
        payload = start + _HEAD.size
        if payload + length > size:
            break
        yield Record(payload, payload + length, checksum)
        start = payload + length
    if start == len(PREFIX):
        raise RecordingError(f"{path}: ends before its header does")


def read_payload(file: BinaryIO, path: Path, record: Record) -> dict[str, Any]:
    """Return the payload of a record.

    Raises:
        RecordingError: it is damaged.
    """
    file.seek(record.start)
    data = file.read(record.end - record.start)
    if zlib.crc32(data) == record.checksum:
        try:
            payload = unpack(data)
        except MessageError as error:
            raise damaged(path, record, f"cannot be read: {error}") from None
        if isinstance(payload, dict) and all(isinstance(name, str) for name in payload):
            return payload
    raise RecordingError(f"{path}: damaged record at byte {record.start - _HEAD.size}")


def damaged(path: Path, record: Record, problem: str) -> RecordingError:
    """Return the error for a record that cannot be used, which names its first byte."""
    return RecordingError(f"{path}: record at byte {record.start - _HEAD.size} {problem}")
