"""Python interface of the compiled part: `blocks.h` for ctypes."""

import ctypes
import hashlib
import importlib
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

_OUT_OF_RANGE, _OVERRUN = 2, 3
GATES = (None, "linear", "relu", "gelu", "sigmoid")
"""Gates in the order of their numbers in `blocks.h`."""
MAX_HEAD = 64
MOST_AXES = 8
SWITCH = "ROGUE_NET_NATIVE"
"""The environment variable that, set to 0, leaves everything to torch."""
VECTOR = 8
"""Floats of a vector instruction: widths are multiples of it."""


def _compiled() -> ModuleType | None:
    if os.environ.get(SWITCH) == "0":
        return None
    try:
        module = importlib.import_module("rogue_net.native._native")
    except ImportError:  # there was no compiler
        return None
    files = sorted(Path(__file__).parent.glob("*.[ch]"))  # none where only Python was installed
    if files:
        source = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
        if source != module.source:
            warnings.warn(
                f"{module.__file__}: expected to be compiled from the files beside it, which have "
                "changed since; torch is used in its place. Install again: pip install -e .",
                stacklevel=2,
            )
            return None
    return module


_MODULE = _compiled()
AVAILABLE = _MODULE is not None
INSTRUCTIONS: str | None = None if _MODULE is None else _MODULE.instructions
"""The instruction set in use, such as "x86-64-v4"; None without compiled code."""
_LIBRARY = None if _MODULE is None else ctypes.CDLL(_MODULE.__file__)


class PairRows(ctypes.Structure):
    """`PairRows` of `blocks.h`, which describes the fields. Pointers are addresses."""

    _fields_ = [
        ("corners", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("rows", "weights", "table", "table_grad")],
    ]


class Frames(ctypes.Structure):
    """`Frames` of `blocks.h`."""

    _fields_ = [
        ("num_frames", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("row_start", "pair_start", "score_start")],
        ("visible", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("width", "heads", "layers")],
        *[(name, ctypes.c_int64) for name in ("parts", "threads", "gradient_stride")],
        ("keys", PairRows),
        ("values", PairRows),
        ("gate_kind", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("gate_weight", "gate_bias")],
        *[(name, ctypes.c_void_p) for name in ("gate_weight_grad", "gate_bias_grad")],
    ]


class Embedding(ctypes.Structure):
    """`Embedding` of `blocks.h`."""

    _fields_ = [
        *[(name, ctypes.c_int64) for name in ("rows", "features")],
        *[(name, ctypes.c_void_p) for name in ("x", "mean", "std", "to")],
        *[(name, ctypes.c_void_p) for name in ("weight", "bias", "norm_weight", "norm_bias")],
        *[(name, ctypes.c_void_p) for name in ("hidden", "stats")],
        *[(name, ctypes.c_void_p) for name in ("weight_grad", "bias_grad")],
        *[(name, ctypes.c_void_p) for name in ("norm_weight_grad", "norm_bias_grad")],
    ]


LINEAR_HEAD, CHOICE_HEAD = 0, 1
"""Kinds of heads."""


class Head(ctypes.Structure):
    """`Head` of `blocks.h`."""

    _fields_ = [
        *[(name, ctypes.c_int64) for name in ("kind", "rows", "width", "x_rows")],
        *[(name, ctypes.c_void_p) for name in ("from_rows", "mask", "weight", "bias", "said")],
        *[(name, ctypes.c_void_p) for name in ("given", "uniforms", "chosen")],
        *[(name, ctypes.c_void_p) for name in ("logprobs", "entropies")],
        *[(name, ctypes.c_void_p) for name in ("dsaid", "dlogprobs", "dentropies")],
        *[(name, ctypes.c_void_p) for name in ("weight_grad", "bias_grad")],
    ]


class Network(ctypes.Structure):
    """`Network` of `blocks.h`."""

    _fields_ = [
        ("frames", Frames),
        *[(name, ctypes.c_int64) for name in ("num_types", "num_choices", "num_means")],
        *[(name, ctypes.c_void_p) for name in ("types", "choices", "means")],
        ("num_parameters", ctypes.c_int64),
        *[(name, ctypes.c_void_p) for name in ("parameters", "sizes")],
        *[(name, ctypes.c_void_p) for name in ("x", "pooled", "embedded", "made")],
        *[(name, ctypes.c_void_p) for name in ("gradients", "dx")],
        ("clip", ctypes.c_float),
    ]


