"""Serialization of plain data: msgpack with NumPy arrays and batches of this package, no code.

Only the types listed here are read, and memory is linear in the size of the message.
"""

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from typing import Any, get_args, get_origin, get_type_hints

import msgpack
import numpy as np
import numpy.typing as npt

from entity_env.errors import EntityEnvError, short_repr
from entity_env.kinds import Kind
from entity_env.observation import OMIT_EMPTY
from entity_env.ragged import Ragged
from entity_env.serialization.bounds import Allowance, number_array, unpack_bounded
from entity_env.spaces import ACTION_SPACES, Entity, ObsSpace, batch_mask_type
from entity_env.vec.vec_obs import After, Metric, VecObs

_ARRAY, _DATACLASS, _LARGE_INT, _TRANSPOSED = 1, 2, 3, 4
_MAX_HEAD, _MAX_AXES = 512, 64  # bytes of dtype and shape of an array; limit of NumPy
_MAX_DEPTH = 16  # of batches in batches, so that the C stack does not overflow
_BATCHES = Ragged, VecObs, Metric, After, ObsSpace, Entity, Kind
_CLASSES: dict[str, type[Any]] = {cls.__name__: cls for cls in _BATCHES}


class MessageError(EntityEnvError, ValueError):
    """Raised for bytes that are no message, and for values that cannot be part of one."""


def pack(value: Any, exact: bool = False) -> bytes:
    """Pack None, numbers, text, bytes, lists, dicts, number arrays and batches of this package.

    Args:
        value: value to pack.
        exact: preserve the memory order of arrays, which affects sums; and raise for types that
            would not be restored: tuples and NumPy scalars.

    Raises:
        MessageError: the value contains another type.
    """
    try:
        return _packed(value, partial(_encode, exact=exact))
    except (TypeError, ValueError, OverflowError) as error:
        raise MessageError(str(error)) from None


def unpack(data: bytes | memoryview) -> Any:
    """Restore a value from the bytes of `pack`; tuples become lists.

    Raises:
        MessageError: the bytes are damaged or contain an unknown type.
    """
    return _unpack(data, Allowance(len(data)), 0)


