"""`model.safetensors`: the weights of an agent with its configuration and spaces, in one file."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError
from safetensors.torch import save as save_tensors
from torch import Tensor

from enn_trainer.base.errors import CheckpointError, ConfigError
from enn_trainer.base.state_part import StateDict, without_prefix
from enn_trainer.checkpoints.saved_state import check_tensor_header, dump_spaces, read_spaces
from enn_trainer.checkpoints.weights import tensors_of
from enn_trainer.config import TrainConfig, ron
from enn_trainer.config.load import dump_config, load_config
from entity_env.spaces import Spaces

METADATA = "enn-trainer"
"""Name of the only text of the file, as the order of several ones is random."""
VERSION = 1
MAX_BYTES = 1 << 34
"""Limit of the size of a file."""
_SCALING = "reward_scaling/"


class ModelFile(NamedTuple):
    """Content of the file.

    Attributes:
        config: configuration of the run.
        spaces: spaces of the agent.
        step: number of frames that the agent was trained for.
        run: name of the folder of the run.
        weights: tensors of the agent by name, of a policy and its values, with or without `vf_net`.
        reward_scaling: state of `RewardScaling`; empty if the run scales no rewards.
    """

    config: TrainConfig
    spaces: Spaces
    step: int
    run: str
    weights: Mapping[str, Tensor]
    reward_scaling: StateDict

    def content(self) -> bytes:
        """Return the bytes of the file, which are equal for equal content."""
        texts = {
            "version": VERSION,
            "config": dump_config(self.config),
            "spaces": ron.dumps(ron.Struct("Spaces", dump_spaces(self.spaces))),
            "step": self.step,
            "run": self.run,
        }
        tensors = {name: w.detach().cpu().contiguous() for name, w in self.weights.items()}
        tensors |= {_SCALING + name: x for name, x in self.reward_scaling.items() if x is not None}
        return save_tensors(tensors, metadata={METADATA: json.dumps(texts)})


def has_metadata(path: Path) -> bool:
    """Return whether a file is a `.safetensors` file with a configuration and spaces."""
    try:
        with path.open("rb") as file:
            size = file.read(8)
            check_tensor_header(size)
            header = file.read(int.from_bytes(size, "little"))
        return path.suffix == ".safetensors" and METADATA in _texts(header)
    except (OSError, ValueError, SafetensorError):
        return False


def is_model_file(path: Path) -> bool:
    """Return True for a file of this kind by its name."""
    return path.suffix == ".safetensors" and path.is_file()


def read_model_file(path: Path) -> ModelFile:
    """Read a file; nothing in it is executed.

    Raises:
        CheckpointError: the file cannot be read, is of a newer version, or has other contents.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise CheckpointError(f"{path}: expected at most {MAX_BYTES} bytes")
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
    tensors = tensors_of(str(path), data)
    try:
        header = data[8 : 8 + int.from_bytes(data[:8], "little")]
        texts = json.loads(_texts(header)[METADATA])
        if texts["version"] != VERSION:
            raise ValueError(f"version: expected {VERSION}, got {texts['version']!r}")
        config = load_config(TrainConfig, None, text=texts["config"])
        spaces = read_spaces(ron.loads(texts["spaces"]))
        step, run = int(texts["step"]), str(texts["run"])
    except (ConfigError, ValueError, KeyError, TypeError) as error:
        got = f"no text {error}" if isinstance(error, KeyError) else str(error)
        raise CheckpointError(
            f"{path}: expected a model.safetensors of enn export, with configuration and spaces, "
            f"got {got}"
        ) from None
    weights = {name: x for name, x in tensors.items() if not name.startswith(_SCALING)}
    scaling = without_prefix(_SCALING.rstrip("/"), tensors)
    return ModelFile(config, spaces, step, run, weights, scaling)


def _texts(header: bytes) -> dict[str, Any]:
    """Return the texts in the header of a safetensors file, by name."""
    metadata = json.loads(header).get("__metadata__", {})
    return metadata if isinstance(metadata, dict) else {}
