"""Reader for checkpoints of enn_trainer 0.1.16, converted to today's format in memory.

    run/
      latest-step000000004096/
        config.ron  state.ron       readable
        state.agent.msgpack         {name: tensor}, buffers among them
        state.optimizer.msgpack     {"state": {number: {moment: tensor}}, "param_groups": [...]}

A tensor is {__tensor__, dtype, shape, data}. Parameters are numbered in the order of their names.
A shared parameter has one number: every block repeats the name of the shared relative positions.

Files are never changed, and no code in them is executed: pickles are refused.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import torch
from safetensors.torch import save as save_tensors
from torch import Tensor

from enn_trainer.base.errors import CheckpointError
from enn_trainer.checkpoints.disk import MAX_TEXT_BYTES, read_plain_file
from enn_trainer.checkpoints.format import (
    PUBLISHED_WEIGHTS,
    WEIGHTS,
    Checkpoint,
    check_no_pickles,
    first_valid,
    is_pickled,
    is_published,
)
from enn_trainer.checkpoints.manifest import FORMAT_VERSION
from enn_trainer.checkpoints.saved_state import read_state
from enn_trainer.checkpoints.state_files import OPTIMIZER
from enn_trainer.checkpoints.weights import fitting_network
from enn_trainer.config import TrainConfig, ron
from enn_trainer.config.load import dump_config, load_config
from entity_env.errors import short_repr
from entity_env.serialization.bounds import Allowance, number_array, unpack_bounded
from entity_env.spaces import Spaces
from rogue_net.published import from_published, projections_by_type, renamed

OPTIMIZER_FILE = "state.optimizer.msgpack"
MAX_BYTES = 1 << 32
"""Size limit of a file of tensors."""
MAX_NAME = 4096
"""Maximal length of the name of a parameter."""
_SAVE_NAME = re.compile(r"latest-step(\d+)")
_DTYPES = ("<f4", "<f8", "<f2", "<i8", "<i4", "|u1", "|b1")
_PARAMETERS = ("weight", "bias", "embedding")  # other suffixes belong to buffers
_SHARED = re.compile(r"backbone\.blocks\.\d+\.attn\.relpos_encoding\.")
_MOMENTS = {"step", "exp_avg", "exp_avg_sq"}
# torch raises RuntimeError where shapes do not match.
_DAMAGE = (KeyError, TypeError, AttributeError, ValueError, RuntimeError, msgpack.UnpackException)


@dataclass(frozen=True)
class PublishedCheckpoint(Checkpoint):
    """Checkpoint of enn_trainer 0.1.16 with its files in today's format.

    Attributes:
        files: converted files by name; `read` converts the optimizer moments on demand.
    """

    files: Mapping[str, bytes]

    def read(self, name: str) -> bytes:
        """Return the content of a file in today's format.

        Raises:
            CheckpointError: there is no such file, or its source is damaged.
        """
        if name == OPTIMIZER:
            return save_tensors(_moments(self.path))
        if name not in self.files:
            raise CheckpointError(f"{self.path}: has no {name}")
        return self.files[name]


def find(
    path: Path, say: Callable[[str], None] = print, to_continue: bool = False
) -> PublishedCheckpoint | None:
    """Return the 0.1.16 checkpoint at a path, or the newest valid one of the run at that path.

    Args:
        path: a directory.
        say: prints a line for each newer checkpoint that is damaged.
        to_continue: True to require valid optimizer moments; otherwise they are not read.

    Returns:
        None if the directory neither is nor contains such a checkpoint.

    Raises:
        CheckpointError: there are checkpoints, but none is valid.
    """
    if not path.is_dir():
        return None
    if is_published(path):
        return _convert(path)
    steps = {child: _SAVE_NAME.fullmatch(child.name) for child in path.iterdir() if child.is_dir()}
    saves = sorted((int(match[1]), child) for child, match in steps.items() if match is not None)

    read = partial(_convert, with_moments=to_continue)
    return first_valid(path, [child for _, child in reversed(saves)], read, say)


def _convert(path: Path, with_moments: bool = False) -> PublishedCheckpoint:
    """Read a checkpoint of enn_trainer 0.1.16 and convert it to today's format.

    Args:
        path: the directory.
        with_moments: True to validate the optimizer moments too.

    Raises:
        CheckpointError: a file is missing, damaged or of another format.
    """
    if is_pickled(path):
        raise CheckpointError(
            f"{path}: expected tensors in {PUBLISHED_WEIGHTS}, got pickles, which can execute "
            "code and are not read; save the weights as safetensors on the machine that wrote them"
        )
    check_no_pickles(path)

    # Configuration, fields of our first `state.ron`, and weights.
    texts = [read_plain_file(path / name, MAX_TEXT_BYTES) for name in ("config.ron", "state.ron")]
    with _reading(f"{path}: config.ron or state.ron"):
        config = load_config(TrainConfig, None, text=texts[0].decode())
        published = ron.loads(texts[1].decode(), named=True).fields
        names = ("step", "restart", "next_eval_step", "obs_space")
        actions = {
            name: ron.Struct("ActionSpace", {"kind": space.name, **space.fields})
            for name, space in published["action_space"].items()
        }
        fields = {name: published[name] for name in names} | {"action_space": actions}
        state_text = ron.dumps(ron.Struct("State", {"version": 1, **fields}))
    if config.vf_net is not None:
        raise CheckpointError(
            f"{path}: vf_net: expected none, as enn_trainer 0.1.16 did not train it as configured"
        )
    agent = _read_agent(path)
    with _reading(f"{path / PUBLISHED_WEIGHTS}:"):
        weights = from_published(agent)

    # The files of our format.
    files = {
        "config.ron": dump_config(config).encode(),
        "state.ron": state_text.encode(),
        WEIGHTS: save_tensors(weights),
        OPTIMIZER: b"",  # converted on demand
    }
    manifest = {
        "format": FORMAT_VERSION,
        "step": published["step"],
        "why": "written by enn_trainer 0.1.16",
        "files": {name: {"size": len(data)} for name, data in files.items()},
    }
    converted = PublishedCheckpoint(path, manifest, files)
    state = read_state(converted)
    fitting_network(str(path), config, Spaces(state["obs_space"], state["action_space"]), weights)
    if with_moments:
        converted.read(OPTIMIZER)
    return converted


def _moments(path: Path) -> dict[str, Tensor]:
    """Return the AdamW moments under today's parameter names: `name/exp_avg` and so on.

    The moments of the three attention projections are concatenated like their weights. Projections
    of relative positions by type restart at 0, except for the first type; see `from_published`.

    Args:
        path: the directory of the checkpoint.

    Raises:
        CheckpointError: the file cannot be read, or does not match the weights.
    """
    agent = _read_agent(path)
    names = list(dict.fromkeys(_SHARED.sub("backbone.relpos_encoding.", n) for n in agent))
    names = [name for name in names if name.rpartition(".")[2] in _PARAMETERS]
    try:
        with _reading(f"{path / OPTIMIZER_FILE}:"):
            content = _unpack(path / OPTIMIZER_FILE)
            return _renamed_moments({name: agent[name].shape for name in names}, content)
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}; use --init-from to start a new run with the weights alone"
        ) from None


def _renamed_moments(shapes: Mapping[str, torch.Size], content: Any) -> dict[str, Tensor]:
    """Validate the content of the optimizer file, and return the moments under today's names."""
    names = list(shapes)
    numbers = [number for group in content["param_groups"] for number in group["params"]]
    if numbers != list(range(len(names))):
        raise ValueError(f"expected moments of the {len(names)} parameters, got {len(numbers)}")

    # By moment and published name, each of the shape of its parameter.
    moments: dict[str, dict[str, Tensor]] = {key: {} for key in sorted(_MOMENTS)}
    for number, entry in content["state"].items():
        if number not in range(len(names)) or entry.keys() != _MOMENTS:
            raise ValueError(
                f"{short_repr(number)}: expected a number and {sorted(_MOMENTS)}, "
                f"got {[*entry][:5]}"
            )
        name = names[number]
        for key in ("exp_avg", "exp_avg_sq"):
            moments[key][name] = _tensor(name, entry[key])
            if moments[key][name].shape != shapes[name]:
                raise ValueError(f"{name}: {key} is not of the shape of the parameter")
        if (moments["exp_avg_sq"][name] < 0).any():
            raise ValueError(f"{name}: exp_avg_sq: expected squares, got numbers below 0")
        moments["step"][name] = torch.full(shapes[name], _count(name, entry["step"]))

    # Today's names; some parameters are concatenations of several old ones.
    for _, *unused in projections_by_type(names):
        for by_name in moments.values():
            by_name.update({n: torch.zeros_like(by_name[n]) for n in unused if n in by_name})
    result = {key: renamed(by_name) for key, by_name in moments.items()}
    for name, steps in result["step"].items():
        if (steps != steps.flatten()[:1]).any():
            raise ValueError(f"{name}: expected one number of steps, got several")
        result["step"][name] = steps.flatten()[0].clone()
    return {f"{name}/{key}": t for key, by_name in result.items() for name, t in by_name.items()}