class PairCells(ctypes.Structure):
    """`PairCells` of `blocks.h`."""

    _fields_ = [
        ("num_frames", ctypes.c_int64),
        ("row_start", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("axes", "radial", "distance", "interpolate")],
        *[(name, ctypes.c_void_p) for name in ("extent", "position", "heading", "placed")],
        ("first_value", ctypes.c_void_p),
        *[(name, ctypes.c_int64) for name in ("num_cells", "corners", "no_key", "no_value")],
        *[(name, ctypes.c_void_p) for name in ("key_rows", "value_rows", "weights")],
        ("inverse_scale", ctypes.c_float),
    ]


def fits(width: int, heads: int) -> bool:
    """Return whether the compiled attention has this width and number of heads."""
    head = width // heads
    return AVAILABLE and head % VECTOR == 0 and head <= MAX_HEAD


Argument: TypeAlias = "Tensor | Sequence[Tensor | None] | int | float | None"


def call(name: str, of: ctypes.Structure, *arguments: Argument) -> None:
    """Call a function of `blocks.h`, without the interpreter's lock.

    Args:
        name: the name of the function.
        of: its first argument.
        arguments: the other ones: numbers, tensors, and sequences of tensors for pointers to
            pointers.

    Raises:
        MemoryError: there is not enough memory.
        IndexError: an actor or a choice is out of range.
        SystemError: the function wrote past the end of an array; the results are wrong.
    """
    assert _LIBRARY is not None
    failed = getattr(_LIBRARY, name)(ctypes.byref(of), *map(_argument, arguments))  # kept there
    if failed == _OUT_OF_RANGE:
        raise IndexError(f"{name}: an actor or a choice is out of range")
    if failed == _OVERRUN:
        raise SystemError(
            f"{name}: the compiled code wrote past the end of an array and its results were "
            f"discarded; set {SWITCH}=0 to compute with torch alone, and report this"
        )
    if failed:
        raise MemoryError(f"{name}: not enough memory")


def numbers_for_backward(frames: Frames) -> int:
    """Return the number of floats that `blocks_forward` keeps for the backward pass."""
    assert _LIBRARY is not None
    function = _LIBRARY.blocks_made
    function.restype = ctypes.c_int64
    return int(function(ctypes.byref(frames)))


def draw_uniforms(state: int, env: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> Tensor:
    """Return random numbers to sample with, (actors,) float32 in [0, 1).

    Args:
        state: 64 bits, different for each purpose.
        env: (B,) int64, the environment of each frame.
        lengths: (B,) int64, the number of actors of each frame.
    """
    assert _LIBRARY is not None
    env, lengths = (np.ascontiguousarray(x, dtype=np.int64) for x in (env, lengths))
    out = torch.empty(int(lengths.sum()), dtype=torch.float32)
    _LIBRARY.draw_uniforms(
        ctypes.c_uint64(state),
        ctypes.c_int64(len(lengths)),
        *(ctypes.c_void_p(address(x)) for x in (env, lengths, out)),
    )
    return out


def array_of(kind: Any, items: Sequence[Any]) -> Any:
    """Return a new array of a ctypes type."""
    return (kind * len(items))(*items)


def _argument(argument: Argument) -> Any:
    if argument is None or isinstance(argument, Tensor):
        return ctypes.c_void_p(address(argument))
    if isinstance(argument, int):
        return ctypes.c_int64(argument)
    if isinstance(argument, float):
        return ctypes.c_float(argument)
    return array_of(ctypes.c_void_p, [*map(address, argument)])


def address(x: "Tensor | npt.NDArray[Any] | None") -> int | None:
    """Return the address of the data of a contiguous tensor or array; None for None."""
    if x is None:
        return None
    if isinstance(x, Tensor):
        assert x.is_contiguous()
        return x.data_ptr()
    assert x.flags.c_contiguous
    return x.ctypes.data
