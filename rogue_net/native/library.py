"""ctypes interface of the compiled part: the structs and functions of `blocks.h`."""

import ctypes
import os
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from entity_env.arrays import IntArray
from rogue_net.native.compiled import AVAILABLE as AVAILABLE
from rogue_net.native.compiled import MODULE, POISON, SWITCH

_OUT_OF_RANGE, _OVERRUN = 2, 3
GATES = (None, "linear", "relu", "gelu", "sigmoid")
"""Gates in the order of their numbers in `blocks.h`."""
MAX_HEAD = 64
MOST_AXES = 8
VECTOR = 8
"""Number of floats of a vector instruction; widths are multiples of it."""


_LIBRARY = None if MODULE is None else ctypes.CDLL(MODULE.__file__)
_INT, _FLOAT, _POINTER = ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
POISONED = ctypes.c_int() if _LIBRARY is None else ctypes.c_int.in_dll(_LIBRARY, "poisons_arrays")
"""Its value is 1 while new arrays are filled with bytes of 255, which are NaN as floats."""
POISONED.value = int(os.environ.get(POISON) == "1")
_NO_ELEMENTS = ctypes.c_int64()
"""Address of arrays without elements, for which torch returns a null pointer."""


def _fields(*groups: tuple[Any, str]) -> list[tuple[str, Any]]:
    """Return the fields of a struct from groups of a type and several names."""
    return [(name, kind) for kind, names in groups for name in names.split()]


class PairRowsStruct(ctypes.Structure):
    """`PairRows` of `blocks.h`, where the fields are documented. Pointers are addresses."""

    _fields_ = _fields((_INT, "corners"), (_POINTER, "rows weights table table_grad"))


class FramesStruct(ctypes.Structure):
    """`Frames` of `blocks.h`."""

    _fields_ = _fields(
        (_INT, "num_frames"),
        (_POINTER, "row_start pair_start score_start visible kept_start"),
        (_INT, "width heads layers parts threads gradient_stride num_networks num_parameters"),
        (_POINTER, "first_frame"),
        (PairRowsStruct, "keys values"),
        (_INT, "gate_kind"),
        (_POINTER, "gate_weight gate_bias gate_weight_grad gate_bias_grad"),
    )


class EmbeddingStruct(ctypes.Structure):
    """`Embedding` of `blocks.h`."""

    _fields_ = _fields(
        (_INT, "rows features kinds num_labels"),
        (_POINTER, "x label_rows mean std to weight bias norm_weight norm_bias labels"),
        (
            _POINTER,
            "hidden stats weight_grad bias_grad norm_weight_grad norm_bias_grad labels_grad",
        ),
    )


LINEAR_HEAD, CHOICE_HEAD = 0, 1
"""Kinds of heads."""


class HeadStruct(ctypes.Structure):
    """`Head` of `blocks.h`."""

    _fields_ = _fields(
        (_INT, "kind rows width x_rows"),
        (_POINTER, "from_rows mask weight bias said given uniforms chosen logprobs entropies"),
        (_POINTER, "dsaid dlogprobs dentropies weight_grad bias_grad"),
    )


class NetworkStruct(ctypes.Structure):
    """`Network` of `blocks.h`."""

    _fields_ = _fields(
        (FramesStruct, "frames"),
        (_INT, "num_types num_choices num_means"),
        (_POINTER, "types choices means"),
        (_POINTER, "parameters statistics sizes x kept pooled embedded made gradients dx dkept"),
        (_FLOAT, "clip"),
    )


class MemoryStruct(ctypes.Structure):
    """`Memory` of `blocks.h`."""

    _fields_ = _fields(
        (_INT, "num_frames num_rows num_entities num_first width state_width of_frame"),
        (_INT, "parts threads gradient_stride"),
        (_POINTER, "part_start row_start memory_start absent_start level row kind source absent"),
        (_POINTER, "known x of_frames added carried parameters"),
        (_POINTER, "means states passed gates joined"),
        (_POINTER, "djoined dstates dpassed dx dof_frames gradients"),
    )


