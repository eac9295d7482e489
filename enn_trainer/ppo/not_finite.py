"""NaN and Inf checks for losses, gradients and parameters."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from enn_trainer.errors import NotFiniteError

NAMED = 4
"""Maximal number of parameters that a message names."""


def check_finite(
    agent: nn.Module, losses: Mapping[str, Tensor], where: str, rate: str = "optim.lr"
) -> None:
    """Raise if a loss or gradient norm is NaN or infinite.

    Args:
        agent: network with the gradients of these losses; read only if one is not finite.
        losses: () float each, losses and gradient norms by name.
        where: name of the minibatch or update, for the message.
        rate: setting of the learning rate, for the message.

    Raises:
        NotFiniteError: a value is NaN or infinite.
    """
    values = torch.stack(list(losses.values())).tolist()  # one transfer for all
    bad = {n: v for n, v in zip(losses, values, strict=True) if not math.isfinite(v)}
    if bad:
        grads = {n: p.grad for n, p in agent.named_parameters() if p.grad is not None}
        text = ", ".join(f"{name} is {value}" for name, value in bad.items())
        raise NotFiniteError(
            f"{where}: {text}; the gradient is not finite in {_named(grads)}. Look for rewards and "
            f"features that are very large, or lower {rate}"
        )


def check_finite_weights(
    agent: nn.Module, where: str = "after the update", rate: str = "optim.lr"
) -> None:
    """Raise if a parameter is NaN or infinite.

    Args:
        agent: network to check.
        where: point of time, for the message.
        rate: setting of the learning rate, for the message.

    Raises:
        NotFiniteError: a parameter is NaN or infinite.
    """
    parameters = {name: p.detach() for name, p in agent.named_parameters()}
    if parameters and not torch.isfinite(nn.utils.get_total_norm(parameters.values())):
        raise NotFiniteError(f"{where}: not finite are {_named(parameters)}. Lower {rate}")


def _named(tensors: Mapping[str, Tensor]) -> str:
    bad = [name for name, tensor in tensors.items() if not bool(tensor.norm().isfinite())]
    if not bad:
        return f"none of {len(tensors)} parameters alone"
    more = f" and {len(bad) - NAMED} more" if len(bad) > NAMED else ""
    return f"{len(bad)} of {len(tensors)} parameters: {', '.join(bad[:NAMED])}{more}"
