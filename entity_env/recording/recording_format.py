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

    obs                     VecObs of K frames, the choice was made in these; reward and done blank;
                            with the identity of entities if the environments were tracked
    actions                 action -> int64 (actors,) per frame, the choices; or float32 (actors,
                            components), numbers as the environment got them. Of actors who do not
                            take a dependent action -1, or NaN as numbers
    drawn                   action of numbers -> float32 (actors, components) per frame, as they
                            were drawn, before they were put between bounds; without rows in frames
                            where it is not known; not there if it is not known at all
    probs                   action -> (actors,) per frame, their probabilities, or densities of
                            numbers; {} if not given
    logits                  action -> (actors, choices), or (actors * actees,) row by row, per
                            frame, logits or log-probabilities of all choices; of numbers (actors, 2
                            * components), means and logarithms of deviations; {} if not given
    values                  (K,) float32, the expected return; NaN if not given
    by_hand                 action -> bool (actors,) per frame, True for choices that a person made;
                            not there if it is not known
    player                  (K,) uint8 or wider, the player of each frame, a position in `players`;
                            neither is there if it is the agent everywhere
    players                 names, "" for the agent
    kept                    (K,) int64, the environments of these frames, ascending
    episode, step           (B,) int64, episode of the frame and its step in it, from 0. No two
                            episodes of a file have the same number
    padding                 (B,) bool, environments between two episodes, which took no step of one:
                            `episode` and `step` are those to come; not there if there are none
    reward                  (B,) float32, the reward of the choice: it belongs to `episode`
    terminated, truncated   (B,) bool, whether `episode` ended with this choice
    final                   VecObs of the last observations of the truncated ones, or None
    run_step                number of earlier frames of the run; None outside of runs
    parameters              environment -> arguments of its episode by name, as JSON has them: of
                            episodes for which some were drawn, in the first record of each; not
                            there if there are none

The version is 1, or 2 if there are actions of numbers or dependent ones, which readers of version 1
do not know.

A record is handed to the operating system as a whole once its step is done, so a killed process
leaves at most one torn record, at the end. To continue a file is to cut that off and append.

Reading checks all that the code behind it relies on, and names the byte; code that learns from a
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

from entity_env.actions.chains import chain_problems, check_linked
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
_VERSIONS = 1, 2  # the second one: actions of numbers, and dependent actions
_PREFIXES = {version: _MAGIC + struct.pack("<I", version) for version in _VERSIONS}
PREFIX = _PREFIXES[1]
_HEAD = struct.Struct("<III")


class RecordingError(EntityEnvError, ValueError):
    """Error of a file that is no recording, is damaged, or has another content."""


def prefix_of(action_space: ActionSpaces) -> bytes:
    """Return the first bytes of a file with these actions."""
    spaces = action_space.values()
    return _PREFIXES[2 if any(one.components or one.after is not None for one in spaces) else 1]


def may_begin(data: bytes) -> bool:
    """Return whether a recording may begin with some bytes, of which there may be few."""
    return any(prefix.startswith(data) for prefix in _PREFIXES.values())


@dataclass
class Decisions(FrameData):
    """K frames, and the choices that were made in them.

    Attributes:
        obs: the K frames. Their reward and done are blank.
        actions: int64 (actors,) per frame, the choices; or float32 (actors, components), numbers in
            units of the environment. Of actors who do not take a dependent action -1, or NaN.
        probs: (actors,) per frame, the probability of each choice, or the density of numbers; empty
            if not recorded.
        logits: (actors, choices) per frame, or (actors * actees,) row by row, logits or
            log-probabilities of all choices; of numbers (actors, 2 * components), means and
            logarithms of deviations; empty where they were not recorded.
        values: (K,) float32, the expected return of each frame; NaN if not recorded.
        by_hand: bool (actors,) per frame, True for the choices that a person made; empty where it
            is not known who chose.
        player: (K,) object, the player of each frame by name; "" for the agent, and where nothing
            else was recorded.
        drawn: float32 (actors, components) per frame, of actions of numbers, as they were drawn,
            before they were put between bounds; empty, or without rows, where it is not known.

    Raises:
        ValueError: one of them is not of K frames.
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
        for what, named in per_frame.items():
            for name, rows in named.items():
                if rows is not None and len(rows) != frames:
                    raise ValueError(f"{what}[{name!r}]: expected {frames} frames, got {len(rows)}")

    def __len__(self) -> int:
        return len(self.obs)

    @property
    def logprobs(self) -> dict[ActionName, Ragged]:
        """The logarithms of `probs`."""
        return {name: Ragged(np.log(p.values), p.lengths) for name, p in self.probs.items()}

    def is_by_hand(self, name: ActionName, unknown: bool) -> BoolArray:
        """Return who chose for each actor of an action, (actors,) bool: True for a person.

        Args:
            name: the action.
            unknown: the answer for actors of frames that do not say who chose.
        """
        lengths, rows = self.actions[name].lengths, self.by_hand.get(name)
        found = np.full(int(lengths.sum()), unknown)
        if rows is not None:
            found[np.repeat(rows.lengths > 0, lengths)] = rows.values
        return found

    def missing(self, path: LeafPath, like: Any) -> Any:
        """Return a leaf that is not given: rows of no frame; else as of `obs`."""
        if path[0] == "obs":
            return super().missing(path, like)
        return Ragged.empty(like.values, len(self))

    def payload(self) -> dict[str, Any]:
        """Return the fields of a record, without those that say nothing.

        Readers of earlier releases do not know these.
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
        parameters: by environment the arguments that were drawn for its episode, if this is the
            first recorded step of it.
        padding: (B,) bool, environments between two episodes, whose step is of neither: `episode`
            is the one to come. Empty if there are none.

    Raises:
        ValueError: the sizes contradict each other.
    """

    decisions: Decisions
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
    """Return the error for a record that cannot be used, which names its first byte."""
    return RecordingError(f"{path}: record at byte {record.start - _HEAD.size} {problem}")


MAX_MASK_PER_BYTE = 512
"""Choices in masks that allow everything, for each byte of a record: written out, each is a byte.

