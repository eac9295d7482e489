"""Weights alone, in a file that the user names: safetensors, or what torch.save writes.

Such a file does not say which network it is of, so that is given with it. A pickle is read by
torch's reader for weights, which makes tensors and runs nothing.
"""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from enn_trainer.checkpoints.fitting_network import load_weights
from enn_trainer.checkpoints.plain_file import check_tensor_header
from enn_trainer.errors import CheckpointError


def load_weights_file(path: Path, network: nn.Module) -> None:
    """Give a network the weights of a file.

    Args:
        path: `.safetensors`, or a state dict as `torch.save` writes it.
        network: of the shape of the saved one.

    Raises:
        CheckpointError: the file cannot be read, holds something else than weights, or the weights
            do not fit the network or are no finite numbers.
    """
    load_weights(str(path), network, _tensors(path))


def _tensors(path: Path) -> Mapping[str, Tensor]:
    content: Any
    try:
        if path.suffix == ".safetensors":
            with path.open("rb") as file:
                check_tensor_header(file.read(8))
            return load_file(path)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of formats of long ago
            content = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror or error}") from None
    except SafetensorError as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    except Exception as error:  # torch's reader fails in many ways where a file is damaged
        raise CheckpointError(
            f"{path}: expected a state dict and nothing but tensors, as "
            f"torch.save(network.state_dict(), ...) writes it; not read, as reading anything else "
            f"could run it ({type(error).__name__})"
        ) from None
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise CheckpointError(
            f"{path}: expected a dict of tensors by name, got {type(content).__name__}"
        )
    return content
