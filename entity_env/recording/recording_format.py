r"""Format of recordings: frames, choices, rewards and ends of episodes in one growing file.

A file is 8 bytes `enn-rec\0`, the format version as u32, and records; numbers are little-endian.
A record is

    u32 length    of the payload
    u32 checksum  CRC-32 of the payload
    u32 checksum  CRC-32 of the eight bytes before: distinguishes a damaged length from a torn end
    payload       a dictionary, packed by `messages.pack`

The first record is the header: `obs_space` of the frames, `action_space`, `num_envs`, `subsample`,
`seed`, and `run`, the name of the run that recorded it, if any. Every other record is one step
of B environments, with K of its frames:

    obs                     VecObs of K frames, in which the choices were made; reward and done
                            blank; with the identity of entities if they were tracked
    actions                 action -> int64 (actors,) per frame, the choices; or float32 (actors,
                            components) in units of the environment. For actors without a choice in
                            a dependent action -1, or NaN in continuous actions
    drawn                   continuous action -> float32 (actors, components) per frame, the
                            samples before they were mapped into their bounds; no rows in frames
                            without them; omitted if no frame has them
    probs                   action -> (actors,) per frame, their probabilities, or densities of
                            continuous actions; {} if not recorded
    logits                  action -> (actors, choices), or (actors * actees,) row by row, per
                            frame, logits or log-probabilities of all choices; for continuous
                            actions (actors, 2 * components), means and logarithms of standard
                            deviations; {} if not recorded
    values                  (K,) float32, the expected return; NaN if not recorded
    by_hand                 action -> bool (actors,) per frame, True for choices that a person made;
                            omitted if unknown
    player                  (K,) uint8 or wider, the player of each frame, an index in `players`;
                            both are omitted if the agent plays in all frames
    players                 names, "" for the agent
    kept                    (K,) int64, the environments of these frames, ascending
    episode, step           (B,) int64, episode of the frame and its step in it, from 0. Numbers of
                            episodes are unique in a file
    padding                 (B,) bool, environments between two episodes, with a step of neither:
                            `episode` and `step` are the next ones; omitted if there are none
    reward                  (B,) float32, the reward of the choice: it belongs to `episode`
    terminated, truncated   (B,) bool, whether `episode` ended with this choice
    final                   VecObs of the last observations of the truncated episodes, or None
    run_step                number of earlier frames of the run; None outside of runs
    parameters              environment -> arguments of its episode by name, as JSON has them: of
                            episodes with drawn arguments, in the first record of each; omitted if
                            there are none

The version is 1, or 2 if there are continuous or dependent actions, which readers of version 1
do not support.

A record is written as a whole once its step is done, so a killed process leaves at most one torn
record, at the end. To continue a file, truncate that record and append.

Reading checks all invariants that its callers rely on, and names the byte; code that learns from a
choice checks whether it was allowed.
"""

import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from entity_env.actions.chains import check_parent_links, dependency_problems
from entity_env.arrays import BoolArray, Float32Array, IntArray
from entity_env.errors import EntityEnvError, short_repr
from entity_env.frame_data import FrameData
from entity_env.frame_data import Path as LeafPath
from entity_env.ragged import Ragged
from entity_env.serialization.bounds import Allowance
from entity_env.serialization.messages import MessageError, pack, rebuilt, unpack
from entity_env.spaces import ActionName, ActionSpace, ActionSpaces, ObsSpace
from entity_env.vec.row_checks import expect, is_like
from entity_env.vec.validate import check_features, check_masks
from entity_env.vec.vec_obs import VecActionMask, VecObs

_MAGIC = b"enn-rec\0"
_VERSIONS = 1, 2  # version 2 has continuous and dependent actions
_PREFIXES = {version: _MAGIC + struct.pack("<I", version) for version in _VERSIONS}
PREFIX = _PREFIXES[1]
_HEAD = struct.Struct("<III")


class RecordingError(EntityEnvError, ValueError):
    """The file is no recording, is damaged, or has other content."""


def prefix_of(action_space: ActionSpaces) -> bytes:
    """Return the first bytes of a file with these actions."""
    spaces = action_space.values()
    return _PREFIXES[2 if any(one.components or one.after is not None for one in spaces) else 1]


def may_begin(data: bytes) -> bool:
    """Return whether a recording may begin with these bytes, even if they are few."""
    return any(prefix.startswith(data) for prefix in _PREFIXES.values())


