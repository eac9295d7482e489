"""Weights for a network, of a save or of a file that the user names.

The network is no larger than the weights that there are for it, and able to act.
"""

import re
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load as load_tensors
from safetensors.torch import load_file
from torch import Tensor, nn

from enn_trainer.base.errors import CheckpointError
from enn_trainer.checkpoints.state import make_network
from enn_trainer.config import TrainConfig
from entity_env.spaces import Spaces
from rogue_net.input_norm import InputNorm

MAX_WEIGHT = 1e9
"""Beyond, sums of products of weights overflow float32; nothing learns such weights."""
MAX_HEADER_BYTES = 1 << 22
"""Limit of the header of a safetensors file: a hundred bytes for each tensor."""

_OF_ROGUE_NET = re.compile(
    r"((policy|value_function)\.)?(embedding|relpos|transformer|action_heads|memory|"
    r"regression_heads)\."
)


def fitting_network(
    where: str,
    config: TrainConfig,
    spaces: Spaces,
    weights: Mapping[str, Tensor],
    make: Callable[..., Any] = make_network,
) -> Any:
    """Return a new network of a configuration, if it is no larger than the weights for it.

    Args:
        where: the save, for messages.
        config: of the run.
        spaces: of the network.
        weights: by name.
        make: `make_network`, or `make_policy` for a network without values.

    Raises:
        CheckpointError: it is larger, or is no `RogueNet`, or the configuration does not fit the
            spaces.
    """
    others = [name for name in weights if not _OF_ROGUE_NET.match(name)]
    if others:
        raise CheckpointError(
            f"{where}: the weights are those of a network of your own, with {min(others)}; "
            "expected those of a RogueNet, or that network beside the save, as agent= in Python"
        )
    obs_space, action_space = spaces
    numbers = sum(t.numel() for t in weights.values())
    vf_net = config.vf_net if make is make_network else None
    layers = config.net.n_layer + (0 if vf_net is None else vf_net.n_layer)
    try:
        # Each of these has a tensor of its own at least.
        fits = layers + len(obs_space.entities) + len(action_space) <= len(weights)
        if fits:
            with torch.device("meta"):  # takes no memory, whatever the configuration says
                outline = make(config, obs_space, action_space)
            fits = sum(p.numel() for p in outline.parameters()) <= numbers
    except ValueError as error:  # such as relative positions of entities that do not exist
        raise CheckpointError(f"{where}: config.ron does not fit state.ron: {error}") from None
    except (RuntimeError, OverflowError, TypeError):  # sizes beyond 64 bits
        fits = False
    if not fits:
        raise CheckpointError(
            f"{where}: the weights do not fit the network: config.ron asks for more than the "
            f"{numbers} numbers in {len(weights)} tensors that the save has"
        )
    return make(config, obs_space, action_space)


def load_weights(where: str, network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load the weights of a network.

    Args:
        where: the save, for messages.
        network: of the same shape; it is changed.
        weights: by name.

    Raises:
        CheckpointError: they are of another network, or no numbers that it could act by.
    """
    for name, wanted in network.state_dict().items():
        got = weights.get(name, wanted)
        if got.is_floating_point() != wanted.is_floating_point() or got.is_complex():
            kind = "floating-point" if wanted.is_floating_point() else "whole"
            raise CheckpointError(f"{where}: {name}: expected {kind} numbers, got {got.dtype}")
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"{where}: the weights do not fit the network: {error}") from None

    # Weights that are not finite would lead to actions that look like a policy.
    parameters, buffers = network.named_parameters(), network.named_buffers()
    bad = [name for name, p in parameters if not (p.detach().abs() <= MAX_WEIGHT).all()]
    # A buffer may be infinite on purpose, as in a mask.
    bad += [name for name, buffer in buffers if buffer.isnan().any()]
    if bad:
        more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
        raise CheckpointError(
            f"{where}: expected weights that are at most {MAX_WEIGHT:g} and finite numbers, got "
            f"others in {', '.join(bad[:3])}{more}; take an earlier checkpoint"
        )
    for name, module in network.named_modules():
        problem = module.problem() if isinstance(module, InputNorm) else None
        if problem is not None:
            raise CheckpointError(f"{where}: {name}.{problem}; take an earlier checkpoint")


def tensors_of(where: str, data: bytes) -> dict[str, Tensor]:
    """Return the tensors in the content of a safetensors file.

    Args:
        where: the file, for messages.
        data: the content.

    Raises:
        CheckpointError: it is damaged.
    """
    try:
        check_tensor_header(data)
        return load_tensors(data)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{where} cannot be read: {error}") from None


def check_tensor_header(data: bytes) -> None:
    """Raise if the header of a safetensors file is larger than that of any network.

    Each tensor takes some hundred bytes of it, also an empty one.

    Args:
        data: the beginning of the file, at least eight bytes of it.

    Raises:
        SafetensorError: it is.
    """
    size = int.from_bytes(data[:8], "little")
    if size > MAX_HEADER_BYTES:
        raise SafetensorError(f"expected a header of at most {MAX_HEADER_BYTES} bytes, got {size}")


def load_weights_file(path: Path, network: nn.Module) -> None:
    """Load the weights of a network from a file that the user names.

    A pickle is read by torch's reader for weights, which makes tensors and runs nothing.

    Args:
        path: `.safetensors`, or a state dict as `torch.save` writes it.
        network: of the shape of the saved one; the file does not say which network it is of.

    Raises:
        CheckpointError: the file cannot be read, holds something else than weights, or the weights
            do not fit the network or are no finite numbers.
    """
    # Read tensors without running anything that is in the file.
    content: Any
    try:
        if path.suffix == ".safetensors":
            with path.open("rb") as file:
                check_tensor_header(file.read(8))
            content = load_file(path)
        else:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about the formats of old versions
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
    load_weights(str(path), network, content)