def _count(name: str, value: Any) -> float:
    """Return a step count, which is a tensor or, from older versions of torch, a number."""
    count = value if type(value) in (int, float) else _tensor(name, value).item()
    if not (0 <= count < 1 << 53 and count == int(count)):
        raise ValueError(f"{name}: step: expected a whole number of at least 0, got {count}")
    return float(count)


def _read_agent(path: Path) -> dict[str, Tensor]:
    """Read the tensors of the network, under their 0.1.16 names and in the order of the file."""
    tensors = {}
    with _reading(f"{path / PUBLISHED_WEIGHTS}:"):
        for name, value in _unpack(path / PUBLISHED_WEIGHTS).items():
            if not isinstance(name, str) or len(name) > MAX_NAME:
                raise TypeError(f"expected the name of a parameter, got {short_repr(name)}")
            tensors[name] = _tensor(name, value)
    return tensors


def _unpack(path: Path) -> Any:
    def no_extension(code: int, data: bytes) -> Any:
        raise ValueError(f"expected no extension types, got one of code {code}")

    return unpack_bounded(read_plain_file(path, MAX_BYTES), no_extension)


@contextmanager
def _reading(what: str) -> Iterator[None]:
    """Convert errors of malformed content to a `CheckpointError` that names the file."""
    try:
        yield
    except CheckpointError:
        raise
    except _DAMAGE as error:
        raise CheckpointError(f"{what} cannot be read: {error}") from None


def _tensor(name: str, value: Any) -> Tensor:
    if not isinstance(value, dict) or value.get(b"__tensor__") != "torch":
        raise TypeError(f"{name}: expected a tensor, got {type(value).__name__}")
    dtype, shape, data = value[b"dtype"], value[b"shape"], value[b"data"]
    if dtype not in _DTYPES or not isinstance(data, bytes):
        raise TypeError(f"{name}: expected numbers of a type among {_DTYPES}, got {dtype!r}")
    try:
        numbers = number_array(dtype, shape, data, Allowance(len(data)))
    except (ValueError, OverflowError):
        expected = f"{dtype} in a shape of whole numbers, {short_repr(shape)}"
        raise ValueError(f"{name}: expected {expected}, got {len(data)} bytes") from None
    if not np.isfinite(numbers).all():
        raise ValueError(f"{name}: expected finite numbers, got some that are not")
    return torch.from_numpy(numbers)