@dataclass
class RecordedFrames(FrameData):
    """K frames, and the choices that were made in them.

    Attributes:
        obs: the K frames. Their reward and done are blank.
        actions: int64 (actors,) per frame, the choices; or float32 (actors, components) in units of
            the environment. For actors without a choice in a dependent action -1, or NaN.
        probs: (actors,) per frame, the probability of each choice, or the density of continuous
            actions; empty if not recorded.
        logits: (actors, choices) per frame, or (actors * actees,) row by row, logits or
            log-probabilities of all choices; for continuous actions (actors, 2 * components), means
            and logarithms of standard deviations; empty if not recorded.
        values: (K,) float32, the expected return of each frame; NaN if not recorded.
        by_hand: bool (actors,) per frame, True for the choices that a person made; empty if
            unknown.
        player: (K,) object, the player of each frame by name; "" for the agent, and if not
            recorded.
        drawn: float32 (actors, components) per frame, for continuous actions, the samples before
            they were mapped into their bounds; empty, or without rows, if unknown.

    Raises:
        ValueError: a field is not of K frames.
    """

    obs: VecObs
    actions: dict[ActionName, Ragged]
    probs: dict[ActionName, Ragged] = field(default_factory=dict)
    logits: dict[ActionName, Ragged] = field(default_factory=dict)
    values: Float32Array = None  # type: ignore[assignment]
    by_hand: dict[ActionName, Ragged] = field(default_factory=dict)
    player: npt.NDArray[np.object_] = None  # type: ignore[assignment]
    drawn: dict[ActionName, Ragged] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.values is None:
            self.values = np.full(len(self.obs), np.nan, dtype=np.float32)
        if self.player is None:
            self.player = np.full(len(self.obs), "", dtype=object)
        frames = len(self.obs)
        if self.values.shape != (frames,):
            raise ValueError(f"values: expected {frames} frames, got {len(self.values)}")
        if self.player.shape != (frames,):
            raise ValueError(f"player: expected {frames} frames, got {len(self.player)}")
        per_frame: dict[str, Mapping[str, Any]] = {
            "features": self.obs.features,
            "visible": self.obs.visible,
            "kinds": self.obs.kinds,
            "identity": self.obs.identity,
            **{f"action_masks[{n!r}]": _rows_of(m) for n, m in self.obs.action_masks.items()},
            "actions": self.actions,
            "probs": self.probs,
            "logits": self.logits,
            "by_hand": self.by_hand,
            "drawn": self.drawn,
        }
        for what, by_name in per_frame.items():
            for name, rows in by_name.items():
                if rows is not None and len(rows) != frames:
                    raise ValueError(f"{what}[{name!r}]: expected {frames} frames, got {len(rows)}")

    def __len__(self) -> int:
        return len(self.obs)

    @property
    def logprobs(self) -> dict[ActionName, Ragged]:
        """Logarithms of `probs`."""
        return {name: Ragged(np.log(p.values), p.lengths) for name, p in self.probs.items()}

    def is_by_hand(self, name: ActionName, unknown: bool) -> BoolArray:
        """Return whether a person made the choice of each actor of an action, (actors,) bool.

        Args:
            name: the action.
            unknown: the value for actors of frames without this information.
        """
        lengths, rows = self.actions[name].lengths, self.by_hand.get(name)
        flags = np.full(int(lengths.sum()), unknown)
        if rows is not None:
            flags[np.repeat(rows.lengths > 0, lengths)] = rows.values
        return flags

    def missing(self, path: LeafPath, like: Any) -> Any:
        """Return the default of a missing leaf: no rows; in `obs` that of `VecObs.missing`."""
        if path[0] == "obs":
            return super().missing(path, like)
        return Ragged.empty(like.values, len(self))

    def payload(self) -> dict[str, Any]:
        """Return the fields of a record, without empty optional ones.

        Readers of earlier releases do not support the optional fields.
        """
        fields_by_name = dict(vars(self))
        del fields_by_name["player"]
        for name in ("by_hand", "drawn"):
            if not fields_by_name[name]:
                del fields_by_name[name]
        if (self.player != "").any():
            names, positions = np.unique(self.player, return_inverse=True)
            fields_by_name["players"] = names.tolist()
            fields_by_name["player"] = positions.astype(np.min_scalar_type(len(names)))
        return fields_by_name


