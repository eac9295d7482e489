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
from enn_trainer.checkpoints.state_files import ACTION_SPACES
from enn_trainer.config import TrainConfig
from enn_trainer.errors import CheckpointError
from enn_trainer.settings import ron
from enn_trainer.settings.config_io import load_config
from enn_trainer.state import make_network
from entity_env.spaces import ActionSpace, Entity, ObsSpace
from rogue_net.published import from_published

AGENT = "state.agent.msgpack"
MAX_BYTES = 1 << 32
"""Of a file; networks of this size do not exist."""
MAX_TEXT_BYTES = 1 << 22
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
    try:
        config = load_config(TrainConfig, None, text=_bytes(path / "config.ron").decode())
        state = _plain(ron.loads(_bytes(path / "state.ron").decode(), named=True))
        space = state["obs_space"]
        obs_space = ObsSpace(
            space["global_features"],
            {name: Entity(e["features"]) for name, e in space["entities"].items()},
        )
        action_space = {
            name: ACTION_SPACES[kind](**fields)
            for name, (kind, fields) in state["action_space"].items()
        }
        step = state["step"]
        if type(step) is not int or step < 0:
            raise ValueError(f"step: expected a number of at least 0, got {step!r}")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
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
        try:
            network = _network(path, config, obs_space, action_space, weights)
        except CheckpointError:
            raise
        except ValueError as error:  # such as relative positions of what there is none of
            raise CheckpointError(f"{path}: config.ron does not fit state.ron: {error}") from None
    for name, wanted in network.state_dict().items():
        got = weights.get(name, wanted)
        if wanted.is_floating_point() and not got.is_floating_point():
            raise CheckpointError(
                f"{path / AGENT}: {name}: expected floating-point numbers, got {got.dtype}"
            )
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"{path}: the weights do not fit the network: {error}") from None
    return PublishedRun(config, step, network.eval(), obs_space, action_space)


def _network(
    path: Path,
    config: TrainConfig,
    obs_space: ObsSpace,
    action_space: dict[str, ActionSpace],
    weights: dict[str, Tensor],
) -> Any:
    """A network of the configuration, if it is no larger than the weights that were read."""
    has = sum(t.numel() for t in weights.values())
    needs = math.inf
    if config.net.n_layer <= len(weights):
        with torch.device("meta"):  # takes no memory, whatever the configuration says
            outline = make_network(config, obs_space, action_space)
        needs = sum(t.numel() for t in outline.state_dict().values())
    if needs > has:
        raise CheckpointError(
            f"{path}: the weights do not fit the network: config.ron asks for more than the {has} "
            f"numbers of {AGENT}"
        )
    return make_network(config, obs_space, action_space)


def _weights(path: Path) -> dict[str, Tensor]:
    """The tensors of a file, under our names."""
    data = _bytes(path, MAX_BYTES)
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
    except (ValueError, TypeError, AttributeError, KeyError, msgpack.UnpackException) as error:
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
    """What the names of structs do not matter for; action spaces as pairs of name and fields."""
    if isinstance(value, ron.Struct):
        fields = _plain(dict(value.fields))
        return (value.name, fields) if value.name in ACTION_SPACES else fields
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value


def _bytes(path: Path, limit: int = MAX_TEXT_BYTES) -> bytes:
    try:
        if path.stat().st_size > limit:
            raise CheckpointError(f"{path}: larger than it can be, {limit} bytes")
        return path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from None
