"""Checkpoints written by enn_trainer 0.1.16: what is needed to play, and nothing that runs.

run/
  latest-step000000004096/
    config.ron  state.ron       readable
    state.agent.msgpack         {name: {__tensor__, dtype, shape, data}}
    state.optimizer.msgpack     is not read
"""

import math
import re
from pathlib import Path
from typing import Any, NamedTuple

import msgpack
import numpy as np
import torch
from torch import Tensor

from enn_trainer.agent import PPOAgent
from enn_trainer.checkpoints.fitting_network import fitting_network, load_weights
from enn_trainer.checkpoints.plain_file import MAX_TEXT_BYTES, read_plain_file, refuse_pickles
from enn_trainer.checkpoints.saved_state import ACTION_KINDS, action_space_of, obs_space_of
from enn_trainer.config import TrainConfig
from enn_trainer.errors import CheckpointError
from enn_trainer.settings import ron
from enn_trainer.settings.config_io import load_config
from entity_env.spaces import ActionSpace, ObsSpace
from rogue_net.published import from_published

AGENT = "state.agent.msgpack"
MAX_BYTES = 1 << 32
"""Of a file; networks of this size do not exist."""
_DTYPES = ("<f4", "<f8", "<f2", "<i8", "<i4", "|u1", "|b1")
_SAVE_NAME = re.compile(r"latest-step(\d+)")


class PublishedRun(NamedTuple):
    """What is read of such a checkpoint."""

    config: TrainConfig
    step: int
    network: Any
    obs_space: ObsSpace
    action_space: dict[str, ActionSpace]


def find(path: Path) -> Path | None:
    """The published checkpoint that a path means: its own, or that of a run; None without one."""
    if (path / AGENT).is_file():
        return path
    if not path.is_dir():
        return None
    found = [
        (int(match[1]), child)
        for child in path.iterdir()
        if (match := _SAVE_NAME.fullmatch(child.name)) and (child / AGENT).is_file()
    ]
    return max(found)[1] if found else None


def read(path: Path, agent: PPOAgent | None = None) -> PublishedRun:
    """Read a published checkpoint.

    Args:
        path: its directory.
        agent: a network of your own that takes the weights; None for a `RogueNet`.

    Raises:
        CheckpointError: something is missing or damaged, or is no such checkpoint.
    """
    refuse_pickles(path)
    try:
        config = load_config(TrainConfig, None, text=_text(path / "config.ron"))
        state = _plain(ron.loads(_text(path / "state.ron"), named=True))
        if not isinstance(state, dict) or not {"obs_space", "action_space", "step"} <= state.keys():
            raise ValueError("expected State(step: ..., obs_space: ..., action_space: ...)")
        obs_space = obs_space_of(state["obs_space"])
        action_space = action_space_of(state["action_space"])
        step = state["step"]
        if type(step) is not int or step < 0:
            raise ValueError(f"step: expected a number of at least 0, got {step!r}")
    except ValueError as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(f"{path}: config.ron or state.ron cannot be read: {error}") from None
    if config.vf_net is not None:
        raise CheckpointError(
            f"{path}: expected a run without vf_net, which enn_trainer 0.1.16 did not train as "
            "its configuration says"
        )
    weights = _weights(path / AGENT)
    network: Any = agent
    if network is None:
        network = fitting_network(str(path), config, obs_space, action_space, weights)
    load_weights(str(path), network, weights)
    return PublishedRun(config, step, network.eval(), obs_space, action_space)


def _weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, under our names."""
    data = read_plain_file(path, MAX_BYTES)
    try:
        content = msgpack.unpackb(
            data,
            max_array_len=16,  # shapes; a list is allocated as long as its header says
            max_map_len=len(data),
            max_str_len=4096,
            max_bin_len=len(data),
            max_ext_len=0,
        )
        return from_published({_name(key): _tensor(key, value) for key, value in content.items()})
    except (
        ValueError,
        TypeError,
        AttributeError,
        KeyError,
        RuntimeError,  # of projections that do not fit together
        msgpack.UnpackException,
    ) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None


def _name(key: object) -> str:
    if not isinstance(key, str):
        raise TypeError(f"expected the name of a parameter, got {key!r}")
    return key


def _tensor(name: str, value: Any) -> Tensor:
    if not isinstance(value, dict) or value.get(b"__tensor__") != "torch":
        raise TypeError(f"expected a tensor, got {type(value).__name__}")
    dtype, shape, data = value[b"dtype"], value[b"shape"], value[b"data"]
    if dtype not in _DTYPES or not isinstance(data, bytes):
        raise TypeError(f"expected numbers of a type among {_DTYPES}, got {dtype!r}")
    sizes = list(shape)
    if any(type(size) is not int for size in sizes):
        raise TypeError(f"expected a shape of whole numbers, got {sizes}")
    if min(sizes, default=0) < 0 or math.prod(sizes) * np.dtype(dtype).itemsize != len(data):
        raise ValueError(f"expected {sizes} numbers of {dtype}, got {len(data)} bytes")
    numbers = np.frombuffer(data, dtype=dtype).reshape(sizes)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name}: expected finite numbers, got some that are not")
    return torch.from_numpy(numbers.copy())


def _plain(value: Any) -> Any:
    """What the names of structs do not matter for; action spaces with their names as `kind`."""
    if isinstance(value, ron.Struct):
        fields = _plain(dict(value.fields))
        return {**fields, "kind": value.name} if value.name in ACTION_KINDS else fields
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _text(path: Path) -> str:
    return read_plain_file(path, MAX_TEXT_BYTES).decode()
