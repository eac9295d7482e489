"""Batches and spaces built from untrusted fields, each of which is checked."""

import dataclasses
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

from entity_env.ragged import Ragged
from entity_env.serialization.bounds import Allowance
from entity_env.short_repr import short_repr
from entity_env.spaces import Entity, ObsSpace
from entity_env.vec.vec_env import Metric, VecActionMask, VecObs

_MIN, _MAX = np.minimum.reduce, np.maximum.reduce  # methods take twice as long
_Check = tuple[Callable[[Any], bool], str]


def rebuilt(cls: type[Any], fields: Any, allowance: Allowance) -> Any:
    """Make a batch or space from its fields.

    Args:
        cls: The class.
        fields: By name; those with defaults may be missing.
        allowance: For rows without columns.

    Raises:
        ValueError: a field is missing, unknown, or of another kind; names it.
    """
    checks, required = _fields_of(cls)  # type: ignore[arg-type]  # a class is hashable
    if not isinstance(fields, dict):
        raise ValueError(f"{cls.__name__}: expected fields by name, got {short_repr(fields)}")
    unknown = [name for name in fields if name not in checks]
    missing = [name for name in required if name not in fields]
    if unknown or missing:
        raise ValueError(
            f"{cls.__name__}: expected the fields {', '.join(checks)}, got {short_repr([*fields])}"
        )
    for name, value in fields.items():
        is_valid, expected = checks[name]
        if not is_valid(value):
            raise ValueError(
                f"{cls.__name__}.{name}: expected {expected}, got {type(value).__name__} "
                f"{short_repr(value)}"
            )
    return _ragged(**fields, allowance=allowance) if cls is Ragged else cls(**fields)


def _has_no_default(field: "dataclasses.Field[Any]") -> bool:
    return field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING


def _ragged(values: Any, lengths: Any, allowance: Allowance) -> Ragged:
    # Lengths below 0 or beyond all rows could add up to the rows once they overflow.
    if len(lengths) and not (_MIN(lengths) >= 0 and _MAX(lengths) <= len(values)):
        raise ValueError(f"Ragged.lengths: expected counts of {len(values)} rows, got {lengths}")
    if values.size == 0:
        allowance.take(len(values), "rows without columns")
    return Ragged(values, lengths.astype(np.int64, copy=False))


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray) and value.ndim == 1


def _is_name_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in value)


def _by_name(*kinds: type[Any]) -> Callable[[Any], bool]:
    def is_valid(value: Any) -> bool:
        return isinstance(value, dict) and all(
            isinstance(name, str) and isinstance(item, kinds) for name, item in value.items()
        )

    return is_valid


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


_ROWS: _Check = lambda value: isinstance(value, Ragged), "rows"
_ROWS_OR_NONE: _Check = lambda value: isinstance(value, Ragged | None), "rows or None"
_ROWS_BY_NAME: _Check = _by_name(Ragged), "rows by name"
_PER_FRAME: _Check = _is_array, "an array with one number for each frame"
_NAMES: _Check = _is_name_list, "a list of names"
_NUMBER: _Check = _is_number, "a number"
_FIELDS: Mapping[type[Any], Mapping[str, _Check]] = {
    Ragged: {
        "values": (lambda v: isinstance(v, np.ndarray) and v.ndim > 0, "an array of rows"),
        "lengths": (lambda v: _is_array(v) and v.dtype.kind in "iu", "an array of counts"),
    },
    VecObs: {
        "features": _ROWS_BY_NAME,
        "visible": _ROWS_BY_NAME,
        "action_masks": (
            _by_name(VecActionMask),
            "masks by name",
        ),
        "reward": _PER_FRAME,
        "done": _PER_FRAME,
        "metrics": (_by_name(Metric), "metrics by name"),
        "truncated": (lambda v: v is None or _is_array(v), _PER_FRAME[1]),
        "final": (lambda v: isinstance(v, VecObs | None), "frames or None"),
        "env_metrics": _ROWS_BY_NAME,
    },
    Metric: {"count": _NUMBER, "sum": _NUMBER, "min": _NUMBER, "max": _NUMBER},
    ObsSpace: {
        "global_features": _NAMES,
        "entities": (_by_name(Entity), "entity types by name"),
    },
    Entity: {"features": _NAMES},
}
_OF_TYPE: Mapping[Any, _Check] = {
    Ragged: _ROWS,
    Ragged | None: _ROWS_OR_NONE,
    list[str]: _NAMES,
    str: (lambda value: isinstance(value, str), "text"),
    int: (lambda value: type(value) is int, "a whole number"),
    float: _NUMBER,
    bool: (lambda value: isinstance(value, bool), "True or False"),
}
"""Checks of the fields of actions, by their annotations."""


@cache
def _fields_of(cls: Any) -> tuple[Mapping[str, _Check], list[str]]:
    """Return the checks of the fields of a class, and the names of those without a default."""
    fields = dataclasses.fields(cls)
    required = [f.name for f in fields if _has_no_default(f)]
    if cls in _FIELDS:
        return _FIELDS[cls], required
    return {f.name: _OF_TYPE[f.type] for f in fields}, required