def _rows_of(mask: VecActionMask) -> dict[str, Ragged | None]:
    """Return the rows of a mask by field."""
    rows = dict(vars(mask))
    if mask.after is not None:
        rows["after"] = mask.after.rows
    return rows


@dataclass
class RecordedStep:
    """One step of B environments, with K of its frames and the choices in them.

    Attributes:
        decisions: the K frames and the choices in them.
        kept: (K,) int64, their environments among the B.
        episode: (B,) int64, the number of the episode of each environment.
        step: (B,) int64, the number of earlier steps of that episode.
        reward: (B,) float32, the reward in that episode for this step.
        terminated: (B,) bool, the episode terminated in this step.
        truncated: (B,) bool, the episode was truncated after this step.
        final: last observations of the truncated episodes; None if there are none.
        run_step: the number of earlier frames of the run that recorded it; None outside of runs.
        parameters: by environment the arguments that were drawn for its episode, if this is the
            first recorded step of it.
        padding: (B,) bool, environments between two episodes, with a step of neither: `episode`
            is the next one. Empty if there are none.

    Raises:
        ValueError: the sizes contradict each other.
    """

    decisions: RecordedFrames
    kept: IntArray
    episode: IntArray
    step: IntArray
    reward: Float32Array
    terminated: BoolArray
    truncated: BoolArray
    final: VecObs | None
    run_step: int | None = None
    parameters: dict[int, dict[str, Any]] = field(default_factory=dict)
    padding: BoolArray = field(default_factory=lambda: np.zeros(0, np.bool_))

    def __post_init__(self) -> None:
        num_envs, num_kept = len(self.reward), len(self.decisions)
        for name in ("episode", "step", "reward", "terminated", "truncated", "is_padding"):
            shape = getattr(self, name).shape
            expect(shape == (num_envs,), name, f"shape {(num_envs,)}", str(shape))
        fits = self.kept.shape == (num_kept,) and np.isin(self.kept, np.arange(num_envs)).all()
        expect(fits, "kept", f"{num_kept} of {num_envs} environments", str(self.kept))
        if self.final is not None:
            ended = self.truncated.sum()
            expect(len(self.final) == ended, "final", f"{ended} frames", str(len(self.final)))

    @property
    def is_padding(self) -> BoolArray:
        """(B,) bool, `padding` with a flag for each environment."""
        return self.padding if len(self.padding) else np.zeros(len(self.reward), np.bool_)


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
    if len(begin) == len(PREFIX) and begin not in _PREFIXES.values():
        version = struct.unpack("<I", begin[len(_MAGIC) :])[0]
        expected = " or ".join(map(str, _VERSIONS))
        raise RecordingError(f"{path}: expected format version {expected}, got {version}")
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
    """Return the error for an invalid record, which names its first byte."""
    return RecordingError(f"{path}: record at byte {record.start - _HEAD.size} {problem}")


MAX_MASK_PER_BYTE = 512
"""Largest number of implied mask elements per byte of a record: expanded, each is a byte.

Ten thousand actors that may all select each other stay below it.
"""
_MAX_NUMBER = 2**62


class Header(NamedTuple):
    """The first record of a file: spaces and settings of the recording.

    Attributes:
        obs_space: entity types and features of the frames.
        action_space: the actions by name.
        num_envs: the number of environments in each step; None if it is not in the file.
        subsample: one in `subsample` frames was recorded.
    """

    obs_space: ObsSpace
    action_space: dict[ActionName, ActionSpace]
    num_envs: int | None
    subsample: int


def read_header(file: BinaryIO, path: Path, record: Record) -> Header:
    """Read the header of a recording.

    Raises:
        RecordingError: it is damaged, or a field is missing.
    """
    payload = read_payload(file, path, record)
    missing = [name for name in Header._fields if name not in payload]
    if missing:
        raise RecordingError(f"{path}: expected {', '.join(missing)} in the header")
    header = Header(**{name: payload[name] for name in Header._fields})
    try:
        _check_count("num_envs", header.num_envs)
        check_header(header)
        file.seek(0)
        is_old = file.read(len(PREFIX)) == PREFIX
        new = is_old and prefix_of(header.action_space) != PREFIX
        expected = "format version 2 for continuous and dependent actions"
        expect(not new, "action_space", expected, "1")
    except ValueError as error:
        raise damaged(path, record, f"is not a header: {error}") from None
    return header


