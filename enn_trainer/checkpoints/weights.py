"""Loading of network weights from checkpoints and from files of the user.

Checks that a network is no larger than its weights, and that the weights are usable.
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
from enn_trainer.checkpoints.saved_state import check_tensor_header
from enn_trainer.checkpoints.state import make_network
from enn_trainer.config import TrainConfig
from entity_env.spaces import Spaces
from rogue_net.input_norm import InputNorm

MAX_WEIGHT = 1e9
"""Largest magnitude of a weight; beyond, sums of products overflow float32."""

_ROGUE_NET_KEY = re.compile(
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
    """Create the network of a configuration, after a check that it is no larger than its weights.

    Args:
        where: the checkpoint, for messages.
        config: configuration of the run.
        spaces: spaces of the network.
        weights: tensors by name.
        make: `make_network`, or `make_policy` for a network without values.

    Raises:
        CheckpointError: the network is larger, the weights are not of a `RogueNet`, or the
            configuration does not match the spaces.
    """
    if unknown := names_of_custom(weights):
        raise CheckpointError(
            f"{where}: expected weights of a RogueNet, got weights of a custom network, with "
            f"{min(unknown)}; pass that network as agent= in Python"
        )
    obs_space, action_space = spaces
    num_weights = sum(t.numel() for t in weights.values())
    vf_net = config.vf_net if make is make_network else None
    layers = config.net.n_layer + (0 if vf_net is None else vf_net.n_layer)
    try:
        # Each layer, entity type and action has at least one tensor.
        fits = layers + len(obs_space.entities) + len(action_space) <= len(weights)
        if fits:
            with torch.device("meta"):  # allocates no memory
                outline = make(config, obs_space, action_space)
            fits = sum(p.numel() for p in outline.parameters()) <= num_weights
    except ValueError as error:  # such as relative positions of entities that do not exist
        raise CheckpointError(f"{where}: config.ron does not fit state.ron: {error}") from None
    except (RuntimeError, OverflowError, TypeError):  # sizes beyond 64 bits
        fits = False
    if not fits:
        raise CheckpointError(
            f"{where}: the weights do not fit the network: config.ron asks for more than the "
            f"{num_weights} numbers in {len(weights)} tensors that the save has"
        )
    return make(config, obs_space, action_space)


def names_of_custom(weights: Mapping[str, Tensor]) -> list[str]:
    """Return the names of tensors that are not of a `RogueNet`, but of a custom network."""
    return [name for name in weights if not _ROGUE_NET_KEY.match(name)]


def load_weights(where: str, network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Load weights into a network.

    Args:
        where: the checkpoint, for messages.
        network: a network with the same shapes, modified in place.
        weights: tensors by name.

    Raises:
        CheckpointError: names, shapes or dtypes differ, or weights are too large or not finite.
    """
    for name, expected in network.state_dict().items():
        got = weights.get(name, expected)
        if got.is_floating_point() != expected.is_floating_point() or got.is_complex():
            kind = "floating-point" if expected.is_floating_point() else "whole"
            raise CheckpointError(f"{where}: {name}: expected {kind} numbers, got {got.dtype}")
    try:
        network.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(f"{where}: the weights do not fit the network: {error}") from None

    # Weights that are not finite would silently produce a bad policy.
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
    """Parse the content of a safetensors file.

    Args:
        where: the file, for messages.
        data: content of the file.

    Raises:
        CheckpointError: the file is damaged.
    """
    try:
        check_tensor_header(data)
        return load_tensors(data)
    except (SafetensorError, KeyError, ValueError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"{where} cannot be read: {error}") from None


def load_weights_file(path: Path, network: nn.Module) -> None:
    """Load weights from a file of the user into a network.

    Pickles are read with `torch.load(weights_only=True)`, which executes no code.

    Args:
        path: `.safetensors`, or a state dict as `torch.save` writes it.
        network: a network with the shapes of the saved one, modified in place.

    Raises:
        CheckpointError: the file cannot be read or is no state dict, or the weights do not match
            the network or are not finite.
    """
    # Read tensors without executing code.
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
    except Exception as error:  # torch raises many types of errors for damaged files
        raise CheckpointError(
            f"{path}: expected a state dict with nothing but tensors, as "
            f"torch.save(network.state_dict(), ...) writes it; other pickles could execute code "
            f"and are not read ({type(error).__name__})"
        ) from None
    if not isinstance(content, dict) or not all(
        isinstance(name, str) and isinstance(value, Tensor) for name, value in content.items()
    ):
        raise CheckpointError(
            f"{path}: expected a dict of tensors by name, got {type(content).__name__}"
        )
    load_weights(str(path), network, content)