class PairCellsStruct(ctypes.Structure):
    """`PairCells` of `blocks.h`."""

    _fields_ = _fields(
        (_INT, "num_frames"),
        (_POINTER, "row_start"),
        (_INT, "axes radial distance interpolate"),
        (_POINTER, "extent position heading placed first_value"),
        (_INT, "num_cells corners no_key no_value"),
        (_POINTER, "key_rows value_rows weights"),
        (_FLOAT, "inverse_scale"),
    )


def fits(width: int, heads: int) -> bool:
    """Return whether compiled attention supports a width and a number of heads."""
    head = width // heads
    return AVAILABLE and head % VECTOR == 0 and head <= MAX_HEAD


def call(name: str, struct: ctypes.Structure, *arguments: Tensor | float | None) -> None:
    """Call a function of `blocks.h`, releasing the GIL.

    Args:
        name: the name of the function.
        struct: its first argument.
        arguments: the remaining arguments.

    Raises:
        MemoryError: there is not enough memory.
        IndexError: an actor, a choice or a label is out of range.
        SystemError: the function wrote past the end of an array; the results are wrong.
    """
    assert _LIBRARY is not None
    failed = getattr(_LIBRARY, name)(ctypes.byref(struct), *map(_argument, arguments))
    if failed == _OUT_OF_RANGE:
        raise IndexError(f"{name}: an actor, a choice or a label is out of range")
    if failed == _OVERRUN:
        raise SystemError(
            f"{name}: the compiled code wrote past the end of an array and its results were "
            f"discarded; set {SWITCH}=0 to use torch instead, and report this"
        )
    if failed:
        raise MemoryError(f"{name}: not enough memory")


def numbers_for_backward(frames: FramesStruct) -> int:
    """Return the number of floats that `blocks_forward` saves for the backward pass."""
    assert _LIBRARY is not None
    function = _LIBRARY.blocks_made
    function.restype = ctypes.c_int64
    return int(function(ctypes.byref(frames)))


def draw_uniforms(state: int, env: IntArray, lengths: IntArray) -> Tensor:
    """Return random numbers for sampling, (actors,) float32 in [0, 1).

    Args:
        state: seed of the stream, 64 bits.
        env: (B,) int64, the environment of each frame.
        lengths: (B,) int64, the number of actors of each frame.
    """
    assert _LIBRARY is not None
    env, lengths = (np.ascontiguousarray(x, dtype=np.int64) for x in (env, lengths))
    out = uninitialised((int(lengths.sum()),), torch.float32)
    _LIBRARY.draw_uniforms(
        ctypes.c_uint64(state),
        ctypes.c_int64(len(lengths)),
        *(ctypes.c_void_p(address(x)) for x in (env, lengths, out)),
    )
    return out


def array_of(kind: Any, items: Sequence[Any]) -> Any:
    """Create an array of a ctypes type."""
    return (kind * len(items))(*items)


def addresses_of(tensors: Sequence[Tensor | None]) -> npt.NDArray[np.uint64]:
    """Return the data addresses of contiguous tensors, 0 for None."""
    return np.array([address(x) or 0 for x in tensors], np.uint64)


def uninitialised(shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """Return an uninitialised tensor for compiled code to write into; NaN while `POISONED`."""
    new = torch.empty(shape, dtype=dtype)
    if POISONED.value:
        new.flatten().view(torch.uint8).fill_(255)
    return new


def _argument(argument: Tensor | float | None) -> Any:
    if argument is None or isinstance(argument, Tensor):
        return _POINTER(address(argument))
    return _INT(argument) if isinstance(argument, int) else _FLOAT(argument)


def address(x: "Tensor | npt.NDArray[Any] | None") -> int | None:
    """Return the data address of a contiguous tensor or array; None for None.

    Arrays without elements have an address too, as a null pointer means no array.
    """
    if x is None:
        return None
    if isinstance(x, Tensor):
        assert x.is_contiguous()
        return x.data_ptr() or ctypes.addressof(_NO_ELEMENTS)
    assert x.flags.c_contiguous
    return x.ctypes.data
