"""Headers and steps read from the records of a file, and checked.

The checks raise for what cannot be read on, and name the byte; code that learns from a choice
checks whether it was allowed.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt

from entity_env.ragged import Ragged
from entity_env.recording.recording_format import (
    Decisions,
    Record,
    RecordingError,
    Step,
    damaged,
    read_payload,
)
from entity_env.short_repr import short_repr
from entity_env.spaces import (
    GLOBAL,
    ActionName,
    ActionSpace,
    ObsSpace,
    has_global_entity,
)
from entity_env.vec.vec_env import VecActionMask, VecObs

MAX_MASK_PER_BYTE = 512
"""Choices in masks that allow everything, for each byte of a record: written out, each is a byte.

Ten thousand actors that may all select each other stay below it.
"""
_MAX_NUMBER = 2**62
_COUNTS = "iu"


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
        for name, value in payload.items():
            if name not in _FIELDS:
                raise ValueError(f"{name}: expected no such field")
            is_valid, expected = _FIELDS[name]
            _expect(is_valid(value), name, expected, value)
        required = _FIELDS.keys() - {"values", "run_step"}
        missing = [name for name in _FIELDS if name in required and name not in payload]
        _expect(not missing, ", ".join(missing), "these fields", "a record without them")
        what = {n: payload.pop(n) for n in ("obs", "actions", "probs", "logits")}
        step = Step(Decisions(**what, values=payload.pop("values", None)), **payload)
        if len(step.reward) != header.num_envs:
            raise ValueError(f"expected {header.num_envs} environments, got {len(step.reward)}")
        check_step(step, header, record.end - record.start)
    except ValueError as error:
        raise damaged(path, record, f"is not a step: {error}") from None
    return step


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1


def _is_rows_by_name(value: Any) -> bool:
    return isinstance(value, dict) and all(isinstance(rows, Ragged) for rows in value.values())


_PER_ENVIRONMENT = _is_array, "an array with one number for each environment"
_ROWS = _is_rows_by_name, "rows by name"
_FIELDS: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "obs": (lambda value: isinstance(value, VecObs), "frames"),
    "actions": _ROWS,
    "probs": _ROWS,
    "logits": _ROWS,
    "values": (lambda value: value is None or _is_array(value), "a number for each frame"),
    "kept": (_is_array, "the numbers of environments"),
    **dict.fromkeys(("episode", "step", "reward", "terminated", "truncated"), _PER_ENVIRONMENT),
    "final": (lambda value: isinstance(value, VecObs | None), "frames or None"),
    "run_step": (lambda value: type(value) in (int, type(None)), "a count or None"),
}


def check_header(header: Header) -> None:
    """Raise if a header lacks the spaces and numbers of a recording.

    Raises:
        ValueError: a field is of another kind; names it.
    """
    actions = header.action_space
    _expect(isinstance(header.obs_space, ObsSpace), "obs_space", "an ObsSpace", header.obs_space)
    _expect(
        isinstance(actions, dict)
        and all(isinstance(name, str) for name in actions)
        and all(isinstance(space, ActionSpace) for space in actions.values()),
        "action_space",
        "actions by name",
        actions,
    )
    _check_count("subsample", header.subsample)


def _check_count(name: str, value: Any) -> None:
    is_count = type(value) is int and 1 <= value < _MAX_NUMBER
    _expect(is_count, name, "a whole number above 0", value)


def check_step(step: Step, header: Header, num_bytes: int) -> None:
    """Raise if a step contradicts the spaces of its header.

    Args:
        step: The step.
        header: Of its file.
        num_bytes: Of the record; masks may take so much more memory in proportion to it.

    Raises:
        ValueError: names the field.
    """
    for name, kinds in (
        ("kept", _COUNTS),
        ("episode", _COUNTS),
        ("step", _COUNTS),
        ("reward", "fiu"),
        ("terminated", "b"),
        ("truncated", "b"),
    ):
        value = getattr(step, name)
        _expect(_is_of(value, kinds), name, f"numbers of kind {kinds}", value.dtype)
    for name in ("episode", "step"):
        numbers = getattr(step, name)
        in_range = ((numbers >= 0) & (numbers < _MAX_NUMBER)).all()
        _expect(bool(in_range), name, "counts from 0", numbers)
    twice = len(np.unique(step.episode)) < len(step.episode)
    _expect(not twice or bool(np.isnan(step.reward).all()), "episode", "each once", step.episode)
    _check_decisions(step.decisions, header, num_bytes)
    if step.final is not None:
        _check_features(step.final, header, "final.")
        _check_blank(step.final, "final.")


def _is_of(values: npt.NDArray[Any], kinds: str) -> bool:
    # Joined with int64, uint64 becomes float64, which is no index.
    fits = kinds != _COUNTS or np.can_cast(values.dtype, np.int64)
    return values.dtype.kind in kinds and fits


def _check_decisions(decisions: Decisions, header: Header, num_bytes: int) -> None:
    obs, action_space = decisions.obs, header.action_space
    num_entities = _check_features(obs, header, "")
    _check_blank(obs, "")
    _expect_names(obs.action_masks, action_space, "action_masks")
    most = MAX_MASK_PER_BYTE * num_bytes
    for name, space in action_space.items():
        mask, what = obs.action_masks[name], f"action_masks[{name!r}]"
        implied = _check_mask(mask, space, num_entities, what)
        most -= implied
        _expect(most >= 0, what, f"at most {MAX_MASK_PER_BYTE} choices a byte", implied)
    for field in ("actions", "probs", "logits"):
        for name, rows in getattr(decisions, field).items():
            what = f"{field}[{name!r}]"
            _expect(name in action_space, what, f"actions among {[*action_space]}", name)
            kinds = _COUNTS if field == "actions" else "f"
            _expect(_is_of(rows.values, kinds), what, f"numbers of kind {kinds}", rows.values.dtype)
            axes = (1, 2) if field == "logits" else (1,)
            _expect(rows.values.ndim in axes, what, "a number for each actor", rows.values.shape)
    _expect(decisions.values.dtype.kind == "f", "values", "numbers", decisions.values.dtype)


def _check_blank(obs: VecObs, what: str) -> None:
    for name in ("metrics", "final", "env_metrics"):
        _expect(not getattr(obs, name), f"{what}{name}", "nothing", getattr(obs, name))


def _check_features(obs: VecObs, header: Header, what: str) -> npt.NDArray[np.int64]:
    """Check features and visibility; return the entities of each frame, (frames,) int64."""
    obs_space = header.obs_space
    columns = {name: len(entity.features) for name, entity in obs_space.entities.items()}
    if has_global_entity(obs_space, header.action_space):
        columns[GLOBAL] = len(obs_space.global_features)
    _expect_names(obs.features, columns, f"{what}features")
    num_entities = np.zeros(len(obs), dtype=np.int64)
    for name, rows in obs.features.items():
        at, values = f"{what}features[{name!r}]", rows.values
        _expect(len(rows) == len(obs), at, f"rows of {len(obs)} frames", len(rows))
        _expect(values.dtype.kind in "fiu", at, "numbers", values.dtype)
        fits = values.shape[1:] == (columns[name],)
        _expect(fits, at, f"{columns[name]} columns", values.shape)
        if name != GLOBAL:
            num_entities += rows.lengths
    for name, seen in obs.visible.items():
        at = f"{what}visible[{name!r}]"
        _expect(name in columns, at, f"types among {[*columns]}", name)
        _expect(seen.values.dtype.kind == "b" and seen.values.ndim == 1, at, "True or False", seen)
        same = np.array_equal(seen.lengths, obs.features[name].lengths)
        _expect(same, at, "one for each entity", seen.lengths)
    return num_entities


def _check_mask(
    mask: VecActionMask, space: ActionSpace, num_entities: npt.NDArray[np.int64], what: str
) -> int:
    """Check a mask; return the number of choices that it allows without listing them."""
    kind = space.batch_mask_type
    _expect(type(mask) is kind, what, f"a {kind.__name__}", type(mask).__name__)
    _check_positions(mask.actors, num_entities + space.is_global, f"{what}.actors")
    if mask.actees is not None:
        _check_positions(mask.actees, num_entities, f"{what}.actees")
    rows, shape = mask.mask_lengths(), space.mask_columns
    if mask.mask is None:
        return int(rows.sum()) * int(np.prod(shape, dtype=np.int64))
    values = mask.mask.values
    fits = values.dtype.kind == "b" and values.shape[1:] == shape
    _expect(fits, f"{what}.mask", f"True or False, (rows, *{shape})", values.shape)
    same = np.array_equal(mask.mask.lengths, rows)
    _expect(same, f"{what}.mask", "a row for each actor", mask.mask.lengths)
    return 0


def _check_positions(rows: Ragged, ends: npt.NDArray[np.int64], what: str) -> None:
    values = rows.values
    _expect(_is_of(values, _COUNTS) and values.ndim == 1, what, "positions", values.dtype)
    _expect(len(rows) == len(ends), what, f"rows of {len(ends)} frames", len(rows))
    inside = (values >= 0) & (values < np.repeat(ends, rows.lengths))
    _expect(bool(inside.all()), what, "positions in the frame", values[~inside])


def _expect_names(got: Mapping[str, Any], expected: Mapping[str, Any], what: str) -> None:
    _expect(got.keys() == expected.keys(), what, short_repr([*expected]), [*got])


def _expect(holds: bool, what: str, expected: str, got: object) -> None:
    if not holds:
        raise ValueError(f"{what}: expected {expected}, got {short_repr(got)}")