def _unpack(data: bytes | memoryview, allowance: Allowance, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise MessageError(f"expected batches nested at most {_MAX_DEPTH} deep")
    try:
        return unpack_bounded(data, lambda code, body: _decode(code, body, allowance, depth))
    except MessageError:
        raise
    except Exception as error:  # damaged bytes can raise any exception
        raise MessageError(f"not a message: {error}") from None


def _packed(value: Any, default: Callable[[Any], Any] = list) -> bytes:
    # By default msgpack allocates 256 KiB for each value, which takes longer than packing it.
    packer = msgpack.Packer(default=default, strict_types=True, buf_size=1024)
    packed: bytes = packer.pack(value)
    return packed


def _encode(value: Any, exact: bool) -> Any:
    """Convert a value that msgpack does not support."""
    if not exact and isinstance(value, np.generic) and value.dtype.kind in "biuf":
        return value.item()
    if not exact and isinstance(value, tuple):
        return list(value)
    if type(value) is np.ndarray and value.dtype.kind in "biuf":
        axes = list(range(value.ndim))
        if exact and not value.flags.c_contiguous:
            axes.sort(key=lambda axis: -abs(value.strides[axis]))
        if axes != list(range(value.ndim)):
            content = [axes, np.ascontiguousarray(value.transpose(axes))]
            return msgpack.ExtType(_TRANSPOSED, pack(content))
        head = _packed([value.dtype.str, value.shape])
        return msgpack.ExtType(_ARRAY, head + np.ascontiguousarray(value).tobytes())
    if type(value) is int:  # of more than 64 bits
        size = value.bit_length() // 8 + 1
        return msgpack.ExtType(_LARGE_INT, value.to_bytes(size, "little", signed=True))
    if type(value) is _class_of(type(value).__name__):
        fields = {}
        for f in dataclasses.fields(value):
            content = getattr(value, f.name)
            is_empty = content is None or (isinstance(content, list | dict) and not content)
            is_empty = is_empty or (isinstance(content, np.ndarray) and content.size == 0)
            if not (is_empty and OMIT_EMPTY in f.metadata):
                fields[f.name] = content
        return msgpack.ExtType(_DATACLASS, pack([type(value).__name__, fields]))
    raise TypeError(f"cannot be part of a message: {type(value).__name__}")


def _decode(code: int, data: bytes, allowance: Allowance, depth: int) -> Any:
    if code == _ARRAY:
        # Limit the head, so that its lists take little memory.
        unpacker = msgpack.Unpacker(max_buffer_size=_MAX_HEAD, max_array_len=_MAX_AXES)
        unpacker.feed(data[:_MAX_HEAD])
        dtype, shape = unpacker.unpack()
        return number_array(dtype, shape, data, allowance, unpacker.tell())
    if code == _DATACLASS:
        name, fields = _unpack(data, allowance, depth + 1)
        cls = _class_of(name) if isinstance(name, str) else None
        if cls is None:
            names = [*_CLASSES, *ACTION_SPACES]
            raise MessageError(f"expected one of {names}, got {short_repr(name)}")
        return rebuilt(cls, fields, allowance)
    if code == _LARGE_INT:
        return int.from_bytes(data, "little", signed=True)
    if code == _TRANSPOSED:
        axes, array = _unpack(data, allowance, depth + 1)
        if not isinstance(array, np.ndarray) or sorted(axes) != list(range(array.ndim)):
            raise MessageError(f"expected an array and its axes, got {short_repr(axes)}")
        return array.transpose(np.argsort(axes))
    raise MessageError(f"unknown type code {code}")


def _class_of(name: str) -> type[Any] | None:
    """Return the class of a name in a message, None if unknown."""
    return _CLASSES.get(name) or ACTION_SPACES.get(name) or batch_mask_type(name)


def rebuilt(cls: type[Any], fields: Any, allowance: Allowance) -> Any:
    """Create a batch or space from its fields.

    Args:
        cls: class of the object.
        fields: values by field name; fields with defaults may be missing.
        allowance: budget for rows without columns.

    Raises:
        ValueError: a field is missing, unknown, or of a wrong type; the message names it.
    """
    checks, required = _checks_of(cls)  # type: ignore[arg-type]  # a class is hashable
    if not isinstance(fields, dict):
        raise ValueError(f"{cls.__name__}: expected fields by name, got {short_repr(fields)}")
    if not required <= fields.keys() <= checks.keys():
        expected, got = ", ".join(checks), short_repr([*fields])
        raise ValueError(f"{cls.__name__}: expected the fields {expected}, got {got}")
    for name, value in fields.items():
        is_valid, expected = checks[name]
        if not is_valid(value):
            got = f"{type(value).__name__} {short_repr(value)}"
            raise ValueError(f"{cls.__name__}.{name}: expected {expected}, got {got}")
    if cls is not Ragged:
        return cls(**fields)
    values, lengths = fields["values"], fields["lengths"]
    # Check each length, because a sum of invalid lengths may overflow to the number of rows.
    are_counts = lengths.ndim == 1 and lengths.dtype.kind in "iu"
    if are_counts and len(lengths):
        are_counts = _MIN(lengths) >= 0 and _MAX(lengths) <= len(values)
    if not are_counts:
        raise ValueError(f"Ragged.lengths: expected counts of {len(values)} rows, got {lengths}")
    if values.size == 0:
        allowance.take(len(values), "rows without columns")
    return Ragged(values, lengths.astype(np.int64, copy=False))


_MIN, _MAX = np.minimum.reduce, np.maximum.reduce  # faster than methods
_Check = tuple[Callable[[Any], bool], str]


@cache
def _checks_of(cls: Any) -> tuple[dict[str, _Check], set[str]]:
    """Return the checks of the fields of a class, and the names of required fields."""
    hints, checks, required = get_type_hints(cls), {}, set()
    for field in dataclasses.fields(cls):
        is_valid, expected = _check_of(hints[field.name], _MAX_AXES if cls is Ragged else 1)
        if field.default is None:
            is_valid = _or_none(is_valid)
        checks[field.name] = is_valid, expected
        if field.default is field.default_factory is dataclasses.MISSING:
            required.add(field.name)
    return checks, required


def _or_none(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or is_valid(value)


def _check_of(hint: Any, max_ndim: int) -> _Check:
    """Return a check of values for an annotation, and a description of valid values.

    Args:
        hint: annotation of a field.
        max_ndim: maximum number of axes of an array.
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is dict:
        is_item, item = _check_of(args[1], max_ndim)
        return (
            lambda value: (
                isinstance(value, dict)
                and all(isinstance(name, str) and is_item(value[name]) for name in value)
            ),
            f"{item} by name",
        )
    if origin is list:
        is_item, item = _check_of(args[0], max_ndim)
        return (
            lambda value: isinstance(value, list) and all(map(is_item, value)),
            f"a list of {item}",
        )
    if origin in (np.ndarray, npt.NDArray):  # distinct types since numpy 2.5
        axes = range(1, max_ndim + 1)
        return lambda value: isinstance(value, np.ndarray) and value.ndim in axes, "an array"
    if hint is int:
        return lambda value: type(value) is int, "a whole number"
    if hint is float:
        return lambda value: type(value) in (int, float), "a number"
    return lambda value: isinstance(value, hint), getattr(hint, "__name__", str(hint))