def read_step(file: BinaryIO, path: Path, record: Record, header: Header) -> RecordedStep:
    """Read the step in a record.

    Raises:
        RecordingError: it is damaged, not a step, or contradicts the header.
    """
    payload = read_payload(file, path, record)
    try:
        parts = [part.name for part in fields(RecordedFrames)]
        choices = {name: payload.pop(name) for name in parts if name in payload}
        if "player" in choices or "players" in payload:
            positions, names = choices.get("player"), payload.pop("players", None)
            choices["player"] = _players_by_name(positions, names)
        parameters: dict[int, dict[str, Any]] = payload.pop("parameters", {})
        _check_parameters(parameters, header.num_envs)
        payload["decisions"] = rebuilt(RecordedFrames, choices, Allowance(0))
        step: RecordedStep = rebuilt(RecordedStep, payload, Allowance(0))
        if len(step.reward) != header.num_envs:
            raise ValueError(f"expected {header.num_envs} environments, got {len(step.reward)}")
        step.parameters = parameters
        check_step(step, header, record.end - record.start)
    except ValueError as error:
        raise damaged(path, record, f"is not a step: {error}") from None
    return step


def _players_by_name(positions: Any, names: Any) -> npt.NDArray[np.object_]:
    """Return the player of each frame by name, (K,) object.

    Raises:
        ValueError: these are no indices in a list of names; names the field.
    """
    are_names = isinstance(names, list) and all(isinstance(name, str) for name in names)
    expect(are_names, "players", "names", short_repr(names))
    are_ints = isinstance(positions, np.ndarray) and positions.dtype.kind in "iu"
    expect(are_ints and positions.ndim == 1, "player", "a whole number for each frame", positions)
    in_range = ((positions >= 0) & (positions < len(names))).all()
    expect(in_range, "player", f"positions in {len(names)} names", positions)
    by_position = np.array(names, dtype=object)
    players: npt.NDArray[np.object_] = by_position[positions.astype(np.int64)]
    return players


def _check_parameters(parameters: Any, num_envs: int | None) -> None:
    """Raise unless these are arguments of episodes by environment.

    Raises:
        ValueError: they have another form.
    """
    fits = type(parameters) is dict and all(type(one) is dict for one in parameters.values())
    expect(fits, "parameters", "arguments by environment", short_repr(parameters))
    for env, arguments in parameters.items():
        is_env = type(env) is int and 0 <= env < (num_envs or 0)
        expect(is_env, "parameters", f"one of {num_envs} environments", short_repr(env))
        expect(is_json(arguments), "parameters", "values as JSON has them", short_repr(arguments))


def check_header(header: Header) -> None:
    """Raise if a header lacks the spaces and numbers of a recording.

    Raises:
        ValueError: a field has another type; names it.
    """
    actions = header.action_space
    expect(isinstance(header.obs_space, ObsSpace), "obs_space", "an ObsSpace", header.obs_space)
    are_actions = isinstance(actions, dict) and all(
        isinstance(name, str) and isinstance(space, ActionSpace) for name, space in actions.items()
    )
    expect(are_actions, "action_space", "actions by name", actions)
    for problem, _ in dependency_problems(actions):
        raise RecordingError(f"action_space{problem}")
    _check_count("subsample", header.subsample)


def _check_count(name: str, value: Any) -> None:
    is_count = type(value) is int and 1 <= value < _MAX_NUMBER
    expect(is_count, name, "a whole number above 0", value)


