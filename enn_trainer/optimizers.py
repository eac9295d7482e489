"""Optimizers: which parameters each one trains, and how it takes a step."""

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from enn_trainer.config import OptimizerConfig
from rogue_net.value_net import RogueNetWithValueNet


def value_network(agent: nn.Module) -> nn.Module | None:
    """The value network of an agent, if it is apart from the policy."""
    return agent.value_function if isinstance(agent, RogueNetWithValueNet) else None


def make_optimizers(agent: nn.Module, optim: OptimizerConfig) -> tuple[Optimizer, Optimizer | None]:
    """That of the policy, and that of the value network if it is apart from the policy.

    Together they train every parameter of the agent, each one once.
    """
    apart = value_network(agent)
    of_values = [] if apart is None else list(apart.parameters())
    ids = {id(parameter) for parameter in of_values}
    of_policy = [parameter for parameter in agent.parameters() if id(parameter) not in ids]
    return _optimizer(of_policy, optim), _optimizer(of_values, optim) if of_values else None


def _optimizer(parameters: list[nn.Parameter], optim: OptimizerConfig) -> Optimizer:
    return torch.optim.AdamW(parameters, lr=optim.lr, weight_decay=optim.weight_decay, eps=1e-5)


def trained_by(optimizer: Optimizer) -> list[nn.Parameter]:
    """The parameters of an optimizer, in the order in which torch numbers them."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def clipped_step(optimizer: Optimizer, max_grad_norm: float) -> Tensor:
    """Scale the gradient of an optimizer's parameters down to a norm, and take its step.

    Returns:
        () float, the norm before.
    """
    norm = nn.utils.clip_grad_norm_(trained_by(optimizer), max_grad_norm)
    optimizer.step()
    return norm
