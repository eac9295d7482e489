"""The tensors in a checkpoint of enn_trainer 0.1.16: weights, and the moments of its optimizer.

state.agent.msgpack         {name: tensor}, buffers among them
state.optimizer.msgpack     {"state": {number: {moment: tensor}}, "param_groups": [...]}

A tensor is {__tensor__, dtype, shape, data}. Parameters are numbered in the order of the names, and
each one once: every block names again the relative positions that all of them share.
"""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import torch
from torch import Tensor

from enn_trainer.checkpoints.plain_file import read_plain_file
from enn_trainer.errors import CheckpointError
from enn_trainer.settings.config_help import shown
from entity_env.bounds import check_complete, dict_of
from rogue_net.published import from_published, projections_by_type, renamed

AGENT = "state.agent.msgpack"
OPTIMIZER = "state.optimizer.msgpack"
MAX_BYTES = 1 << 32
"""Of a file; networks of this size do not exist."""
_DTYPES = ("<f4", "<f8", "<f2", "<i8", "<i4", "|u1", "|b1")
_PARAMETERS = ("weight", "bias", "embedding")  # the other last parts of names are of buffers
_SHARED = re.compile(r"backbone\.blocks\.\d+\.attn\.relpos_encoding\.")
_MOMENTS = {"step", "exp_avg", "exp_avg_sq"}


def published_weights(path: Path) -> dict[str, Tensor]:
    """The weights of a checkpoint, under our names.

    Args:
        path: the directory of the checkpoint.

    Raises:
        CheckpointError: the file cannot be read, or holds something else than finite numbers.
    """
    try:
        return from_published(_agent(path))
    except (ValueError, RuntimeError) as error:  # of torch: parts that do not fit together
        raise _unreadable(path / AGENT, error) from None


def published_moments(path: Path) -> dict[str, Tensor]:
    """The moments of AdamW, by our names of the parameters: `name/exp_avg` and so on.

    What is said of the three projections of attention is put together as their weights are, number
    by number. Projections of relative positions by type begin anew, but for those of the first
    type: see `from_published`.

    Args:
        path: the directory of the checkpoint.

    Raises:
        CheckpointError: the file cannot be read, or is not of the weights beside it.
    """
    agent = _agent(path)
    names = list(dict.fromkeys(_SHARED.sub("backbone.relpos_encoding.", n) for n in agent))
    names = [name for name in names if name.rpartition(".")[2] in _PARAMETERS]
    try:
        content = _unpacked(path / OPTIMIZER, longest_list=max(16, len(names)))
        return _by_our_names({name: agent[name].shape for name in names}, content)
    except (ValueError, TypeError, AttributeError, KeyError, RuntimeError) as error:
        raise CheckpointError(
            f"{_unreadable(path / OPTIMIZER, error)}; a new run can begin with the weights alone, "
            "by --init-from"
        ) from None


def _by_our_names(shapes: Mapping[str, torch.Size], content: Any) -> dict[str, Tensor]:
    names = list(shapes)
    numbers = [number for group in content["param_groups"] for number in group["params"]]
    if numbers != list(range(len(names))):
        raise ValueError(f"expected moments of the {len(names)} parameters, got {len(numbers)}")
    moments: dict[str, dict[str, Tensor]] = {key: {} for key in sorted(_MOMENTS)}
    for number, entry in content["state"].items():
        if number not in range(len(names)) or entry.keys() != _MOMENTS:
            raise ValueError(
                f"{shown(number)}: expected a number and {sorted(_MOMENTS)}, got {[*entry][:5]}"
            )
        name = names[number]
        for key in ("exp_avg", "exp_avg_sq"):
            moments[key][name] = _tensor(name, entry[key])
            if moments[key][name].shape != shapes[name]:
                raise ValueError(f"{name}: {key} is not of the shape of the parameter")
        if (moments["exp_avg_sq"][name] < 0).any():
            raise ValueError(f"{name}: exp_avg_sq: expected squares, got numbers below 0")
        # Of the shape of the parameter, so that it can be put together as the others are.
        moments["step"][name] = torch.full(shapes[name], _count(name, entry["step"]))
    for _, *unused in projections_by_type(names):
        for of_key in moments.values():
            of_key.update({n: torch.zeros_like(of_key[n]) for n in unused if n in of_key})
    ours = {key: renamed(of_key) for key, of_key in moments.items()}
    for name, steps in ours["step"].items():
        if (steps != steps.flatten()[:1]).any():
            raise ValueError(f"{name}: expected one number of steps, got several")
        ours["step"][name] = steps.flatten()[0].clone()
    return {f"{name}/{key}": t for key, of_key in ours.items() for name, t in of_key.items()}


def _count(name: str, value: Any) -> float:
    """How many steps were taken; a plain number in files of older versions of torch."""
    count = value if type(value) in (int, float) else _tensor(name, value).item()
    if not (0 <= count < 1 << 53 and count == int(count)):
        raise ValueError(f"{name}: step: expected a whole number of at least 0, got {count}")
    return float(count)


def _agent(path: Path) -> dict[str, Tensor]:
    """The tensors of the network, under the published names and in the order of the file."""
    content = _unpacked(path / AGENT, longest_list=16)
    try:
        return {_name(key): _tensor(key, value) for key, value in content.items()}
    except (ValueError, TypeError, AttributeError, KeyError) as error:
        raise _unreadable(path / AGENT, error) from None


def _unpacked(path: Path, longest_list: int) -> Any:
    """A file's data; a list is allocated as long as its header says, so that says no more."""
    data = read_plain_file(path, MAX_BYTES)
    try:
        check_complete(data)
        return msgpack.unpackb(
            data,
            strict_map_key=False,
            max_array_len=longest_list,
            object_pairs_hook=dict_of,
            max_map_len=len(data),
            max_str_len=4096,
            max_bin_len=len(data),
            max_ext_len=0,
        )
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise _unreadable(path, error) from None


def _name(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"expected the name of a parameter, got {key!r}")
    return key


def _tensor(name: str, value: Any) -> Tensor:
    if not isinstance(value, dict) or value.get(b"__tensor__") != "torch":
        raise TypeError(f"{name}: expected a tensor, got {type(value).__name__}")
    dtype, shape, data = value[b"dtype"], value[b"shape"], value[b"data"]
    if dtype not in _DTYPES or not isinstance(data, bytes):
        raise TypeError(f"{name}: expected numbers of a type among {_DTYPES}, got {dtype!r}")
    sizes = list(shape)
    if any(type(size) is not int for size in sizes):
        raise TypeError(f"{name}: expected a shape of whole numbers, got {sizes}")
    if min(sizes, default=0) < 0 or math.prod(sizes) * np.dtype(dtype).itemsize != len(data):
        raise ValueError(f"{name}: expected {sizes} numbers of {dtype}, got {len(data)} bytes")
    numbers = np.frombuffer(data, dtype=dtype).reshape(sizes)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name}: expected finite numbers, got some that are not")
    return torch.from_numpy(numbers.copy())


def _unreadable(path: Path, error: Exception) -> CheckpointError:
    if isinstance(error, CheckpointError):
        return error
    return CheckpointError(f"{path}: cannot be read: {error}")