def check_step(step: RecordedStep, header: Header, num_bytes: int) -> None:
    """Raise if a step contradicts the spaces of its header.

    Args:
        step: the step.
        header: the header of its file.
        num_bytes: size of the record; limits the memory of masks.

    Raises:
        ValueError: names the field.
    """
    counts = dict.fromkeys(("kept", "episode", "step"), np.int64)
    flags = dict.fromkeys(("terminated", "truncated", "padding"), np.bool_)
    for name, dtype in {**counts, "reward": np.float32, **flags}.items():
        got = getattr(step, name).dtype
        expect(is_like(got, dtype), name, f"numbers like {np.dtype(dtype)}", str(got))
    for name in ("episode", "step"):
        numbers = getattr(step, name)
        in_range = ((numbers >= 0) & (numbers < _MAX_NUMBER)).all()
        expect(bool(in_range), name, "counts from 0", numbers)
    twice = len(np.unique(step.episode)) < len(step.episode)
    expect(not twice or bool(np.isnan(step.reward).all()), "episode", "each once", step.episode)
    ended_or_kept = step.terminated | step.truncated
    ended_or_kept[step.kept] = True
    fits = not (step.is_padding & ended_or_kept).any()
    expect(fits, "padding", "environments without a frame or an end", step.padding)
    # The frames and choices.
    decisions, obs_space, action_space = step.decisions, header.obs_space, header.action_space
    num_entities = check_features(decisions.obs, obs_space, action_space)
    check_masks(decisions.obs, action_space, num_entities)
    implied = sum(
        int(mask.mask_lengths().sum()) * math.prod(action_space[name].mask_columns)
        for name, mask in decisions.obs.action_masks.items()
        if mask.mask is None
    )
    masks = decisions.obs.action_masks
    implied += sum(
        mask.actors.items() * mask.labels for mask in masks.values() if mask.after is not None
    )
    fits = implied <= MAX_MASK_PER_BYTE * num_bytes
    expect(fits, "action_masks", f"at most {MAX_MASK_PER_BYTE} choices a byte", implied)
    check_parent_links(masks, action_space)
    for part in ("actions", "drawn", "probs", "logits"):
        for name, rows in getattr(decisions, part).items():
            what = f"{part}[{name!r}]"
            expect(name in action_space, what, f"actions among {[*action_space]}", name)
            _check_row_format(part, rows.values, action_space[name], what)
    for name, rows in decisions.drawn.items():
        what, chosen = f"drawn[{name!r}]", decisions.actions.get(name)
        num_rows = rows.lengths if chosen is None else chosen.lengths
        fits = chosen is not None and ((rows.lengths == 0) | (rows.lengths == num_rows)).all()
        expect(fits, what, "one for each choice of a frame, or none", str(rows.lengths))
    for name, rows in decisions.by_hand.items():
        what, chosen = f"by_hand[{name!r}]", decisions.actions.get(name)
        fits = rows.values.dtype == np.bool_ and rows.values.ndim == 1
        expect(fits, what, "booleans", str(rows.values.dtype))
        fits = chosen is not None and np.array_equal(rows.lengths, chosen.lengths)
        expect(fits, what, "one for each choice", str(rows.lengths))
    expect(decisions.values.dtype.kind == "f", "values", "numbers", str(decisions.values.dtype))
    # Last observations.
    frames = {"": decisions.obs}
    if step.final is not None:
        check_features(step.final, obs_space, action_space, "final.")
        frames["final."] = step.final
    for where, obs in frames.items():
        for name in ("metrics", "final", "env_metrics"):
            expect(not getattr(obs, name), f"{where}{name}", "nothing", getattr(obs, name))
        for name in ("lost", "padding"):
            flags = getattr(obs, name)
            expect(len(flags) == 0, f"{where}{name}", "nothing", flags)


def is_json(value: Any) -> bool:
    """Return whether a value is JSON data: None, bool, int, float, str, lists, dictionaries."""
    if type(value) is list:
        return all(map(is_json, value))
    if type(value) is dict:
        return all(type(k) is str and is_json(v) for k, v in value.items())
    return value is None or type(value) in (bool, int, float, str)


def _check_row_format(part: str, values: npt.NDArray[Any], space: ActionSpace, what: str) -> None:
    """Raise if the rows of an action in a record have another dtype or shape than its space.

    Args:
        part: the field: `actions`, `drawn`, `probs` or `logits`.
        values: the rows.
        space: the action.
        what: the field, for messages.

    Raises:
        InvalidObservation: the dtype or shape differs.
    """
    expect(part != "drawn" or bool(space.components), what, "actions of numbers", space.kind)
    if part in ("probs", "logits"):
        expect(values.dtype.kind == "f", what, "numbers like float32", str(values.dtype))
        axes = (1,) if part == "probs" else (1, 2)
        expect(values.ndim in axes, what, "a number for each actor", str(values.shape))
        return
    dtype, columns = space.choice_dtype, space.choice_columns
    fits = is_like(values.dtype, dtype, exact=bool(columns))
    expect(fits, what, f"numbers like {np.dtype(dtype)}", str(values.dtype))
    a_number = f"{columns[0]} numbers" if columns else "a number"
    expect(values.shape[1:] == columns, what, f"{a_number} for each actor", str(values.shape))