Ten thousand actors that may all select each other stay below it.
"""
_MAX_NUMBER = 2**62


class Header(NamedTuple):
    """The first record of a file: spaces and the way of recording.

    Attributes:
        obs_space: As shown.
        action_space: The actions by name.
        num_envs: The number of environments in each step; None if it is not in the file.
        subsample: One in so many frames was kept.
    """

    obs_space: ObsSpace
    action_space: dict[ActionName, ActionSpace]
    num_envs: int | None
    subsample: int


def read_header(file: BinaryIO, path: Path, record: Record) -> Header:
    """Read the header of a recording.

    Raises:
        RecordingError: it is damaged, or lacks a field.
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
        expected = "format version 2 of actions of numbers and dependent ones"
        expect(not new, "action_space", expected, "1")
    except ValueError as error:
        raise damaged(path, record, f"is not a header: {error}") from None
    return header


def read_step(file: BinaryIO, path: Path, record: Record, header: Header) -> Step:
    """Read the step in a record.

    Raises:
        RecordingError: it is damaged, not a step, or contradicts the header.
    """
    payload = read_payload(file, path, record)
    try:
        parts = [part.name for part in fields(Decisions)]
        choices = {name: payload.pop(name) for name in parts if name in payload}
        if "player" in choices or "players" in payload:
            positions, names = choices.get("player"), payload.pop("players", None)
            choices["player"] = _players_by_name(positions, names)
        parameters: dict[int, dict[str, Any]] = payload.pop("parameters", {})
        _check_parameters(parameters, header.num_envs)
        decisions = rebuilt(Decisions, choices, Allowance(0))
        step: Step = rebuilt(Step, {**payload, "decisions": decisions}, Allowance(0))
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
        ValueError: these are no positions in a list of names; names the field.
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


def _check_parameters(given: Any, num_envs: int | None) -> None:
    """Raise unless these are arguments of episodes by environment.

    Raises:
        ValueError: they are not.
    """
    fits = type(given) is dict and all(type(one) is dict for one in given.values())
    expect(fits, "parameters", "arguments by environment", short_repr(given))
    for env, arguments in given.items():
        is_env = type(env) is int and 0 <= env < (num_envs or 0)
        expect(is_env, "parameters", f"one of {num_envs} environments", short_repr(env))
        expect(is_json(arguments), "parameters", "values as JSON has them", short_repr(arguments))


def check_header(header: Header) -> None:
    """Raise if a header lacks the spaces and numbers of a recording.

    Raises:
        ValueError: a field is of another kind; names it.
    """
    actions = header.action_space
    expect(isinstance(header.obs_space, ObsSpace), "obs_space", "an ObsSpace", header.obs_space)
    are_actions = isinstance(actions, dict) and all(
        isinstance(name, str) and isinstance(space, ActionSpace) for name, space in actions.items()
    )
    expect(are_actions, "action_space", "actions by name", actions)
    for problem, _ in chain_problems(actions):
        raise RecordingError(f"action_space{problem}")
    _check_count("subsample", header.subsample)


def _check_count(name: str, value: Any) -> None:
    is_count = type(value) is int and 1 <= value < _MAX_NUMBER
    expect(is_count, name, "a whole number above 0", value)


def check_step(step: Step, header: Header, num_bytes: int) -> None:
    """Raise if a step contradicts the spaces of its header.

    Args:
        step: The step.
        header: Of its file.
        num_bytes: Of the record; masks may take so much more memory in proportion to it.

    Raises:
        ValueError: names the field.
    """
    counts = dict.fromkeys(("kept", "episode", "step"), np.int64)
    flags = dict.fromkeys(("terminated", "truncated", "padding"), np.bool_)
    for name, dtype in {**counts, "reward": np.float32, **flags}.items():
        found = getattr(step, name).dtype
        expect(is_like(found, dtype), name, f"numbers like {np.dtype(dtype)}", str(found))
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
    check_linked(masks, action_space)
    for part in ("actions", "drawn", "probs", "logits"):
        for name, rows in getattr(decisions, part).items():
            what = f"{part}[{name!r}]"
            expect(name in action_space, what, f"actions among {[*action_space]}", name)
            _check_rows_of(part, rows.values, action_space[name], what)
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
    """Return whether a value is what JSON has: None, bool, int, float, str, lists, dictionaries."""
    if type(value) is list:
        return all(map(is_json, value))
    if type(value) is dict:
        return all(type(k) is str and is_json(v) for k, v in value.items())
    return value is None or type(value) in (bool, int, float, str)


def _check_rows_of(part: str, values: npt.NDArray[Any], space: ActionSpace, what: str) -> None:
    """Raise if the rows of an action are not what a part of a record has of it.

    Args:
        part: the field: `actions`, `drawn`, `probs` or `logits`.
        values: the rows.
        space: of the action.
        what: the field, for messages.

    Raises:
        InvalidObservation: of another dtype or shape.
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
